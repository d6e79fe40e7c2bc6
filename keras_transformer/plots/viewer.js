// The viewer: its state, its controls and what they show.

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const quoted = (text) => `\u201c${shortened(text, 24)}\u201d`;

// Puts the texts of the page into its language.
function translatePage() {
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { currentNode: node } = walker, text = node.data.trim();
    if (text && !node.parentElement.closest("script")) node.data = node.data.replace(text, () => say(text));
  }
  for (const each of document.querySelectorAll("[aria-label]")) each.ariaLabel = say(each.ariaLabel);
}

class Viewer {
  constructor() {
    this.page = data.live ? new LivePage(data.live, bytesOf(byId("weights").textContent.trim())) : null;
    // The mean shows more of what a translation reads than any one head.
    this.state = { group: 0, layer: 0, head: MEAN, row: 0, column: 0, heads: new Set() };
    this.map = new HeadMap(byId("map"));
    this.job = 0; // counts translations, so that an older one ends when a newer one begins
    this.busy = false;
    // A page in a frame of another page shows the text and the lines alone.
    document.documentElement.classList.toggle("short", location.search === "?short");
    translatePage();
    this.describe();
    this.listen();
    if (this.page) this.ask();
    else if (data.records.length) this.show(recordedView(data.records[0]));
  }

  describe() {
    const { live } = data;
    if (live) {
      const { config } = live;
      byId("about").textContent = say(
        "{0} encoder and {1} decoder layers, {2} heads, d_model {3}, {4} weights, stored as {5}. " +
          "The model runs in this page: nothing that you type leaves it.",
        config.num_layers, config.num_decoder_layers, config.num_heads, config.d_model,
        config.parameters.toLocaleString("en"), live.precision,
      );
      byId("text").hidden = byId("go").hidden = byId("width-label").hidden = false;
      byId("text").value = data.texts[0];
      byId("texts").replaceChildren(...data.texts.map((value) => element("option", { value })));
      const widths = [...new Set([1, 2, 3, 4, 5, config.search.width])].sort((a, b) => a - b);
      byId("width").append(...widths.map((n) => element("option", { value: n }, n === 1 ? say("1 (greedy)") : String(n))));
      byId("width").value = config.search.width;
    } else {
      byId("record").hidden = false;
      byId("record").append(...data.records.map(({ text }, i) => element("option", { value: i }, text)));
      byId("text-label").textContent = data.records[0]?.image ? say("Image") : say("Text");
      byId("about").textContent = say("Recorded: the page shows the inputs that it was made for.") +
        (data.reason ? ` ${say("The model cannot run in a page, because {0}.", data.reason)}` : "");
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
      byId("notice").textContent = say("The page could not translate this text: {0}", error.message);
      throw error;
    });
  }

  // Translates the text of the input, in slices of time, so that the page stays responsive.
  async translate() {
    const job = ++this.job, text = byId("text").value;
    this.busy = true;
    byId("notice").textContent = say("Translating …");
    const steps = this.page.translate(text, Number(byId("width").value));
    for (let step = { done: false }; ;) {
      const end = performance.now() + 20;
      while (!step.done && performance.now() < end) step = steps.next();
      if (step.done) {
        this.busy = false;
        byId("notice").textContent = step.value?.truncated
          ? say("The text is longer than {0} tokens; the rest of it is not read.", data.live.config.max_source_length) : "";
        if (step.value) return this.show(liveView(step.value, step.value.finished[0], this.page), step.value);
        byId("answer").textContent = "";
        byId("notice").textContent = say("There is nothing to translate.");
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
    const score = view.score == null ? "" : ` ${say("(log probability {0})", number(view.score, 2))}`;
    byId("answer").textContent = view.answer == null ? "" : view.answer + score;
    if (!before) {
      this.state.group = view.groups.length - 1;
      this.state.layer = alignedLayer(view.groups.at(-1));
    }
    this.makeControls();
    byId("search").hidden = !view.hypotheses;
    if (view.hypotheses) {
      const finished = view.hypotheses.filter((each) => each.rank != null);
      const best = finished.reduce((a, b) => (b.rank > a.rank ? b : a), finished[0]);
      const choose = found && ((each) => this.show(liveView(found, each, this.page), found));
      drawTree(byId("tree"), view.hypotheses, view.shown ?? best, choose);
      byId("tree-title").textContent = say(finished.length > 1 || !found ? "Beam search" : "Greedy search");
      byId("tree-help").textContent = say(
        "A box is a token, with its probability after all that stands to its left, and the score so far: the sum of log " +
          "probabilities. A result has a number and its normalised score, the score divided by the length penalty.",
      ) + (choose && finished.length > 1 ? ` ${say("Choose a result to see its attention.")}` : "");
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
      return element("label", {}, input, ` ${say(TITLES[name])}`);
    });
    byId("groups").replaceChildren(byId("groups").firstElementChild, ...choices);
    const { layers, heads, rows, columns, name } = this.group;
    state.layer = Math.min(state.layer, layers - 1);
    state.head = Math.min(state.head, heads - 1);
    const numbers = (count) => Array.from({ length: count }, (_, i) => i);
    byId("layer").replaceChildren(...numbers(layers).map((i) => element("option", { value: i }, say("{0} of {1}", i + 1, layers))));
    const choicesOfHeads = [MEAN, ...numbers(heads)];
    if (state.heads.size === 0) state.heads = new Set(this.view.image ? choicesOfHeads : [MEAN]);
    const boxes = choicesOfHeads.map((head) => {
      const input = element("input", { type: "checkbox", checked: state.heads.has(head) });
      input.addEventListener("change", () => {
        if (input.checked) state.heads.add(head);
        else state.heads.delete(head);
        this.later();
      });
      const swatch = element("span", { className: "swatch" });
      swatch.style.borderTopColor = headColour(head);
      swatch.style.borderTopStyle = isDashed(head) ? "dashed" : "solid";
      return element("label", {}, input, swatch, ` ${head === MEAN ? headName(head) : head + 1}`);
    });
    byId("heads").replaceChildren(byId("heads").firstElementChild, ...boxes);
    const writes = name !== "encoder", { image } = this.view;
    byId("step").max = rows.length - 1;
    byId("step-name").textContent = say(writes ? "Step" : image ? "Patch" : "Token");
    byId("every-text").textContent = say(writes ? "all steps" : "all tokens");
    byId("every").checked = rows.length * columns.length <= 2500;
    byId("every").parentElement.hidden = byId("lines").hidden = Boolean(image);
    byId("pictures").hidden = !image;
    byId("lines-help").textContent = image
      ? say("Each picture is a head. It is light where the chosen patch attends. Choose another patch in a picture.")
      : say({ encoder: "Above, the tokens that attend; below, the tokens that they attend to.",
          decoder: "Above, what each step writes; below, the tokens that the step reads: those before it.",
          cross: "Above, what each step writes; below, the source that the step attends to." }[name]) +
        ` ${say("A thick line is a high weight.")}`;
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
    grid.style.gridTemplateColumns = `max-content repeat(${heads + 1}, minmax(38px, 92px))`;
    this.watcher?.disconnect();
    this.watcher = new IntersectionObserver((entries) => {
      for (const { isIntersecting, target } of entries) {
        if (!isIntersecting) continue;
        this.watcher.unobserve(target);
        drawThumbnail(target.firstElementChild, group, Number(target.dataset.layer), Number(target.dataset.head));
      }
    }, { rootMargin: "200px" });
    grid.replaceChildren(element("span", {}, ""));
    for (let head = MEAN; head < heads; head++) grid.append(element("span", {}, head === MEAN ? say("mean") : headName(head)));
    for (let layer = 0; layer < layers; layer++) {
      grid.append(element("span", {}, say("layer {0}", layer + 1)));
      for (let head = MEAN; head < heads; head++) {
        const name = say("layer {0}, {1}", layer + 1, headName(head));
        const button = element("button", { type: "button", "aria-label": name }, element("canvas"));
        Object.assign(button.dataset, { layer, head });
        button.addEventListener("click", () => this.change({ layer, head }));
        grid.append(button);
        this.watcher.observe(button);
      }
    }
  }

  makePictures() {
    const { image } = this.view;
    byId("pictures").replaceChildren(...Array.from({ length: this.group.heads + 1 }, (_, place) => {
      const head = place + MEAN, canvas = element("canvas", { role: "img", "aria-label": headName(head) });
      canvas.addEventListener("click", (event) => {
        const part = (place, size, count) => Math.min(count - 1, Math.floor((place / size) * count));
        const row = part(event.offsetY, canvas.clientHeight, image.rows), column = part(event.offsetX, canvas.clientWidth, image.columns);
        this.change({ row: 1 + row * image.columns + column, head });
      });
      return element("figure", {}, element("figcaption", {}, headName(head)), canvas);
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
    const tree = byId("tree");
    byId("tree-more").hidden = tree.scrollWidth <= tree.clientWidth;
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
    const text = group.name === "encoder" ? "{0} of {1}: {2}" : "{0} of {1}: writes {2}";
    byId("step-text").textContent = say(text, state.row + 1, rows.length, shortened(rows[state.row], 24));
    for (const button of byId("grid").querySelectorAll("button")) {
      const chosen = Number(button.dataset.layer) === state.layer && Number(button.dataset.head) === state.head;
      button.setAttribute("aria-pressed", chosen);
    }
    if (this.view.image) this.drawPictures();
    else this.drawLines(reveal);
    const title = say("{0}, layer {1}, {2}", say(TITLES[group.name]), state.layer + 1, headName(state.head));
    byId("map-title").textContent = title;
    byId("map").setAttribute("aria-label", say("Weights of {0}. Arrow keys choose a cell.", title));
    byId("map-help").textContent = say(
      "Choose a cell with the mouse, or with the arrow keys. The strongest colour is a weight of {0}.",
      number(highestOf(group, state.layer, state.head), 2),
    );
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
    const { group, state, view } = this, before = group.rows.length - view.image.rows * view.image.columns;
    [...byId("pictures").children].forEach((figure, place) => {
      const head = place + MEAN;
      figure.hidden = !state.heads.has(head);
      const weights = [...group.weights(state.layer, head, state.row)].slice(before); // without the class token
      if (!figure.hidden) drawPicture(figure.lastElementChild, view.image, weights, state.row - before);
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
    byId("pair-title").textContent = say("From {0} to {1}", quoted(group.rows[row]), quoted(group.columns[column]));
    const said = this.sentence(row, column);
    if (byId("said").textContent !== said) byId("said").textContent = said; // a screen reader reads each change
    const items = [];
    const item = (title, values, chosen) => {
      const canvas = element("canvas", { "aria-hidden": "true" });
      items.push([element("li", {}, ...title, canvas), canvas, values, chosen]);
    };
    const strong = (text) => element("b", {}, text);
    byId("numbers").hidden = head === MEAN || !group.query;
    const ofHeads = Array.from({ length: group.heads }, (_, h) => group.weights(layer, h, row));
    if (head === MEAN) {
      item([say("The weight of each head. Their mean: "), strong(number(weights[column]))], ofHeads.map((each) => each[column]));
      item([say("The means of this row")], weights.slice(0, count), column);
    } else if (group.query) {
      const q = [...group.query(layer, head, row)], k = [...group.key(layer, head, column)];
      const v = [...group.value(layer, head, column)], products = q.map((x, i) => x * k[i]), root = Math.sqrt(q.length);
      const scores = weights.slice(0, count).map((_, j) => dot(q, group.key(layer, head, j)) / root);
      item([say("1. Query q of {0}", quoted(group.rows[row]))], q);
      item([say("2. Key k of {0}", quoted(group.columns[column]))], k);
      item([say("3. Their products, whose sum is q·k = "), strong(number(dot(q, k)))], products);
      item([say("4. Among all scores, that of this key: q·k / √{0} = ", q.length), strong(number(scores[column]))], scores, column);
      item([say("5. Softmax of all scores: weight "), strong(number(weights[column]))], weights.slice(0, count), column);
      item([say("6. Weight · value v of {0}", quoted(group.columns[column]))], v.map((x) => x * weights[column]));
      if (byId("numbers").open) {
        const lines = q.map((x, i) => [i + 1, ...[x, k[i], products[i], v[i], weights[column] * v[i]].map((each) => number(each))]);
        this.fillTable("numbers", [say("channel"), "q", "k", "q \u00b7 k", "v", say("weight · v")], lines);
      }
    } else {
      item([say("The page has no queries and keys of this attention. Weight: "), strong(number(weights[column]))], weights.slice(0, count), column);
    }
    byId("pair").replaceChildren(...items.map(([line]) => line));
    for (const [, canvas, values, chosen] of items) drawBars(canvas, values, chosen);
    if (!byId("table").open) return;
    const lines = group.columns.slice(0, count).map((label, j) => [label, ...ofHeads.map((each) => number(each[j]))]);
    this.fillTable("table", [say("token"), ...ofHeads.map((_, h) => headName(h))], lines);
  }

  fillTable(id, header, lines) {
    const line = (cells, tag) => element("tr", {}, ...cells.map((cell, i) => element(i ? tag : "th", {}, String(cell))));
    byId(id).querySelector(".scroll").replaceChildren(element("table", {}, line(header, "th"), ...lines.map((cells) => line(cells, "td"))));
  }
}

const viewer = new Viewer();
