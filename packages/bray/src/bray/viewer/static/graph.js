// A template as its graph: parts as boxes in columns by kind, wires by name. A drag from a box's
// port to another box connects the two.

import { h, put, s } from "./dom.js";
import { quantity } from "./format.js";

const WIDTH = 156, HEIGHT = 54, GAP_X = 104, GAP_Y = 26, LEFT = 58, TOP = 12;
const COLUMNS = [["source", "actor", "render"], ["agent"], ["model", "buffer"], ["trainer"]];
export const JOINED = {
  source: ["agent"], agent: ["model", "buffer"], buffer: ["trainer", "buffer"], trainer: ["model"], actor: ["source"], render: ["source"], model: [],
};

export class Graph {
  // onselect is called with the id of a part, onconnect with the ids of two.
  constructor({ onselect, onconnect }) {
    Object.assign(this, { onselect, onconnect, parts: [], wires: [], problems: [], figures: [], places: new Map(), selected: null });
    this.svg = s("svg", { class: "graph", role: "group", "aria-label": "The template's parts and wires" });
    this.element = h("div", { className: "picture" }, this.svg);
  }

  set(found) {
    Object.assign(this, found);
    if (!this.drag) this.draw();
  }

  draw() {
    const focused = document.activeElement?.dataset?.part;
    const height = this.place();
    this.svg.setAttribute("viewBox", `0 0 ${LEFT + COLUMNS.length * (WIDTH + GAP_X) - GAP_X + 14} ${height}`);
    const head = s("defs", {}, s("marker", { id: "wire-head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, markerUnits: "userSpaceOnUse", orient: "auto" }, s("path", { d: "M0 0L8 4L0 8Z", class: "arrow-head" })));
    this.loose = s("path", { class: "wire loose" });
    put(this.svg, head, this.joined().map((one) => this.wire(one)), this.parts.map((part) => this.box(part)), this.loose);
    if (focused) [...this.svg.querySelectorAll("[data-part]")].find((box) => box.dataset.part === focused)?.focus();
  }

  place() {
    this.places.clear();
    const rows = COLUMNS.map((kinds, column) => {
      const found = kinds.flatMap((kind) => this.parts.filter((part) => part.kind === kind));
      found.forEach((part, row) => this.places.set(part.id, { column, x: LEFT + column * (WIDTH + GAP_X), y: TOP + row * (HEIGHT + GAP_Y) }));
      return found.length;
    });
    return TOP * 2 + Math.max(1, ...rows) * (HEIGHT + GAP_Y) - GAP_Y;
  }

  // Wires between the same two parts are one line.
  joined() {
    const found = new Map();
    for (const wire of this.wires) {
      const key = `${wire.source} ${wire.target}`;
      const before = found.get(key);
      if (before) before.names.push(wire.name);
      else found.set(key, { ...wire, names: [wire.name] });
    }
    return [...found.values()];
  }

  wire(wire) {
    const from = this.places.get(wire.source), to = this.places.get(wire.target);
    if (!from || !to) return null;
    const isBack = to.column < from.column, y = HEIGHT * (isBack ? 0.74 : 0.36);
    const [a, b, bend] = to.column === from.column ? [from.x, to.x, -34] : isBack ? [from.x, to.x + WIDTH, -GAP_X / 2] : [from.x + WIDTH, to.x, GAP_X / 2];
    const ends = [a, from.y + y, b, to.y + y], turn = to.column === from.column ? bend : -bend;
    const [x1, y1, x2, y2] = ends, where = wire.source.startsWith("buffers.") ? 0.36 : wire.target.startsWith("buffers.") ? 0.64 : 0.5;
    const at = [along(where, x1, x1 + bend, x2 + turn, x2), along(where, y1, y1, y2, y2)]; // names near buffers, where wires lie apart
    const isOf = [wire.source, wire.target].includes(this.selected), figures = this.shown(wire);
    return s("g", { class: `wiring${isOf ? " chosen" : ""}${wire.is_written ? "" : " implied"}`, "data-wire": `${wire.source} ${wire.target}` },
      s("path", { d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 + turn} ${y2} ${x2} ${y2}`, class: "wire", "marker-end": "url(#wire-head)" }),
      s("text", { x: at[0], y: at[1] - 4, class: "wire-name" }, brief(wire.names.join(", "), 18)),
      figures.map((figure, i) => s("text", { x: at[0], y: at[1] + 10 + i * 13, class: "wire-figure" }, `${figure.words} ${quantity(figure.value, figure.unit)}`.trim())));
  }

  // What flows, as the newest metrics say: that of the wire's own trainer, else of all.
  shown({ source, target }) {
    const kind = (id) => this.parts.find((part) => part.id === id)?.kind, name = (id) => id.split(".")[1];
    const of = this.figures.filter((figure) => figure.wire === `${kind(source)}-${kind(target)}`);
    const trainer = [source, target].filter((id) => kind(id) === "trainer").map(name)[0];
    const own = of.filter((figure) => figure.trainer && figure.trainer === trainer);
    return own.length ? own : of.filter((figure) => !figure.trainer);
  }

  box(part) {
    const { x, y } = this.places.get(part.id), wrong = this.problems.filter((problem) => problem.part === part.id);
    const shown = [brief(part.name, 17), part.kind, wrong.length ? (wrong.length === 1 ? "1 problem" : `${wrong.length} problems`) : brief(part.is_written ? part.summary : "by default", 21)];
    const words = `${shown.join(" ").trim()}${part.name.length > 17 ? `, ${part.name}` : ""}${part.summary.length > 21 || (wrong.length && part.summary) ? `, ${part.summary}` : ""}`;
    const isLeft = part.kind === "trainer", port = { cx: isLeft ? x : x + WIDTH, cy: y + HEIGHT * (isLeft ? 0.74 : 0.36) };
    const classes = ["node", `of-${part.kind}`, part.is_written ? "" : "implied", wrong.length ? "wrong" : "", part.id === this.selected ? "chosen" : ""];
    return s("g", { class: classes.filter(Boolean).join(" "), "data-part": part.id, tabindex: 0, role: "button", "aria-label": words, "aria-pressed": String(part.id === this.selected), onclick: () => this.onselect(part.id), onkeydown: (event) => this.key(event, part.id) },
      s("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 8, class: "box" }, s("title", {}, wrong.length ? wrong.map((problem) => problem.text).join("\n") : words)),
      s("text", { x: x + 10, y: y + 21, class: "title" }, `${shown[0]} `),
      s("text", { x: x + WIDTH - 10, y: y + 21, class: "kind" }, `${part.kind} `),
      s("text", { x: x + 10, y: y + 41, class: wrong.length ? "words bad" : "words" }, shown[2]),
      JOINED[part.kind].length ? s("circle", { ...port, r: 7, class: "port", onpointerdown: (event) => this.pull(event, part.id, port) }) : null);
  }

  key(event, id) {
    if (!["Enter", " "].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    this.onselect(id);
  }

  // A drag: the line follows the pointer until it is let go.
  pull(event, id, { cx, cy }) {
    event.preventDefault();
    event.stopPropagation();
    this.drag = id;
    const move = (moved) => {
      const { x, y } = new DOMPoint(moved.clientX, moved.clientY).matrixTransform(this.svg.getScreenCTM().inverse());
      this.loose.setAttribute("d", `M${cx} ${cy}L${x} ${y}`);
    };
    const end = (let_go) => {
      for (const [name, handler] of Object.entries(handlers)) removeEventListener(name, handler);
      this.drag = null;
      const target = let_go.type === "pointerup" ? document.elementFromPoint(let_go.clientX, let_go.clientY)?.closest("[data-part]")?.dataset.part : null;
      this.draw();
      if (target && target !== id) this.onconnect(id, target);
    };
    const handlers = { pointermove: move, pointerup: end, pointercancel: end };
    for (const [name, handler] of Object.entries(handlers)) addEventListener(name, handler);
  }
}

// The place on a curve at a share of its way.
function along(t, a, b, c, d) {
  const rest = 1 - t;
  return rest ** 3 * a + 3 * rest * rest * t * b + 3 * rest * t * t * c + t ** 3 * d;
}

function brief(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}
