// A form made from a template's JSON Schema: a group for each part, a field for each setting.
// An empty field stands for the default.

import { h, put } from "./dom.js";

export class Form {
  // onchange is called with all settings, onalgorithm with the algorithm that is chosen.
  constructor({ onchange, onalgorithm }) {
    Object.assign(this, { onchange, onalgorithm, settings: {}, fields: new Map() });
    this.element = h("fieldset", { className: "form", "aria-label": "Settings" });
  }

  // With algorithms, the form has the settings of the whole run; without, those of a part.
  build(schema, algorithms) {
    const focused = document.activeElement?.id, from = document.activeElement?.selectionStart;
    this.fields.clear();
    const alone = Object.entries(schema.properties).filter(([, one]) => !one.properties);
    const parts = Object.entries(schema.properties).filter(([, one]) => one.properties);
    const algorithm = { enum: algorithms, description: schema.description, chosen: true };
    put(this.element,
      alone.length ? group("run", "Settings of the whole run.", alone.map(([name, one]) => this.field(null, name, name === "algorithm" ? algorithm : one, false))) : null,
      parts.map(([part, one]) => group(part, one.description, Object.entries(one.properties).map(([name, below]) => this.field(part, name, below, one.required?.includes(name))))));
    const again = focused && document.getElementById(focused);
    if (again && this.element.contains(again)) {
      again.focus();
      if (from != null) again.setSelectionRange?.(from, from);
    }
  }

  field(part, name, schema, isNeeded) {
    const key = part ? `${part}.${name}` : name, id = `set-${key}`, type = typeOf(schema), isChosen = schema.chosen || (name === "algorithm" && schema.enum);
    const described = { "aria-describedby": `${id}-error ${id}-help`, "aria-required": isNeeded ? "true" : null };
    const input = type.choices
      ? h("select", { id, ...described, onchange: () => this.take(key) }, isChosen ? null : h("option", { value: "" }, `default: ${shown(schema.default)}`), type.choices.map((one) => h("option", { value: String(one) }, String(one))))
      : h("input", { id, type: "text", autocomplete: "off", spellcheck: false, ...described, inputMode: type.name === "number" ? "decimal" : "text", placeholder: shown(schema.default), oninput: () => this.take(key) });
    const reset = h("button", { type: "button", className: "reset", hidden: true, title: "Reset to the default", "aria-label": `${key}: reset to the default`, onclick: () => this.reset(key) }, "×");
    const error = h("p", { id: `${id}-error`, className: "bad", hidden: true });
    const help = h("p", { id: `${id}-help`, className: "faint" }, [schema.description, type.words, isNeeded ? "Required." : ""].filter(Boolean).join(" "));
    const element = h("div", { className: "field", "data-key": key }, h("label", { htmlFor: id }, name), h("span", { className: "bar" }, input, reset), error, help);
    this.fields.set(key, { part, name, type, input, reset, error, element, isNeeded });
    return element;
  }

  reset(key) {
    const { input } = this.fields.get(key);
    input.value = "";
    input.focus();
    this.take(key);
  }

  take(key) {
    const { part, name, type, input } = this.fields.get(key);
    if (key === "algorithm") return this.onalgorithm(input.value);
    if (part && !isPart(this.settings[part])) this.settings[part] = {};
    const place = part ? this.settings[part] : this.settings;
    const value = type.read(input.value.trim());
    if (value === undefined) delete place[name];
    else place[name] = value;
    this.mark(this.fields.get(key), value);
    this.onchange(this.settings);
  }

  // The field that has the focus keeps its text.
  set(settings, isNew) {
    this.settings = settings;
    for (const [key, field] of this.fields) {
      const place = field.part ? (isPart(settings[field.part]) ? settings[field.part] : {}) : settings;
      const value = place[field.name];
      if (isNew || field.input !== document.activeElement || field.type.choices) field.input.value = value == null ? "" : shown(value);
      this.mark(field, value);
    }
  }

  mark(field, value) {
    const isSet = value != null && field.name !== "algorithm";
    field.element.classList.toggle("set", isSet);
    field.reset.hidden = !isSet || field.isNeeded || field.input.tagName === "SELECT";
  }

  // Only the groups of these names are shown; null: all.
  only(names) {
    for (const one of this.element.querySelectorAll("[data-group]")) one.hidden = names != null && !names.includes(one.dataset.group);
  }

  // A problem of a whole part, or of one of its wires, is shown at its first field.
  find({ key, part }) {
    const plain = key.replace(/\[.*$/, ""), first = (begin) => (begin ? [...this.fields].find(([other]) => other.startsWith(`${begin}.`))?.[1] : undefined);
    return this.fields.get(plain) ?? first(plain) ?? first(part);
  }

  tell(problems) {
    for (const { input, error } of this.fields.values()) {
      input.removeAttribute("aria-invalid");
      error.hidden = true;
    }
    for (const problem of [...problems].reverse()) {
      const { key, text } = problem, field = this.find(problem);
      if (!field) continue;
      field.input.setAttribute("aria-invalid", "true");
      field.error.textContent = text.startsWith(`${key}: `) ? text.slice(key.length + 2) : text;
      field.error.hidden = false;
    }
  }
}

function group(name, words, fields) {
  const none = h("p", { className: "faint" }, "This algorithm has no settings here.");
  return h("fieldset", { className: "panel part", "data-group": name }, h("legend", {}, name), h("p", { className: "faint" }, words), h("div", { className: "fields" }, fields.length ? fields : none));
}

export function isPart(value) {
  return value != null && typeof value === "object" && !Array.isArray(value);
}

function typeOf(schema) {
  if (schema.enum) return { choices: schema.enum, read: (text) => text || undefined };
  const inner = schema.anyOf?.find((one) => one.type !== "null") ?? schema;
  if (inner.enum) return { choices: inner.enum, read: (text) => text || undefined };
  if (inner.type === "boolean") return { choices: [true, false], read: (text) => (text ? text === "true" : undefined) };
  if (inner.type === "array") return { words: `${inner.items?.type === "string" || inner.items?.anyOf?.[0].type === "string" ? "Names" : "Numbers"} separated by commas.`, read: list };
  if (inner.type === "object") return { words: "Settings as JSON, such as {\"size\": 4}.", read: toSettings };
  if (inner !== schema && schema.anyOf.some((one) => one.type === "object")) return { words: `${inner.type === "string" ? "A name" : limits(inner)} Or settings as JSON.`, read: (text) => (text.startsWith("{") ? toSettings(text) : inner.type === "string" ? text || undefined : toNumber(text)) };
  if (inner.type === "integer" || inner.type === "number") return { name: "number", words: limits(inner), read: (text) => (text.startsWith("{") ? toSettings(text) : toNumber(text)) };
  return { words: schema.anyOf?.some((one) => one.type === "null") ? "Optional." : "", read: (text) => text || undefined };
}

function limits({ type, minimum, exclusiveMinimum, maximum }) {
  const what = type === "integer" ? "A whole number" : "A number";
  if (minimum != null && maximum != null) return `${what}, ${minimum} to ${maximum}.`;
  if (minimum != null) return `${what}, ${minimum} or more.`;
  if (exclusiveMinimum != null) return `${what} above ${exclusiveMinimum}.`;
  return `${what}.`;
}

function toNumber(text) {
  if (!text) return undefined;
  const value = Number(text);
  return Number.isFinite(value) ? value : text; // the server says what is wrong with it
}

function toSettings(text) {
  if (!text) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return text; // the server says what is wrong with it
  }
}

function list(text) {
  if (text.includes("{")) {
    const found = toSettings(text.startsWith("[") ? text : `[${text}]`);
    return Array.isArray(found) ? found : text; // the server says what is wrong with it
  }
  const words = text.replace(/^\[|\]$/g, "").split(/[\s,]+/).filter(Boolean);
  return text ? words.map(toNumber) : undefined;
}

function shown(value) {
  if (value == null) return "";
  if (Array.isArray(value)) return value.some(isPart) ? JSON.stringify(value) : value.map(shown).join(", ");
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
