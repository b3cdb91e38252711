// The frame around the pages: which page is shown for which trial, keyboard shortcuts, colours.

import { get } from "./api.js";
import { Builder } from "./builder.js";
import { Compare } from "./compare.js";
import { h, put } from "./dom.js";
import { Episodes } from "./episodes.js";
import { League } from "./league.js";
import { Log } from "./log.js";
import { Loop } from "./loop.js";
import { Settings } from "./settings.js";
import { System } from "./system.js";
import { Trials } from "./trials.js";
import { Versions } from "./versions.js";

const POLL_MS = 3000;
const PAGES = [
  ["trials", "Trials", Trials], ["compare", "Compare", Compare], ["loop", "Loop", Loop], ["system", "System", System],
  ["versions", "Versions", Versions], ["league", "League", League], ["episodes", "Episodes", Episodes], ["log", "Log", Log],
  ["settings", "Settings", Settings], ["builder", "Builder", Builder],
];
const PROJECT_PAGES = ["trials", "compare"]; // of all trials, not of the one that is picked
const KEYS = "1234567890";
const THEMES = { auto: "◐", light: "☀", dark: "☾" };
const byId = (id) => document.getElementById(id);

class App {
  trials = [];
  page = null;

  async start() {
    this.theme(localStorage.getItem("theme") || "auto");
    byId("theme").addEventListener("click", () => this.nextTheme());
    byId("help").addEventListener("click", () => this.help());
    byId("trial").addEventListener("change", (event) => this.go(PROJECT_PAGES.includes(this.name) ? "loop" : this.name, event.target.value));
    addEventListener("hashchange", () => this.route());
    addEventListener("keydown", (event) => this.key(event));
    addEventListener("visibilitychange", () => document.hidden || this.poll());
    await this.attempt(async () => {
      this.project = await get(["project"]);
      this.trials = await get(["trials"]);
    });
    if (!this.project) return;
    byId("project").textContent = this.project.name;
    byId("project").title = this.project.path;
    await this.route();
    setInterval(() => document.hidden || this.poll(), POLL_MS);
  }

  // State of a page that the browser keeps for this project.
  saved(name, otherwise) {
    try {
      return JSON.parse(localStorage.getItem(`${this.project.path}:${name}`)) ?? otherwise;
    } catch {
      return otherwise;
    }
  }

  save(name, content) {
    localStorage.setItem(`${this.project.path}:${name}`, JSON.stringify(content));
  }

  link(page, ...parts) {
    return `#/${[page, ...parts].map((part) => encodeURIComponent(part)).join("/")}`;
  }

  go(page, ...parts) {
    location.hash = this.link(page, ...parts);
  }

  async route() {
    const [name, trial, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decode);
    const found = PAGES.find(([key]) => key === name) || PAGES[0];
    this.trial = this.trials.some((one) => one.name === trial) ? trial : this.trial ?? this.newest();
    if (trial) this.trial = trial;
    if (found[0] === this.name && this.shownTrial === this.trial && this.page?.open) {
      return this.attempt(() => this.page.open(rest)); // such as another step of the same episode
    }
    this.page?.close?.();
    [this.name, this.shownTrial] = [found[0], this.trial];
    this.frame();
    put(byId("main"));
    this.page = new found[2](byId("main"), this, this.trial, rest);
    document.title = `${PROJECT_PAGES.includes(this.name) ? this.project.name : this.trial} · bray`;
    await this.attempt(() => this.page.refresh());
  }

  newest() {
    const order = [...this.trials].sort((a, b) => (b.updated_s ?? 0) - (a.updated_s ?? 0));
    return order[0]?.name;
  }

  frame() {
    put(byId("tabs"), PAGES.map(([key, words], i) => h("a", {
      href: PROJECT_PAGES.includes(key) ? this.link(key) : this.link(key, this.trial ?? ""), title: `${words} (${KEYS[i]})`,
      "aria-current": key === this.name ? "page" : null,
    }, words)));
    this.picker();
  }

  picker() {
    const names = this.trials.map((trial) => trial.name);
    if (this.trial && !names.includes(this.trial)) names.unshift(this.trial);
    const shown = [...byId("trial").options].map((option) => option.value);
    if (String(names) !== String(shown)) put(byId("trial"), names.map((name) => h("option", { value: name }, name)));
    byId("trial").value = this.trial;
  }

  async poll() {
    if (this.polling) return;
    this.polling = true;
    await this.attempt(async () => {
      this.trials = await get(["trials"]);
      this.picker();
      await this.page.refresh();
    });
    this.polling = false;
  }

  async attempt(work) {
    const trouble = byId("trouble");
    try {
      await work();
      trouble.hidden = true;
    } catch (error) {
      trouble.textContent = error.status ? error.message : error instanceof TypeError && /fetch/i.test(error.message) ? "The server does not answer: is bray view still running?" : String(error);
      trouble.hidden = false;
      if (!error.status && !/fetch/i.test(error.message)) throw error;
    }
  }

  theme(name) {
    const known = name in THEMES ? name : "auto";
    if (known === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = known;
    byId("theme").textContent = `${THEMES[known]} ${known}`;
    localStorage.setItem("theme", known);
    this.themeName = known;
  }

  nextTheme() {
    const names = Object.keys(THEMES);
    this.theme(names[(names.indexOf(this.themeName) + 1) % names.length]);
    this.page?.repaint?.();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    if (event.key === "Escape" || (event.key === "Enter" && target.type === "search")) {
      target.blur?.();
      return;
    }
    const types = /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName) && !["checkbox", "range"].includes(target.type);
    if (types || byId("keys").open) return;
    if ([" ", "Enter"].includes(event.key) && /^(BUTTON|A|SUMMARY|INPUT)$/.test(target.tagName)) return;
    if (target.type === "range" && event.key.startsWith("Arrow")) return;
    const action = this.actions()[event.key]?.[1];
    if (!action) return;
    event.preventDefault();
    action();
  }

  actions() {
    const pages = PAGES.map(([key, words], i) => [KEYS[i], [words, () => (PROJECT_PAGES.includes(key) ? this.go(key) : this.go(key, this.trial ?? ""))]]);
    return {
      ...Object.fromEntries(pages),
      t: ["colours: light, dark or the system's", () => this.nextTheme()],
      "?": ["keyboard shortcuts", () => this.help()],
      ...this.page?.keys,
    };
  }

  help() {
    const rows = Object.entries(this.actions()).map(([key, [words]]) => h("tr", {}, h("td", {}, h("kbd", {}, key === " " ? "space" : key)), h("td", {}, words)));
    put(byId("keys"), h("h2", {}, "Keyboard shortcuts"), h("table", {}, h("tbody", {}, rows)), h("form", { method: "dialog" }, h("button", {}, "Close")));
    byId("keys").showModal();
  }
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

new App().start();
