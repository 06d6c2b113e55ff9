// The frame of the console: login, pages, what is chosen, and whether the node answers.
import { get, listen, logIn, logOut } from "./api.js";
import { button, clock, closeDialogs, field, fill, h, select } from "./dom.js";
import * as overview from "./overview.js";
import * as nodes from "./nodes.js";
import * as buckets from "./buckets.js";
import * as documents from "./documents.js";
import * as users from "./users.js";
import * as streams from "./streams.js";
import * as timings from "./timings.js";
import * as slow from "./slow.js";
import * as logs from "./logs.js";

const PAGES = { overview, nodes, buckets, documents, streams, timings, slow, logs, users };
const app = document.getElementById("app");
// What pages share; `bucket` and `node` are chosen in the head.
const context = { user: null, buckets: [], bucket: "", nodes: [], node: "", reload: () => render() };
let shown = null, timer = null, turn = 0, answered = Date.now(), isDown = false;

const banner = h("div", { id: "banner", role: "alert", hidden: true });

listen({
  down: () => {
    if (isDown) return;
    isDown = true;
    fill(banner, `This node has not answered since ${clock(answered)}. What is shown may be out of date; it is asked again.`);
    banner.hidden = false;
  },
  up: () => {
    answered = Date.now();
    isDown = false;
    banner.hidden = true;
  },
  loggedOut: () => {
    if (context.user) leave("The password is not valid any more: log in again.");
  },
});

function showLogin(message) {
  document.title = "Stave console";
  const problem = h("p", { class: "problem", role: "alert", id: "login-problem" }, message || "");
  const name = h("input", { name: "user", autocomplete: "username", required: true, autofocus: true, spellcheck: "false", autocapitalize: "none" });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password", required: true });
  const submit = h("button", { type: "submit", class: "primary" }, "Log in");
  const form = h("form", { id: "login", "aria-label": "Log in" },
    h("img", { src: "/ui/icon.svg", alt: "", width: "40", height: "40" }), h("h1", null, "Stave"),
    field("User", name), field("Password", password), problem, submit);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    fill(problem);
    logIn(name.value, password.value);
    try {
      context.user = await get("/whoami");
      await enter();
    } catch (error) {
      logOut();
      context.user = null;
      fill(problem, error.status === 401 ? "User or password is wrong." : error.message);
      password.value = "";
      password.focus();
      submit.disabled = false;
    }
  });
  fill(app, h("main", { class: "login" }, form));
  name.focus();
}

function leave(message) {
  clearTimeout(timer);
  turn += 1;
  logOut();
  context.user = null;
  context.page = null;
  shown = null;
  document.querySelectorAll("dialog").forEach((box) => box.remove());
  banner.hidden = true;
  showLogin(message);
}

async function refreshLists() {
  const [pools, all] = await Promise.all([get("/pools/default"), get("/pools/default/buckets")]);
  context.nodes = pools.nodes.map((node) => ({ ...node, id: node.otpNode.split("@")[0] }));
  context.pools = pools;
  context.buckets = all;
  if (!all.some((bucket) => bucket.name === context.bucket)) context.bucket = all.length ? all[0].name : "";
  if (!context.nodes.some((node) => node.id === context.node)) context.node = "";
}

async function enter() {
  await refreshLists();
  const links = Object.entries(PAGES).map(([id, page]) => h("a", { href: `#/${id}`, id: `nav-${id}` }, page.title));
  fill(app,
    h("a", { class: "skip", href: "#main", onclick: (event) => { event.preventDefault(); document.getElementById("main").focus(); } }, "Skip to content"),
    h("header", null,
      h("span", { class: "brand" }, h("img", { src: "/ui/icon.svg", alt: "", width: "22", height: "22" }), "Stave"),
      h("span", { class: "chosen", id: "chosen" }),
      h("span", { class: "who" }, h("span", { id: "who" }, context.user.id), button("Log out", () => leave(), { class: "quiet" }))),
    h("nav", { "aria-label": "Pages" }, links),
    h("main", { id: "main", tabindex: "-1" }, banner, h("div", { id: "page" })));
  window.onhashchange = () => { closeDialogs(); render(); };
  await render();
}

function drawChosen() {
  const bucket = select(context.buckets.map((one) => one.name), context.bucket, { id: "bucket", "aria-label": "Bucket" });
  bucket.addEventListener("change", () => { context.bucket = bucket.value; render(); });
  const all = [["", "all nodes"], ...context.nodes.map((node) => [node.id, `${node.id} ${node.hostname}`])];
  const node = select(all, context.node, { id: "node", "aria-label": "Node" });
  node.addEventListener("change", () => { context.node = node.value; render(); });
  const takes = shown.takes || [];
  fill(document.getElementById("chosen"),
    takes.includes("bucket") && context.buckets.length ? bucket : null,
    takes.includes("node") && context.nodes.length > 1 ? node : null);
}

async function render() {
  if (!context.user) return;
  clearTimeout(timer);
  const mine = ++turn;
  const id = location.hash.replace(/^#\//, "").split("/")[0];
  const name = PAGES[id] ? id : "overview";
  shown = PAGES[name];
  document.title = `${shown.title} – Stave`;
  for (const other of Object.keys(PAGES)) {
    const link = document.getElementById(`nav-${other}`);
    if (other === name) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  drawChosen();
  const body = h("div");
  const page = document.getElementById("page");
  page.setAttribute("aria-busy", "true");
  fill(page, h("h1", null, shown.title), body);
  const needsBucket = (shown.takes || []).includes("bucket") && !context.bucket;
  const problem = h("p", { class: "problem", role: "alert", id: "page-problem" });
  body.before(problem);
  let view = null;
  try {
    if (!needsBucket) view = await shown.open(body, context);
  } catch (error) {
    if (mine === turn) fill(problem, error.message);
  }
  if (needsBucket) fill(body, h("p", { class: "empty" }, "There is no bucket that you may see."), name === "buckets" ? buckets.creation(context) : null);
  const step = async () => {
    if (mine !== turn) return;
    try {
      await refreshLists();
      if (mine === turn && view) await view.refresh();
      if (mine === turn && view) fill(problem);
    } catch (error) {
      if (mine === turn && error.status) fill(problem, error.message);
      if (mine === turn && !("status" in error)) { fill(problem, `${error}`); console.error(error); }
    }
    if (mine !== turn) return;
    page.removeAttribute("aria-busy");
    timer = setTimeout(step, isDown ? 2000 : shown.every || 5000);
  };
  await step();
}

showLogin();
