// How two trials differ: settings, figures, and the code that they ran.

import { get } from "./api.js";
import { h, put } from "./dom.js";
import { words } from "./parallel.js";

export class Difference {
  constructor(app) {
    this.app = app;
    this.pair = app.saved("difference", []);
    this.choices = ["First", "Second"].map((label, i) => h("select", { id: `difference-${i}`, "aria-label": `${label} trial`, onchange: (e) => this.choose(i, e.target.value) }));
    this.place = h("div", { className: "difference" });
    this.element = h("section", { className: "panel" }, h("h2", {}, "Two trials"), h("div", { className: "bar" }, this.choices[0], "against", this.choices[1]), this.place);
  }

  async show(found) {
    this.found = found;
    const names = found.trials.map((trial) => trial.name);
    this.pair = [0, 1].map((i) => (names.includes(this.pair[i]) ? this.pair[i] : names[i]));
    if (this.pair[0] === this.pair[1]) this.pair[1] = names.find((name) => name !== this.pair[0]);
    this.choices.forEach((select, i) => put(select, names.map((name) => h("option", { value: name, selected: name === this.pair[i] }, name))));
    const code = await get(["difference"], { trial: this.pair }), key = JSON.stringify([this.pair, this.found.trials.map((trial) => trial.settings)]);
    if (code === this.code && key === this.key) return;
    [this.code, this.key] = [code, key];
    this.draw();
  }

  choose(i, name) {
    const pair = [...this.pair];
    if (pair[1 - i] === name) pair[1 - i] = pair[i];
    pair[i] = name;
    this.pair = pair;
    this.app.save("difference", pair);
    this.app.attempt(() => this.show(this.found));
  }

  draw() {
    const [first, second] = this.pair.map((name) => this.found.trials.find((trial) => trial.name === name));
    const pairs = (a, b, names) => names.filter((name) => String(a[name]) !== String(b[name]) || (name in a) !== (name in b)).map((name) => [name, words(a[name]), words(b[name])]);
    const { launch, packages, changes, num_lines } = this.code, said = (rows) => rows.map(([name, a, b]) => [name, a ?? "–", b ?? "–"]);
    put(this.place,
      this.table("Settings", pairs(first.settings, second.settings, this.found.settings), "No setting differs."),
      this.table("Results", pairs(first.figures, second.figures, this.found.figures), "No figure differs."),
      this.table("Launch", said(launch), "Launched alike."),
      this.table("Packages", said(packages), "The same packages are installed."),
      h("div", {}, h("h3", {}, "Uncommitted changes"), changes.length
        ? h("pre", { className: "diff", tabIndex: 0 }, changes.map((line) => h("span", { className: line[0] === "+" ? "added" : line[0] === "-" ? "removed" : line[0] === "@" ? "faint" : "" }, line, "\n")))
        : h("p", { className: "faint" }, num_lines[0] ? "Both ran with the same changes to their commit." : "Neither ran with uncommitted changes.")));
  }

  table(title, rows, otherwise) {
    return h("div", {}, h("h3", {}, title), rows.length ? h("div", { className: "scroll-x", tabIndex: 0, role: "region", "aria-label": `${title} that differ` }, h("table", { className: "pairs" }, h("thead", {}, h("tr", {}, ["", ...this.pair].map((name) => (name ? h("th", { scope: "col" }, name) : h("td"))))),
      h("tbody", {}, rows.map(([name, a, b]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, a), h("td", {}, b)))))) : h("p", { className: "faint" }, otherwise));
  }
}
