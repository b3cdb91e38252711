// A trial's settings, its outcome, and the records of its launches.

import { address, get } from "./api.js";
import { h, put } from "./dom.js";
import { duration, number, when } from "./format.js";
import { Notes } from "./notes.js";

export class Settings {
  constructor(main, app, trial) {
    this.trial = trial;
    this.place = h("div", { className: "settings" });
    this.notes = new Notes(app);
    const report = trial == null ? null : h("a", { className: "button", id: "report", download: "", href: address(["report"], { trial }) }, "Save a report");
    put(main, h("div", { className: "bar" }, h("h1", {}, trial ?? "no trial"), report), h("div", { className: "stack" }, this.notes.element, this.place));
  }

  async refresh() {
    if (this.trial == null) return;
    await this.notes.show(this.trial);
    const found = await get(["trials", this.trial]);
    if (found === this.found) return;
    this.found = found;
    const numbers = Object.entries(found.result).filter(([, value]) => ["number", "boolean", "string"].includes(typeof value) && value !== "");
    put(this.place,
      h("section", { className: "panel" }, h("h2", {}, "Settings"), h("pre", {}, found.config ?? "no settings")),
      h("section", { className: "panel" }, h("h2", {}, "Outcome"), h("span", { className: `state ${found.state}` }, found.state),
        h("table", {}, h("tbody", {}, numbers.map(([name, value]) => h("tr", {}, h("td", {}, name), h("td", { className: "number" }, typeof value === "number" ? number(value) : String(value)))))),
        h("h2", {}, "Launches"), found.launches.map(launch)));
  }
}

function launch({ name, record, changes }) {
  const rows = [
    ["began", record.began_s && when(record.began_s)], ["took", record.ended_s && duration(record.ended_s - record.began_s)], ["ended", record.ending ?? record.error],
    ["error", record.error], ["command", record.command?.join(" ")], ["folder", record.folder], ["host", record.host && `${record.host}, process ${record.pid}`], ["seed", record.seed],
    ["commit", record.commit && `${record.commit}${record.is_changed ? ", with uncommitted changes" : ""}`], ["python", record.python], ["platform", record.platform],
  ].filter(([, value]) => value != null && value !== "");
  const packages = Object.entries(record.packages ?? {}).map(([key, version]) => `${key} ${version}`).join("\n");
  return h("details", {}, h("summary", {}, name, " ", h("span", { className: "faint" }, record.ending ?? "")),
    h("table", {}, h("tbody", {}, rows.map(([words, value]) => h("tr", {}, h("td", {}, words), h("td", {}, String(value)))))),
    packages ? h("details", {}, h("summary", {}, "packages"), h("pre", {}, packages)) : null,
    changes ? h("details", {}, h("summary", {}, "uncommitted changes"), h("pre", {}, changes)) : null);
}
