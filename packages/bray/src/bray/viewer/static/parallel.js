// Parallel coordinates in SVG: a line for each trial through its settings to its result. A drag along
// an axis keeps the lines that pass through there.

import { h, put, s } from "./dom.js";
import { number } from "./format.js";

export const LEAST_GAP = 112;
const HEIGHT = 300, TOP = 46, BOTTOM = 20, LEFT = 74, RIGHT = 74, MAX_NAMES = 12, GAP = 26;

export class Parallel {
  // onchoose is called with the names of the lines that pass through all ranges.
  constructor(onchoose) {
    Object.assign(this, { onchoose, axes: [], lines: [], ranges: new Map(), marked: null });
    this.svg = s("svg", { class: "parallel", height: HEIGHT, role: "img", "aria-label": "Settings and results as parallel coordinates; the table below has the same values" });
    this.said = h("p", { className: "faint cell", role: "status" });
    this.element = h("div", {}, h("div", { className: "picture", tabIndex: 0, role: "region", "aria-label": "Parallel coordinates" }, this.svg), this.said);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  // axes: [{name, values}] with a value for each line; the last one is the result. lines: [{name}].
  set(axes, names) {
    this.axes = axes.map((axis, k) => ({ ...axis, at: place(axis.values, k === axes.length - 1) }));
    this.names = names;
    for (const name of this.ranges.keys()) if (!axes.some((axis) => axis.name === name)) this.ranges.delete(name);
    this.draw();
  }

  draw() {
    const room = this.element.clientWidth;
    if (!room || !this.axes.length) return;
    const gap = Math.max(LEAST_GAP, (room - LEFT - RIGHT) / Math.max(1, this.axes.length - 1));
    const width = this.axes.length > 1 ? LEFT + RIGHT + gap * (this.axes.length - 1) : LEFT + RIGHT;
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.gap = gap;
    this.paths = this.names.map((name, i) => this.line(name, i));
    put(this.svg, this.paths.filter(Boolean), this.axes.map((axis, k) => this.axis(axis, k)));
    this.shade();
  }

  // A setting's own name, with its part's where two parts have one of that name.
  label(name) {
    const last = name.split(".").at(-1);
    return brief(this.axes.filter((axis) => axis.name.split(".").at(-1) === last).length > 1 ? name : last, Math.max(18, Math.floor((2 * this.gap) / 8)));
  }

  x(k) {
    return LEFT + k * this.gap;
  }

  line(name, i) {
    const points = this.axes.map((axis, k) => [this.x(k), axis.at(axis.values[i])]);
    if (points.at(-1)[1] == null) return null; // a trial without a result yet
    const result = this.axes.at(-1), share = (HEIGHT - BOTTOM - result.at(result.values[i])) / (HEIGHT - BOTTOM - TOP);
    const path = s("path", { d: `M${points.map((point) => point.join(" ")).join("L")}`, class: "trial-line", "data-trial": name, onpointerenter: () => this.mark(i), onpointerleave: () => this.mark(null) }, s("title", {}, name));
    path.style.stroke = `color-mix(in oklab, var(--accent) ${Math.round(12 + 88 * share)}%, var(--warn))`;
    return path;
  }

  axis(axis, k) {
    const x = this.x(k), range = this.ranges.get(axis.name), isLast = k === this.axes.length - 1;
    const group = s("g", { class: isLast ? "coordinate result" : "coordinate", "data-axis": axis.name },
      s("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM, class: "axis" }),
      s("text", { x, y: k % 2 ? 30 : 14, class: "name" }, s("title", {}, axis.name), this.label(axis.name)),
      axis.at.ticks.map(([y, words]) => s("text", { x: x + 6, y: y + 4, class: "tick-words" }, words)),
      range ? s("rect", { x: x - 7, width: 14, y: range[0], height: range[1] - range[0], class: "dragged" }) : null,
      s("rect", { x: x - 14, width: 28, y: TOP - 6, height: HEIGHT - TOP - BOTTOM + 12, class: "grip", onpointerdown: (event) => this.grab(event, axis.name), ondblclick: () => this.range(axis.name, null) }));
    return group;
  }

  grab(event, name) {
    if (event.button !== 0) return;
    event.preventDefault();
    const y = (moved) => Math.max(TOP, Math.min(HEIGHT - BOTTOM, moved.clientY - this.svg.getBoundingClientRect().top));
    const from = y(event), move = (moved) => this.range(name, [from, y(moved)].sort((a, b) => a - b));
    const end = (last) => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
      if (Math.abs(y(last) - from) < 4) this.range(name, null); // a click ends the choice
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
  }

  range(name, range) {
    if (range) this.ranges.set(name, range);
    else this.ranges.delete(name);
    this.draw();
    this.onchoose(this.kept());
  }

  isKept(i) {
    return this.axes.every((axis) => {
      const range = this.ranges.get(axis.name), y = axis.at(axis.values[i]);
      return !range || (y != null && y >= range[0] - 0.5 && y <= range[1] + 0.5);
    });
  }

  // The names of the lines that pass through all ranges; null: no range is chosen.
  kept() {
    return this.ranges.size ? this.names.filter((_, i) => this.isKept(i)) : null;
  }

  mark(i) {
    this.marked = i;
    this.shade();
    this.say();
  }

  shade() {
    this.paths.forEach((path, i) => {
      path?.classList.toggle("out", !this.isKept(i));
      path?.classList.toggle("marked", i === this.marked);
    });
    this.say();
  }

  say() {
    const i = this.marked, left = this.paths.filter((path) => !path).length;
    if (i != null) this.said.textContent = `${this.names[i]}: ${this.axes.map((axis) => `${axis.name} ${words(axis.values[i])}`).join(", ")}`;
    else this.said.textContent = `${this.ranges.size ? `${this.kept().length} of ${this.names.length} trials pass through the chosen ranges. ` : "Drag along an axis to choose a range; click it to end that. "}${left ? `${left} without a result are not drawn.` : ""}`;
  }

  close() {
    this.observer.disconnect();
  }
}

// Where a value lies on an axis, in pixels: numbers by size, all else evenly, in order. A setting
// that a trial does not have lies below the others; a result that it does not have lies nowhere.
function place(values, isResult) {
  const known = values.filter((value) => value !== undefined), low = HEIGHT - BOTTOM;
  const hasGap = !isResult && known.length < values.length && known.every((value) => typeof value === "number");
  const at = known.every((value) => typeof value === "number") ? bySize(known, hasGap ? low - GAP : low) : inOrder(isResult ? known : values, low);
  const found = (value) => (value === undefined && (isResult || hasGap) ? (hasGap ? low : null) : at(value));
  found.ticks = hasGap ? [...at.ticks, [low, words(undefined)]] : at.ticks;
  return found;
}

function inOrder(values, low) {
  const every = [...new Set(values.map(words))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const at = (value) => (every.length < 2 ? (low + TOP) / 2 : low - (every.indexOf(words(value)) / (every.length - 1)) * (low - TOP));
  const step = Math.ceil(every.length / MAX_NAMES);
  at.ticks = every.filter((_, i) => i % step === 0).map((name) => [every.length < 2 ? (low + TOP) / 2 : low - (every.indexOf(name) / (every.length - 1)) * (low - TOP), brief(name)]);
  return at;
}

function bySize(numbers, low) {
  const least = Math.min(...numbers), most = Math.max(...numbers), span = low - TOP;
  const isLog = least > 0 && most / least >= 10, map = isLog ? Math.log10 : (value) => value;
  const from = map(least), reach = map(most) - from;
  const at = (value) => low - (reach ? ((map(value) - from) / reach) * span : span / 2);
  const shares = reach > 0 ? [0, 0.25, 0.5, 0.75, 1] : [0.5];
  const different = [...new Set(numbers)].sort((a, b) => a - b);
  const marked = different.length <= 5 ? different : shares.map((share) => (isLog ? 10 ** (from + share * reach) : least + share * (most - least)));
  at.ticks = marked.map((value) => [at(value), different.length <= 5 ? words(value) : number(value)]);
  return at;
}

export function words(value) {
  if (value === undefined) return "–";
  if (typeof value === "number") return String(value).length <= 8 ? String(value) : number(value);
  return value === null ? "none" : value === true ? "yes" : value === false ? "no" : String(value) || "empty";
}

function brief(text, most = 18) {
  return text.length > most ? `…${text.slice(1 - most)}` : text;
}
