// Tags and a note of one trial, written and saved.

import { get, post } from "./api.js";
import { h, put } from "./dom.js";

export class Notes {
  constructor(app) {
    this.app = app;
    this.heading = h("h2", {}, "Notes");
    this.tags = h("input", { type: "text", id: "tags", autocomplete: "off", placeholder: "baseline, to repeat", oninput: () => this.changed(), onkeydown: (e) => e.key === "Enter" && this.save() });
    this.text = h("textarea", { id: "note", rows: 3, oninput: () => this.changed() });
    this.button = h("button", { type: "button", disabled: true, onclick: () => this.save() }, "Save notes");
    this.news = h("span", { className: "faint", role: "status" });
    this.element = h("section", { className: "panel notes", "aria-label": "Notes" }, this.heading,
      h("label", {}, "Tags, with commas between ", this.tags), h("label", {}, "Note ", this.text), h("div", { className: "bar" }, this.button, this.news));
  }

  // What is typed and not saved yet stays until another trial is shown.
  async show(trial) {
    if (this.trial && this.isDirty() && (!trial || trial === this.trial)) return;
    this.element.hidden = !trial;
    if (!trial) return;
    const isNew = trial !== this.trial, found = await get(["trials", trial, "notes"]);
    if (trial === this.trial && (this.isDirty() || found === this.before)) return;
    this.trial = trial;
    this.put(found);
    if (isNew) this.news.textContent = "";
    put(this.heading, "Notes on ", trial);
  }

  put(found) {
    this.before = found;
    this.tags.value = found.tags.join(", ");
    this.text.value = found.text;
    this.button.disabled = true;
  }

  wish() {
    const tags = this.tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
    return { tags: [...new Set(tags)], text: this.text.value };
  }

  isDirty() {
    const { tags, text } = this.wish();
    return String(tags) !== String(this.before.tags) || text !== this.before.text;
  }

  changed() {
    this.button.disabled = !this.isDirty();
    this.news.textContent = "";
  }

  save() {
    if (!this.isDirty()) return;
    return this.app.attempt(async () => {
      try {
        this.put(await post(["trials", this.trial, "notes"], { ...this.wish(), before: this.before }));
        this.news.className = "faint";
        this.news.textContent = "Saved.";
        await this.app.poll();
      } catch (error) {
        if (!error.status) throw error;
        this.news.className = "bad";
        this.news.textContent = error.message;
      }
    });
  }
}
