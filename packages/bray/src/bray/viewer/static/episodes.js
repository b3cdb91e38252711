// Recorded episodes: a list in pages, and one episode step by step with pictures.

import { address, blob, get } from "./api.js";
import { Chart } from "./chart.js";
import { h, put } from "./dom.js";
import { bytes, duration, number, when, whole } from "./format.js";

const PAGE = 50, SPEEDS = [1, 2, 5, 10, 15, 30, 60];

export class Episodes {
  constructor(main, app, trial, [episode, step]) {
    Object.assign(this, { app, trial, start: 0, speed: 15, playing: false, wanted: episode, wantedStep: toStep(step) });
    this.list = h("tbody");
    this.pager = h("div", { className: "bar" });
    this.show = h("section", { className: "episode" }, h("p", { className: "empty" }, "Choose an episode."));
    this.hint = h("span", { className: "faint" });
    put(main, h("div", { className: "bar" }, h("h1", {}, trial ?? "no trial"), this.hint),
      h("div", { className: "side-by-side narrow" }, h("section", { className: "panel" }, this.pager, h("div", { className: "scroll" }, h("table", { className: "trials" }, h("thead", {}, h("tr", {}, ["Recorded", "Session", "Return", "Steps"].map((w, i) => h("th", { className: i > 1 ? "number" : "" }, w)))), this.list))), this.show));
  }

  async refresh() {
    if (this.trial == null) return;
    const found = await get(["trials", this.trial, "episodes"], { start: this.start, number: PAGE });
    if (found !== this.page) {
      this.page = found;
      this.draw();
    }
    const first = this.wanted ?? found.episodes[0]?.name;
    if (!this.episode && first) await this.choose(first, this.wantedStep);
  }

  // The address names the episode and the step: links and the browser's back button find them.
  async open([episode, step]) {
    if (episode && episode !== this.episode?.name) await this.choose(episode, toStep(step));
  }

  draw() {
    put(this.hint, this.page.hint);
    const { total, episodes } = this.page, end = this.start + episodes.length;
    const turn = (words, by, isOff) => h("button", { type: "button", disabled: isOff, onclick: () => this.turn(by) }, words);
    put(this.pager, h("span", { className: "faint" }, total ? `${whole(this.start + 1)}–${whole(end)} of ${whole(total)}` : "no episodes recorded: set actor.record_every"),
      turn("Newer", -PAGE, this.start === 0), turn("Older", PAGE, end >= total));
    put(this.list, episodes.map((one) => h("tr", { className: one.name === this.episode?.name ? "at" : "", "data-episode": one.name, onclick: () => this.pick(one.name) },
      h("td", {}, when(one.began_s ?? time(one.name))), h("td", { className: "name", title: one.session ?? one.name }, one.session ?? one.problem ?? one.name),
      h("td", { className: "number" }, number(one.return)), h("td", { className: "number" }, one.num_steps == null ? bytes(one.bytes) : whole(one.num_steps)))));
  }

  turn(by) {
    this.start = Math.max(0, this.start + by);
    this.app.attempt(() => this.refresh());
  }

  pick(name) {
    this.app.attempt(() => this.choose(name));
  }

  async choose(name, step) {
    this.stop();
    const episode = await get(["trials", this.trial, "episodes", name]);
    this.episode = episode;
    this.step = Math.min(episode.kinds.length - 1, step ?? Math.max(0, episode.kinds.indexOf("tick")));
    this.chart?.close();
    this.build();
    this.draw();
    await this.paint();
  }

  // The render functions; one that the trial's settings name is chosen, if it could be imported.
  drawers() {
    const { render, hint } = this.page;
    return [...new Set([...this.app.project.renders, ...(render && !hint ? [render] : [])])];
  }

  build() {
    const { kinds, rewards, at_s } = this.episode, last = kinds.length - 1;
    this.slider = h("input", { type: "range", min: 0, max: Math.max(0, last), step: 1, id: "tick", "aria-label": "Step", oninput: (e) => { this.stop(); this.to(Number(e.target.value)); } });
    this.place = h("output", { id: "at" });
    this.image = h("img", { className: "frame", alt: "Picture of this step" });
    this.fault = h("p", { className: "bad", hidden: true });
    this.details = h("div", { className: "details" });
    this.button = h("button", { type: "button", id: "play", onclick: () => this.toggle() }, "Play");
    const speed = h("select", { id: "speed", onchange: (e) => { this.speed = Number(e.target.value); } }, SPEEDS.map((one) => h("option", { value: one, selected: one === this.speed }, `${one} steps/s`)));
    this.speeds = speed;
    this.renders = h("select", { id: "render", onchange: () => this.app.attempt(() => this.paint()) }, this.drawers().map((name) => h("option", { value: name, selected: name === this.page.render }, name)));
    const video = this.app.project.video.map((kind) => h("a", { className: "button", id: `video-${kind}`, download: "", onclick: (e) => { e.target.href = this.file(kind); }, href: this.file(kind) }, kind));
    this.chart = new Chart("Reward of each step", { height: 110 });
    const rewarded = kinds.map((_, i) => i).filter((i) => rewards[i] != null);
    const { session, outcome, seconds, is_whole } = this.episode;
    put(this.show, h("div", { className: "bar" }, h("b", {}, session), h("span", { className: "faint" }, `${when(this.episode.began_s)}, ${duration(seconds)}, ended by: ${outcome}${is_whole ? "" : ", incomplete"}, return ${number(this.episode.return)}`)),
      h("div", { className: "bar" }, this.button, speed, h("label", {}, "Picture ", this.renders), h("span", {}, "Video ", video)),
      h("div", { className: "bar" }, this.slider, this.place),
      h("div", { className: "stage" }, h("div", { className: "panel" }, this.image, this.fault), this.details),
      rewarded.length ? this.chart.element : null);
    this.chart.set({ curves: [{ name: "reward", slot: 0, x: rewarded, y: rewarded.map((i) => rewards[i]) }], xLabel: "step" });
  }

  file(kind) {
    return address(["trials", this.trial, "episodes", this.episode.name, "video"], { format: kind, frames_per_s: Math.min(50, this.speed), render: this.renders?.value });
  }

  to(step) {
    this.step = Math.max(0, Math.min(this.episode.kinds.length - 1, step));
    return this.app.attempt(() => this.paint());
  }

  // Only one step is requested at a time: a slow renderer slows playing down, and nothing piles up.
  async paint() {
    const { episode, step } = this, path = ["trials", this.trial, "episodes", episode.name, "steps", step];
    this.slider.value = step;
    this.place.textContent = `${step} of ${episode.kinds.length - 1}: ${episode.kinds[step]} at ${duration(episode.at_s[step])}`;
    const [details, picture] = await Promise.allSettled([get(path), blob([...path, "picture"], { render: this.renders.value })]);
    if (episode !== this.episode || step !== this.step) return;
    this.fault.hidden = picture.status === "fulfilled";
    if (picture.status === "fulfilled") {
      URL.revokeObjectURL(this.image.src);
      this.image.src = URL.createObjectURL(picture.value);
      await this.image.decode().catch(() => {});
    } else {
      this.fault.textContent = picture.reason.message;
    }
    if (details.status === "rejected") throw details.reason;
    put(this.details, part("Request of the gamecore", details.value.body), part("Reply of the actor", details.value.reply));
    this.image.dataset.step = step;
  }

  toggle() {
    if (this.playing) this.stop();
    else this.play();
  }

  stop() {
    this.playing = false;
    if (this.button) this.button.textContent = "Play";
  }

  async play() {
    this.playing = true;
    this.button.textContent = "Pause";
    if (this.step >= this.episode.kinds.length - 1) this.step = -1;
    const episode = this.episode;
    while (this.playing && episode === this.episode && this.step < episode.kinds.length - 1) {
      const due = performance.now() + 1000 / this.speed;
      await this.to(this.step + 1);
      await new Promise((resume) => setTimeout(resume, Math.max(0, due - performance.now())));
    }
    if (episode === this.episode) this.stop();
  }

  next(by) {
    const names = this.page.episodes.map((one) => one.name), i = names.indexOf(this.episode?.name) + by;
    if (names[i]) this.pick(names[i]);
  }

  faster(by) {
    this.speed = SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, SPEEDS.indexOf(this.speed) + by))];
    this.speeds.value = this.speed;
  }

  keys = {
    " ": ["play, pause", () => this.episode && this.toggle()],
    ArrowRight: ["next step", () => { this.stop(); this.episode && this.to(this.step + 1); }],
    ArrowLeft: ["previous step", () => { this.stop(); this.episode && this.to(this.step - 1); }],
    Home: ["first step", () => this.episode && this.to(0)],
    End: ["last step", () => this.episode && this.to(Infinity)],
    "+": ["faster", () => this.faster(1)],
    "-": ["slower", () => this.faster(-1)],
    ArrowDown: ["next episode", () => this.next(1)],
    ArrowUp: ["previous episode", () => this.next(-1)],
  };

  close() {
    this.stop();
    this.episode = null;
    this.chart?.close();
  }
}

// The step in the address; without one the first tick is shown.
function toStep(text) {
  return /^\d+$/.test(text ?? "") ? Number(text) : undefined;
}

function time(name) {
  const [, y, mo, d, hh, mi, ss] = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)/.exec(name) ?? [];
  return y && Date.UTC(y, mo - 1, d, hh, mi, ss) / 1000;
}

function part(words, leaves) {
  if (leaves == null) return h("section", {}, h("h3", {}, words), h("p", { className: "bad" }, "no reply: the request failed"));
  return h("section", {}, h("h3", {}, words), leaves.length ? leaves.map(leaf) : h("p", { className: "faint" }, "empty"));
}

function leaf(one) {
  const shape = one.shape?.length ? `[${one.shape.join(", ")}]` : "";
  const span = one.min != null && one.values.length > 1 ? `${number(one.min)} … ${number(one.max)}, mean ${number(one.mean)}` : "";
  const values = one.text ?? one.values.map((value) => (typeof value === "number" ? number(value) : value)).join("  ");
  const size = one.shape?.reduce((a, b) => a * b, 1) ?? 0;
  return h("div", { className: "leaf" }, h("code", {}, one.path || "body"), h("span", { className: "faint" }, `${one.type} ${shape} ${span}`),
    h("div", { className: "values" }, values, size > (one.values?.length ?? size) ? " …" : ""));
}
