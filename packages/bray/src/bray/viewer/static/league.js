// A league: win rates of all players against each other as a heat map, and their ratings.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { h, put } from "./dom.js";
import { number } from "./format.js";

const EDGE = 560, LEAST_MARGIN = 92, MOST_MARGIN = 230, FONT = "11px system-ui, sans-serif";

export class League {
  constructor(main, app, trial) {
    this.trial = trial;
    this.place = h("div");
    put(main, h("div", { className: "bar" }, h("h1", {}, trial ?? "no trial")), this.place);
  }

  async refresh() {
    if (this.trial == null) return;
    let found;
    try {
      found = await get(["trials", this.trial, "league"]);
    } catch (error) {
      if (error.status !== 404) throw error;
      put(this.place, h("p", { className: "empty" }, error.message));
      return;
    }
    if (found === this.found) return;
    this.found = found;
    this.build();
    const ratings = await get(["trials", this.trial, "ratings"]);
    if (this.found === found) this.rate(ratings);
  }

  build() {
    const { players, num_left_out } = this.found;
    this.chart?.close();
    this.chart = new Chart("Rating (Elo), fitted to all games, 95 % interval", { height: 240 });
    this.canvas = h("canvas", { className: "heat", tabIndex: 0, role: "img", "aria-label": "Win rates: the arrow keys move from cell to cell" });
    this.cell = h("p", { className: "cell", role: "status" }, "Point at a cell, or move with the arrow keys.");
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX, event.offsetY));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.table = h("tbody", {}, h("tr", {}, h("td", { className: "faint" }, "computing ratings …")));
    put(this.place,
      h("p", { className: "faint" }, `${players.length} ${players.length === 1 ? "player" : "players"}${num_left_out ? `, without the oldest ${num_left_out}` : ""}. Row against column:`,
        h("span", { className: "legend" }, h("i", { className: "lose" }), "loses", h("i", { className: "even" }), "even", h("i", { className: "win" }), "wins", h("i", { className: "none" }), "no game")),
      h("div", { className: "league" }, h("div", { className: "panel" }, this.canvas, this.cell),
        h("div", {}, this.chart.element, h("div", { className: "panel scroll", tabIndex: 0, role: "region", "aria-label": "Ratings" }, h("table", { className: "ratings" }, this.table)))));
    this.draw();
  }

  draw() {
    const { players, rates } = this.found, count = players.length;
    const width = Math.min(EDGE, (this.canvas.parentElement?.clientWidth ?? EDGE) - 26);
    const MARGIN = (this.margin = this.room(players, width * 0.42));
    const side = Math.max(1, Math.floor((width - (width < EDGE ? MARGIN : LEAST_MARGIN)) / count)), size = MARGIN + side * count + 1;
    const ratio = devicePixelRatio || 1, style = getComputedStyle(document.documentElement);
    Object.assign(this.canvas, { width: size * ratio, height: size * ratio });
    this.canvas.style.width = this.canvas.style.height = `${size}px`;
    this.side = side;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, size, size);
    const gap = side > 4 ? 1 : 0;
    const ends = ["--lose", "--even", "--win", "--none"].map((name) => style.getPropertyValue(name).trim());
    rates.forEach((row, i) => row.forEach((rate, j) => {
      if (i === j) return;
      const inset = rate == null ? Math.floor(side * 0.4) : 0; // no game: a dot, not a colour
      pen.fillStyle = rate == null ? ends[3] : mix(rate, ends);
      pen.fillRect(MARGIN + j * side + inset, MARGIN + i * side + inset, side - gap - 2 * inset, side - gap - 2 * inset);
      if (side >= 22 && rate != null) {
        pen.fillStyle = Math.abs(rate - 0.5) > 0.3 ? "#fff" : style.getPropertyValue("--ink");
        pen.textAlign = "center";
        pen.font = FONT;
        pen.fillText(String(Math.round(rate * 100)), MARGIN + (j + 0.5) * side, MARGIN + (i + 0.5) * side + 4);
      }
    }));
    this.labels(pen, style.getPropertyValue("--faint"));
  }

  // Names as long as they are, up to a bound: longer ones are whole in the table and under the map.
  room(players, most) {
    const pen = this.canvas.getContext("2d");
    pen.font = FONT;
    const longest = Math.max(0, ...players.map((name) => pen.measureText(name).width));
    return Math.round(Math.max(Math.min(LEAST_MARGIN, most), Math.min(MOST_MARGIN, most, longest + 14)));
  }

  labels(pen, colour) {
    const MARGIN = this.margin, every = Math.ceil(13 / this.side);
    pen.fillStyle = colour;
    pen.font = FONT;
    this.found.players.forEach((name, i) => {
      if (i % every) return;
      const at = MARGIN + (i + 0.5) * this.side, text = fitting(pen, name, MARGIN - 12);
      pen.textAlign = "right";
      pen.fillText(text, MARGIN - 6, at + 4);
      pen.save();
      pen.translate(at + 4, MARGIN - 6);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(text, 0, 0);
      pen.restore();
    });
  }

  point(x, y) {
    this.tell(Math.floor((y - this.margin) / this.side), Math.floor((x - this.margin) / this.side));
  }

  key(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const last = this.found.players.length - 1, [row, column] = this.at ?? [0, 0];
    this.tell(Math.max(0, Math.min(last, row + step[0])), Math.max(0, Math.min(last, column + step[1])));
  }

  tell(row, column) {
    const { players, rates, games } = this.found;
    if (!(players[row] && players[column])) return;
    this.at = [row, column];
    const rate = rates[row][column];
    const words = rate == null ? "no game" : `wins ${number(rate * 100)} % of ${number(games[row][column])} games`;
    this.cell.textContent = row === column ? players[row] : `${players[row]} against ${players[column]}: ${words}`;
  }

  rate({ players, rating, low, high }) {
    const x = players.map((_, i) => i);
    this.chart.set({ curves: [{ name: "rating", slot: 0, x, y: rating, low, high }], xLabel: "player, oldest first", isCounted: true });
    const order = [...x].sort((a, b) => rating[b] - rating[a]);
    const hasRoles = Object.keys(this.found.roles).length > 0, heads = ["Place", "Player", hasRoles ? "Role" : null, "Rating", "95 %"];
    put(this.table, h("tr", {}, heads.map((words, i) => words && h("th", { className: i > 2 ? "number" : "" }, words))), order.map((i, place) => h("tr", {},
      h("td", { className: "number faint" }, place + 1), h("td", { className: "player" }, players[i]), hasRoles ? h("td", { className: "faint" }, this.found.roles[players[i]] ?? "–") : null,
      h("td", { className: "number" }, Math.round(rating[i])), h("td", { className: "number faint" }, `${Math.round(low[i])} … ${Math.round(high[i])}`))));
  }

  repaint() {
    if (this.canvas) this.draw();
  }

  close() {
    this.chart?.close();
  }
}

function fitting(pen, name, width) {
  let length = name.length;
  while (length > 1 && pen.measureText(length < name.length ? `${name.slice(0, length)}…` : name).width > width) length--;
  return length < name.length ? `${name.slice(0, length)}…` : name;
}

function mix(rate, [lose, even, win]) {
  const end = rate < 0.5 ? lose : win, share = Math.abs(rate - 0.5) * 2;
  return `color-mix(in srgb, ${end} ${Math.round(share * 100)}%, ${even})`;
}
