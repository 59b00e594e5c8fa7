// The page of `nmtgrid demo`: words are sent to the service as they are typed, and its events are drawn.
// All text enters the page as text, never as markup.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const END = "</s>";
const STEP = 170; // milliseconds per step of the replay
const IDLE = 45; // seconds after which a stream is closed if its page has disappeared silently
const LOST = "The service does not answer: is `nmtgrid demo` still running? Enter a word, or end the sentence, to try again.";

/** Return an element with properties and children; text stays text. */
function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

function shape(name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

/** Browsers call a broken connection "Failed to fetch". */
function lost() { throw new Error(LOST); }

/** Send a request to the service; a refusal becomes an Error with its message. */
async function ask(method, path, body) {
  const options = { method };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  const response = await fetch(path, options).catch(lost);
  if (response.ok) return response;
  let message = `The service answered with ${response.status}.`;
  try {
    const { error, advice } = await response.json();
    message = advice ? `${error} ${advice}` : error;
  } catch { /* no JSON: the status is all that is known */ }
  throw Object.assign(new Error(message), { status: response.status });
}

/** Close a stream, also while the page goes away. */
function closeStream(stream) {
  fetch(`streams/${stream}`, { method: "DELETE", keepalive: true }).catch(() => {});
}

/** Yield the lists of events of each part of an answer, as they arrive. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(lost);
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    if (lines.length) yield lines.map((line) => JSON.parse(line));
  }
}

/** Return the state of one system according to its events: words and units read, units written, the text. */
function summarize(events) {
  const state = { words: [], units: [], writes: [], text: "", end: null };
  for (const event of events) {
    if (event.event === "read") {
      state.words.push(event);
      state.units.push(...event.units);
    } else if (event.event === "write") state.writes.push(event);
    else if (event.event === "text") state.text += event.text;
    else if (event.event === "end") state.end = event;
  }
  return state;
}

const number = (value, digits = 1) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const percent = (value) => `${(100 * value).toFixed(value > 0.995 ? 0 : 1)} %`;

// Tones.

let colouring = "probability";

/** Set an element's tone: the probability of a unit, or the depth of its exit. */
function paintTone(node, write, exits) {
  let tone = "";
  if (colouring === "probability") {
    const p = write.probability;
    // From orange over grey to blue, which remain distinct with colour-vision deficiencies.
    tone = p < 0.5
      ? `color-mix(in oklab, var(--low) ${Math.round((1 - 2 * p) * 100)}%, var(--middle))`
      : `color-mix(in oklab, var(--high) ${Math.round((2 * p - 1) * 100)}%, var(--middle))`;
  } else if (colouring === "exit" && exits > 1) {
    const share = (write.exit ?? exits) / exits;
    tone = `color-mix(in oklab, var(--exit) ${Math.round(10 + 75 * share)}%, var(--card))`;
  }
  if (tone) node.style.setProperty("--tone", tone);
}

function paintLegend(exits) {
  const legend = $("legend");
  legend.replaceChildren();
  const add = (write, text) => {
    const swatch = element("i");
    paintTone(swatch, write, exits);
    legend.append(element("span", {}, swatch, text));
  };
  if (colouring === "probability") {
    for (const p of [0.05, 0.3, 0.5, 0.7, 0.95]) add({ probability: p }, `${100 * p} %`);
  } else if (colouring === "exit") {
    if (exits < 2) legend.append("These models have one exit: all blocks run for each word.");
    else for (let n = 1; n <= exits; n++) add({ exit: n }, n === exits ? `all ${n} blocks` : `${n}`);
  }
}

// The grid.

/** Return the figure of the grid: alignment, the path of READs and WRITEs, the units on its sides. */
function drawGrid(state, system, room) {
  const hasEnd = state.writes.some((write) => write.is_end);
  const columns = Math.max(state.units.length + (hasEnd ? 1 : 0), 1);
  const rows = state.writes.length;
  const units = [...state.units, ...(hasEnd ? [END] : [])];
  const measure = drawGrid.measure ??= document.createElement("canvas").getContext("2d");
  measure.font = "13px system-ui, sans-serif";
  const width = (text) => measure.measureText(text).width;
  const left = Math.max(56, ...state.writes.map((write) => width(write.unit))) + 22;
  // Labels of narrow columns are steeper, which determines how far they extend to the right.
  let angle = 42, overhang = 0, cell = 0;
  for (const [steeper, least] of [[42, 20], [62, 15], [80, 12]]) {
    angle = steeper;
    const lean = Math.cos(angle * Math.PI / 180);
    cell = 52;
    units.forEach((unit, column) => {
      cell = Math.min(cell, (room - left - 4 - width(unit) * lean) / (column + 0.6));
    });
    cell = Math.max(12, Math.min(cell, (room - left - 4) / columns));
    overhang = Math.max(0, ...units.map((unit, n) => width(unit) * lean - (columns - n - 0.6) * cell)) + 4;
    if (cell >= least) break;
  }
  const longest = Math.max(20, ...units.map(width));
  const top = Math.min(longest * Math.sin(angle * Math.PI / 180) + 16, 140);
  const height = 27;
  const x = (column) => left + column * cell, y = (row) => top + row * height;
  const total = { width: Math.ceil(x(columns) + overhang), height: Math.ceil(y(Math.max(rows, 1)) + 10) };
  const svg = shape("svg", {
    width: total.width, height: total.height, viewBox: `0 0 ${total.width} ${total.height}`, role: "img",
    "aria-label": `Path of ${system.title}: ${state.units.length} source units read, `
      + `${state.writes.filter((write) => !write.is_end).length} target units written.`,
  });
  units.forEach((unit, column) => {
    const label = shape("text", {
      transform: `translate(${x(column) + cell / 2 - 3} ${top - 7}) rotate(${-angle})`,
      class: unit === END && column === units.length - 1 ? "faint" : "",
    }, unit);
    svg.append(label);
  });
  state.writes.forEach((write, row) => {
    svg.append(shape("rect", {
      class: "seen", x: left, y: y(row), width: Math.min(write.reads, columns) * cell, height,
    }));
    (write.alignment ?? []).forEach((share, column) => {
      if (share < 0.02 || column >= columns) return;
      const box = shape("rect", {
        class: "share", x: x(column) + 1, y: y(row) + 1, width: cell - 2, height: height - 2, rx: 3,
        "fill-opacity": Math.min(1, share ** 0.75).toFixed(3),
      });
      box.append(shape("title", {}, `${write.unit} – ${units[column]}: ${percent(share)}`));
      svg.append(box);
    });
    const tone = shape("rect", {
      class: "tone", x: left - 12 - width(write.unit) - 5, y: y(row) + 3.5, rx: 5,
      width: width(write.unit) + 10, height: height - 7,
    });
    if (!write.is_end) paintTone(tone, write, system.exits);
    const label = shape("text", {
      x: left - 12, y: y(row) + height / 2 + 4.5, "text-anchor": "end", class: write.is_end ? "faint" : "",
    }, write.unit);
    label.append(shape("title", {}, describe(write, system)));
    svg.append(tone, label);
  });
  svg.append(shape("rect", { class: "frame", x: left, y: top, width: cell * columns, height: height * Math.max(rows, 1) }));
  let reached = 0;
  state.writes.forEach((write, row) => {
    const reads = Math.min(write.reads, columns);
    if (reads > reached) svg.append(shape("path", { class: "path read", d: `M${x(reached)} ${y(row)}H${x(reads)}` }));
    svg.append(shape("path", { class: "path write", d: `M${x(reads)} ${y(row)}V${y(row + 1)}` }));
    reached = reads;
  });
  const arrived = hasEnd ? reached : state.units.length;
  if (arrived > reached) svg.append(shape("path", { class: "path read", d: `M${x(reached)} ${y(rows)}H${x(arrived)}` }));
  svg.append(shape("circle", { class: "dot", cx: x(Math.max(arrived, reached)), cy: y(rows), r: 5.5 }));
  return svg;
}

function describe(write, system) {
  const parts = [`probability ${percent(write.probability)}`, `after ${write.reads} source units`];
  if (write.exit) parts.push(`block ${write.exit} of ${system.exits}`);
  return `${write.unit}: ${parts.join(", ")}`;
}

/** Return a figure as a file that contains its colours and fonts. */
function standalone(svg, title) {
  const copy = svg.cloneNode(true);
  const dot = document.createElement("canvas");
  dot.width = dot.height = 1;
  const pen = dot.getContext("2d", { willReadFrequently: true });
  // The page mixes colours in ways that other programs do not support.
  const plain = (colour) => {
    if (colour === "none") return colour;
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = colour;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return a ? `#${[r, g, b].map((value) => value.toString(16).padStart(2, "0")).join("")}` : "none";
  };
  const originals = [...svg.querySelectorAll("*")], copies = [...copy.querySelectorAll("*")];
  originals.forEach((node, index) => {
    if (node.nodeName === "title") return;
    const style = getComputedStyle(node), target = copies[index];
    target.setAttribute("fill", plain(style.fill));
    if (style.stroke !== "none") {
      target.setAttribute("stroke", plain(style.stroke));
      target.setAttribute("stroke-width", parseFloat(style.strokeWidth));
      target.setAttribute("stroke-linecap", style.strokeLinecap);
    }
    if (node.nodeName === "text") {
      target.setAttribute("font-family", "system-ui, sans-serif");
      target.setAttribute("font-size", "13");
    }
    target.removeAttribute("class");
    target.removeAttribute("style");
  });
  const [width, height] = [svg.width.baseVal.value, svg.height.baseVal.value];
  const style = getComputedStyle(svg.closest(".card"));
  copy.setAttribute("xmlns", SVG);
  copy.setAttribute("viewBox", `0 -30 ${width} ${height + 30}`);
  copy.setAttribute("height", height + 30);
  copy.prepend(
    shape("rect", { x: 0, y: -30, width, height: height + 30, fill: plain(style.backgroundColor) }),
    shape("text", { x: 10, y: -10, fill: plain(style.color), "font-family": "system-ui, sans-serif",
      "font-size": 14, "font-weight": 600 }, title),
  );
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = element("a", { href: address, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// A system: model, policy, exit, and what it has written.

class SystemCard {
  constructor(app, index) {
    this.app = app;
    this.index = index;
    this.root = $("system").content.firstElementChild.cloneNode(true);
    this.form = this.root.querySelector("form");
    this.events = [];
    this.delays = [];
    this.title = "";
    const { model, policy } = this.form.elements;
    model.append(...app.models.map(({ name }) => element("option", { value: name }, name)));
    model.parentElement.hidden = app.models.length < 2;
    model.value = app.models[Math.min(index, app.models.length - 1)].name;
    this.chooseModel();
    model.addEventListener("change", () => { this.chooseModel(); app.restart(); });
    policy.addEventListener("change", () => { this.choosePolicy(); app.restart(); });
    this.form.addEventListener("input", (event) => {
      if (event.target.name && !["model", "policy"].includes(event.target.name)) app.restartSoon();
    });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.root.querySelector("[name=picture]").addEventListener("click", () => {
      const svg = this.root.querySelector("figure svg");
      save(`path-${this.model.name}.svg`, standalone(svg, `${this.model.name}, ${this.title}`), "image/svg+xml");
    });
    this.root.querySelector("[name=trace]").addEventListener("click", () => {
      const { end } = summarize(this.events);
      save(`trace-${this.model.name}.jsonl`, `${JSON.stringify(end.trace)}\n`, "application/x-ndjson");
    });
    new ResizeObserver(() => this.paintGrid()).observe(this.root.querySelector(".scroll"));
  }

  get model() { return this.app.models.find(({ name }) => name === this.form.elements.model.value); }
  get exits() { return this.model.num_exits; }

  /** Offer the model's policies and exits. */
  chooseModel() {
    const { policy, exit } = this.form.elements, model = this.model;
    const [usual, ...changes] = model.policy.split(" ");
    policy.replaceChildren(...model.policies.map(({ name }) => element("option", { value: name }, name)));
    policy.value = usual;
    this.choosePolicy(Object.fromEntries(changes.map((change) => change.split("="))));
    const choices = [["", model.num_exits > 1 ? `all ${model.num_exits} blocks` : "one exit"], ...model.exits.map((name) => [
      name, /^\d+$/.test(name) ? `block ${name}` : name === "auto" ? "predicted (auto)" : name,
    ])];
    exit.replaceChildren(...choices.map(([value, text]) => element("option", { value }, text)));
    if (model.exits.includes("auto")) exit.value = "auto";
    exit.disabled = model.num_exits < 2;
    exit.parentElement.hidden = this.app.models.every(({ num_exits }) => num_exits < 2);
    this.root.querySelector(".target").lang = model.target_lang;
  }

  /** Offer a policy's settings, the most important one in the first line. */
  choosePolicy(values = {}) {
    const chosen = this.model.policies.find(({ name }) => name === this.form.elements.policy.value);
    const settings = chosen?.settings ?? [];
    const fields = settings.map((setting) => this.field(setting, values[setting.name]));
    const finish = { name: "finish_reading", kind: "switch", default: false,
      meaning: "No translation ends before its source has been read whole." };
    this.root.querySelector(".settings").replaceChildren(...fields.slice(0, 1));
    this.root.querySelector(".settings-more").replaceChildren(...fields.slice(1), this.field(finish));
    this.root.querySelector(".summary").textContent = chosen ? `Policy: ${chosen.summary}.` : "";
  }

  field(setting, value) {
    const usual = value ?? setting.default;
    const shared = { name: setting.name, title: setting.meaning, "data-usual": setting.default };
    const label = setting.name.replaceAll("_", " ");
    if (setting.kind === "switch") {
      const box = element("input", { ...shared, type: "checkbox", checked: String(usual) === "true" });
      return element("label", { className: "switch" }, box, label);
    }
    if (setting.kind === "text") {
      return element("label", {}, label, element("input", { ...shared, type: "text", value: usual }));
    }
    const isInfinite = setting.may_be_infinite && String(usual) === "inf";
    const input = element("input", {
      ...shared, type: "number", value: isInfinite ? setting.default : usual, disabled: isInfinite,
      step: setting.kind === "whole" ? 1 : 0.05, min: 0, required: setting.default !== "inf",
    });
    const row = element("span", { className: "number" }, input);
    if (setting.may_be_infinite) {
      const toggle = element("button", {
        type: "button", title: "Read the whole source first", "aria-pressed": String(isInfinite),
        "aria-label": `${label} infinite`,
      }, "∞");
      toggle.addEventListener("click", () => {
        input.disabled = !input.disabled;
        toggle.setAttribute("aria-pressed", String(input.disabled));
        this.app.restart();
      });
      row.append(toggle);
    }
    return element("label", {}, label, row);
  }

  /** The first field with an invalid value; the step of a real number only concerns its arrows. */
  faulty() {
    return [...this.form.elements].find(({ willValidate, validity, step }) => willValidate
      && !validity.valid && !(validity.stepMismatch && !validity.rangeUnderflow && step !== "1"));
  }

  /** The request for the service. */
  request() {
    const { policy, exit, model } = this.form.elements;
    const words = [policy.value];
    let finish_reading = false;
    const [first, ...others] = this.form.querySelectorAll(".settings input, .settings-more input");
    // Settings at their defaults are omitted, except the most important one.
    const changed = others.filter((input) => input.disabled || input.dataset.usual
      !== String(input.type === "checkbox" ? input.checked : input.value));
    for (const input of [first, ...changed]) {
      if (input.name === "finish_reading") finish_reading = input.checked;
      else if (input.type === "checkbox") words.push(`${input.name}=${input.checked}`);
      else if (input.disabled) words.push(`${input.name}=inf`);
      else if (input.value !== "") words.push(`${input.name}=${input.value}`);
    }
    return { model: model.value, policy: words.join(" "), exit: exit.value, finish_reading };
  }

  clear(title) {
    this.events = [];
    this.delays = [];
    this.title = title;
    this.root.querySelector(".title").textContent = title;
  }

  /** Draw the events up to a step, or all of them. */
  paint(events = this.events, isReplay = false) {
    const state = this.state = summarize(events);
    this.paintText(state, isReplay);
    this.paintGrid();
    this.paintNumbers(state);
    this.paintTable(state);
    this.root.querySelector("[name=picture]").disabled = !state.units.length;
    this.root.querySelector("[name=trace]").disabled = !state.end;
  }

  paintText(state, isReplay) {
    const target = this.root.querySelector(".target");
    target.dataset.empty = state.units.length ? "reading …" : "The translation appears here, word by word.";
    const known = target.querySelectorAll(".unit").length;
    const parts = [];
    let cursor = 0, count = 0;
    for (const write of state.writes) {
      if (write.is_end) continue;
      const unit = this.model.joiner && write.unit.endsWith(this.model.joiner)
        ? write.unit.slice(0, -this.model.joiner.length) : write.unit;
      const start = state.text.indexOf(unit, cursor);
      // Text that the detokeniser has changed gets no tone.
      if (start < 0 || start > cursor + unit.length + 8) continue;
      if (start > cursor) parts.push(state.text.slice(cursor, start));
      const span = element("span", { className: "unit", title: describe(write, this) }, unit);
      if (count++ >= known) span.classList.add("new");
      paintTone(span, write, this.exits);
      parts.push(span);
      cursor = start + unit.length;
    }
    parts.push(state.text.slice(cursor));
    if (parts.some((part) => part !== "") && !state.end) {
      parts.push(element("span", { className: "caret", "aria-hidden": "true" }));
    }
    target.setAttribute("aria-live", isReplay ? "off" : "polite");
    target.replaceChildren(...parts.filter((part) => part !== ""));
  }

  paintGrid() {
    const box = this.root.querySelector(".scroll");
    const state = this.state;
    this.root.querySelector("figure").hidden = !state?.units.length;
    if (!state?.units.length) return;
    const svg = drawGrid(state, this, box.clientWidth);
    box.replaceChildren(svg);
    // If the figure is wider than its box, the path's end stays visible.
    box.scrollLeft = svg.querySelector(".dot").cx.baseVal.value - 0.8 * box.clientWidth;
    const legend = this.root.querySelector(".grid-legend");
    if (legend.childElementCount) return;
    const line = (tone, text) => {
      const swatch = element("i", { className: "line" });
      swatch.style.setProperty("--tone", `var(--${tone})`);
      return element("span", {}, swatch, text);
    };
    legend.append(line("read", "READ"), line("write", "WRITE"));
    if (this.model.aligns) legend.append(element("span", {}, element("i", { className: "shade" }), "alignment"));
  }

  paintNumbers(state) {
    const { end } = state;
    const latest = this.delays.at(-1);
    const written = state.writes.filter((write) => !write.is_end).length;
    const entries = [
      ["Average lagging", end ? number(end.average_lagging) : "…", end ? "source units" : "at the end"],
      ["in words", end ? number(end.average_lagging_words) : "…", end ? "source words" : "at the end"],
      ["Time per word", end && end.seconds_per_word !== null ? number(1000 * end.seconds_per_word) : "…", "ms"],
      ["Read, written", `${state.units.length}, ${written}`, "units"],
    ];
    if (latest !== undefined) entries.push(["On screen after", number(latest, 0), "ms"]);
    if (this.exits > 1) {
      const depths = state.writes.map((write) => write.exit ?? this.exits);
      const mean = depths.length ? depths.reduce((a, b) => a + b) / depths.length : null;
      entries.push(["Average exit", number(mean), `of ${this.exits} blocks`]);
    }
    const list = this.root.querySelector(".numbers");
    list.hidden = !state.units.length;
    list.replaceChildren(...entries.map(([name, value, unit]) => element("div", {},
      element("dt", {}, name), element("dd", {}, value, " ", element("small", {}, unit)))));
    list.dataset.delays = this.delays.map((delay) => delay.toFixed(2)).join(" ");
  }

  paintTable(state) {
    const details = this.root.querySelector(".table");
    details.hidden = !state.writes.length;
    const cells = (kind, values) => element("tr", {}, ...values.map((value) => element(kind, {}, value)));
    details.querySelector("thead").replaceChildren(
      cells("th", ["unit", "probability", "read before", ...(this.exits > 1 ? ["block"] : []), "ms of work"]));
    details.querySelector("tbody").replaceChildren(...state.writes.map((write) => cells("td", [
      write.unit, percent(write.probability), String(write.reads),
      ...(this.exits > 1 ? [String(write.exit ?? this.exits)] : []), number(1000 * write.seconds)])));
  }
}

// The page: words typed, a stream of the service, one or two systems.

class App {
  constructor({ models, limits, examples }) {
    Object.assign(this, { models, limits, examples });
    this.cards = [];
    this.words = []; // words handed over, and whether the line has ended
    this.hasEnded = false;
    this.fed = 0;
    this.stream = null;
    this.run = 0; // counts streams: events of an earlier one are dropped
    this.coming = []; // words of a pasted text that have not been handed over
    this.setSystems(models.length > 1 ? 2 : 1);
    this.wire();
    this.paint();
  }

  setSystems(count) {
    while (this.cards.length < count) {
      const card = new SystemCard(this, this.cards.length);
      this.cards.push(card);
      $("systems").append(card.root);
    }
    while (this.cards.length > count) this.cards.pop().root.remove();
    this.cards.forEach((card, index) => {
      card.root.querySelector("h2").textContent = count > 1 ? `Translation ${index + 1}` : "Translation";
      card.root.setAttribute("aria-label", `System ${index + 1}`);
    });
    $("compare").textContent = count > 1 ? "Show one system" : "Compare two systems";
    paintLegend(this.deepest());
  }

  deepest() { return Math.max(...this.cards.map((card) => card.exits)); }

  wire() {
    const word = $("word");
    // Spaces do not end a word while an input method is composing.
    word.addEventListener("input", (event) => {
      if (event.isComposing) this.paintSource();
      else this.take(word.value, performance.now());
    });
    word.addEventListener("compositionend", () => this.take(word.value, performance.now()));
    word.addEventListener("paste", (event) => {
      const text = event.clipboardData?.getData("text") ?? "";
      if (!/\s/.test(text.trim())) return;
      event.preventDefault();
      this.speak(word.value + text);
      word.value = "";
    });
    document.addEventListener("keydown", (event) => {
      if (event.isComposing) return;
      if (event.key === "Escape") this.clear();
      else if (event.key === "Enter" && event.target === word) {
        event.preventDefault();
        this.finish();
      }
    });
    $("composer").addEventListener("click", () => word.focus());
    $("end").addEventListener("click", () => this.finish());
    $("clear").addEventListener("click", () => this.clear());
    $("compare").addEventListener("click", () => {
      this.setSystems(this.cards.length > 1 ? 1 : 2);
      this.restart();
    });
    $("colours").addEventListener("change", (event) => {
      colouring = event.target.value;
      paintLegend(this.deepest());
      this.paint();
    });
    $("theme").addEventListener("click", () => {
      const root = document.documentElement;
      root.dataset.theme = isDark() ? "light" : "dark";
      paintTheme();
    });
    $("replay").addEventListener("click", () => this.replay());
    $("step").addEventListener("input", () => { this.stopReplay(); this.showStep(Number($("step").value)); });
    if (this.examples.length) {
      $("examples").hidden = false;
      $("examples").querySelector("ul").append(...this.examples.map((text) => {
        const button = element("button", { type: "button" }, text);
        button.addEventListener("click", () => { this.clear(); this.speak(text, true); });
        return element("li", {}, button);
      }));
    }
    // A page that is closed frees its stream, at once or after the stream has been idle.
    setInterval(() => {
      if (this.stream) fetch(`streams/${this.stream}/events`, { method: "HEAD" }).catch(() => {});
    }, 1000 * IDLE / 3);
    addEventListener("pagehide", () => {
      clearTimeout(this.speaker);
      clearTimeout(this.later);
      // The browser may have aborted a request first, and with it the code that would free the stream.
      this.stream ??= this.latest;
      this.drop();
      this.isPumping = true; // no further request
    });
  }

  /** Hand over the words of the field that a space has ended. */
  take(text, time) {
    const parts = text.split(/\s+/);
    if (parts.length < 2) return this.paintSource();
    $("word").value = parts.pop();
    for (const part of parts) if (part) this.add(part, time);
  }

  add(word, time = performance.now()) {
    if (this.hasEnded) this.clear();
    const { words, characters } = this.limits;
    const length = this.words.reduce((sum, each) => sum + each.length, word.length);
    if (this.words.length >= words || length > characters) {
      this.coming = [];
      this.say(`A sentence has at most ${words} words and ${characters} characters: end it, or begin another.`, true);
      return;
    }
    this.say("");
    this.words.push(word);
    this.paintSource();
    this.pump(time);
  }

  /** Hand over the words of a text one after the other, as if they were spoken. */
  speak(text, isWhole = /\n\s*$/.test(text)) {
    if (this.hasEnded) this.clear();
    this.coming.push(...text.split(/\s+/).filter(Boolean));
    const pause = Number($("pace").value) ? 60_000 / Number($("pace").value) : 0;
    clearTimeout(this.speaker);
    const next = () => {
      if (this.coming.length) this.add(this.coming.shift());
      if (this.coming.length) this.speaker = setTimeout(next, pause);
      else if (isWhole) this.speaker = setTimeout(() => this.finish(), pause);
    };
    next();
  }

  finish() {
    clearTimeout(this.speaker);
    const rest = [...this.coming.splice(0), $("word").value.trim()];
    $("word").value = "";
    for (const word of rest) if (word) this.add(word);
    if (!this.words.length || this.isEnding) return;
    this.hasEnded = true;
    this.pump(performance.now());
    this.paintSource();
  }

  /** Whether the end has been handed over, or is on its way; where that failed, it may be again. */
  get isEnding() { return this.hasEnded && (this.isPumping || this.isEndFed); }

  clear() {
    clearTimeout(this.speaker);
    this.stopReplay();
    this.words = [];
    this.coming = [];
    this.hasEnded = false;
    $("word").value = "";
    this.say("");
    this.drop();
    this.cards.forEach((card) => card.clear(""));
    this.paint();
    $("word").focus();
  }

  /** Free the stream. */
  drop() {
    this.run += 1;
    this.fed = 0;
    this.isEndFed = this.isPumping = false;
    if (this.stream) closeStream(this.stream);
    this.stream = null;
  }

  /** Translate the same words again, by other systems or settings. */
  restart() {
    clearTimeout(this.later);
    const faulty = this.cards.map((card) => card.faulty()).find(Boolean);
    if (faulty) return this.say(`${faulty.name.replaceAll("_", " ")}: ${faulty.validationMessage}`, true);
    this.say("");
    this.stopReplay();
    this.drop();
    this.cards.forEach((card) => card.clear(""));
    paintLegend(this.deepest());
    this.paint();
    if (this.words.length) this.pump(null);
  }

  restartSoon() {
    clearTimeout(this.later);
    this.later = setTimeout(() => this.restart(), 250);
  }

  /** Feed what has not been fed, one request after the other. */
  async pump(time) {
    if (this.isPumping) return;
    this.isPumping = true;
    const run = this.run;
    try {
      while (run === this.run && (this.fed < this.words.length || (this.hasEnded && !this.isEndFed))) {
        if (!this.stream) await this.open(run);
        if (run !== this.run) return;
        await this.feed(run, time);
        time = performance.now();
      }
    } catch (error) {
      if (run !== this.run) return;
      this.say(error.message, true);
      this.hasFailed = true;
      this.drop();
      this.paintSource();
    } finally {
      if (run === this.run) this.isPumping = false;
    }
    if (run === this.run) this.paintSource();
  }

  async open(run) {
    const systems = this.cards.map((card) => card.request());
    const answer = await (await ask("POST", "streams", { systems, idle: IDLE })).json();
    if (run !== this.run) return closeStream(answer.stream);
    this.stream = this.latest = answer.stream;
    if (this.hasFailed) this.say("");
    this.hasFailed = false;
    answer.systems.forEach((system, index) => this.cards[index].clear(system.title));
  }

  async feed(run, time) {
    const text = this.words.slice(this.fed).join(" ");
    const isEnd = this.hasEnded;
    const count = this.words.length;
    // With several words at once it is unknown which one triggered the output.
    const began = count - this.fed + isEnd > 1 ? null : time;
    let response;
    try {
      response = await ask("POST", `streams/${this.stream}/words`, { text, end: isEnd });
    } catch (error) {
      if (error.status !== 404) throw error;
      // The stream was idle for too long: send all words again.
      this.stream = null;
      this.fed = 0;
      return;
    }
    for await (const events of eventsOf(response)) {
      if (run !== this.run) return;
      this.receive(events, began);
    }
    this.fed = count;
    this.paintSource();
    this.isEndFed = isEnd;
    this.paintReplay();
  }

  receive(events, time) {
    const touched = new Set();
    for (const event of events) {
      if (event.event === "error") throw new Error(`${event.error} ${event.advice}`);
      const card = this.cards[event.system];
      card.events.push(event);
      touched.add(card);
      if (event.event === "text") card.hasNews = true;
    }
    for (const card of touched) {
      card.paint();
      if (!card.hasNews || time === null) continue;
      card.hasNews = false;
      // The time when the words are on the screen, not when they arrived.
      requestAnimationFrame(() => setTimeout(() => {
        card.delays.push(performance.now() - time);
        card.paintNumbers(card.state);
      }));
    }
  }

  paint() {
    this.paintSource();
    for (const card of this.cards) card.paint();
    this.paintReplay();
    const languages = new Set(this.models.map((model) => `${model.source_lang} → ${model.target_lang}`));
    $("pair").textContent = [...languages].join(", ");
  }

  paintSource() {
    $("words").replaceChildren(...this.words.map((word, index) =>
      element("li", { className: index < this.fed ? "" : "waiting" }, word)));
    $("end").disabled = this.isEnding || (!this.words.length && !$("word").value.trim());
    $("clear").disabled = !this.words.length;
    $("word").placeholder = this.words.length ? "" : "Type or paste a sentence";
  }

  say(text, isBad = false) {
    $("status").textContent = text;
    $("status").classList.toggle("bad", isBad);
  }

  // The replay: a step is a word that is read, or a unit that is written, in all systems.

  steps() {
    const all = [];
    const columns = this.cards.map((card) => {
      const words = [];
      for (const event of card.events) {
        if (event.event === "read") words.push([[]]);
        const word = words.at(-1);
        if (!word) continue;
        if (event.event === "write") word.push([]);
        word.at(-1).push(event);
      }
      return words;
    });
    for (let word = 0; word < Math.max(...columns.map((words) => words.length)); word++) {
      const parts = columns.map((words) => words[word] ?? []);
      for (let n = 0; n < Math.max(...parts.map((part) => part.length)); n++) {
        all.push(parts.map((part) => part[n] ?? []));
      }
    }
    return all;
  }

  paintReplay() {
    const count = this.hasEnded && this.isEndFed ? this.steps().length : 0;
    $("replay").disabled = $("step").disabled = !count;
    $("step").max = count;
    $("step").value = count;
    $("step-text").textContent = count ? `${count} steps` : "";
  }

  showStep(step) {
    const steps = this.steps().slice(0, step);
    this.cards.forEach((card, index) => card.paint(steps.flatMap((parts) => parts[index]), true));
    $("step").value = step;
    $("step-text").textContent = `${step} of ${$("step").max}`;
    $("step").setAttribute("aria-valuetext", $("step-text").textContent);
  }

  replay() {
    if (this.player) return this.stopReplay(true);
    const last = Number($("step").max);
    let step = 0;
    $("replay").textContent = "Stop";
    const next = () => {
      this.showStep(step);
      if (step++ < last) this.player = setTimeout(next, STEP);
      else this.stopReplay();
    };
    next();
  }

  stopReplay(showAll = false) {
    clearTimeout(this.player);
    this.player = null;
    $("replay").textContent = "Replay";
    if (showAll) this.showStep(Number($("step").max));
  }
}

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function paintTheme() { $("theme").textContent = isDark() ? "Light" : "Dark"; }

paintTheme();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintTheme);
try {
  new App(await (await ask("GET", "models")).json());
  $("word").focus();
} catch (error) {
  $("status").textContent = error.message;
  $("status").classList.add("bad");
}
