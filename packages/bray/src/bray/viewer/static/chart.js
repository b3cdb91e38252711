// A line chart in SVG: several curves, bands around them, logarithmic axes, values under the pointer.

import { h, put, s } from "./dom.js";
import { number } from "./format.js";

const RIGHT = 14, TOP = 10, BOTTOM = 24, SHOWN_VALUES = 14, NEAR = 30;

export class Chart {
  // curves: [{name, slot, x, y, low?, high?, starts?}]; a slot chooses the colour. No line leads to
  // the points whose indices are in starts: between two launches nothing was recorded.
  // onzoom is told the range of x that was dragged over, or null for all of it.
  constructor(title, { height = 210, format = number, left = 52, floor = -Infinity, onzoom = null } = {}) {
    this.floor = floor; // no axis begins below it
    this.left = left;
    this.height = height;
    this.format = format;
    this.data = { curves: [], xLabel: "", logX: false, logY: false };
    this.tip = h("div", { className: "tip", hidden: true });
    this.svg = s("svg", { class: "chart", height, role: "img", "aria-label": title, tabindex: 0 });
    this.note = h("span", { className: "faint" });
    this.element = h("figure", {}, h("figcaption", {}, title, " ", this.note), this.svg, this.tip);
    this.svg.addEventListener("pointermove", (event) => (this.from == null ? this.point(event.offsetX) : this.drag(event.offsetX)));
    if (onzoom) {
      this.svg.addEventListener("pointerdown", (event) => this.grab(event));
      this.svg.addEventListener("pointerup", (event) => this.drop(event.offsetX, onzoom));
      this.svg.addEventListener("dblclick", () => onzoom(null));
    }
    this.svg.addEventListener("pointerleave", () => this.unpoint());
    this.svg.addEventListener("blur", () => this.unpoint());
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.element);
  }

  close() {
    this.observer.disconnect();
  }

  set(data) {
    this.data = { ...this.data, ...data };
    this.isSet = true;
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth || this.element.clientWidth;
    if (!width) return;
    this.width = width;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    const { logX, logY, xLabel } = this.data;
    this.curves = this.data.curves.map((curve) => visible(curve, logX, logY)).filter((c) => c.x.length);
    if (!this.curves.length) {
      put(this.svg, s("text", { x: width / 2, y: this.height / 2, class: "empty" }, this.isSet ? "nothing recorded" : ""));
      return;
    }
    const ys = this.curves.flatMap((c) => [c.y, c.low || [], c.high || []]);
    this.xScale = scale(bounds(this.curves.map((c) => c.x)), this.left, width - RIGHT, logX);
    this.yScale = scale(padded(bounds(ys), logY, this.floor), this.height - BOTTOM, TOP, logY);
    this.cursor = s("g", { class: "cursor" });
    put(this.svg, this.grid(width, xLabel), this.curves.map((curve) => this.curve(curve)), this.cursor);
  }

  grid(width, xLabel) {
    const lines = [];
    const marks = this.yScale.ticks(Math.max(2, this.height / 48)), words = distinct(marks, this.format);
    marks.forEach((tick, k) => {
      const y = this.yScale(tick);
      lines.push(s("line", { x1: this.left, x2: width - RIGHT, y1: y, y2: y, class: "grid" }));
      lines.push(s("text", { x: this.left - 7, y: y + 4, class: "left" }, words[k]));
    });
    const across = this.xScale.ticks((width - this.left) / 85);
    for (const tick of this.data.isCounted ? across.filter(Number.isInteger) : across) {
      const x = this.xScale(tick);
      lines.push(s("line", { x1: x, x2: x, y1: this.height - BOTTOM, y2: this.height - BOTTOM + 4, class: "axis" }));
      if (x < width - RIGHT - Math.max(60, 7 * (xLabel ?? "").length) || !xLabel) {
        lines.push(s("text", { x, y: this.height - 7, class: "below" }, number(tick)));
      }
    }
    const y = this.height - BOTTOM;
    lines.push(s("line", { x1: this.left, x2: width - RIGHT, y1: y, y2: y, class: "axis" }));
    lines.push(s("text", { x: width - RIGHT, y: this.height - 7, class: "x-label" }, xLabel));
    return lines;
  }

  curve(curve) {
    const parts = [];
    const at = (column) => column.map((value, i) => `${round(this.xScale(curve.x[i]))} ${round(this.yScale(value))}`);
    const every = strokes(curve), long = every.filter(([from, to]) => to - from > 1);
    if (curve.low && long.length) {
      const high = at(curve.high), low = at(curve.low);
      const d = long.map(([from, to]) => `M${[...high.slice(from, to), ...low.slice(from, to).reverse()].join("L")}Z`);
      parts.push(s("path", { d: d.join(""), class: `band c${curve.slot % 10}` }));
    }
    const points = at(curve.y);
    const dash = ["", "6 3", "2 3", "8 3 2 3"][Math.floor(curve.slot / 10) % 4];
    const d = every.map(([from, to]) => `M${points.slice(from, to).join("L")}`);
    parts.push(s("path", { d: d.join(""), class: `line c${curve.slot % 10}`, "stroke-dasharray": dash }));
    const isOnePlace = ([from, to]) => new Set(points.slice(from, to)).size === 1; // a line to itself is not seen
    for (const [from] of every.filter(isOnePlace)) {
      parts.push(s("circle", { cx: this.xScale(curve.x[from]), cy: this.yScale(curve.y[from]), r: 3, class: `dot c${curve.slot % 10}` }));
    }
    return parts;
  }

  grab(event) {
    if (!this.cursor || event.button !== 0) return;
    this.svg.setPointerCapture(event.pointerId);
    this.from = event.offsetX;
    this.unpoint();
  }

  drag(x) {
    const [left, right] = this.dragged(x);
    put(this.cursor, s("rect", { x: left, width: right - left, y: TOP, height: this.height - BOTTOM - TOP, class: "dragged" }));
  }

  drop(x, onzoom) {
    if (this.from == null) return;
    const [left, right] = this.dragged(x);
    this.from = null;
    put(this.cursor);
    if (right - left > 8) onzoom([this.xScale.invert(left), this.xScale.invert(right)]);
  }

  dragged(x) {
    const inside = (at) => Math.max(this.left, Math.min(this.width - RIGHT, at));
    return [inside(this.from), inside(x)].sort((a, b) => a - b);
  }

  key(event) {
    const step = { ArrowLeft: -4, ArrowRight: 4 }[event.key];
    if (!step || !this.cursor) return;
    event.preventDefault();
    event.stopPropagation();
    this.point(Math.min(this.width - RIGHT, Math.max(this.left, (this.at ?? this.width / 2) + step)));
  }

  point(x) {
    if (!this.curves || !this.curves.length || x < this.left - 4 || x > this.width - RIGHT + 4) return this.unpoint();
    this.at = x;
    const every = this.curves.map((curve) => this.nearest(curve, x));
    const first = every.reduce((one, other) => (other.away < one.away ? other : one));
    // A curve that ends elsewhere has no value here.
    const found = every.filter((one) => one.away <= first.away + NEAR);
    found.sort((one, other) => other.curve.y[other.i] - one.curve.y[one.i]);
    const middle = this.xScale(first.curve.x[first.i]);
    put(
      this.cursor,
      s("line", { x1: middle, x2: middle, y1: TOP, y2: this.height - BOTTOM, class: "hair" }),
      found.map(({ curve, i }) =>
        s("circle", { cx: this.xScale(curve.x[i]), cy: this.yScale(curve.y[i]), r: 3, class: `dot c${curve.slot % 10}` })),
    );
    this.tell(found, first.curve.x[first.i], middle);
  }

  tell(found, x, middle) {
    const rows = found.slice(0, SHOWN_VALUES).map(({ curve, i }) =>
      h("div", { className: "row" }, h("i", { className: `swatch c${curve.slot % 10}` }), h("span", {}, curve.name),
        h("b", {}, this.format(curve.y[i])), curve.low && curve.high[i] - curve.low[i] > 1e-9 * Math.abs(curve.y[i]) ? h("small", {}, `${this.format(curve.low[i])} … ${this.format(curve.high[i])}`) : h("small")));
    const rest = found.length - rows.length;
    put(this.tip, h("div", { className: "faint" }, `${this.data.xLabel} ${number(x)}`),
      rows, rest > 0 ? h("div", { className: "faint" }, `and ${rest} more`) : null);
    this.tip.hidden = false;
    const left = middle > this.width / 2 ? middle - this.tip.offsetWidth - 14 : middle + 14;
    this.tip.style.left = `${Math.max(0, left)}px`;
  }

  unpoint() {
    this.at = null;
    this.tip.hidden = true;
    if (this.cursor) put(this.cursor);
  }

  nearest(curve, x) {
    let best = 0, distance = Infinity;
    for (let i = 0; i < curve.x.length; i++) {
      const away = Math.abs(this.xScale(curve.x[i]) - x);
      if (away < distance) [best, distance] = [i, away];
    }
    return { curve, i: best, away: distance };
  }
}

function visible(curve, logX, logY) {
  // A logarithm has no place for what is not above zero.
  if (!logX && !logY) return curve;
  const kept = curve.x.map((_, i) => i).filter((i) => (!logX || curve.x[i] > 0) && (!logY || curve.y[i] > 0));
  const pick = (column) => column && kept.map((i) => column[i]);
  const [x, y, high] = [pick(curve.x), pick(curve.y), pick(curve.high)];
  const low = curve.low && kept.map((i) => (logY && curve.low[i] <= 0 ? curve.y[i] : curve.low[i]));
  const moved = (curve.starts ?? []).map((start) => kept.findIndex((i) => i >= start));
  return { ...curve, x, y, low, high, starts: [...new Set(moved)].filter((i) => i > 0) };
}

// The parts of a curve that are lines: [from, to) of its points.
function strokes({ x, starts = [] }) {
  const edges = [0, ...starts, x.length];
  return edges.slice(1).map((to, i) => [edges[i], to]);
}

function bounds(columns) {
  let low = Infinity, high = -Infinity;
  for (const column of columns) {
    for (const value of column) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return [low, high];
}

function padded([low, high], isLog, floor) {
  if (isLog) return low === high ? [low / 2, high * 2] : [low, high];
  const room = (high - low) * 0.04 || Math.abs(high) * 0.1 || 1;
  return [Math.max(floor, low - room), high + room];
}

function scale([low, high], from, to, isLog) {
  if (low === high) high = low + (isLog ? low : 1);
  const map = isLog ? Math.log10 : (value) => value;
  const start = map(low), span = map(high) - start || 1;
  const at = (value) => from + ((map(value) - start) / span) * (to - from);
  at.invert = (position) => {
    const value = start + ((position - from) / (to - from)) * span;
    return isLog ? 10 ** value : value;
  };
  at.ticks = (count) => (isLog ? logTicks(low, high, count) : ticks(low, high, count));
  return at;
}

// Words for an axis: where rounding makes two neighbours alike, with as many digits as tell them apart.
function distinct(marks, format) {
  const rounded = marks.map(format);
  if (new Set(rounded).size === marks.length) return rounded;
  const digits = Math.ceil(-Math.log10(marks[1] - marks[0]) - 1e-9);
  return digits > 8 || digits < 0 ? rounded : marks.map((mark) => mark.toFixed(digits).replace(/^-/, "−"));
}

export function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((one) => one >= rough * 0.999);
  const first = Math.ceil(low / step), last = Math.floor(high / step + 1e-9);
  // Of numbers that differ in their last digit a step is less than doubles tell apart.
  const length = Math.min(last - first, 2 * count) + 1;
  return length > 0 && Number.isFinite(step) ? [...new Set(Array.from({ length }, (_, k) => (first + k) * step))] : [];
}

function logTicks(low, high, count) {
  const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
  const factors = to - from <= 1 ? [1, 2, 3, 5] : to - from <= 3 ? [1, 3] : [1];
  const every = Math.max(1, Math.ceil((to - from) / Math.max(2, count)));
  const found = [];
  for (let power = from; power <= to; power += every) {
    for (const factor of factors) found.push(factor * 10 ** power);
  }
  return found.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

function round(value) {
  return Math.round(value * 10) / 10;
}
