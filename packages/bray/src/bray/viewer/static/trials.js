// Trials side by side: a table, and the curves of the trials that are selected in it.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { h, put } from "./dom.js";
import { ago, brief, number } from "./format.js";
import { Notes } from "./notes.js";

const RETURN = "mean return of the last 100 training episodes, or of the last evaluation where none are recorded";
const COLUMNS = [
  ["name", "Trial", (t) => [h("div", {}, t.name), t.environment || t.tags.length ? h("small", {}, t.environment, t.tags.map((tag) => h("span", { className: "tag" }, tag))) : null]],
  ["state", "State", (t) => h("span", { className: `state ${t.state}` }, t.state)],
  ["return", "Return", (t) => number(t.return ?? t.evaluation_return)],
  ["frames", "Frames", (t) => number(t.frames)],
  ["seconds", "Duration", (t) => brief(t.seconds)],
  ["updated_s", "Updated", (t) => ago(t.updated_s)],
];
const FIRST_METRICS = ["actor/episode_return", "trainer/loss", "actor/episode_length", "trainer/entropy"];
const AXES = { frames: "frames", steps: "optimiser steps", seconds: "seconds", policy_version: "policy version" };
const FIRST_TRIALS = 5, MAX_LABELLED = 4;

const SEEDS = { each: "each trial", median: "median of a group", mean: "mean of a group", iqm: "interquartile mean of a group" };
const FACETS = { none: "all in one chart", environment: "a chart for each environment", tags: "a chart for each tag" };

export class Trials {
  constructor(main, app) {
    this.app = app;
    this.charts = new Map();
    this.names = [];
    this.row = 0;
    const wanted = app.saved("trials", {});
    this.wish = { x: "frames", seeds: "each", facets: "none", smoothing: 0, logX: false, logY: false, sort: "updated_s", down: true, metrics: null, chosen: null, ...wanted };
    this.slots = new Map();
    this.build(main);
  }

  build(main) {
    this.filter = h("input", { type: "search", id: "filter", placeholder: "Filter (/)", oninput: () => this.table() });
    this.rows = h("tbody");
    this.heads = h("tr");
    this.count = h("span", { className: "faint" });
    const all = h("button", { type: "button", onclick: () => this.chooseAll() }, "all");
    const none = h("button", { type: "button", onclick: () => this.choose([]) }, "none");
    const table = h("table", { className: "trials" }, h("thead", {}, this.heads), this.rows);
    this.scroll = h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of trials" }, table);
    this.grid = h("div", { className: "charts" });
    this.notes = new Notes(this.app);
    put(main, h("h1", { className: "unseen" }, "Trials"), h("div", { className: "side-by-side" },
      h("div", { className: "stack" }, h("section", { className: "panel" }, h("div", { className: "bar" }, this.filter, this.count, "Select", all, none), this.scroll), this.notes.element),
      h("section", {}, this.controls(), this.grid)));
  }

  controls() {
    const check = (key, text) => h("label", {}, h("input", { type: "checkbox", id: key, checked: this.wish[key], onchange: (e) => this.set({ [key]: e.target.checked }) }), text);
    const axis = h("select", { id: "x", onchange: (e) => { this.zoom(null); this.set({ x: e.target.value }); } },
      Object.entries(AXES).map(([value, text]) => h("option", { value, selected: value === this.wish.x }, text)));
    const seeds = h("select", { id: "seeds", title: "Trials of one name that differ by their last number", onchange: (e) => this.set({ seeds: e.target.value }) },
      Object.entries(SEEDS).map(([value, text]) => h("option", { value, selected: value === this.wish.seeds }, text)));
    const facets = h("select", { id: "facets", onchange: (e) => this.set({ facets: e.target.value }) },
      Object.entries(FACETS).map(([value, text]) => h("option", { value, selected: value === this.wish.facets }, text)));
    this.smooth = h("output", {}, String(this.wish.smoothing));
    const slider = h("input", { type: "range", id: "smoothing", min: 0, max: 0.99, step: 0.01, oninput: (e) => this.set({ smoothing: Number(e.target.value) }) });
    slider.value = this.wish.smoothing;
    this.whole = h("button", { type: "button", hidden: true, onclick: () => this.zoom(null) }, "reset zoom");
    this.picker = h("div", { className: "picker" });
    this.search = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter metrics", oninput: () => this.pick() });
    this.picks = h("summary", {}, "Metrics");
    return h("div", { className: "bar" }, h("label", {}, "x ", axis), h("label", {}, "Seeds ", seeds), h("label", {}, "Facets ", facets), h("label", {}, "Smoothing ", slider, this.smooth),
      check("logX", "log x"), check("logY", "log y"), this.whole, h("details", { className: "metrics" }, this.picks, h("div", { className: "pop" }, this.search, this.picker)));
  }

  set(change) {
    Object.assign(this.wish, change);
    this.app.save("trials", this.wish);
    this.smooth.textContent = String(this.wish.smoothing);
    this.curves();
  }

  // Drag over a chart: all of them show that range; a double click or "reset zoom" ends it.
  zoom(range) {
    this.range = range;
    this.whole.hidden = !range;
    this.curves();
  }

  async refresh() {
    if (!this.wish.chosen) {
      const newest = [...this.app.trials].sort((a, b) => (b.updated_s ?? 0) - (a.updated_s ?? 0));
      this.wish.chosen = newest.slice(0, FIRST_TRIALS).map((trial) => trial.name);
    }
    this.table();
    await this.curves();
  }

  chosen() {
    const known = new Set(this.app.trials.map((trial) => trial.name));
    return this.wish.chosen.filter((name) => known.has(name));
  }

  slot(name) {
    if (!this.slots.has(name)) {
      const used = new Set(this.chosen().map((other) => this.slots.get(other)));
      let free = 0;
      while (used.has(free)) free++;
      this.slots.set(name, free);
    }
    return this.slots.get(name);
  }

  shown() {
    const words = this.filter.value.toLowerCase().split(/\s+/);
    const { sort, down } = this.wish;
    const value = (trial) => (sort === "return" ? trial.return ?? trial.evaluation_return : trial[sort]);
    const order = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : (a ?? -Infinity) - (b ?? -Infinity));
    const found = this.app.trials.filter((trial) => words.every((word) => `${trial.name} ${trial.state} ${trial.environment ?? ""} ${trial.tags.join(" ")}`.toLowerCase().includes(word)));
    return found.sort((a, b) => (down ? -1 : 1) * order(value(a), value(b)));
  }

  table() {
    const { sort, down } = this.wish;
    put(this.heads, h("th", {}, hidden("Selected")), COLUMNS.map(([key, words]) =>
      h("th", { className: key === "name" || key === "state" ? "" : "number", "aria-sort": key === sort ? (down ? "descending" : "ascending") : "none" },
        h("button", { type: "button", title: key === "return" ? RETURN : "", onclick: () => this.sort(key) }, words, key === sort ? (down ? " ↓" : " ↑") : ""))), h("th", {}, hidden("Open")));
    const trials = this.shown(), chosen = new Set(this.chosen()), at = this.names[this.row];
    this.names = trials.map((trial) => trial.name);
    if (this.names.includes(at)) this.row = this.names.indexOf(at); // the order may have changed
    this.row = Math.min(this.row, Math.max(0, trials.length - 1));
    put(this.rows, trials.map((trial, i) => this.line(trial, i, chosen.has(trial.name))));
    this.count.textContent = `${trials.length} of ${this.app.trials.length}, ${chosen.size} selected`;
    this.app.attempt(() => this.notes.show(this.names[this.row]));
    if (!this.app.trials.length) put(this.rows, h("tr", {}, h("td", { colSpan: 8, className: "empty" }, "No trials yet: bray train writes one here.")));
  }

  line(trial, i, isChosen) {
    const box = h("input", { type: "checkbox", checked: isChosen, "aria-label": `Select ${trial.name}`, tabIndex: -1 });
    const swatch = h("i", { className: isChosen ? `swatch c${this.slot(trial.name) % 10}` : "swatch" });
    const cells = COLUMNS.map(([key, , show]) => h("td", { className: key === "name" ? "name" : key === "state" ? "" : "number", title: key === "name" ? trial.name : "" }, show(trial)));
    const open = h("a", { href: this.app.link("loop", trial.name), title: "Open this trial", onclick: (e) => e.stopPropagation() }, "→");
    return h("tr", { className: i === this.row ? "at" : "", onclick: () => { this.row = i; this.toggle(trial.name); } }, h("td", { className: "tick" }, box, swatch), cells, h("td", {}, open));
  }

  sort(key) {
    const down = this.wish.sort === key ? !this.wish.down : key !== "name" && key !== "state";
    Object.assign(this.wish, { sort: key, down });
    this.app.save("trials", this.wish);
    this.table();
  }

  toggle(name) {
    const chosen = this.chosen();
    this.choose(chosen.includes(name) ? chosen.filter((other) => other !== name) : [...chosen, name]);
  }

  chooseAll() {
    this.choose([...new Set([...this.chosen(), ...this.names])].slice(0, 200));
  }

  choose(names) {
    for (const name of this.slots.keys()) if (!names.includes(name)) this.slots.delete(name);
    this.wish.chosen = names;
    this.app.save("trials", this.wish);
    this.table();
    this.curves();
  }

  metrics() {
    if (this.wish.metrics) return this.wish.metrics.filter((name) => this.known.includes(name));
    return FIRST_METRICS.flatMap((base) => (this.known.includes(base) ? [base] : this.known.filter((name) => labelled(name, base)).slice(0, MAX_LABELLED)));
  }

  pick() {
    const words = this.search.value.toLowerCase().split(/\s+/), chosen = this.metrics();
    this.picks.textContent = `Metrics (${chosen.length})`;
    put(this.picker, this.known.filter((name) => words.every((word) => name.toLowerCase().includes(word))).slice(0, 300).map((name) =>
      h("label", {}, h("input", { type: "checkbox", checked: chosen.includes(name), onchange: (e) => {
        const now = this.metrics().filter((other) => other !== name);
        this.set({ metrics: e.target.checked ? [...now, name] : now });
      } }), name)));
  }

  async curves() {
    const turn = (this.turn = (this.turn || 0) + 1);
    const chosen = this.chosen();
    if (!chosen.length) return this.empty(this.app.trials.length ? "Select trials on the left to see their curves." : "");
    const known = await get(["metrics"], { trial: chosen });
    if (turn !== this.turn) return; // a newer request is under way
    if (String(known) !== String(this.known) || !this.picker.childElementCount) {
      this.known = known;
      this.pick();
    }
    const metrics = this.metrics();
    this.picks.textContent = `Metrics (${metrics.length})`;
    if (!metrics.length) return this.empty("No metrics recorded yet, or none selected.");
    if (this.grid.querySelector(":scope > .empty")) put(this.grid);
    const panels = metrics.flatMap((metric) => this.facets(chosen).map(([facet, trials]) => ({ key: `${metric}\n${facet}`, metric, facet, trials })));
    for (const [key, chart] of this.charts) {
      if (panels.some((panel) => panel.key === key)) continue;
      chart.close();
      chart.element.remove();
      this.charts.delete(key);
    }
    const elements = panels.map((panel) => this.panel(panel));
    if (elements.some((element, i) => element !== this.grid.children[i])) put(this.grid, elements);
    await Promise.all(panels.map((panel) => this.curve(panel, turn)));
  }

  // The trials of each chart of a metric: all of them, or those of one environment or tag.
  facets(chosen) {
    const by = this.wish.facets;
    if (!(by in FACETS) || by === "none") return [["", chosen]];
    const found = new Map();
    for (const trial of this.app.trials.filter(({ name }) => chosen.includes(name))) {
      const facets = by === "tags" ? trial.tags : [trial.environment ?? ""];
      for (const facet of facets.length ? facets : [""]) found.set(facet, [...(found.get(facet) ?? []), trial.name]);
    }
    return [...found].sort(([a], [b]) => a.localeCompare(b)).map(([facet, trials]) => [facet || (by === "tags" ? "no tag" : "unknown environment"), trials]);
  }

  empty(words) {
    for (const chart of this.charts.values()) chart.close();
    this.charts.clear();
    put(this.grid, h("p", { className: "empty" }, words));
  }

  panel({ key, metric, facet }) {
    if (!this.charts.has(key)) this.charts.set(key, new Chart(facet ? `${metric} · ${facet}` : metric, { onzoom: (range) => this.zoom(range) }));
    return this.charts.get(key).element;
  }

  async curve({ key, metric, trials }, turn) {
    const chart = this.charts.get(key);
    const { x, seeds, smoothing, logX, logY } = this.wish;
    const points = Math.max(100, Math.min(1200, Math.round(chart.svg.clientWidth || 500)));
    const found = await get(["curves"], { metric, x, seeds, smoothing, points, from: this.range?.[0], to: this.range?.[1], trial: trials });
    if (turn !== this.turn || !this.charts.has(key)) return;
    const curves = found.map((one) => ({ ...one, name: one.name ?? one.trial, slot: this.slot(one.trial) }));
    chart.set({ curves, xLabel: AXES[x], logX, logY });
  }

  keys = {
    ArrowDown: ["next trial", () => this.move(1)],
    ArrowUp: ["previous trial", () => this.move(-1)],
    " ": ["select or deselect the trial", () => this.names.length && this.toggle(this.names[this.row])],
    Enter: ["open the trial", () => this.names.length && this.app.go("loop", this.names[this.row])],
    a: ["select all shown", () => this.chooseAll()],
    n: ["select none", () => this.choose([])],
    w: ["reset zoom", () => this.zoom(null)],
    l: ["logarithmic y axis", () => { document.getElementById("logY").click(); }],
    "/": ["filter", () => this.filter.focus()],
  };

  move(step) {
    this.row = Math.max(0, Math.min(this.names.length - 1, this.row + step));
    this.table();
    this.rows.children[this.row]?.scrollIntoView({ block: "nearest" });
  }

  close() {
    for (const chart of this.charts.values()) chart.close();
  }
}

// `actor/episode_return{policy=red}` is one of the metrics `actor/episode_return`; evaluations are apart.
function labelled(name, base) {
  return name.startsWith(`${base}{`) && !/[{,](phase|role)=/.test(name);
}

function hidden(words) {
  return h("span", { className: "unseen" }, words);
}
