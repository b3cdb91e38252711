// What the policies decided in one step: the action, the value, and how likely each choice was.

import { h } from "./dom.js";
import { number } from "./format.js";

const SHOWN = 20;

export function decision(found, names) {
  const { agent, policy, action, value, probabilities, reals } = found;
  const head = [agent, policy && policy !== agent ? `(${policy})` : ""].filter(Boolean).join(" ");
  return h("section", { className: "decision" }, h("h2", {}, head || "Decision"),
    h("p", {}, "Action ", h("b", {}, action.map((one, i) => choice(one, probabilities.length ? i : -1, names)).join(", ") || "–"), value == null ? null : [", value ", h("b", {}, number(value))]),
    probabilities.map((chances, head_number) => bars(chances, action.length === probabilities.length ? action[head_number] : null, names, probabilities.length > 1 ? `choice ${head_number}` : "")),
    Object.entries(reals).map(([what, numbers]) => h("p", { className: "faint" }, `${what} `, numbers.map((one) => number(one)).join("  "))));
}

function choice(one, head, names) {
  return head === 0 && names[one] ? names[one] : number(one);
}

// The likeliest choices; the one that was taken is always among them.
function bars(chances, taken, names, words) {
  const order = chances.map((_, i) => i).sort((a, b) => chances[b] - chances[a]);
  const shown = chances.length <= SHOWN ? chances.map((_, i) => i) : order.slice(0, SHOWN).sort((a, b) => a - b);
  if (taken != null && chances[taken] != null && !shown.includes(taken)) shown.push(taken);
  const left = chances.length - shown.length;
  return h("div", { className: "bars" }, words ? h("span", { className: "faint" }, words) : null, shown.map((i) => {
    const bar = h("i");
    bar.style.width = `${Math.round(chances[i] * 1000) / 10}%`;
    return h("div", { className: i === taken ? "chance taken" : "chance" }, h("span", {}, names[i] ?? String(i)), h("span", { className: "track" }, bar), h("span", { className: "number" }, `${number(Math.round(chances[i] * 1000) / 10)} %`));
  }), left > 0 ? h("span", { className: "faint" }, `and ${left} less likely ones`) : null);
}
