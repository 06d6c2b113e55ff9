// Requests to this node. Name and password are in the memory of the page alone and go with each request: no cookie, no
// storage. A reload asks for them again.

const TIMEOUT_MS = 15000;
let authorization = null;
const listeners = { down: () => {}, up: () => {}, loggedOut: () => {} };

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const listen = (to) => Object.assign(listeners, to);

export function logIn(name, password) {
  const raw = new TextEncoder().encode(`${name}:${password}`);
  authorization = `Basic ${btoa(Array.from(raw, (byte) => String.fromCharCode(byte)).join(""))}`;
}

export function logOut() {
  authorization = null;
}

export const encode = encodeURIComponent;

function messageOf(status, text) {
  try {
    const json = JSON.parse(text);
    if (typeof json === "string") return json;
    if (json.message) return json.message;
    if (json.errors) {
      return Object.entries(json.errors).map(([field, what]) => (field === "_" ? what : `${field}: ${what}`)).join("; ");
    }
  } catch {
    // It is text.
  }
  return text.trim() || `status ${status}`;
}

async function reached(work) {
  try {
    return await work();
  } catch {
    listeners.down();
    throw new ApiError(0, "this node does not answer");
  }
}

function ask(path, { headers, signal, ...rest }) {
  return fetch(path, {
    headers: { Authorization: authorization, ...headers }, credentials: "omit", cache: "no-store", redirect: "error",
    signal: signal || AbortSignal.timeout(TIMEOUT_MS), ...rest,
  });
}

function judge(answer, text, mine) {
  listeners.up();
  if (answer.status === 401 && mine === authorization) listeners.loggedOut();
  if (!answer.ok) throw new ApiError(answer.status, messageOf(answer.status, text));
}

export async function request(method, path, { body, headers, form, json } = {}) {
  const sent = { ...headers };
  if (form) {
    sent["Content-Type"] = "application/x-www-form-urlencoded";
    body = new URLSearchParams(form).toString();
  }
  if (json !== undefined) {
    sent["Content-Type"] = "application/json";
    body = JSON.stringify(json);
  }
  const mine = authorization;
  const [answer, text] = await reached(async () => {
    const answer = await ask(path, { method, body, headers: sent });
    return [answer, await answer.text()];
  });
  judge(answer, text, mine);
  return text;
}

// An answer of lines of JSON, one after the other, until `take` returns false.
export async function lines(path, take) {
  const mine = authorization, stop = new AbortController();
  const answer = await reached(() => ask(path, { signal: AbortSignal.any([AbortSignal.timeout(TIMEOUT_MS), stop.signal]) }));
  judge(answer, answer.ok ? "" : await reached(() => answer.text()), mine);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", isOver = false; !isOver;) {
    const { done, value } = await reached(() => reader.read());
    isOver = done;
    rest += value || "";
    // A long line comes in many pieces.
    if (!done && !value.includes("\n")) continue;
    const whole = rest.split("\n");
    rest = whole.pop();
    for (const line of whole) {
      if (line.trim() && take(JSON.parse(line)) === false) return stop.abort();
    }
  }
}

export async function get(path) {
  return JSON.parse(await request("GET", path));
}

export const post = (path, form) => request("POST", path, { form: form || {} });
