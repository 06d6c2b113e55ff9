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

export async function request(method, path, { body, headers, form, json } = {}) {
  const sent = { Authorization: authorization, ...headers };
  if (form) {
    sent["Content-Type"] = "application/x-www-form-urlencoded";
    body = new URLSearchParams(form).toString();
  }
  if (json !== undefined) {
    sent["Content-Type"] = "application/json";
    body = JSON.stringify(json);
  }
  const mine = authorization;
  let answer, text;
  try {
    answer = await fetch(path, {
      method, body, headers: sent, credentials: "omit", cache: "no-store", redirect: "error",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    text = await answer.text();
  } catch (error) {
    listeners.down();
    throw new ApiError(0, "this node does not answer");
  }
  listeners.up();
  if (answer.status === 401 && mine === authorization) listeners.loggedOut();
  if (!answer.ok) throw new ApiError(answer.status, messageOf(answer.status, text));
  return text;
}

export async function get(path) {
  return JSON.parse(await request("GET", path));
}

export const post = (path, form) => request("POST", path, { form: form || {} });
