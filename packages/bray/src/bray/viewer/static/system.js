// The machines of a run over its time: processors, memory, network and GPUs.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { h, put } from "./dom.js";
import { number } from "./format.js";

const percent = (share) => `${number(share * 100)} %`;
const bytes = (value) => `${number(value)}B`;
const rate = (value) => `${bytes(value)}/s`;
const GROUPS = [
  ["Processors: share of their time that all cores are busy", ["machine/cpu_share"], percent],
  ["Memory in use by all programs", ["machine/memory_bytes"], bytes],
  ["Network: received", ["machine/network_received_bytes_per_s"], rate],
  ["Network: sent", ["machine/network_sent_bytes_per_s"], rate],
  ["GPU: share of its time that it computes", ["machine/gpu_share"], percent],
  ["GPU: memory in use", ["machine/gpu_memory_bytes"], bytes],
  ["Processes of the run: cores that each keeps busy", ["process/cpu_cores"], number],
  ["Processes of the run: memory of each", ["process/memory_bytes"], bytes],
];

export class System {
  constructor(main, app, trial) {
    this.trial = trial;
    this.charts = new Map();
    this.grid = h("div", { className: "charts wide" });
    this.news = h("p", { className: "faint" });
    put(main, h("div", { className: "bar" }, h("h1", {}, trial ?? "no trial"), this.news), this.grid);
  }

  async refresh() {
    if (this.trial == null) return;
    const known = await get(["metrics"], { trial: this.trial });
    const groups = GROUPS.map(([title, names, format]) => [title, known.filter((name) => names.includes(name.split("{")[0])), format]).filter(([, found]) => found.length);
    this.news.textContent = groups.length ? (known.some((name) => name.startsWith("machine/gpu")) ? "" : "No GPU of NVIDIA was found on the machines of this run.") : "This trial has recorded nothing of its machines.";
    await Promise.all(groups.map((group) => this.draw(...group)));
  }

  async draw(title, metrics, format) {
    if (!this.charts.has(title)) {
      const chart = new Chart(title, { height: 190, format, left: 72, floor: 0 });
      this.charts.set(title, chart);
      this.grid.append(chart.element);
    }
    const found = await Promise.all(metrics.slice(0, 40).map((metric) => get(["curves"], { metric, x: "seconds", points: 400, trial: this.trial })));
    const curves = found.flatMap((one, i) => one.map((curve) => ({ ...curve, name: label(metrics[i]), slot: i })));
    this.charts.get(title)?.set({ curves, xLabel: "seconds" });
  }

  close() {
    for (const chart of this.charts.values()) chart.close();
    this.charts.clear();
  }
}

// `machine/gpu_share{gpu=0,host=a}` is shown as `gpu 0, host a`.
function label(metric) {
  const [, labels] = /\{(.*)\}$/.exec(metric) ?? [];
  return labels ? labels.split(",").map((one) => one.replace("=", " ")).join(", ") : metric;
}
