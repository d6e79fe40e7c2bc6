// Draws attention: lines between tokens, a map of one head, thumbnails, vectors, pictures and the tree of a search.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const headColour = (head) => colour(head === MEAN ? "ink" : `head-${head % 8}`);
const isDashed = (head) => head >= 8;
const headName = (head) => (head === MEAN ? say("mean of heads") : say("head {0}", head + 1));
const number = (x, digits = 3) => x.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "\u2212");
// Letters of scripts that are written in squares, such as Hangul and hanja.
const WIDE = /[\u1100-\u115f\u2e80-\ud7ff\uf900-\uffe6]/;
const shortened = (text, length = 14) => [...text].length > length ? [...text].slice(0, length - 1).join("") + "…" : text;

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

// Gives a canvas a size in CSS pixels. Returns its context, cleared, in these pixels.
function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "12px system-ui, sans-serif";
  return context;
}

// Returns the highest weight of a head.
function highestOf(group, layer, head) {
  const known = (group.highest ??= new Map()), name = `${layer}/${head}`;
  if (!known.has(name)) {
    let highest = 0;
    for (let row = 0; row < group.rows.length; row++) {
      for (const weight of group.weights(layer, head, row)) highest = Math.max(highest, weight);
    }
    known.set(name, highest);
  }
  return known.get(name);
}

// Returns a function from a weight to its colour as [red, green, blue]. The head's highest weight has the strongest.
function shades(group, layer, head) {
  const highest = highestOf(group, layer, head) || 1;
  const channels = (name) => [1, 3, 5].map((i) => parseInt(colour(name).slice(i, i + 2), 16));
  const low = channels("low"), high = channels("high");
  return (weight) => low.map((from, i) => Math.round(from + (high[i] - from) * (weight / highest)));
}

// Draws the lines from tokens that attend to tokens that are attended to, one for each head, as far as they are seen.
// from, to: the middles of the tokens; rows: the rows to draw; chosen: the row that is drawn strongly.
function drawThreads(canvas, box, group, layer, heads, from, to, rows, chosen) {
  const width = box.clientWidth, height = 170, left = box.scrollLeft, context = sized(canvas, width, height);
  const draw = (row, head, least, strength) => {
    const weights = group.weights(layer, head, row), x = from[row] - left;
    context.strokeStyle = headColour(head);
    context.setLineDash(isDashed(head) ? [5, 3] : []);
    for (let column = 0; column < weights.length; column++) {
      const weight = weights[column], end = to[column] - left;
      if (weight < least || (x < -8 && end < -8) || (x > width + 8 && end > width + 8)) continue;
      context.globalAlpha = Math.min(1, strength * (0.15 + 0.85 * weight));
      context.lineWidth = strength * (0.6 + 4.4 * weight);
      const shift = head === MEAN ? 0 : (head - (group.heads - 1) / 2) * Math.min(4, 24 / group.heads);
      context.beginPath();
      context.moveTo(x + shift, 2);
      context.bezierCurveTo(x + shift, height * 0.45, end + shift, height * 0.55, end + shift, height - 2);
      context.stroke();
    }
  };
  for (const row of rows) if (row !== chosen) for (const head of heads) draw(row, head, 0.1, 0.35);
  for (const head of heads) draw(chosen, head, 0.01, 1);
}

// Draws a head in a small canvas, a pixel for each weight; of more than 96 rows or columns, some.
function drawThumbnail(canvas, group, layer, head) {
  const { rows, columns } = group, shade = shades(group, layer, head);
  const step = Math.ceil(Math.max(rows.length, columns.length) / 96);
  canvas.width = Math.ceil(columns.length / step);
  canvas.height = Math.ceil(rows.length / step);
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  for (let y = 0; y < canvas.height; y++) {
    const weights = group.weights(layer, head, y * step);
    for (let x = 0; x < canvas.width; x++) {
      image.data.set([...shade(weights[x * step]), 255], 4 * (y * canvas.width + x));
    }
  }
  context.putImageData(image, 0, 0);
}

const MAP_HEIGHT = 460;
const LETTER_HEIGHT = 13; // of Hangul, which stands upright above its column
const uprightLetters = (label) => (WIDE.test(label) ? [...shortened(label, 8)] : null);

// The map of one head: a cell for each weight, and the labels of rows and columns at its edges.
class HeadMap {
  constructor(box) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.room = box.querySelector(".room");
  }

  // Measures the map. Its size in pixels is that of all cells; the canvas shows the part that is scrolled to.
  measure(group) {
    const context = this.canvas.getContext("2d");
    context.font = "12px system-ui, sans-serif";
    const widest = (labels) => Math.max(...labels.map((label) => context.measureText(shortened(label)).width)) + 10;
    this.left = Math.min(120, widest(group.rows));
    const tallest = Math.max(...group.columns.map((label) => LETTER_HEIGHT * (uprightLetters(label)?.length ?? 0))) + 8;
    this.top = Math.max(tallest, Math.min(110, widest(group.columns.filter((label) => !WIDE.test(label)))));
    const space = this.box.clientWidth - this.left;
    const high = Math.max(14, Math.floor((MAP_HEIGHT - this.top) / group.rows.length));
    this.cell = Math.max(10, Math.min(32, high, Math.floor(space / group.columns.length)));
    this.width = this.left + this.cell * group.columns.length;
    this.height = this.top + this.cell * group.rows.length;
    this.room.style.width = `${this.width}px`;
    this.room.style.height = `${this.height}px`;
  }

  draw(group, layer, head, row, column) {
    const width = Math.min(this.width, this.box.clientWidth), height = Math.min(this.height, MAP_HEIGHT);
    const context = sized(this.canvas, width, height), shade = shades(group, layer, head), { cell, left, top } = this;
    const x0 = left - this.box.scrollLeft, y0 = top - this.box.scrollTop;
    const seen = (start, first, end, count) => [
      Math.max(0, Math.floor((first - start) / cell)), Math.min(count, Math.ceil((end - start) / cell)),
    ];
    const [firstColumn, endColumn] = seen(x0, left, width, group.columns.length);
    const [firstRow, endRow] = seen(y0, top, height, group.rows.length);
    context.save();
    context.beginPath();
    context.rect(left, top, width, height);
    context.clip();
    for (let i = firstRow; i < endRow; i++) {
      const weights = group.weights(layer, head, i);
      for (let j = firstColumn; j < endColumn; j++) {
        if (group.causal && j > i) continue;
        context.fillStyle = `rgb(${shade(weights[j])})`;
        context.fillRect(x0 + j * cell, y0 + i * cell, cell - 1, cell - 1);
      }
    }
    context.strokeStyle = colour("minus");
    context.lineWidth = 2.5;
    context.strokeRect(x0 + column * cell, y0 + row * cell, cell - 1, cell - 1);
    context.restore();
    context.textBaseline = "middle";
    const label = (text, chosen) => {
      context.fillStyle = colour(chosen ? "ink" : "quiet");
      context.fillText(shortened(text), 0, 0);
    };
    // Where cells are small, some labels are left out; never the chosen one.
    const step = Math.ceil(14 / cell), skips = (i, chosen) => i !== chosen && (i % step || Math.abs(i - chosen) < step);
    for (let i = firstRow; i < endRow; i++) {
      if (y0 + (i + 0.5) * cell < top || skips(i, row)) continue;
      context.save();
      context.textAlign = "right";
      context.translate(left - 5, y0 + (i + 0.5) * cell);
      label(group.rows[i], i === row);
      context.restore();
    }
    for (let j = firstColumn; j < endColumn; j++) {
      if (x0 + (j + 0.5) * cell < left || skips(j, column)) continue;
      context.save();
      context.translate(x0 + (j + 0.5) * cell, top - 5);
      const letters = uprightLetters(group.columns[j]);
      if (letters) {
        context.textAlign = "center";
        context.translate(0, -LETTER_HEIGHT * (letters.length - 0.5));
        for (const letter of letters) {
          label(letter, j === column);
          context.translate(0, LETTER_HEIGHT);
        }
      } else {
        context.rotate(-Math.PI / 2);
        label(group.columns[j], j === column);
      }
      context.restore();
    }
  }

  // Returns the [row, column] under a pointer, or null.
  at(event, group) {
    const frame = this.canvas.getBoundingClientRect();
    const x = event.clientX - frame.left - this.left, y = event.clientY - frame.top - this.top;
    if (x < 0 || y < 0) return null;
    const row = Math.floor((y + this.box.scrollTop) / this.cell), column = Math.floor((x + this.box.scrollLeft) / this.cell);
    const inside = row < group.rows.length && column < group.columns.length && !(group.causal && column > row);
    return inside ? [row, column] : null;
  }

  reveal(row, column) {
    const edge = 3 * this.cell; // what stands around the cell is seen, too
    const into = (scroll, place, size) => Math.max(place + this.cell + edge - size, Math.min(scroll, place - edge));
    this.box.scrollLeft = into(this.box.scrollLeft, column * this.cell, this.box.clientWidth - this.left);
    this.box.scrollTop = into(this.box.scrollTop, row * this.cell, this.canvas.clientHeight - this.top);
  }
}

const SCALE = 38; // pixels for the numbers at the left of bars

// Draws the numbers of a vector as bars around zero, with the highest and the lowest. `chosen` is the bar that is marked.
function drawBars(canvas, values, chosen = -1) {
  const width = canvas.clientWidth || 270, height = canvas.clientHeight || 62;
  const context = sized(canvas, width, height);
  canvas.style.width = canvas.style.height = "";
  const low = Math.min(0, ...values), high = Math.max(0, ...values), scale = (height - 4) / (high - low || 1);
  const zero = 2 + high * scale, step = (width - SCALE) / values.length;
  values.forEach((value, i) => {
    context.fillStyle = i === chosen ? colour("ink") : colour(value < 0 ? "minus" : "plus");
    const size = Math.max(0.5, Math.abs(value) * scale);
    context.fillRect(SCALE + i * step, value < 0 ? zero : zero - size, Math.max(1, step - (step > 3 ? 1 : 0)), size);
  });
  context.fillStyle = colour("quiet");
  context.fillRect(SCALE, zero, width - SCALE, 0.75);
  context.font = "10px system-ui, sans-serif";
  context.textAlign = "right";
  context.textBaseline = "middle";
  if (high > 0) context.fillText(number(high, 2), SCALE - 4, 7);
  if (low < 0) context.fillText(number(low, 2), SCALE - 4, height - 6);
}

// Draws a picture, dark where a patch has little weight. row: the patch that attends, or -1 for the class token.
function drawPicture(canvas, image, weights, row) {
  const { height, width, rgb } = image.pixels;
  if (!image.canvas) {
    image.canvas = element("canvas", { width, height });
    const bytes = bytesOf(rgb), pixels = image.canvas.getContext("2d").createImageData(width, height);
    for (let i = 0; i < width * height; i++) pixels.data.set([bytes[3 * i], bytes[3 * i + 1], bytes[3 * i + 2], 255], 4 * i);
    image.canvas.getContext("2d").putImageData(pixels, 0, 0);
  }
  const side = 224, down = Math.round((side * height) / width), context = canvas.getContext("2d");
  canvas.width = side;
  canvas.height = down;
  context.imageSmoothingEnabled = width > side;
  context.drawImage(image.canvas, 0, 0, side, down);
  const highest = Math.max(...weights), w = side / image.columns, h = down / image.rows;
  const place = (i) => [(i % image.columns) * w, Math.floor(i / image.columns) * h];
  weights.forEach((weight, i) => {
    context.fillStyle = `rgba(0, 0, 0, ${(0.82 * (1 - weight / highest)).toFixed(3)})`;
    context.fillRect(...place(i), w, h);
  });
  if (row >= 0) {
    context.strokeStyle = colour("minus");
    context.lineWidth = 3;
    context.strokeRect(...place(row), w, h);
  }
}

// Places the hypotheses of a search: the best branch along the top, the others below it, without crossing lines.
function layOut(hypotheses) {
  for (const each of hypotheses) Object.assign(each, { children: [], best: each.rank ?? -Infinity, depth: 0 });
  for (const each of hypotheses) {
    if (!each.parent) continue;
    each.depth = each.parent.depth + 1;
    each.parent.children.push(each);
  }
  for (const each of [...hypotheses].sort((a, b) => b.depth - a.depth)) {
    if (each.parent) each.parent.best = Math.max(each.parent.best, each.best);
  }
  const free = [], pending = [[hypotheses[0], -1]];
  while (pending.length) {
    const [first, parentDepth] = pending.shift(), chain = [first];
    while (chain.at(-1).children.length) {
      chain.at(-1).children.sort((a, b) => b.best - a.best || b.sum - a.sum);
      chain.push(chain.at(-1).children[0]);
    }
    const last = chain.at(-1).depth;
    let level = 0;
    for (let i = Math.max(0, parentDepth); i <= last; i++) level = Math.max(level, free[i] ?? 0);
    for (let i = Math.max(0, parentDepth); i <= last; i++) free[i] = level + 1;
    for (const each of chain) each.level = level;
    pending.unshift(...chain.reverse().flatMap((each) => each.children.slice(1).map((child) => [child, each.depth])));
  }
}

// Draws the tree of a search. shown: the hypothesis whose attention the page shows; choose: called with another one.
function drawTree(box, hypotheses, shown, choose) {
  const svg = (tag, attributes, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.textContent = text;
    return made;
  };
  layOut(hypotheses);
  const ranked = hypotheses.filter((each) => each.rank != null).sort((a, b) => b.rank - a.rank);
  const ancestors = (each) => new Set(each ? pathOf(each) : []);
  const best = ancestors(ranked[0]), path = ancestors(shown);
  const wide = (text) => 18 + [...text].reduce((sum, c) => sum + (WIDE.test(c) ? 13 : 8), 0);
  const widths = [];
  for (const each of hypotheses) widths[each.depth] = Math.max(widths[each.depth] ?? 78, wide(shortened(each.label)));
  const lefts = widths.reduce((sums, width) => [...sums, sums.at(-1) + width + 26], [4]);
  const levels = Math.max(...hypotheses.map((each) => each.level)) + 1, high = 50;
  const root = svg("svg", { width: lefts.at(-1) + 76, height: levels * high + 8, role: "group", "aria-label": say("Tree of the search") });
  for (const each of hypotheses) {
    const left = lefts[each.depth], width = widths[each.depth], middle = each.level * high + 26;
    const share = each.parent ? Math.exp(each.sum - each.parent.sum) : 1;
    const kind = [best.has(each) ? "best" : each.best > -Infinity ? "good" : "", path.has(each) ? "shown" : ""].join(" ");
    const said = say("{0}, step {1}, probability {2}, score {3}", each.label, each.depth, number(share, 2), number(each.sum, 2));
    const group = svg("g", { class: kind });
    if (each.parent) {
      const start = lefts[each.depth] - 26, from = each.parent.level * high + 26;
      group.append(svg("path", { d: `M${start} ${from}C${start + 13} ${from} ${left - 13} ${middle} ${left} ${middle}` }));
    }
    group.append(svg("rect", { x: left, y: middle - 19, width, height: 38, rx: 7 }));
    group.append(svg("text", { x: left + width / 2, y: middle - 2 }, shortened(each.label)));
    const small = each.parent ? `${share < 0.005 ? "<0.01" : number(share, 2)} · ${number(each.sum, 1)}` : "";
    group.append(svg("text", { x: left + width / 2, y: middle + 13, class: "small" }, small));
    group.append(svg("title", {}, said));
    if (each.rank != null) {
      const text = `${ranked.indexOf(each) + 1}.  ${number(each.rank, 2)}`;
      group.append(svg("text", { x: left + width + 7, y: middle + 4, class: "rank" }, text));
      if (choose) {
        group.setAttribute("role", "button");
        group.setAttribute("tabindex", 0);
        const name = say("Show result {0}: {1}, normalised score {2}", ranked.indexOf(each) + 1, said, number(each.rank, 2));
        group.setAttribute("aria-label", name);
        group.addEventListener("click", () => choose(each));
        group.addEventListener("keydown", (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          choose(each);
        });
      }
    }
    root.append(group);
  }
  box.replaceChildren(root);
}
