// Elements are made here, and text goes into them as text: no data ever becomes markup.

export function h(name, properties, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked" || key === "disabled" || key === "selected") element[key] = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export function table(heads, rows, empty) {
  if (!rows.length) return h("p", { class: "empty" }, empty || "Nothing here.");
  const head = h("tr", null, heads.map((one) => h("th", { scope: "col", class: one.startsWith("#") ? "number" : null }, one.replace(/^#/, ""))));
  const body = rows.map((row) => h("tr", null, row.map((cell, at) => h("td", {
    class: heads[at].startsWith("#") ? "number" : null, "data-head": heads[at].replace(/^#/, ""),
  }, cell))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "table" }, h("table", null, h("thead", null, head), h("tbody", null, body)));
}

let unique = 0;
export function field(label, input, hint) {
  const id = input.id || `f${++unique}`;
  input.id = id;
  return h("div", { class: "field" }, h("label", { for: id }, label), input, hint ? h("small", null, hint) : null);
}

export function select(options, chosen, properties) {
  return h("select", properties, options.map((one) => {
    const [value, text] = Array.isArray(one) ? one : [one, one];
    return h("option", { value, selected: value === chosen }, text);
  }));
}

export function button(text, onclick, properties) {
  return h("button", { type: "button", onclick, ...properties }, text);
}

// A dialog; `act` gets the values of the form and throws an Error to keep it open.
export function dialog({ title, text, content, action, danger, act }) {
  return new Promise((resolve) => {
    const problem = h("p", { class: "problem", role: "alert" });
    const submit = h("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
    const form = h("form", null,
      h("h2", null, title), text ? h("p", null, text) : null, content || null, problem,
      h("div", { class: "actions" }, button("Cancel", () => close(false)), submit));
    const box = h("dialog", { "aria-label": title }, form);
    const close = (done) => { box.close(); box.remove(); resolve(done); };
    box.addEventListener("cancel", (event) => { event.preventDefault(); close(false); });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      submit.disabled = true;
      fill(problem);
      try {
        await act();
        close(true);
      } catch (error) {
        fill(problem, error.message);
        submit.disabled = false;
      }
    });
    document.body.append(box);
    box.showModal();
  });
}

// Closes what is open, as Cancel does: it belongs to the page that is left.
export function closeDialogs() {
  document.querySelectorAll("dialog").forEach((box) => box.dispatchEvent(new Event("cancel")));
}

let toastTimer;
export function toast(text, isProblem) {
  let box = document.getElementById("toast");
  if (!box) {
    box = h("div", { id: "toast", role: "status" });
    document.body.append(box);
  }
  box.className = isProblem ? "problem" : "";
  fill(box, text);
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => fill(box), 6000);
}

// What was told before is not about what happens now.
export function endToast() {
  const box = document.getElementById("toast");
  if (box) fill(box);
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (count >= 1024 && at < units.length - 1) { count /= 1024; at += 1; }
  return `${at && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[at]}`;
}

export function count(value) {
  if (value >= 1e9) return `${(value / 1e9).toFixed(2)} G`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(2)} M`;
  if (value >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

export function micros(us) {
  if (us >= 1e6) return `${(us / 1e6).toFixed(2)} s`;
  if (us >= 1e3) return `${(us / 1e3).toFixed(us >= 1e4 ? 0 : 1)} ms`;
  return `${us >= 10 ? Math.round(us) : us.toFixed(1)} µs`;
}

export function seconds(s) {
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const out = [];
  for (const [size, unit] of parts) {
    if (s >= size && out.length < 2) { out.push(`${Math.floor(s / size)} ${unit}`); s %= size; }
  }
  return out.join(" ") || "0 s";
}

export const clock = (ms) => new Date(ms).toLocaleTimeString([], { hour12: false });
