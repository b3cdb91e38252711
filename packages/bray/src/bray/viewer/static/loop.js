// The running system: a live picture of its parts and of what flows between them.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { h, put, s } from "./dom.js";
import { ago, quantity } from "./format.js";

const WIDTH = 1010, BOX = 246, LINE = 19, HEAD = 34;
const PARTS = {
  gamecore: { x: 10, y: 10, words: "the simulator" },
  actor: { x: 10, y: 214, words: "one per session", share: "actor busy" },
  model: { x: 382, y: 214, words: "batched inference", share: "model busy" },
  buffer: { x: 382, y: 416, words: "batches ready to train on", share: "buffer full" },
  trainer: { x: 754, y: 214, words: "updates the policy", share: "trainer busy" },
};
const ARROWS = {
  "gamecore-actor": { path: (b) => `M133 ${b.gamecore} V212`, label: [146, 178], anchor: "start" },
  "actor-model": { path: () => "M256 262 H380", label: [318, 250], both: true },
  "trainer-model": { path: () => "M754 262 H630", label: [691, 250] },
  "actor-buffer": { path: (b) => `M133 ${b.actor} V470 H380`, label: [318, 458] },
  "buffer-trainer": { path: (b) => `M628 470 H877 V${b.trainer + 2}`, label: [691, 458] },
};
const CURVES = [
  ["actor/steps", "actor/steps: played so far"], ["buffer/queued_segments", "buffer/queued_segments: waiting"],
  ["trainer/wait_s", "trainer/wait_s: taking a replay"], ["trainer/policy_lag_versions", "trainer/policy_lag_versions"],
];

export class Loop {
  constructor(main, app, trial) {
    this.app = app;
    this.trial = trial;
    this.verdict = h("p", { className: "verdict", role: "status" });
    this.news = h("p", { className: "faint" });
    this.svg = s("svg", { class: "loop", viewBox: `0 0 ${WIDTH} 580`, role: "img", "aria-label": "The running system" });
    this.charts = CURVES.map(([, words]) => new Chart(words, { height: 150 }));
    put(main, h("div", { className: "bar" }, h("h1", {}, trial ?? "no trial"), this.news), this.verdict,
      h("div", { className: "panel picture", tabIndex: 0, role: "region", "aria-label": "Picture of the running system" }, this.svg), h("div", { className: "charts small" }, this.charts.map((chart) => chart.element)));
  }

  async refresh() {
    if (this.trial == null) return;
    const found = await get(["trials", this.trial, "loop"]);
    this.verdict.textContent = found.limit.words;
    const state = this.app.trials.find((trial) => trial.name === this.trial)?.state ?? "";
    this.news.textContent = found.at_s ? `${state}; updated ${ago(found.at_s)}, rates over 20 s` : `${state}; nothing recorded yet`;
    this.draw(found, state === "running");
    const lines = await Promise.all(CURVES.map(([metric]) => get(["curves"], { metric, x: "seconds", points: 300, trial: this.trial })));
    lines.forEach((curves, i) => this.charts[i].set({ curves: curves.map((one) => ({ ...one, name: one.trial, slot: i })), xLabel: "seconds" }));
  }

  draw(found, isLive) {
    const bottoms = {};
    const boxes = Object.entries(PARTS).map(([name, part]) => {
      const rows = found.figures.filter((figure) => figure.part === name);
      const share = found.shares[part.share];
      const height = HEAD + LINE * Math.max(2, rows.length) + (share != null ? 30 : 10);
      bottoms[name] = part.y + height;
      return box(name, part, rows, share, height, found.limit.part === name);
    });
    const arrows = Object.entries(ARROWS).map(([name, arrow]) => {
      const rows = found.figures.filter((figure) => figure.part === name);
      const flows = isLive && rows.some((row) => row.value > 0);
      return [
        s("path", { d: arrow.path(bottoms), class: flows ? "arrow flows" : "arrow", "marker-end": "url(#head)", "marker-start": arrow.both ? "url(#head)" : null }),
        rows.map((row, i) => s("text", { x: arrow.label[0], y: arrow.label[1] + (i ? 32 : 0) + (arrow.anchor ? i * 2 - 10 : 0), class: arrow.anchor ? "flow from" : "flow" },
          i || row.words === "lag" ? `${row.words} ${quantity(row.value, i || row.words === "lag" ? "" : row.unit)}` : quantity(row.value, row.unit))),
      ];
    });
    const head = s("defs", {}, s("marker", { id: "head", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" }, s("path", { d: "M0 0L8 4L0 8Z", class: "arrow-head" })));
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${Math.max(...Object.values(bottoms)) + 12}`);
    put(this.svg, head, arrows, boxes);
  }

  close() {
    for (const chart of this.charts) chart.close();
  }
}

function box(name, part, rows, share, height, limits) {
  const lines = rows.flatMap((row, i) => {
    const y = part.y + HEAD + 15 + i * LINE;
    return [s("text", { x: part.x + 12, y, class: "words" }, row.words), s("text", { x: part.x + BOX - 12, y, class: "value" }, quantity(row.value, row.unit))];
  });
  if (!rows.length) lines.push(s("text", { x: part.x + 12, y: part.y + HEAD + 15, class: "words" }, "no metrics"));
  const y = part.y + height - 20;
  const gauge = share == null ? [] : [
    s("rect", { x: part.x + 12, y, width: BOX - 24 - 96, height: 8, rx: 4, class: "gauge" }),
    s("rect", { x: part.x + 12, y, width: Math.max(2, (BOX - 24 - 96) * share), height: 8, rx: 4, class: "filled" }),
    s("text", { x: part.x + BOX - 12, y: y + 9, class: "value" }, `${Math.round(share * 100)} % ${part.share.split(" ")[1]}`),
  ];
  return s("g", { class: limits ? "part limits" : "part", "data-part": name },
    s("rect", { x: part.x, y: part.y, width: BOX, height, rx: 8, class: "box" }),
    s("text", { x: part.x + 12, y: part.y + 23, class: "title" }, name),
    s("text", { x: part.x + BOX - 12, y: part.y + 23, class: "said" }, limits ? "limits the run" : part.words), lines, gauge);
}
