// The selected part of a template: its name, its wires, and which other parts it may be joined to.

import { h, put } from "./dom.js";
import { JOINED } from "./graph.js";

const NAMED = ["agents", "inputs", "of"];

export class PartPanel {
  // onedit is called with an edit of the template, onclear to select no part.
  constructor({ onedit, onclear }) {
    Object.assign(this, { onedit, onclear });
    this.element = h("section", { className: "panel part-panel", "aria-label": "Selected part", hidden: true });
  }

  draw(part, { parts, wires, is_full }) {
    this.element.hidden = !part;
    const key = JSON.stringify([part, is_full, parts.map(({ id, kind }) => [id, kind]), wires]);
    if (!part || key === this.key) return; // what is typed here stays
    this.key = key;
    const name = h("input", { type: "text", id: "part-name", value: part.name, size: 16, spellcheck: false, autocomplete: "off", disabled: !part.is_written });
    const rename = () => name.value !== part.name && this.onedit({ act: "rename", part: part.id, name: name.value }, `${part.id.split(".")[0]}.${name.value}`);
    name.addEventListener("keydown", (event) => event.key === "Enter" && rename());
    put(this.element,
      h("div", { className: "bar" }, h("h2", {}, `${part.kind} ${part.name}`), h("button", { type: "button", onclick: this.onclear }, "Whole template")),
      h("div", { className: "bar" }, h("label", {}, "Name ", name), h("button", { type: "button", disabled: !part.is_written, onclick: rename }, "Rename"),
        h("button", { type: "button", disabled: !part.is_written, onclick: () => this.onedit({ act: "remove", part: part.id }, null) }, "Remove")),
      this.connector(part, parts),
      h("ul", { className: "wires", "aria-label": "Wires" }, wires.filter((wire) => [wire.source, wire.target].includes(part.id)).map((wire) => this.wire(wire))),
      part.is_written ? null : h("p", { className: "faint" }, "Follows from other parts. A setting below, or a wire, writes it into the template."),
      is_full ? null : h("p", { className: "faint" }, "Another name, wire or part gives all parts of this template names."));
  }

  connector(part, parts) {
    const others = parts.filter((other) => other.id !== part.id && (JOINED[part.kind].includes(other.kind) || JOINED[other.kind].includes(part.kind)));
    const to = h("select", { id: "connect-to" }, others.map((other) => h("option", { value: other.id }, `${other.kind} ${other.name}`)));
    return h("div", { className: "bar" }, h("label", {}, "Connect to ", to),
      h("button", { type: "button", disabled: !others.length, onclick: () => this.onedit({ act: "connect", from: part.id, to: to.value }, part.id) }, "Connect"));
  }

  // Patterns of agents, inputs and shares can be changed where they stand.
  wire(wire) {
    const words = `${wire.source} → ${wire.target}`, isNamed = wire.is_written && NAMED.includes(wire.path[2]);
    const renamed = (event) => this.onedit({ act: "connect", from: wire.source, to: wire.target, name: event.target.value, was: wire.name });
    const name = isNamed ? h("input", { type: "text", "aria-label": `Name of ${words}`, value: wire.name, size: 12, spellcheck: false, onchange: renamed }) : h("span", { className: "faint" }, wire.name);
    return h("li", { className: "bar" }, name, h("span", {}, words), wire.is_written
      ? h("button", { type: "button", className: "reset", title: "Disconnect", "aria-label": `Disconnect ${words}`, onclick: () => this.onedit({ act: "disconnect", path: wire.path }) }, "×")
      : h("span", { className: "faint" }, "by default"));
  }
}
