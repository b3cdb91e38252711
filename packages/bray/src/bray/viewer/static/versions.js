// Versions of a trial's models on disk, their clones and exports.

import { get } from "./api.js";
import { h, put } from "./dom.js";
import { ago, bytes, when, whole } from "./format.js";

const SHOWN = 200;

export class Versions {
  constructor(main, app, trial) {
    this.trial = trial;
    this.place = h("div");
    put(main, h("div", { className: "bar" }, h("h1", {}, trial ?? "no trial")), this.place);
  }

  async refresh() {
    if (this.trial == null) return;
    const models = await get(["trials", this.trial, "versions"]);
    if (models === this.models) return;
    this.models = models;
    put(this.place, models.length ? models.map(model) : h("p", { className: "empty" }, "This trial has no models."));
  }
}

function model(found) {
  const rows = found.versions.slice(0, SHOWN).map((version) => h("tr", {},
    h("td", { className: "number" }, whole(version.version)), h("td", {}, when(version.saved_s)), h("td", { className: "faint" }, ago(version.saved_s)),
    h("td", { className: "number" }, bytes(version.bytes)), h("td", {}, version.pinned ? h("span", { className: "state" }, "pinned") : "")));
  const heads = ["Version", "Saved", "Age", "Size", "Kept"].map((words, i) => h("th", { className: i % 3 ? "" : "number" }, words));
  const names = (words, list) => h("p", {}, `${words}: `, list.length ? list.map((name) => h("code", {}, name)) : "none");
  return h("section", { className: "panel model" }, h("h2", {}, found.name),
    found.problem ? h("p", { className: "bad" }, found.problem) : null,
    h("p", { className: "faint" }, `${whole(found.num_versions)} versions on disk`),
    names("Exports", found.exports), names("Frozen clones", found.clones),
    h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": `Versions of ${found.name}` }, h("table", { className: "fit" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, rows))),
    found.versions.length > SHOWN ? h("p", { className: "faint" }, `the newest ${SHOWN} are shown`) : null);
}
