// What the viewer shows, the same for recorded pages and for a model that runs in the page. A view has `groups`; a group
// is one kind of attention with its `rows` (the tokens that attend) and `columns` (the tokens that are attended to).

const TITLES = { encoder: "Encoder", decoder: "Decoder", cross: "Cross-attention" };
const OPEN_BOX = "\u2423";
const MEAN = -1; // in place of the number of a head: the mean of all heads

// Returns a text in the language of the page, with its parts in place of {0}, {1} and so on.
function say(text, ...parts) {
  return (data.words?.[text] ?? text).replace(/\{(\d)\}/g, (_, i) => parts[i]);
}

function dot(x, y) {
  let sum = 0;
  for (let i = 0; i < x.length; i++) sum += x[i] * y[i];
  return sum;
}

// Takes a head's part of a row of all heads.
function headOf(row, head, heads) {
  const width = row.length / heads;
  return row.subarray(head * width, (head + 1) * width);
}

// Adds the mean of the heads to a group.
function withMean(group) {
  const { heads, weights } = group;
  const mean = (layer, row) => {
    const sums = new Float64Array(group.columns.length);
    for (let head = 0; head < heads; head++) weights(layer, head, row).forEach((x, column) => (sums[column] += x / heads));
    return sums;
  };
  return { ...group, weights: (layer, head, row) => (head === MEAN ? mean(layer, row) : weights(layer, head, row)) };
}

// Returns the layer whose mean of heads is nearest to an alignment: most columns have a row that attends to them.
function alignedLayer(group) {
  const covered = Array.from({ length: group.layers }, (_, layer) => {
    const highest = new Float64Array(group.columns.length);
    for (let row = 0; row < group.rows.length; row++) {
      group.weights(layer, MEAN, row).forEach((x, column) => (highest[column] = Math.max(highest[column], x)));
    }
    return highest.reduce((a, b) => a + b);
  });
  return covered.indexOf(Math.max(...covered));
}

// Makes a view of a record that Python wrote.
function recordedView(record) {
  const groups = record.groups.map((group) => {
    const { layers, heads } = group;
    const named = (label) => record.image ? label.replace(/^(class token|patch)/, (name) => say(name)) : label;
    const rows = group.rows.map(named), columns = group.columns.map(named);
    const weights = float32Of(new Uint16Array(bytesOf(group.weights).buffer));
    const vectors = group.vectors?.map((part) => float32Of(new Uint16Array(bytesOf(part).buffer)));
    const vector = (part, layer, head, count, i) => {
      const width = vectors[part].length / (layers * count), start = (layer * count + i) * width;
      return headOf(vectors[part].subarray(start, start + width), head, heads);
    };
    return withMean({
      name: group.name, rows, columns, layers, heads,
      causal: group.name === "decoder",
      weights(layer, head, row) {
        const start = ((layer * heads + head) * rows.length + row) * columns.length;
        return weights.subarray(start, start + columns.length);
      },
      query: vectors && ((layer, head, row) => vector(0, layer, head, rows.length, row)),
      key: vectors && ((layer, head, column) => vector(1, layer, head, columns.length, column)),
      value: vectors && ((layer, head, column) => vector(2, layer, head, columns.length, column)),
    });
  });
  const hypotheses = record.beam?.map((node) => ({ ...node }));
  hypotheses?.forEach((node) => (node.parent = hypotheses[node.parent] ?? null));
  return { groups, hypotheses, answer: record.translation ?? record.answer, score: record.score, image: record.image };
}

// Makes a view of one hypothesis of a search that ran in the page.
function liveView(found, hypothesis, page) {
  const { source, all } = found, { config } = page.live;
  const path = pathOf(hypothesis), read = path.slice(0, -1), { num_heads: heads } = config;
  const labels = (tokenizer, ids) => ids.map((id) => tokenizer.text(id).replaceAll(BLANK, OPEN_BOX));
  const columns = labels(page.source, found.ids);
  const past = labels(page.target, read.map((each) => each.token));
  const rows = labels(page.target, path.slice(1).map((each) => each.token));
  const zeros = (weights) => {
    const row = new Float64Array(past.length);
    row.set(weights);
    return row;
  };
  const groups = [
    {
      name: "encoder", rows: columns, columns, heads, layers: config.num_layers,
      weights: (layer, head, row) => source.attention[layer].weights[row][head],
      query: (layer, head, row) => headOf(source.attention[layer].q[row], head, heads),
      key: (layer, head, column) => headOf(source.attention[layer].k[column], head, heads),
      value: (layer, head, column) => headOf(source.attention[layer].v[column], head, heads),
    },
    {
      name: "decoder", rows, columns: past, heads, layers: config.num_decoder_layers, causal: true,
      weights: (layer, head, row) => zeros(read[row].layers[layer].weights[head]),
      query: (layer, head, row) => headOf(read[row].layers[layer].q, head, heads),
      key: (layer, head, column) => headOf(read[column].layers[layer].k, head, heads),
      value: (layer, head, column) => headOf(read[column].layers[layer].v, head, heads),
    },
    {
      name: "cross", rows, columns, heads, layers: config.num_decoder_layers,
      weights: (layer, head, row) => read[row].layers[layer].crossWeights[head],
      query: (layer, head, row) => headOf(read[row].layers[layer].crossQ, head, heads),
      key: (layer, head, column) => headOf(source.memory[layer].keys[column], head, heads),
      value: (layer, head, column) => headOf(source.memory[layer].values[column], head, heads),
    },
  ];
  for (const each of all) each.label ??= labels(page.target, [each.token])[0];
  const ids = path.slice(1).map((each) => each.token).filter((id) => id !== config.eos_id);
  return { groups: groups.map(withMean), hypotheses: all, shown: hypothesis, answer: page.target.decode(ids), score: hypothesis.sum };
}

// The model of a page, which translates what a reader types.
class LivePage {
  constructor(live, weights) {
    this.live = live;
    this.model = new LiveTransformer(live.config, readTensors(live.tensors, weights));
    this.source = new SentencePiece(live.source_tokenizer);
    this.target = live.target_tokenizer ? new SentencePiece(live.target_tokenizer) : this.source;
  }

  // Translates a text, and yields often. Returns null for a text without tokens.
  *translate(text, width) {
    const { max_source_length: limit, eos_id: eos } = this.live.config;
    const pieces = this.source.encode(text), ids = [...pieces.slice(0, limit - 1), eos];
    if (pieces.length === 0) return null;
    const found = yield* this.model.search(ids, width);
    return { ...found, ids, truncated: pieces.length >= limit };
  }
}
