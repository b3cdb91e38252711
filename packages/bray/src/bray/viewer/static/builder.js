// The builder: edits a template in a form or as text, keeps the two alike, saves, starts and stops.

import { get, post } from "./api.js";
import { h, put } from "./dom.js";
import { Form, isPart } from "./fields.js";
import { Runs } from "./runs.js";

const WAIT_MS = 250, LIVE_MS = 1000;
const FIRST = "reinforcement";

export class Builder {
  constructor(main, app) {
    Object.assign(this, { app, main, turn: 0, problems: [] });
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
    this.form = new Form({ onchange: (settings) => this.later({ settings }), onalgorithm: (algorithm) => this.app.attempt(() => this.algorithm(algorithm)) });
    this.runs = new Runs(this.app, (runs) => this.ran(runs));
    this.opener = h("select", { id: "open", onchange: (e) => this.app.attempt(() => this.pick(e.target.value)) });
    this.file = h("input", { type: "text", id: "file", size: 24, spellcheck: false, autocomplete: "off", "aria-describedby": "folder", oninput: () => this.keep() });
    const save = h("button", { type: "button", id: "save", title: "Save (s)", onclick: () => this.act(() => this.save()) }, "Save");
    const start = h("button", { type: "button", id: "start", title: "Start a run; saves unsaved changes first (r)", onclick: () => this.act(() => this.start()) }, "Start");
    this.news = h("p", { id: "builder-news", role: "status" }, "Opening…");  // algorithms are loaded: seconds the first time
    this.list = h("section", { className: "panel problems", "aria-label": "Problems", hidden: true });
    this.text = h("textarea", { id: "yaml", rows: 16, spellcheck: false, "aria-describedby": "yaml-help", oninput: () => this.later({}) });
    put(this.main, h("div", { className: "bar" }, h("h1", {}, "Builder"), h("label", {}, "Open ", this.opener), h("span", { id: "folder", className: "faint" }, `Files are written to ${state.folder}`)),
      h("div", { className: "builder" }, this.form.element, h("div", { className: "side" },
        h("section", { className: "panel" }, h("div", { className: "bar" }, h("label", {}, "File ", this.file), save, start), this.news), this.list,
        h("section", { className: "panel" }, h("label", { htmlFor: "yaml" }, "YAML"), this.text,
          h("p", { id: "yaml-help", className: "faint" }, "Only settings that differ from the defaults. A change in the form rewrites this text: only comments above the first setting stay.")),
        this.runs.element)));
    await (this.draft ? this.show(this.draft) : this.open({ template: FIRST }));
  }

  menu({ templates, files }) {
    const of = (words, names, kind) => h("optgroup", { label: words }, names.map((name) => h("option", { value: `${kind}/${name}` }, name)));
    const key = String([templates, files]);
    if (key === this.menuKey) return;
    this.menuKey = key;
    put(this.opener, h("option", { value: "" }, "…"), files.length ? of("Files of this folder", files, "file") : null, of("Templates", templates, "template"));
  }

  async pick(value) {
    this.opener.value = "";
    const [kind, name] = value.split(/\/(.*)/);
    if (!name) return;
    await this.settle();
    const left = this.isChanged() && this.draft;
    await this.open({ [kind]: name });
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

  async check({ settings, text = this.text.value }) {
    const turn = ++this.turn;
    const found = await post(["builder", "check"], { text, settings });
    if (turn !== this.turn || this.waiting) return; // something else is typed meanwhile
    if (settings) this.text.value = found.text;
    Object.assign(this, { settings: found.settings, problems: found.problems });
    await this.follow(found);
    this.tell();
    this.keep();
  }

  async follow({ settings, form }) {
    this.form.element.disabled = !form;
    if (!form) return;
    const key = `${form.algorithm}/${form.task}`, isNew = key !== this.shown;
    if (isNew) {
      const { schema, algorithms } = await get(["builder", "schema"], form);
      this.form.build(schema, algorithms);
      this.shown = key;
    }
    this.form.set(settings, isNew);
  }

  // Another algorithm: settings that it does not have are removed, and named.
  async algorithm(algorithm) {
    await this.settle();
    this.form.element.disabled = true; // what is typed meanwhile would be of the algorithm before
    try {
      await this.change(algorithm, (await get(["builder", "schema"], { algorithm })).schema);
    } finally {
      this.form.element.disabled = false;
      this.form.fields.get("algorithm").input.focus();
    }
  }

  async change(algorithm, schema) {
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

  tell() {
    this.form.tell(this.problems);
    const number = this.problems.length;
    this.list.hidden = !number;
    put(this.list, h("h2", {}, number === 1 ? "1 problem" : `${number} problems`), h("ul", {}, this.problems.map((problem) =>
      h("li", {}, h("button", { type: "button", className: "bad", onclick: () => this.goTo(problem) }, problem.line ? `line ${problem.line}: ` : "", problem.text)))));
  }

  goTo(problem) {
    const field = this.form.element.disabled ? null : this.form.find(problem.key);
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
      this.goTo(this.problems[0]);
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

  ran(runs) {
    this.runs.draw(runs);
    clearTimeout(this.again);
    if (this.runs.isLive(runs) && !this.isClosed) this.again = setTimeout(() => document.hidden || this.app.attempt(() => this.refresh()), LIVE_MS);
  }

  keys = {
    e: ["go to the first problem", () => this.problems.length && this.goTo(this.problems[0])],
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
