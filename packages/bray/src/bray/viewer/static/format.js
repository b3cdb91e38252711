// Numbers and times as people read them.

const SUFFIXES = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]];

export function number(value) {
  if (value == null || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, suffix] of SUFFIXES) {
    const scaled = suffix === "k" ? value / 1e3 : value / unit;
    if (size >= unit) return trim(scaled.toPrecision(Math.abs(scaled) >= 100 ? 4 : 3)) + suffix;
  }
  if (size !== 0 && size < 1e-3) return value.toExponential(1).replace("e-", "e−").replace(/^-/, "−");
  if (size >= 1e3) return String(Math.round(value)).replace(/^-/, "−");
  return trim(value.toPrecision(size >= 100 ? 4 : 3)).replace(/^-/, "−");
}

function trim(text) {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

export function quantity(value, unit) {
  if (unit === "s" && value != null) return duration(value);
  return unit ? `${number(value)}${unit.startsWith("/") ? "" : " "}${unit}` : number(value);
}

export function whole(value) {
  return value == null ? "–" : Math.round(value).toLocaleString("en");
}

export function duration(seconds) {
  if (seconds == null) return "–";
  if (seconds < 1e-3) return `${number(seconds * 1e6)} µs`;
  if (seconds < 1) return `${number(seconds * 1e3)} ms`;
  if (seconds < 60) return `${number(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

// One unit is enough in a table.
export function brief(seconds) {
  if (seconds == null) return "–";
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const [size, unit] = units.find(([least]) => seconds >= 2 * least) ?? units[3];
  return `${Math.floor(seconds / size)} ${unit}`;
}

export function ago(time_s) {
  return time_s == null ? "–" : `${brief(Math.max(1, Date.now() / 1000 - time_s))} ago`;
}

export function when(time_s) {
  if (time_s == null) return "–";
  const at = new Date(time_s * 1000);
  const two = (part) => String(part).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function bytes(count) {
  if (count == null) return "–";
  for (const [unit, suffix] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (count >= unit) return `${number(count / unit)} ${suffix}`;
  }
  return `${number(count)} B`;
}
