// Requests to the server. A reply that has not changed comes as status 304 and is not parsed again.

const MAX_KEPT = 64;
const kept = new Map();

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function get(path, query) {
  const url = address(path, query);
  const before = kept.get(url);
  const headers = before ? { "If-None-Match": before.tag } : {};
  const response = await fetch(url, { headers, cache: "no-store" });
  if (response.status === 304 && before) return before.content;
  if (!response.ok) throw await refused(response);
  const content = await response.json();
  kept.delete(url);
  kept.set(url, { tag: response.headers.get("ETag"), content });
  if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
  return content;
}

// A request that changes something: the header proves that this page sends it, not another site's.
export async function post(path, content) {
  const headers = { "Content-Type": "application/json", "Bray-Page": "1" };
  const response = await fetch(address(path), { method: "POST", headers, body: JSON.stringify(content) });
  if (!response.ok) throw await refused(response);
  return response.json();
}

export async function blob(path, query) {
  const response = await fetch(address(path, query));
  if (!response.ok) throw await refused(response);
  return response.blob();
}

export function address(path, query) {
  const url = path.map((part) => encodeURIComponent(part)).join("/");
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query || {})) {
    for (const one of [value].flat()) if (one != null) words.append(name, one);
  }
  return `api/${url}${words.size ? "?" + words : ""}`;
}

async function refused(response) {
  try {
    return new Refused(response.status, (await response.json()).error.message);
  } catch {
    return new Refused(response.status, `the server answered ${response.status}`);
  }
}
