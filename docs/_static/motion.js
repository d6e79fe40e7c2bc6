// Moving pictures of the course. Each stands in place of a recorded one, `motion_NAME.svg` or `motion_NAME.ko.svg`, whose
// reader has JavaScript. A picture has controls, a function that draws it for their values, and one that says it in words.
"use strict";

(() => {
  const KOREAN = {
    "temperature T": "온도 T", "dimension d_k": "차원 d_k", "divide by √d_k": "√d_k로 나누기",
    "score": "스코어", "The weights are {0}.": "가중치는 {0}입니다.",
    "position": "자리", "distance k": "거리 k", "wavelength {0}": "파장 {0}",
    "Position {0}: the hands stand at {1} turns. Those of position {2} are {3} turns further, from any position.":
      "자리 {0}: 바늘은 {1}바퀴 돌았습니다. 자리 {2}의 바늘은 {3}바퀴 더 돌았고, 어느 자리에서 시작해도 그렇습니다.",
    "look-ahead mask": "룩어헤드 마스크", "tokens of padding": "패딩 토큰 수", "query (row)": "쿼리(행)", "padding": "패딩",
    "{0} attends to {1}.": "{0}의 가중치: {1}.",
    "scores": "스코어", "weights of the row": "이 행의 가중치",
    "width of the beam": "빔의 폭", "step": "단계",
    "Step {0}: {1} stay open.": "{0}단계에서 남은 가설: {1}.",
  };
  const STYLE =
    ".m{--ink:#222;--quiet:#5d6570;--line:#b9c0c8;--low:#eef3f9;--high:#2f6fad;--mark:#c2540a;--on:#fff}" +
    "@media(prefers-color-scheme:dark){.m{--ink:#eee;--quiet:#a9b1bb;--line:#4a515a;--low:#232b34;--high:#6fb0ee;--mark:#f0903c;--on:#0b1a29}}" +
    'body[data-theme="light"] .m{--ink:#222;--quiet:#5d6570;--line:#b9c0c8;--low:#eef3f9;--high:#2f6fad;--mark:#c2540a;--on:#fff}' +
    'body[data-theme="dark"] .m{--ink:#eee;--quiet:#a9b1bb;--line:#4a515a;--low:#232b34;--high:#6fb0ee;--mark:#f0903c;--on:#0b1a29}' +
    ".m{font:13px system-ui,sans-serif;max-width:100%;height:auto}.m text{fill:var(--ink);text-anchor:middle;dominant-baseline:central}" +
    ".m .q{fill:var(--quiet);font-size:11px}.m .l{stroke:var(--line);fill:none}.m .w{fill:var(--on)}";
  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
  const text = (x, y, content, kind = "") => `<text x="${x}" y="${y}"${kind && ` class="${kind}"`}>${escaped(content)}</text>`;
  const fixed = (x, digits = 2) => x.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−");

  function softmax(scores) {
    const highest = Math.max(...scores), powers = scores.map((score) => Math.exp(score - highest));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  }

  // Scores of one query with five keys: as independent numbers of variance 1 give them, they grow with the root of d_k.
  const COSINES = [1.2, 0.7, 0.1, -0.5, -1.3];
  const softmaxPicture = {
    size: [560, 220],
    controls: [
      { name: "exponent", label: "dimension d_k", min: 0, max: 9, value: 6, shown: (x) => 2 ** x },
      { name: "tenths", label: "temperature T", min: 1, max: 50, value: 10, shown: (x) => fixed(x / 10, 1) },
      { name: "scaled", label: "divide by √d_k", kind: "checkbox", value: false },
    ],
    numbers({ exponent, tenths, scaled }) {
      const root = Math.sqrt(2 ** exponent);
      const scores = COSINES.map((x) => (x * root) / (scaled ? root : 1) / (tenths / 10));
      return { scores, weights: softmax(scores) };
    },
    draw(values) {
      const { scores, weights } = this.numbers(values);
      return weights.map((weight, i) => {
        const x = 70 + 105 * i, high = 150 * weight;
        return `<rect x="${x - 32}" y="${180 - high}" width="64" height="${high}" fill="var(--high)"/>` +
          text(x, 168 - high, fixed(weight)) + text(x, 200, `${this.say("score")} ${fixed(scores[i])}`, "q");
      }).join("") + '<path class="l" d="M20 180H540"/>';
    },
    words(values) {
      return this.say("The weights are {0}.", this.numbers(values).weights.map((x) => fixed(x)).join(", "));
    },
  };

  // The hands of d_model = 8: one for each pair of channels, sine to the right and cosine upwards.
  const RATES = [0, 1, 2, 3].map((i) => 10000 ** (-2 * i / 8));
  const clocksPicture = {
    size: [560, 190],
    controls: [
      { name: "position", label: "position", min: 0, max: 63, value: 3 },
      { name: "distance", label: "distance k", min: 0, max: 16, value: 2 },
    ],
    draw({ position, distance }) {
      const hand = (x, angle, style) => `<path d="M${x} 80L${fixedPlain(x + 52 * Math.sin(angle))} ` +
        `${fixedPlain(80 - 52 * Math.cos(angle))}" fill="none" stroke-linecap="round" ${style}/>`;
      return RATES.map((rate, i) => {
        const x = 75 + 137 * i, angle = position * rate;
        return `<circle class="l" cx="${x}" cy="80" r="58"/>` + text(x, 10, this.say("wavelength {0}", Math.round(2 * Math.PI / rate)), "q") +
          hand(x, angle + distance * rate, 'stroke="var(--mark)" stroke-width="2.5" stroke-dasharray="5 4"') +
          hand(x, angle, 'stroke="var(--high)" stroke-width="4"') +
          text(x, 155, `sin ${fixed(Math.sin(angle))}`) + text(x, 174, `cos ${fixed(Math.cos(angle))}`);
      }).join("");
    },
    words({ position, distance }) {
      const turns = (steps) => RATES.map((rate) => fixed(steps * rate / (2 * Math.PI))).join(", ");
      return this.say(
        "Position {0}: the hands stand at {1} turns. Those of position {2} are {3} turns further, from any position.",
        position, turns(position), position + distance, turns(distance),
      );
    },
  };
  const fixedPlain = (x) => x.toFixed(2);

  const TOKENS = ["<SOS>", "I", "am", "a", "student"];
  const SCORES = [[7, 2, 2, 2, 2], [1, 7, 3, 2, 1], [1, 4, 8, 4, 3], [1, 2, 3, 6, 2], [1, 5, 4, 1, 9]]; // of chapter 7
  const masksPicture = {
    size: [560, 290],
    controls: [
      { name: "causal", label: "look-ahead mask", kind: "checkbox", value: true },
      { name: "padding", label: "tokens of padding", min: 0, max: 3, value: 1 },
      { name: "row", label: "query (row)", min: 0, max: 4, value: 2, shown: (x) => TOKENS[x] },
    ],
    isOpen: ({ causal, padding }, row, column) => (!causal || column <= row) && column < 5 - padding,
    weights(values) {
      const scores = SCORES[values.row].map((score, column) => (this.isOpen(values, values.row, column) ? score : -Infinity));
      return softmax(scores);
    },
    draw(values) {
      const cell = 40, left = 90, top = 50, parts = [];
      const tokens = TOKENS.map((token, i) => (i < 5 - values.padding ? token : this.say("padding")));
      const weights = this.weights(values), cellOf = (x, y, open, content) =>
        `<rect x="${x}" y="${y}" width="${cell - 2}" height="${cell - 2}" fill="${open ? "var(--high)" : "var(--low)"}"/>` +
        text(x + cell / 2 - 1, y + cell / 2 - 1, content, open ? "w" : "q");
      for (let row = 0; row < 5; row++) {
        parts.push(text(left / 2, top + cell * (row + 0.5), tokens[row], row === values.row ? "" : "q"));
        for (let column = 0; column < 5; column++) {
          const open = this.isOpen(values, row, column);
          parts.push(cellOf(left + cell * column, top + cell * row, open, open ? SCORES[row][column] : "−∞"));
        }
      }
      tokens.forEach((token, i) => parts.push(text(left + cell * (i + 0.5), 38, token, "q")));
      parts.push(text(left + 2.5 * cell, 14, this.say("scores")), text(440, 14, this.say("weights of the row")));
      parts.push(`<rect x="${left - 2}" y="${top + cell * values.row - 2}" width="${5 * cell + 2}" height="${cell + 2}" fill="none" stroke="var(--mark)" stroke-width="2.5"/>`);
      weights.forEach((weight, i) => {
        parts.push(text(345, top + cell * (i + 0.5), tokens[i], "q"));
        parts.push(`<rect x="380" y="${top + cell * i + 8}" width="${fixedPlain(110 * weight)}" height="22" fill="var(--high)"/>`);
        parts.push(text(525, top + cell * (i + 0.5), fixed(weight)));
      });
      return parts.join("");
    },
    words(values) {
      const said = this.weights(values).map((weight, i) => [weight, TOKENS[i]]).filter(([weight]) => weight > 0);
      return this.say("{0} attends to {1}.", TOKENS[values.row], said.map(([weight, token]) => `${token} ${fixed(weight)}`).join(", "));
    },
  };

  // The probability of each next word, after the words before it. Greedy search begins with "The".
  const NEXT = {
    "": { The: 0.5, A: 0.4, My: 0.1 },
    "The": { dog: 0.4, cat: 0.35, bird: 0.25 }, "A": { dog: 0.9, cat: 0.1 }, "My": { dog: 0.6, cat: 0.4 },
    "The dog": { runs: 0.5, barks: 0.5 }, "The cat": { sleeps: 0.9, runs: 0.1 }, "The bird": { sings: 0.8, sleeps: 0.2 },
    "A dog": { barks: 0.7, runs: 0.3 }, "A cat": { sleeps: 0.8, runs: 0.2 },
    "My dog": { runs: 0.6, barks: 0.4 }, "My cat": { sleeps: 0.7, runs: 0.3 },
  };
  const beamPicture = {
    size: [560, 300],
    controls: [
      { name: "width", label: "width of the beam", min: 1, max: 4, value: 2 },
      { name: "step", label: "step", min: 0, max: 3, value: 3 },
    ],
    // Returns the hypotheses of each step, the likeliest first, with whether they stay open.
    search({ width, step }) {
      const steps = [[{ words: [], share: 1, kept: true }]];
      for (let i = 0; i < step; i++) {
        const found = steps.at(-1).filter(({ kept }) => kept).flatMap((parent) =>
          Object.entries(NEXT[parent.words.join(" ")]).map(([word, share]) => ({
            words: [...parent.words, word], share: parent.share * share, own: share, parent,
          })));
        found.sort((a, b) => b.share - a.share);
        found.forEach((each, place) => (each.kept = place < width));
        steps.push(found.slice(0, 8));
      }
      return steps;
    },
    draw(values) {
      const parts = [], boxes = [];
      this.search(values).forEach((found, step) => found.forEach((each, place) => {
        each.x = 50 + 150 * step;
        each.y = found.length === 1 ? 55 : 18 + 37 * place;
        const colour = each.kept ? "var(--high)" : "var(--line)";
        if (each.parent) parts.push(`<path d="M${each.parent.x + 46} ${each.parent.y}L${each.x - 46} ${each.y}" stroke="${colour}" stroke-width="${each.kept ? 2.5 : 1}" fill="none"/>`);
        boxes.push(`<rect x="${each.x - 46}" y="${each.y - 16}" width="92" height="32" rx="6" fill="${each.kept ? "var(--high)" : "var(--low)"}"/>`);
        const kind = each.kept ? "w" : "q";
        boxes.push(text(each.x, each.y, each.parent ? `${each.words.at(-1)} ${fixed(each.share, 3)}` : "<s>", kind));
      }));
      return parts.join("") + boxes.join("");
    },
    words(values) {
      const open = this.search(values).at(-1).filter(({ kept }) => kept);
      const said = open.map(({ words, share }) => `${words.join(" ") || "<s>"} (${fixed(share, 3)})`).join(", ");
      return this.say("Step {0}: {1} stay open.", values.step, said);
    },
  };
  const PICTURES = { softmax: softmaxPicture, clocks: clocksPicture, masks: masksPicture, beam: beamPicture };

  function element(tag, properties, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  // Makes a picture with its controls.
  function make(name, korean) {
    const say = (said, ...parts) => ((korean && KOREAN[said]) || said).replace(/\{(\d)\}/g, (_, i) => parts[i]);
    const picture = { ...PICTURES[name], say };
    const values = Object.fromEntries(picture.controls.map(({ name, value }) => [name, value]));
    const view = element("div", {}), said = element("output", { className: "said" });
    const draw = () => {
      const words = picture.words(values), [width, height] = picture.size;
      view.innerHTML = `<svg xmlns="http://www.w3.org/2000/svg" class="m" viewBox="0 0 ${width} ${height}" width="${width}" role="img" ` +
        `aria-label="${escaped(words)}"><style>${STYLE}</style>${picture.draw(values)}</svg>`;
      said.textContent = words;
    };
    const controls = picture.controls.map(({ name, label, kind = "range", min, max, value, shown = String }) => {
      const input = element("input", kind === "range" ? { type: kind, min, max } : { type: kind });
      const number = element("span", { className: "number" });
      const read = () => {
        values[name] = kind === "checkbox" ? input.checked : Number(input.value);
        if (kind === "range") {
          number.textContent = shown(values[name]);
          input.setAttribute("aria-valuetext", number.textContent);
        }
        draw();
      };
      if (kind === "checkbox") input.checked = value;
      else input.value = value;
      input.addEventListener("input", read);
      read();
      return element("label", {}, `${say(label)} `, input, " ", number);
    });
    said.setAttribute("aria-live", "polite");
    return element("div", { className: "motion" }, element("div", { className: "controls" }, ...controls), view, said);
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const image of document.querySelectorAll('img[src*="motion_"]')) {
      const [, name, korean] = image.getAttribute("src").match(/motion_([a-z]+)\d*(\.ko)?/) ?? [];
      if (name in PICTURES) image.replaceWith(make(name, Boolean(korean)));
    }
  });
})();
