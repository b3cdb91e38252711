// Recorded episodes: a list in pages, and one episode step by step with pictures.

import { address, blob, get, post } from "./api.js";
import { Chart } from "./chart.js";
import { decision } from "./decision.js";
import { h, put } from "./dom.js";
import { bytes, duration, number, when, whole } from "./format.js";

const WAIT_MS = 500, PAGE = 50, SPEEDS = [1, 2, 5, 10, 15, 30, 60];

export class Episodes {
  constructor(main, app, trial, [episode, step]) {
    Object.assign(this, { app, trial, start: 0, speed: 15, playing: false, wanted: episode, wantedStep: toStep(step) });
    this.list = h("tbody");
    this.pager = h("div", { className: "bar" });
    this.show = h("section", { className: "episode" }, h("p", { className: "empty" }, "Choose an episode."));
    this.hint = h("span", { className: "faint" });
    this.watcher = h("button", { type: "button", id: "watch", hidden: !app.project.starts_runs || trial == null, onclick: () => app.attempt(() => this.watch()) }, "Play an episode");
    this.news = h("span", { className: "faint", role: "status" });
    put(main, h("div", { className: "bar" }, h("h1", {}, trial ?? "no trial"), this.hint, this.watcher, this.news),
      h("div", { className: "side-by-side narrow" }, h("section", { className: "panel" }, this.pager, h("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": "Recorded episodes" }, h("table", { className: "trials" }, h("thead", {}, h("tr", {}, ["Recorded", "Session", "Return", "Steps"].map((w, i) => h("th", { className: i > 1 ? "number" : "" }, w)))), this.list))), this.show));
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

  // A process plays an episode with the trial's newest export; it is shown once it has ended.
  async watch() {
    this.watcher.disabled = true;
    this.news.textContent = "Playing …";
    try {
      await post(["builder", "watch"], { trial: this.trial });
      const run = await this.ended();
      if (!run) return;
      this.news.textContent = run.code === 0 ? "" : run.lines.at(-1) ?? `ended with code ${run.code}`;
      this.start = 0;
      await this.refresh();
      if (run.code === 0 && this.page.episodes.length) await this.choose(this.page.episodes[0].name);
    } catch (error) {
      if (!error.status) throw error;
      this.news.textContent = error.message;
    } finally {
      this.watcher.disabled = false;
    }
  }

  async ended() {
    while (!this.isClosed) {
      const { runs } = await get(["builder"]), run = runs.find((one) => one.trial === `watch ${this.trial}`);
      if (run?.state === "ended") return run;
      await new Promise((resume) => setTimeout(resume, WAIT_MS));
    }
  }

  // The address names the episode and the step: links and the browser's back button find them.
  async open([episode, step]) {
    if (episode && episode !== this.episode?.name) await this.choose(episode, toStep(step));
  }

  draw() {
    put(this.hint, this.page.hint);
    const { total, episodes } = this.page, end = this.start + episodes.length;
    const turn = (words, by, isOff) => h("button", { type: "button", disabled: isOff, onclick: () => this.turn(by) }, words);
    put(this.pager, h("span", { className: "faint" }, total ? `${whole(this.start + 1)}–${whole(end)} of ${whole(total)}` : "no episodes recorded: bray watch TRIAL plays one, actor.record_every records simulators"),
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
    const { kinds, rewards, values } = this.episode, last = kinds.length - 1;
    this.slider = h("input", { type: "range", min: 0, max: Math.max(0, last), step: 1, id: "tick", "aria-label": "Step", oninput: (e) => { this.stop(); this.to(Number(e.target.value)); } });
    this.place = h("output", { id: "at" });
    this.image = h("img", { className: "frame", alt: "Picture of this step" });
    this.fault = h("p", { className: "bad", hidden: true });
    this.details = h("div", { className: "details" });
    this.button = h("button", { type: "button", id: "play", onclick: () => this.toggle() }, "Play");
    const speed = h("select", { id: "speed", "aria-label": "Speed", onchange: (e) => { this.speed = Number(e.target.value); } }, SPEEDS.map((one) => h("option", { value: one, selected: one === this.speed }, `${one} steps/s`)));
    this.speeds = speed;
    this.renders = h("select", { id: "render", onchange: () => this.app.attempt(() => this.paint()) }, this.drawers().map((name) => h("option", { value: name, selected: name === this.page.render }, name)));
    const video = this.app.project.video.map((kind) => h("a", { className: "button", id: `video-${kind}`, download: "", onclick: (e) => { e.target.href = this.file(kind); }, href: this.file(kind) }, kind));
    const valued = kinds.map((_, i) => i).filter((i) => values[i] != null);
    this.chart?.close();
    this.values?.close();
    this.chart = new Chart("Reward of each step", { height: 110 });
    this.values = new Chart("Value of each step, as the policy gives it", { height: 110 });
    const rewarded = kinds.map((_, i) => i).filter((i) => rewards[i] != null);
    const { session, outcome, seconds, is_whole } = this.episode;
    put(this.show, h("div", { className: "bar" }, h("b", {}, session), h("span", { className: "faint" }, `${when(this.episode.began_s)}, ${duration(seconds)}, ended by: ${outcome}${is_whole ? "" : ", incomplete"}, return ${number(this.episode.return)}`)),
      h("div", { className: "bar" }, this.button, speed, h("label", { hidden: this.drawers().length < 2 }, "Picture ", this.renders), h("span", {}, "Video ", video)),
      h("div", { className: "bar" }, this.slider, this.place),
      h("div", { className: "stage" }, h("div", { className: "panel" }, this.image, this.fault), this.details),
      h("div", { className: "charts wide" }, rewarded.length ? this.chart.element : null, valued.length ? this.values.element : null));
    this.values.set({ curves: [{ name: "value", slot: 3, x: valued, y: valued.map((i) => values[i]) }], xLabel: "step" });
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
    const { decisions, body, reply } = details.value, isTold = decisions.some((one) => one.value != null || one.probabilities.length || Object.keys(one.reals).length);
    const all = [part("Request of the gamecore", body), part("Reply of the actor", reply)];
    this.isOpen = this.details.querySelector("details")?.open ?? this.isOpen;
    put(this.details, isTold ? [decisions.map((one) => decision(one, episode.action_names)), h("details", { open: this.isOpen ?? false }, h("summary", {}, "All that was sent"), all)] : all);
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
    this.isClosed = true;
    this.episode = null;
    this.chart?.close();
    this.values?.close();
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
  if (leaves == null) return h("section", {}, h("h2", {}, words), h("p", { className: "bad" }, "no reply: the request failed"));
  return h("section", {}, h("h2", {}, words), leaves.length ? leaves.map(leaf) : h("p", { className: "faint" }, "empty"));
}

function leaf(one) {
  const shape = one.shape?.length ? `[${one.shape.join(", ")}]` : "";
  const span = one.min != null && one.values.length > 1 ? `${number(one.min)} … ${number(one.max)}, mean ${number(one.mean)}` : "";
  const values = one.text ?? one.values.map((value) => (typeof value === "number" ? number(value) : value)).join("  ");
  const size = one.shape?.reduce((a, b) => a * b, 1) ?? 0;
  return h("div", { className: "leaf" }, h("code", {}, one.path || "body"), h("span", { className: "faint" }, `${one.type} ${shape} ${span}`),
    h("div", { className: "values" }, values, size > (one.values?.length ?? size) ? " …" : ""));
}
