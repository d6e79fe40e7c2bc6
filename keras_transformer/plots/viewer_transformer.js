// The forward pass of the Transformer ("Attention Is All You Need", Vaswani et al., 2017), and its search.

// Turns 16-bit floats into 32-bit floats.
function float32Of(halves) {
  const table = float32Of.table ??= Float32Array.from({ length: 65536 }, (_, bits) => {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 0) return sign * fraction * 2 ** -24;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  });
  const values = new Float32Array(halves.length);
  for (let i = 0; i < halves.length; i++) values[i] = table[halves[i]];
  return values;
}

// Reads the tensors of a page. An int8 matrix has a scale for each of its output channels, along the axis `channels`.
function readTensors(entries, bytes) {
  const tensors = {};
  for (const { name, dtype, shape, start, scales, channels } of entries) {
    const size = shape.reduce((a, b) => a * b, 1);
    const part = (width, length = size, from = start) => bytes.slice(from, from + width * length).buffer;
    let values;
    if (dtype === "float32") values = new Float32Array(part(4));
    else if (dtype === "float16") values = float32Of(new Uint16Array(part(2)));
    else {
      const scale = new Float32Array(part(4, shape[channels], scales)), columns = shape[1];
      values = new Float32Array(new Int8Array(part(1)));
      for (let i = 0; i < size; i++) values[i] *= scale[channels ? i % columns : Math.floor(i / columns)];
    }
    tensors[name] = { values, shape };
  }
  return tensors;
}

// The error function, whose series and continued fraction are exact to 1e-12.
function erf(x) {
  const a = Math.abs(x);
  if (a > 6) return Math.sign(x);
  if (a < 2.5) {
    let term = a, sum = a;
    for (let n = 1; Math.abs(term) > 1e-16 * sum; n++) {
      term *= (-a * a) / n;
      sum += term / (2 * n + 1);
      if (term === 0) break;
    }
    return (Math.sign(x) * 2 * sum) / Math.sqrt(Math.PI);
  }
  let fraction = 0;
  for (let n = 60; n > 0; n--) fraction = n / 2 / (a + fraction);
  return Math.sign(x) * (1 - Math.exp(-a * a) / (Math.sqrt(Math.PI) * (a + fraction)));
}

const ACTIVATIONS = {
  linear: (x) => x,
  relu: (x) => Math.max(0, x),
  gelu: (x) => (x * (1 + erf(x / Math.SQRT2))) / 2,
  gelu_tanh: (x) => (x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)))) / 2,
  silu: (x) => x / (1 + Math.exp(-x)),
};

// Changes a row to its softmax.
function softmax(row) {
  let highest = -Infinity, sum = 0;
  for (const x of row) highest = Math.max(highest, x);
  for (let i = 0; i < row.length; i++) sum += row[i] = Math.exp(row[i] - highest);
  for (let i = 0; i < row.length; i++) row[i] /= sum;
  return row;
}

// Adds rows element by element.
const added = (x, y) => x.map((value, i) => value + y[i]);

class LiveTransformer {
  // config: the sizes and variants that the page's model has; tensors: the result of `readTensors`.
  constructor(config, tensors) {
    this.config = config;
    this.tensors = tensors;
    tensors["source_embedding/embeddings"] ??= tensors["target_embedding/embeddings"]; // one for both
  }

  // Multiplies a row by a matrix and adds the bias.
  dense(name, x) {
    const { values, shape: [inputs, outputs] } = this.tensors[`${name}/kernel`];
    const bias = this.tensors[`${name}/bias`];
    const y = bias ? Float64Array.from(bias.values) : new Float64Array(outputs);
    for (let i = 0, start = 0; i < inputs; i++, start += outputs) {
      const factor = x[i];
      if (factor === 0) continue;
      for (let j = 0; j < outputs; j++) y[j] += factor * values[start + j];
    }
    return y;
  }

  norm(name, x) {
    const { kind, epsilon } = this.config.norms[name];
    const gamma = this.tensors[`${name}/gamma`].values, beta = this.tensors[`${name}/beta`]?.values;
    let mean = 0, squares = 0;
    if (kind === "layer") {
      for (const value of x) mean += value;
      mean /= x.length;
    }
    for (const value of x) squares += (value - mean) ** 2;
    const factor = 1 / Math.sqrt(squares / x.length + epsilon);
    return x.map((value, i) => (value - mean) * factor * gamma[i] + (beta ? beta[i] : 0));
  }

  // Applies a sublayer inside its residual connection.
  residual(name, x, sublayer) {
    return this.joined(name, x, sublayer(this.config.normalize_first ? this.norm(`${name}_residual/norm`, x) : x));
  }

  // Joins a sublayer's output `y` to its input.
  joined(name, x, y) {
    return this.config.normalize_first ? added(x, y) : this.norm(`${name}_residual/norm`, added(x, y));
  }

  feedForward(name, x) {
    const inner = this.dense(`${name}/feed_forward/inner`, x).map(ACTIVATIONS[this.config.activation]);
    return this.dense(`${name}/feed_forward/outer`, inner);
  }

  // Attends with one query to keys and values, lists of rows. Returns the output and the weights of each head.
  attend(name, query, keys, values) {
    const heads = this.config.num_heads, width = query.length / heads, scale = 1 / Math.sqrt(width);
    const depth = values[0].length / heads, context = new Float64Array(values[0].length);
    const weights = Array.from({ length: heads }, (_, head) => {
      const first = head * width, row = new Float64Array(keys.length);
      keys.forEach((key, j) => {
        let product = 0;
        for (let i = first; i < first + width; i++) product += query[i] * key[i];
        row[j] = product * scale;
      });
      softmax(row);
      values.forEach((value, j) => {
        for (let i = head * depth; i < (head + 1) * depth; i++) context[i] += row[j] * value[i];
      });
      return row;
    });
    return { output: this.dense(`${name}/attention_output`, context), weights };
  }

  // Embeds an id at a position.
  embed(side, id, position) {
    const { values, shape: [, width] } = this.tensors[`${side}_embedding/embeddings`];
    const { positions } = this.config, learned = this.tensors["positions/embeddings"]?.values;
    const half = Math.ceil(width / 2);
    return Float64Array.from({ length: width }, (_, i) => {
      const x = values[id * width + i] * this.config.scales[side];
      if (learned) return x + learned[Math.min(position, positions.max_length - 1) * width + i];
      const channel = positions.interleaved ? i : i < half ? 2 * i : 2 * (i - half) + 1;
      const angle = position * Math.exp((channel - (channel % 2)) * (-Math.log(positions.max_wavelength) / width));
      return x + (channel % 2 ? Math.cos(angle) : Math.sin(angle));
    });
  }

  // Encodes a source. Yields after each layer, so that the page stays responsive. Returns the layers' attention (rows
  // of `q`, `k`, `v` and of the weights by head) and the keys and values of each decoder layer's cross-attention.
  *encode(ids) {
    let states = ids.map((id, position) => this.embed("source", id, position));
    const attention = [], { normalize_first: first } = this.config;
    for (let i = 0; i < this.config.num_layers; i++) {
      const name = `encoder/${i}`, self = `${name}/self_attention`;
      const inputs = first ? states.map((x) => this.norm(`${self}_residual/norm`, x)) : states;
      const [q, k, v] = ["query", "key", "value"].map((part) => inputs.map((x) => this.dense(`${self}/${part}`, x)));
      const weights = [], outputs = [];
      for (let t = 0; t < states.length; t++) {
        const attended = this.attend(self, q[t], k, v);
        weights.push(attended.weights);
        const x = this.joined(self, states[t], attended.output);
        outputs.push(this.residual(`${name}/feed_forward`, x, (h) => this.feedForward(name, h)));
        if (t % 16 === 15) yield;
      }
      attention.push({ q, k, v, weights });
      states = outputs;
      yield;
    }
    if (first) states = states.map((x) => this.norm("encoder/norm", x));
    const memory = [];
    for (let i = 0; i < this.config.num_decoder_layers; i++) {
      const cross = `decoder/${i}/cross_attention`;
      memory.push({
        keys: states.map((x) => this.dense(`${cross}/key`, x)),
        values: states.map((x) => this.dense(`${cross}/value`, x)),
      });
      yield;
    }
    return { attention, memory, states };
  }

  // Reads the token of a hypothesis, and stores in it its keys, values and attention, and the log probabilities of
  // what follows. A hypothesis has a `token` and a `parent`, so that hypotheses share what they have in common.
  read(hypothesis, memory) {
    const path = pathOf(hypothesis), { normalize_first: first } = this.config;
    hypothesis.layers = [];
    let x = this.embed("target", hypothesis.token, path.length - 1);
    memory.forEach(({ keys, values }, i) => {
      const name = `decoder/${i}`, self = `${name}/self_attention`, cross = `${name}/cross_attention`;
      const layer = {};
      hypothesis.layers.push(layer);
      const input = first ? this.norm(`${self}_residual/norm`, x) : x;
      [layer.q, layer.k, layer.v] = ["query", "key", "value"].map((part) => this.dense(`${self}/${part}`, input));
      const past = path.map((each) => each.layers[i]);
      const own = this.attend(self, layer.q, past.map((each) => each.k), past.map((each) => each.v));
      layer.weights = own.weights;
      x = this.joined(self, x, own.output);
      x = this.residual(cross, x, (h) => {
        layer.crossQ = this.dense(`${cross}/query`, h);
        const attended = this.attend(cross, layer.crossQ, keys, values);
        layer.crossWeights = attended.weights;
        return attended.output;
      });
      x = this.residual(`${name}/feed_forward`, x, (h) => this.feedForward(name, h));
    });
    if (first) x = this.norm("decoder/norm", x);
    hypothesis.logits = this.logits(x);
    let highest = -Infinity, sum = 0;
    for (const logit of hypothesis.logits) highest = Math.max(highest, logit);
    for (const logit of hypothesis.logits) sum += Math.exp(logit - highest);
    hypothesis.normalizer = highest + Math.log(sum);
  }

  logits(x) {
    const { values, shape: [size, width] } = this.tensors["target_embedding/embeddings"];
    const bias = this.tensors["target_embedding/bias"]?.values, logits = new Float64Array(size);
    for (let id = 0, start = 0; id < size; id++, start += width) {
      let sum = bias ? bias[id] : 0;
      for (let i = 0; i < width; i++) sum += x[i] * values[start + i];
      logits[id] = sum;
    }
    return logits;
  }

  // Divides the score of a finished hypothesis of this length (Wu et al., 2016, equation 14).
  divisor(length) {
    const { normalization, length_penalty: penalty } = this.config.search;
    return (normalization === "wu" ? (5 + length) / 6 : Math.max(1, length)) ** penalty;
  }

  // Searches the translation of a source: greedily with a width of 1, else with a beam. Yields like `encode`.
  // Returns every hypothesis of the search and the finished ones, best first.
  *search(ids, width) {
    const { bos_id: bos, eos_id: eos, max_length: longest, max_positions: room } = this.config;
    const limit = Math.min(longest ?? 2 * ids.length + 16, room ?? Infinity);
    const source = yield* this.encode(ids);
    const root = { token: bos, parent: null, sum: 0, length: 0 };
    const all = [root];
    let open = [root], finished = [];
    while (open.length) {
      const candidates = [];
      for (const parent of open) {
        this.read(parent, source.memory);
        for (const token of largest(parent.logits, width === 1 ? 1 : 2 * width)) {
          const sum = parent.sum + parent.logits[token] - parent.normalizer;
          candidates.push({ token, parent, sum, length: parent.length + 1 });
        }
        parent.logits = null; // as long as the vocabulary, and no longer needed
        yield;
      }
      candidates.sort((a, b) => b.sum - a.sum);
      candidates.length = Math.min(candidates.length, width === 1 ? 1 : 2 * width);
      const ended = (each) => each.token === eos || each.length >= limit;
      const best = candidates.slice(0, width).filter(ended);
      for (const each of best) each.rank = each.sum / this.divisor(each.length);
      finished = [...finished, ...best].sort((a, b) => b.rank - a.rank).slice(0, width);
      const going = candidates.filter((each) => !ended(each)).slice(0, width);
      all.push(...best, ...going);
      // Sums only fall and the divisor only grows: no open hypothesis will rank above this.
      const reachable = going.length ? going[0].sum / this.divisor(limit) : -Infinity;
      open = width === 1 && best.length ? [] : going;
      if (finished.length === width && reachable <= finished.at(-1).rank) open = [];
    }
    return { source, all, finished };
  }
}

// Returns a hypothesis and what it continues, the first token first.
function pathOf(hypothesis) {
  const path = [];
  for (let each = hypothesis; each; each = each.parent) path.push(each);
  return path.reverse();
}

// Returns the indices of the `count` largest values, largest first, and the first of equals.
function largest(values, count) {
  const found = [];
  for (let i = 0; i < values.length; i++) {
    if (found.length === count && values[i] <= values[found.at(-1)]) continue;
    let place = found.length;
    while (place > 0 && values[found[place - 1]] < values[i]) place--;
    found.splice(place, 0, i);
    if (found.length > count) found.pop();
  }
  return found;
}
