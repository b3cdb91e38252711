// The runs that the builder started: state and last lines of each, and a button that stops it.

import { post } from "./api.js";
import { h, put } from "./dom.js";
import { brief } from "./format.js";

const SHOWN_LINES = 60;
const ENDINGS = { 0: "ended: goal reached", 1: "ended: goal not reached", 2: "failed", 130: "stopped: Start resumes it", "-15": "stopped" };

export class Runs {
  constructor(app, changed) {
    Object.assign(this, { app, changed, cards: new Map() });
    this.element = h("section", { className: "runs", "aria-label": "Runs started here" });
  }

  isLive(runs) {
    return runs.some((run) => run.state !== "ended");
  }

  draw(runs) {
    const shown = runs.filter((run) => run.file).reverse(); // an episode that is played shows itself
    for (const run of shown) if (!this.cards.has(run.trial)) this.cards.set(run.trial, this.card(run));
    const elements = shown.map((run) => this.cards.get(run.trial).element);
    if (elements.some((element, i) => element !== this.element.children[i])) put(this.element, elements);
    for (const run of shown) this.fill(this.cards.get(run.trial), run);
  }

  card({ trial, is_server }) {
    const state = h("span", { className: "state" }), words = h("span", { className: "faint", role: "status" });
    const stop = h("button", { type: "button", "aria-label": `Stop ${trial}`, onclick: () => this.stop(trial) }, "Stop");
    const output = h("pre", { className: "output", tabIndex: 0, "aria-label": `Output of ${trial}` });
    const links = is_server ? [] : [h("a", { href: "#/trials", onclick: () => this.choose(trial) }, "curves"), h("a", { href: this.app.link("loop", trial) }, "loop"), h("a", { href: this.app.link("log", trial) }, "log")];
    const element = h("div", { className: "panel run", "data-run": trial }, h("div", { className: "bar" }, h("b", {}, trial), state, words, links, stop), output);
    return { element, state, words, stop, output };
  }

  fill(card, run) {
    const failed = run.state === "ended" && ENDINGS[run.code] == null;
    card.state.textContent = run.state;
    card.state.className = `state ${run.state === "ended" ? (run.code === 2 || failed ? "failed" : "finished") : "running"}`;
    card.words.textContent = run.state === "ended" ? (failed ? `ended with code ${run.code}` : run.is_server && run.code === 0 ? "stopped" : ENDINGS[run.code]) : `for ${brief(Date.now() / 1000 - run.began_s)}`;
    card.stop.hidden = run.state === "ended";
    card.stop.disabled = run.state === "stopping";
    const text = run.lines.slice(-SHOWN_LINES).join("\n");
    if (card.output.textContent === text) return;
    card.output.textContent = text;
    card.output.scrollTop = card.output.scrollHeight;
  }

  stop(trial) {
    return this.app.attempt(async () => this.changed((await post(["builder", "stop"], { trial })).runs));
  }

  // Draws its curves beside those that were selected before.
  choose(trial) {
    const wish = this.app.saved("trials", {});
    this.app.save("trials", { ...wish, chosen: [...new Set([trial, ...(wish.chosen ?? [])])] });
  }
}
