// The builder: edits a template as a graph, in forms or as text, keeps all alike, saves, starts,
// serves and stops.

import { get, post } from "./api.js";
import { h, put } from "./dom.js";
import { Form, isPart } from "./fields.js";
import { Graph } from "./graph.js";
import { PartPanel } from "./part_panel.js";
import { Runs } from "./runs.js";

const WAIT_MS = 250, LIVE_MS = 1000;
const FIRST = "reinforcement";
const KINDS = ["source", "actor", "agent", "model", "buffer", "trainer", "render"];

export class Builder {
  constructor(main, app) {
    Object.assign(this, { app, main, turn: 0, problems: [], selected: null, figures: [] });
    this.draft = app.saved("draft", null);
  }

  async refresh() {
    const state = await get(["builder"]);
    if (!state.folder) return this.off(state);
    if (!this.form) await this.build(state);
    this.menu(state);
    this.ran(state.runs);
  }

  off({ project }) {
    put(this.main, h("div", { className: "bar" }, h("h1", {}, "Builder")), h("section", { className: "panel" },
      h("p", {}, "The builder is off: this page only reads. To write templates here, and to start and stop local runs of them, start the viewer with the folder of the YAML files:"),
      h("pre", {}, `bray view ${project} --builder .`)));
  }

  async build(state) {
    this.form = new Form({ onchange: (settings) => this.later(this.change(settings)), onalgorithm: (algorithm) => this.app.attempt(() => this.algorithm(algorithm)) });
    this.graph = new Graph({ onselect: (part) => this.act(() => this.select(part)), onconnect: (from, to) => this.edit({ act: "connect", from, to }) });
    this.panel = new PartPanel({ onedit: (edit, selected) => this.edit(edit, selected), onclear: () => this.act(() => this.select(null)) });
    this.runs = new Runs(this.app, (runs) => this.ran(runs));
    this.opener = h("select", { id: "open", onchange: (e) => this.app.attempt(() => this.pick(e.target.value)) });
    this.adder = h("select", { id: "add-part", onchange: (e) => this.add(e.target.value) }, h("option", { value: "" }, "…"), KINDS.map((kind) => h("option", { value: kind }, kind)));
    this.news = h("p", { id: "builder-news", role: "status" }, "Opening…");  // algorithms are loaded: seconds the first time
    this.list = h("section", { className: "panel problems", "aria-label": "Problems", hidden: true });
    this.text = h("textarea", { id: "yaml", rows: 16, spellcheck: false, "aria-describedby": "yaml-help", oninput: () => this.later({}) });
    put(this.main, h("div", { className: "bar" }, h("h1", {}, "Builder"), h("label", {}, "Open ", this.opener), h("span", { id: "folder", className: "faint" }, `Files are written to ${state.folder}`)),
      h("div", { className: "builder" }, h("div", { className: "drawing" },
        h("section", { className: "panel" }, h("div", { className: "bar" }, h("label", {}, "Add ", this.adder), h("span", { className: "faint" }, "Click a part for its settings. Drag from its dot to another part to connect the two.")), this.graph.element),
        this.list, this.runs.element,
        h("section", { className: "panel" }, h("label", { htmlFor: "yaml" }, "YAML"), this.text,
          h("p", { id: "yaml-help", className: "faint" }, "Only settings that differ from the defaults. A change in graph or form rewrites this text: only comments above the first setting stay."))),
      h("div", { className: "side" }, this.commands(), this.panel.element, this.form.element)));
    await (this.draft ? this.show(this.draft) : this.open({ template: FIRST }));
  }

  commands() {
    this.file = h("input", { type: "text", id: "file", size: 20, spellcheck: false, autocomplete: "off", "aria-describedby": "folder", oninput: () => this.keep() });
    const save = h("button", { type: "button", id: "save", title: "Save (s)", onclick: () => this.act(() => this.save()) }, "Save");
    const start = h("button", { type: "button", id: "start", title: "Start a run; saves unsaved changes first (r)", onclick: () => this.act(() => this.start()) }, "Start");
    const serve = h("button", { type: "button", id: "serve", title: "Answer with the policy that the run has exported", onclick: () => this.act(() => this.serve()) }, "Serve");
    return h("section", { className: "panel" }, h("div", { className: "bar" }, h("label", {}, "File ", this.file), save, start, serve), this.news);
  }

  menu({ templates, files }) {
    const of = (words, names, kind) => h("optgroup", { label: words }, names.map((name) => h("option", { value: `${kind}/${name}` }, name)));
    const key = String([templates, files]);
    if (key === this.menuKey) return;
    this.menuKey = key;
    put(this.opener, h("option", { value: "" }, "…"), h("option", { value: "new/template" }, "An empty template"), files.length ? of("Files of this folder", files, "file") : null, of("Templates", templates, "template"));
  }

  async pick(value) {
    this.opener.value = "";
    const [kind, name] = value.split(/\/(.*)/);
    if (!name) return;
    await this.settle();
    const left = this.isChanged() && this.draft;
    await (kind === "new" ? this.show({ file: `${name}.yaml`, name: null, stamp: null, text: "", base: "" }) : this.open({ [kind]: name }));
    if (kind === "new") this.say("Nothing yet: add a source and a trainer.");
    if (left) this.news.append(" ", h("button", { type: "button", onclick: () => this.act(() => this.show(left)) }, `Back to the unsaved ${left.file}`));
  }

  async open(query) {
    const { name, text, stamp } = await get(["builder", "open"], query);
    await this.show({ file: name, name, stamp, text, base: text });
    this.say(stamp ? `Opened ${name}.` : `From the template ${query.template}: not saved yet.`);
  }

  // A draft: the text for a file, and the file that was opened with its stamp (none: a template)
  // and its text then. The browser keeps it while other pages are looked at.
  async show(draft) {
    this.draft = draft;
    this.file.value = draft.file;
    this.text.value = draft.text;
    Object.assign(this, { selected: null, figures: [] });
    await this.check({});
  }

  keep() {
    this.draft = { ...this.draft, file: this.file.value, text: this.text.value };
    this.app.save("draft", this.draft);
  }

  isChanged() {
    return this.text.value !== this.draft.base;
  }

  // Another name is another file: there must be none of it yet.
  stamp() {
    return this.file.value === this.draft.name ? this.draft.stamp : null;
  }

  later(change) {
    clearTimeout(this.timer);
    this.waiting = change;
    this.timer = setTimeout(() => this.app.attempt(() => this.settle()), WAIT_MS);
  }

  // What was typed a moment ago is looked at before anything is done with it.
  async settle() {
    clearTimeout(this.timer);
    const change = this.waiting;
    this.waiting = null;
    if (change) this.busy = this.check(change);
    await this.busy;
  }

  // A form of the short form has all settings, one of named parts those of its part.
  change(settings) {
    if (!this.found.graph?.is_full) return { settings };
    const part = this.selected ?? "";
    return { edit: { act: "set", part, settings: part ? settings[part] : settings } };
  }

  async check({ settings, edit, text = this.text.value }) {
    const turn = ++this.turn;
    const found = await (edit ? post(["builder", "edit"], { text, edit }) : post(["builder", "check"], { text, settings }));
    if (turn !== this.turn || this.waiting) return; // something else is typed meanwhile
    if (settings || edit) this.text.value = found.text;
    const graph = found.graph ?? this.found?.graph; // the last that could be read
    if (edit?.act === "add") this.selected = this.added(found.graph, edit.kind);
    Object.assign(this, { found: { ...found, graph }, settings: found.settings, problems: found.problems });
    if (!this.part()) this.selected = null;
    this.draw();
    await this.follow(found);
    this.tell();
    this.keep();
  }

  // The part of a kind that was not there before.
  added({ parts }, kind) {
    const before = new Set(this.found?.graph?.parts.map((part) => part.id));
    return parts.find((part) => part.is_written && part.kind === kind && !before.has(part.id))?.id ?? null;
  }

  part() {
    return this.found?.graph?.parts.find((part) => part.id === this.selected);
  }

  async follow({ settings, form, graph }) {
    this.form.element.disabled = !form && !graph?.is_full;
    this.form.element.hidden = this.form.element.disabled && graph?.parts.length === 0;
    if (graph?.is_full) return this.followPart(settings);
    if (!form) return;
    const key = `${form.algorithm}/${form.task}`, isNew = key !== this.shown;
    if (isNew) {
      const { schema, algorithms } = await get(["builder", "schema"], form);
      this.form.build(schema, algorithms);
      this.shown = key;
    }
    this.form.set(settings, isNew);
    const kind = this.part()?.kind;
    this.form.only(kind && (kind === "trainer" ? ["run", "trainer"] : [kind]));
  }

  // A template of named parts: the form has the settings of the selected part, or of the whole run.
  async followPart(settings) {
    const part = this.part(), { schema } = await post(["builder", "part"], { text: this.text.value, part: part?.id ?? "" });
    const whole = part ? { properties: { [part.id]: { description: "", ...schema } } } : schema;
    const key = JSON.stringify(whole), isNew = key !== this.shown;
    if (isNew) this.form.build(whole, []);
    this.shown = key;
    this.form.set(part ? { [part.id]: { ...part.settings } } : { ...settings }, isNew);
  }

  async select(part) {
    this.selected = part;
    this.draw();
    await this.follow(this.found);
    this.tell();
  }

  // An edit of the graph: the text follows, and the part that it is about is selected.
  edit(edit, selected = this.selected) {
    return this.act(async () => {
      const was = this.selected;
      this.selected = selected;
      try {
        await this.check({ edit });
      } catch (error) {
        this.selected = was;
        this.panel.key = null; // what was typed there is not so
        this.draw();
        throw error;
      }
    });
  }

  add(kind) {
    this.adder.value = "";
    if (kind) this.edit({ act: "add", kind });
  }

  // Another algorithm: settings that it does not have are removed, and named.
  async algorithm(algorithm) {
    await this.settle();
    this.form.element.disabled = true; // what is typed meanwhile would be of the algorithm before
    try {
      await this.changed(algorithm, (await get(["builder", "schema"], { algorithm })).schema);
    } finally {
      this.form.element.disabled = false;
      this.form.fields.get("algorithm").input.focus();
    }
  }

  async changed(algorithm, schema) {
    const left = [], settings = { ...this.settings, algorithm };
    for (const [part, { properties }] of Object.entries(schema.properties)) {
      if (!properties || !isPart(settings[part])) continue;
      const known = Object.entries(settings[part]).filter(([name]) => name in properties || !this.form.fields.has(`${part}.${name}`));
      left.push(...Object.keys(settings[part]).filter((name) => !known.some(([other]) => other === name)).map((name) => `${part}.${name}`));
      settings[part] = Object.fromEntries(known);
    }
    await this.check({ settings });
    this.say(left.length ? `${algorithm} has no ${left.join(", ")}: removed.` : `The algorithm is ${algorithm} now.`);
  }

  draw() {
    const graph = this.found.graph ?? { parts: [], wires: [] };
    this.graph.set({ parts: graph.parts, wires: graph.wires, problems: this.problems, selected: this.selected, figures: this.figures });
    this.panel.draw(this.part(), graph);
  }

  tell() {
    this.form.tell(this.problems);
    const number = this.problems.length;
    this.list.hidden = !number;
    put(this.list, h("h2", {}, number === 1 ? "1 problem" : `${number} problems`), h("ul", {}, this.problems.map((problem) =>
      h("li", {}, h("button", { type: "button", className: "bad", onclick: () => this.act(() => this.goTo(problem)) }, problem.line ? `line ${problem.line}: ` : "", problem.text)))));
  }

  async goTo(problem) {
    const isShown = this.selected === problem.part || (!this.selected && !this.found.graph?.is_full);
    if (!isShown) await this.select(this.found.graph?.is_full ? problem.part : null);
    const field = this.form.element.disabled ? null : this.form.find(problem);
    if (field) {
      field.element.scrollIntoView({ block: "center" });
      return field.input.focus();
    }
    const lines = this.text.value.split("\n"), line = Math.min(problem.line ?? 1, lines.length) - 1;
    const from = lines.slice(0, line).reduce((sum, one) => sum + one.length + 1, 0);
    this.text.focus();
    this.text.setSelectionRange(from, from + lines[line].length);
  }

  say(words, isBad = false) {
    this.news.className = isBad ? "bad" : "faint";
    this.news.textContent = words;
  }

  // A refusal of the server is shown here, not as an error of the whole page.
  act(work) {
    return this.app.attempt(async () => {
      try {
        await this.settle();
        await work();
      } catch (error) {
        if (!error.status) throw error;
        this.say(error.message, true);
      }
    });
  }

  async save() {
    if (this.problems.length) {
      await this.goTo(this.problems[0]);
      this.say("Not saved: fix the problems first.", true);
      return false;
    }
    const { name, text, stamp } = await post(["builder", "save"], { file: this.file.value, text: this.text.value, stamp: this.stamp() });
    Object.assign(this.draft, { name, stamp, base: text });
    this.keep();
    this.say(`Saved ${name}.`);
    await this.refresh();
    return true;
  }

  async start() {
    const isSaved = this.stamp() && !this.isChanged();
    if (!isSaved && !(await this.save())) return;
    const { runs } = await post(["builder", "start"], { file: this.file.value });
    this.say(`Started ${this.file.value}.`);
    this.ran(runs);
  }

  async serve() {
    const { runs } = await post(["builder", "serve"], { file: this.file.value });
    this.say(`Serving ${this.file.value}: its addresses are in the output.`);
    this.ran(runs);
  }

  // Figures of the file's run, on the wires of the graph.
  async flow(runs) {
    const run = runs.find((one) => one.file === this.file.value && !one.is_server);
    if (!run || !this.app.trials.some((trial) => trial.name === run.trial)) return;
    const { wires } = await get(["trials", run.trial, "loop"]);
    this.figures = wires;
    this.graph.set({ figures: wires });
  }

  ran(runs) {
    this.runs.draw(runs);
    if (this.found) this.app.attempt(() => this.flow(runs));
    clearTimeout(this.again);
    if (this.runs.isLive(runs) && !this.isClosed) this.again = setTimeout(() => document.hidden || this.app.attempt(() => this.refresh()), LIVE_MS);
  }

  keys = {
    e: ["go to the first problem", () => this.problems.length && this.act(() => this.goTo(this.problems[0]))],
    s: ["save the file", () => this.form && this.act(() => this.save())],
    r: ["start a run", () => this.form && this.act(() => this.start())],
  };

  close() {
    this.isClosed = true;
    clearTimeout(this.timer);
    clearTimeout(this.again);
    if (this.form && this.draft) this.keep();
  }
}
