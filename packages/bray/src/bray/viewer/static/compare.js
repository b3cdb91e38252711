// The selected trials beside each other: their settings and results as lines and as a table, and how
// the settings and the code of two of them differ.

import { address, get } from "./api.js";
import { h, put } from "./dom.js";
import { Difference } from "./difference.js";
import { number } from "./format.js";
import { LEAST_GAP, Parallel, words } from "./parallel.js";

const MAX_AXES = 16;

export class Compare {
  constructor(main, app) {
    this.app = app;
    this.wish = { result: null, all: false, sort: null, down: true, ...app.saved("compare", {}) };
    this.heading = h("span", { className: "faint" });
    this.result = h("select", { id: "result", onchange: (e) => this.set({ result: e.target.value, sort: "result" }) });
    const all = h("input", { type: "checkbox", id: "all-settings", checked: this.wish.all, onchange: (e) => this.set({ all: e.target.checked }) });
    this.report = h("a", { className: "button", id: "report", download: "" }, "Save a report");
    this.parallel = new Parallel((names) => this.keep(names));
    this.rows = h("tbody");
    this.heads = h("tr");
    this.lines = h("section", { className: "panel" }, h("h2", {}, "Settings and results"), this.parallel.element);
    this.table = h("section", { className: "panel" }, h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Table of settings" }, h("table", { className: "compared" }, h("thead", {}, this.heads), this.rows)));
    this.difference = new Difference(app);
    this.none = h("p", { className: "empty" });
    put(main, h("div", { className: "bar" }, h("h1", {}, "Compare"), this.heading, h("label", {}, "Result ", this.result), h("label", {}, all, "all settings"), this.report),
      this.none, h("div", { className: "stack" }, this.lines, this.table, this.difference.element));
  }

  async refresh() {
    const known = new Set(this.app.trials.map((trial) => trial.name));
    const wanted = this.app.saved("trials", {}).chosen, chosen = (wanted ?? [...known]).filter((name) => known.has(name)).slice(0, 200);
    const isFew = chosen.length < 2;
    this.none.hidden = !isFew;
    this.none.textContent = "Select two trials or more on the first page: they are compared here.";
    for (const part of [this.lines, this.table, this.difference.element, this.report]) part.hidden = isFew;
    this.heading.textContent = wanted ? `${chosen.length} trials, as selected on the first page` : `${chosen.length} trials, all of this project`;
    if (isFew) return;
    const found = await get(["compare"], { trial: chosen });
    this.report.href = address(["report"], { trial: chosen });
    if (found !== this.found) {
      this.found = found;
      this.kept = null;
      this.draw();
    }
    await this.difference.show(found);
  }

  set(change) {
    Object.assign(this.wish, change);
    this.app.save("compare", this.wish);
    this.draw();
  }

  keep(names) {
    this.kept = names;
    this.body();
  }

  draw() {
    const { figures } = this.found;
    if (!figures.includes(this.wish.result)) this.wish.result = figures[0] ?? null;
    put(this.result, figures.map((name) => h("option", { value: name, selected: name === this.wish.result }, name)));
    this.columns = this.wish.all ? this.found.settings : this.found.differing;
    // As many axes as fit: the result, which is the last one, is seen without scrolling.
    const room = Math.max(4, Math.min(MAX_AXES, Math.floor((this.parallel.element.clientWidth - 150) / LEAST_GAP)));
    const shown = this.found.differing.filter((name) => name !== "seed").slice(0, room), trials = this.found.trials;
    const axes = [...(shown.length ? shown : this.found.differing.slice(0, room)), this.wish.result].filter(Boolean).map((name, i, every) => ({
      name, values: trials.map((trial) => (i === every.length - 1 ? trial.figures[name] : trial.settings[name])),
    }));
    this.parallel.set(axes, trials.map((trial) => trial.name));
    this.head();
    this.body();
  }

  head() {
    const { sort, down } = this.wish;
    const cell = (key, text, className) => h("th", { scope: "col", className, "aria-sort": key === sort ? (down ? "descending" : "ascending") : "none" },
      h("button", { type: "button", title: text, onclick: () => this.sort(key) }, text, key === sort ? (down ? " ↓" : " ↑") : ""));
    put(this.heads, cell("name", "Trial", ""), cell("result", this.wish.result ?? "result", "number"), this.columns.map((name) => cell(`settings.${name}`, name, "")));
  }

  sort(key) {
    this.set({ sort: key, down: this.wish.sort === key ? !this.wish.down : key === "result" });
  }

  value(trial, key) {
    if (key === "name") return trial.name;
    return key.startsWith("settings.") ? trial.settings[key.slice(9)] : trial.figures[this.wish.result];
  }

  body() {
    const { sort, down } = this.wish, key = sort ?? "result";
    const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : a === undefined ? -1 : b === undefined ? 1 : String(a).localeCompare(String(b), "en", { numeric: true }));
    const trials = [...this.found.trials].sort((a, b) => (down ? -1 : 1) * order(this.value(a, key), this.value(b, key)));
    const isKept = (trial) => !this.kept || this.kept.includes(trial.name);
    const differs = new Set(this.found.differing);
    put(this.rows, trials.filter(isKept).map((trial) => h("tr", { "data-trial": trial.name },
      h("th", { scope: "row" }, h("a", { href: this.app.link("settings", trial.name) }, trial.name), trial.tags.map((tag) => h("span", { className: "tag" }, tag))),
      h("td", { className: "number" }, number(trial.figures[this.wish.result])),
      this.columns.map((name) => h("td", { className: differs.has(name) ? "" : "faint" }, words(trial.settings[name]))))));
    if (!this.columns.length) put(this.heads, [...this.heads.children], h("th", {}, "all settings are alike"));
  }

  close() {
    this.parallel.close();
  }
}
