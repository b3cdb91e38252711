// The trial's log from its end, filtered by level; follows new lines.

import { get } from "./api.js";
import { h, put } from "./dom.js";

const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
const MAX_LINES = 2000;

export class Log {
  constructor(main, app, trial) {
    this.app = app;
    this.trial = trial;
    this.level = app.saved("level", "INFO");
    this.records = [];
    this.turn = 0;
    this.select = h("select", { id: "level", onchange: (e) => this.change(e.target.value) }, LEVELS.map((level) => h("option", { value: level, selected: level === this.level }, level)));
    this.filter = h("input", { type: "search", placeholder: "Filter (/)", id: "log-filter", oninput: () => this.draw() });
    this.follow = h("input", { type: "checkbox", checked: true, id: "follow" });
    this.older = h("button", { type: "button", onclick: () => app.attempt(() => this.before()) }, "Older");
    this.lines = h("div", { className: "lines", tabIndex: 0, role: "log" });
    put(main, h("div", { className: "bar" }, h("h1", {}, trial ?? "no trial"), h("label", {}, "Least level ", this.select), this.filter,
      h("label", {}, this.follow, "follow"), this.older), this.lines);
  }

  change(level) {
    this.level = level;
    this.app.save("level", level);
    Object.assign(this, { end: null, records: [], busy: false, turn: this.turn + 1 });
    this.app.attempt(() => this.refresh());
  }

  async refresh() {
    if (this.trial == null || this.busy) return;
    const { turn, end } = this;
    this.busy = true;
    try {
      const place = end == null ? {} : { after: end };
      const found = await get(["trials", this.trial, "log"], { level: this.level, limit: 300, ...place });
      if (turn !== this.turn) return; // another level was chosen meanwhile
      if (end == null) this.start = found.start;
      this.end = found.end;
      this.records = [...this.records, ...found.records].slice(-MAX_LINES);
      if (found.records.length || end == null) this.draw();
    } finally {
      if (turn === this.turn) this.busy = false;
    }
  }

  async before() {
    const { turn } = this;
    const found = await get(["trials", this.trial, "log"], { level: this.level, limit: 300, before: this.start });
    if (turn !== this.turn) return;
    this.start = found.start;
    this.follow.checked = false;
    this.records = [...found.records, ...this.records].slice(0, MAX_LINES);
    this.draw();
  }

  draw() {
    const words = this.filter.value.toLowerCase().split(/\s+/);
    const shown = this.records.filter((r) => words.every((word) => `${r.name} ${r.component} ${r.text}`.toLowerCase().includes(word)));
    this.older.disabled = !this.start;
    put(this.lines, shown.length ? shown.map((record) => h("div", { className: `record ${record.level.toLowerCase()}` },
      h("time", {}, record.at.slice(5, 23)), h("b", {}, record.level), h("span", { className: "faint" }, [record.component, record.name].filter(Boolean).join(" ")), h("span", { className: "text" }, record.text)))
      : h("p", { className: "empty" }, this.start ? "No records of this level near the end: load older lines." : "No records of this level."));
    if (this.follow.checked) this.lines.scrollTop = this.lines.scrollHeight;
  }

  keys = {
    "/": ["filter", () => this.filter.focus()],
    f: ["follow new lines", () => this.follow.click()],
    o: ["load older lines", () => this.older.click()],
  };
}
