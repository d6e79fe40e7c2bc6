// The viewer: its state, its controls and what they show.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const quoted = (text) => `\u201c${shortened(text, 24)}\u201d`;
const number = (x, digits = 3) => x.toFixed(digits).replace("-", "\u2212");

class Viewer {
  constructor() {
    this.page = data.live ? new LivePage(data.live, bytesOf(byId("weights").textContent.trim())) : null;
    this.state = { group: 0, layer: 0, head: 0, row: 0, column: 0, heads: new Set() };
    this.map = new HeadMap(byId("map"));
    this.job = 0; // counts translations, so that an older one ends when a newer one begins
    this.busy = false;
    this.describe();
    this.listen();
    if (this.page) this.ask();
    else if (data.records.length) this.show(recordedView(data.records[0]));
  }

  describe() {
    const { live } = data;
    if (live) {
      const { config } = live;
      byId("about").textContent =
        `${config.num_layers} encoder and ${config.num_decoder_layers} decoder layers, ${config.num_heads} heads, ` +
        `d_model ${config.d_model}, ${config.parameters.toLocaleString("en")} weights, stored as ${live.precision}. ` +
        "The model runs in this page: nothing that you type leaves it.";
      byId("text").hidden = byId("go").hidden = byId("width-label").hidden = false;
      byId("text").value = data.texts[0];
      byId("texts").replaceChildren(...data.texts.map((value) => element("option", { value })));
      const widths = [...new Set([1, 2, 3, 4, 5, config.search.width])].sort((a, b) => a - b);
      byId("width").append(...widths.map((n) => element("option", { value: n }, n === 1 ? "1 (greedy)" : String(n))));
      byId("width").value = config.search.width;
    } else {
      byId("record").hidden = false;
      byId("record").append(...data.records.map(({ text }, i) => element("option", { value: i }, text)));
      byId("text-label").textContent = data.records[0]?.image ? "Image" : "Text";
      byId("about").textContent = "Recorded: the page shows the inputs that it was made for." +
        (data.reason ? ` The model cannot run in a page, because ${data.reason}.` : "");
    }
  }

  listen() {
    const on = (id, event, act) => byId(id).addEventListener(event, act);
    const redraw = () => this.later();
    on("ask", "submit", (event) => {
      event.preventDefault();
      if (this.page) this.ask();
    });
    on("width", "change", () => this.ask());
    on("record", "change", (event) => this.show(recordedView(data.records[event.target.value])));
    on("layer", "change", (event) => this.change({ layer: Number(event.target.value) }));
    on("step", "input", (event) => this.change({ row: Number(event.target.value) }));
    on("back", "click", () => this.change({ row: this.state.row - 1 }));
    on("forward", "click", () => this.change({ row: this.state.row + 1 }));
    for (const id of ["every", "numbers", "table"]) on(id, id === "every" ? "change" : "toggle", redraw);
    for (const id of ["lines", "map"]) on(id, "scroll", redraw);
    on("map", "click", (event) => {
      const cell = this.map.at(event, this.group);
      if (cell) this.change({ row: cell[0], column: cell[1] });
    });
    on("map", "pointermove", (event) => {
      const cell = this.map.at(event, this.group);
      byId("hover").textContent = cell ? this.sentence(...cell) : "";
    });
    on("map", "keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      this.change({ row: this.state.row + step[0], column: this.state.column + step[1] }, true);
    });
    window.addEventListener("resize", () => this.later({ layOut: true }));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.later({ layOut: true }));
  }

  // Draws once before the browser's next picture, after `layOut` if one of the calls until then asks for it.
  later({ layOut = false, reveal = false } = {}) {
    this.pending = { layOut: layOut || this.pending?.layOut, reveal: reveal || this.pending?.reveal };
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => {
      const { layOut, reveal } = this.pending;
      this.pending = null;
      if (!this.view) return;
      if (layOut) this.layOut();
      else this.draw(reveal);
    });
  }

  // Translates the text of the input, and says so where that fails.
  ask() {
    this.translate().catch((error) => {
      this.busy = false;
      byId("notice").textContent = `The page could not translate this text: ${error.message}`;
      throw error;
    });
  }

  // Translates the text of the input, in slices of time, so that the page stays responsive.
  async translate() {
    const job = ++this.job, text = byId("text").value;
    this.busy = true;
    byId("notice").textContent = "Translating …";
    const steps = this.page.translate(text, Number(byId("width").value));
    for (let step = { done: false }; ;) {
      const end = performance.now() + 20;
      while (!step.done && performance.now() < end) step = steps.next();
      if (step.done) {
        this.busy = false;
        byId("notice").textContent = step.value?.truncated
          ? `The text is longer than ${data.live.config.max_source_length} tokens; the rest of it is not read.` : "";
        if (step.value) return this.show(liveView(step.value, step.value.finished[0], this.page), step.value);
        byId("answer").textContent = "";
        byId("notice").textContent = "There is nothing to translate.";
        byId("views").hidden = true;
        return undefined;
      }
      await new Promise((resume) => setTimeout(resume));
      if (job !== this.job) return undefined;
    }
  }

  // Shows a view. found: the search that it is of, where other hypotheses of it can be chosen.
  show(view, found) {
    const before = this.view;
    this.view = view;
    byId("views").hidden = false;
    const score = view.score == null ? "" : ` (log probability ${number(view.score, 2)})`;
    byId("answer").textContent = view.answer == null ? "" : view.answer + score;
    if (!before) {
      this.state.group = view.groups.length - 1;
      this.state.layer = view.groups.at(-1).layers - 1;
    }
    this.makeControls();
    byId("search").hidden = !view.hypotheses;
    if (view.hypotheses) {
      const finished = view.hypotheses.filter((each) => each.rank != null);
      const best = finished.reduce((a, b) => (b.rank > a.rank ? b : a), finished[0]);
      const choose = found && ((each) => this.show(liveView(found, each, this.page), found));
      drawTree(byId("tree"), view.hypotheses, view.shown ?? best, choose);
      byId("tree-title").textContent = finished.length > 1 || !found ? "Beam search" : "Greedy search";
      byId("tree-help").textContent =
        "A box is a token, with its probability after all that stands to its left, and the sum of log probabilities so " +
        "far. Results have a number and a score, the sum normalised by length." +
        (choose && finished.length > 1 ? " Choose a result to see its attention." : "");
    }
    this.layOut();
  }

  get group() {
    return this.view.groups[this.state.group];
  }

  // Fills the controls of a view.
  makeControls() {
    const { groups } = this.view, { state } = this;
    state.group = Math.min(state.group, groups.length - 1);
    const choices = groups.map(({ name }, i) => {
      const input = element("input", { type: "radio", name: "group", value: i, checked: i === state.group });
      input.addEventListener("change", () => {
        state.group = i;
        this.makeControls();
        this.layOut();
      });
      return element("label", {}, input, ` ${TITLES[name]}`);
    });
    byId("groups").replaceChildren(byId("groups").firstElementChild, ...choices);
    const { layers, heads, rows, columns, name } = this.group;
    state.layer = Math.min(state.layer, layers - 1);
    state.head = Math.min(state.head, heads - 1);
    const numbers = (count) => Array.from({ length: count }, (_, i) => i);
    byId("layer").replaceChildren(...numbers(layers).map((i) => element("option", { value: i }, `${i + 1} of ${layers}`)));
    if (state.heads.size === 0) numbers(heads).forEach((head) => state.heads.add(head));
    const boxes = numbers(heads).map((head) => {
      const input = element("input", { type: "checkbox", checked: state.heads.has(head) });
      input.addEventListener("change", () => {
        if (input.checked) state.heads.add(head);
        else state.heads.delete(head);
        this.later();
      });
      const swatch = element("span", { className: "swatch" });
      swatch.style.borderTopColor = headColour(head);
      swatch.style.borderTopStyle = head >= 8 ? "dashed" : "solid";
      return element("label", {}, input, swatch, ` ${head + 1}`);
    });
    byId("heads").replaceChildren(byId("heads").firstElementChild, ...boxes);
    const writes = name !== "encoder", { image } = this.view;
    byId("step").max = rows.length - 1;
    byId("step-name").textContent = writes ? "Step" : image ? "Patch" : "Token";
    byId("every-text").textContent = writes ? "all steps" : "all tokens";
    byId("every").checked = rows.length * columns.length <= 2500;
    byId("every").parentElement.hidden = byId("lines").hidden = Boolean(image);
    byId("pictures").hidden = !image;
    byId("lines-help").textContent = image
      ? "Each picture is a head. It is light where the chosen patch attends. Choose another patch in a picture."
      : { encoder: "Above, the tokens that attend; below, the tokens that they attend to.",
          decoder: "Above, what each step writes; below, the tokens that the step reads: those before it.",
          cross: "Above, what each step writes; below, the source that the step attends to." }[name] +
        " A thick line is a high weight.";
    const press = (i) => () => this.change({ row: i });
    byId("queries").replaceChildren(...(image ? [] : rows.map((label, i) => {
      const button = element("button", { type: "button" }, label);
      button.addEventListener("click", press(i));
      return button;
    })));
    byId("keys").replaceChildren(...(image ? [] : columns.map((label) => element("span", { className: "plain" }, label))));
    this.makeGrid();
    if (image) this.makePictures();
  }

  makeGrid() {
    const { layers, heads } = this.group, grid = byId("grid"), { group } = this;
    grid.style.gridTemplateColumns = `max-content repeat(${heads}, minmax(38px, 92px))`;
    this.watcher?.disconnect();
    this.watcher = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        this.watcher.unobserve(target);
        drawThumbnail(target.firstElementChild, group, Number(target.dataset.layer), Number(target.dataset.head));
      }
    }, { rootMargin: "200px" });
    grid.replaceChildren(element("span", {}, ""));
    for (let head = 0; head < heads; head++) grid.append(element("span", {}, `head ${head + 1}`));
    for (let layer = 0; layer < layers; layer++) {
      grid.append(element("span", {}, `layer ${layer + 1}`));
      for (let head = 0; head < heads; head++) {
        const button = element("button", { type: "button", "aria-label": `Layer ${layer + 1}, head ${head + 1}` }, element("canvas"));
        Object.assign(button.dataset, { layer, head });
        button.addEventListener("click", () => this.change({ layer, head }));
        grid.append(button);
        this.watcher.observe(button);
      }
    }
  }

  makePictures() {
    const { image } = this.view;
    byId("pictures").replaceChildren(...Array.from({ length: this.group.heads }, (_, head) => {
      const canvas = element("canvas", { role: "img", "aria-label": `Head ${head + 1}` });
      canvas.addEventListener("click", (event) => {
        const part = (place, size, count) => Math.min(count - 1, Math.floor((place / size) * count));
        const row = part(event.offsetY, canvas.clientHeight, image.rows), column = part(event.offsetX, canvas.clientWidth, image.columns);
        this.change({ row: 1 + row * image.columns + column, head });
      });
      return element("figure", {}, element("figcaption", {}, `head ${head + 1}`), canvas);
    }));
  }

  // Changes the state. Without a column, the one with the highest weight is chosen. reveal: whether to scroll to it.
  change(changes, reveal = !("column" in changes)) {
    Object.assign(this.state, { column: null }, changes);
    this.later({ reveal });
  }

  // Measures all parts again, and draws them.
  layOut() {
    this.map.measure(this.group);
    const middles = (id) => [...byId(id).children].map((each) => each.offsetLeft + each.offsetWidth / 2);
    this.middles = { queries: middles("queries"), keys: middles("keys") };
    for (const button of byId("grid").querySelectorAll("button")) this.watcher.observe(button);
    this.state.column = null;
    this.draw();
  }

  draw(reveal = false) {
    const { group, state } = this, { rows, columns } = group;
    const inside = (i, count) => Math.max(0, Math.min(count - 1, i));
    state.row = inside(state.row, rows.length);
    const weights = group.weights(state.layer, state.head, state.row);
    state.column ??= weights.indexOf(Math.max(...weights));
    state.column = inside(state.column, group.causal ? state.row + 1 : columns.length);
    byId("layer").value = state.layer;
    byId("step").value = state.row;
    byId("back").disabled = state.row === 0;
    byId("forward").disabled = state.row === rows.length - 1;
    const verb = group.name === "encoder" ? "" : "writes ";
    byId("step-text").textContent = `${state.row + 1} of ${rows.length}: ${verb}${shortened(rows[state.row], 24)}`;
    for (const button of byId("grid").querySelectorAll("button")) {
      const chosen = Number(button.dataset.layer) === state.layer && Number(button.dataset.head) === state.head;
      button.setAttribute("aria-pressed", chosen);
    }
    if (this.view.image) this.drawPictures();
    else this.drawLines(reveal);
    byId("map-title").textContent = `${TITLES[group.name]}, layer ${state.layer + 1}, head ${state.head + 1}`;
    byId("map").setAttribute("aria-label", `Weights of ${byId("map-title").textContent}. Arrow keys choose a cell.`);
    byId("highest").textContent = number(highestOf(group, state.layer, state.head), 2);
    if (reveal) this.map.reveal(state.row, state.column);
    this.map.draw(group, state.layer, state.head, state.row, state.column);
    this.drawPair();
  }

  drawLines(reveal) {
    const { group, state } = this, queries = [...byId("queries").children], box = byId("lines");
    queries.forEach((button, i) => button.setAttribute("aria-pressed", i === state.row));
    if (reveal) {
      const middle = this.middles.queries[state.row];
      if (middle < box.scrollLeft || middle > box.scrollLeft + box.clientWidth) box.scrollLeft = middle - box.clientWidth / 2;
    }
    const heads = [...state.heads].filter((head) => head < group.heads), rows = byId("every").checked ? group.rows.keys() : [];
    drawThreads(
      byId("threads"), box, group, state.layer, heads, this.middles.queries, this.middles.keys, rows, state.row,
    );
  }

  drawPictures() {
    const { group, state, view } = this;
    [...byId("pictures").children].forEach((figure, head) => {
      figure.hidden = !state.heads.has(head);
      const weights = [...group.weights(state.layer, head, state.row)].slice(1); // without the class token
      if (!figure.hidden) drawPicture(figure.lastElementChild, view.image, weights, state.row - 1);
    });
  }

  sentence(row, column) {
    const { rows, columns, weights } = this.group, { layer, head } = this.state;
    return `${quoted(rows[row])} \u2192 ${quoted(columns[column])}: ${number(weights(layer, head, row)[column])}`;
  }

  // Shows how a query and a key become a weight, and what the weight takes from the value.
  drawPair() {
    const { group, state } = this, { layer, head, row, column } = state;
    const weights = [...group.weights(layer, head, row)], count = group.causal ? row + 1 : weights.length;
    byId("pair-title").textContent = `From ${quoted(group.rows[row])} to ${quoted(group.columns[column])}`;
    const said = this.sentence(row, column);
    if (byId("said").textContent !== said) byId("said").textContent = said; // a screen reader reads each change
    const items = [];
    const item = (title, values, chosen) => {
      const canvas = element("canvas", { "aria-hidden": "true" });
      items.push([element("li", {}, ...title, canvas), canvas, values, chosen]);
    };
    const strong = (text) => element("b", {}, text);
    byId("numbers").hidden = !group.query;
    if (group.query) {
      const q = [...group.query(layer, head, row)], k = [...group.key(layer, head, column)];
      const v = [...group.value(layer, head, column)], products = q.map((x, i) => x * k[i]), root = Math.sqrt(q.length);
      const scores = weights.slice(0, count).map((_, j) => dot(q, group.key(layer, head, j)) / root);
      item([`1. Query q of ${quoted(group.rows[row])}`], q);
      item([`2. Key k of ${quoted(group.columns[column])}`], k);
      item(["3. Their products, whose sum is q\u00b7k = ", strong(number(dot(q, k)))], products);
      item([`4. Score: q\u00b7k / \u221a${q.length} = `, strong(number(scores[column])), ", beside all scores"], scores, column);
      item(["5. Softmax of all scores: weight ", strong(number(weights[column]))], weights.slice(0, count), column);
      item([`6. Weight \u00b7 value v of ${quoted(group.columns[column])}`], v.map((x) => x * weights[column]));
      if (byId("numbers").open) {
        const lines = q.map((x, i) => [i + 1, ...[x, k[i], products[i], v[i], weights[column] * v[i]].map((each) => number(each))]);
        this.fillTable("numbers", ["channel", "q", "k", "q \u00b7 k", "v", "weight \u00b7 v"], lines);
      }
    } else {
      item(["Weight ", strong(number(weights[column])), ". The page has no queries and keys of this attention."], weights.slice(0, count), column);
    }
    byId("pair").replaceChildren(...items.map(([line]) => line));
    for (const [, canvas, values, chosen] of items) drawBars(canvas, values, chosen);
    if (!byId("table").open) return;
    const rows = Array.from({ length: group.heads }, (_, h) => group.weights(layer, h, row));
    const lines = group.columns.slice(0, count).map((label, j) => [label, ...rows.map((each) => number(each[j]))]);
    this.fillTable("table", ["token", ...rows.map((_, h) => `head ${h + 1}`)], lines);
  }

  fillTable(id, header, lines) {
    const line = (cells, tag) => element("tr", {}, ...cells.map((cell, i) => element(i ? tag : "th", {}, String(cell))));
    byId(id).querySelector(".scroll").replaceChildren(element("table", {}, line(header, "th"), ...lines.map((cells) => line(cells, "td"))));
  }
}

const viewer = new Viewer();
