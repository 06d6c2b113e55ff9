// Operations that took longer than they may, and where their time went.
import { get } from "./api.js";
import { fill, h, table } from "./dom.js";
import { stats } from "./streams.js";

export const title = "Slow operations";
export const takes = ["bucket", "node"];

// Names are NUMBER:FIELD.
function operations(pairs) {
  const all = new Map();
  for (const [name, value] of pairs) {
    const found = /^(\d+):(.+)$/.exec(name);
    if (!found) continue;
    if (!all.has(found[1])) all.set(found[1], {});
    all.get(found[1])[found[2]] = value;
  }
  return [...all.values()];
}

// PART=FROM:DURATION in microseconds.
function parts(spans, tookUs) {
  const percent = (us) => `${Math.min(100, 100 * us / Math.max(1, tookUs)).toFixed(1)}%`;
  return (spans || "").split(" ").filter(Boolean).map((span) => {
    const [, name, from, us] = /^(.+)=(\d+):(\d+)$/.exec(span) || [];
    if (!name) return null;
    return h("li", null, h("meter", { min: 0, max: Math.max(1, tookUs), value: Number(us), title: `from ${percent(Number(from))} on` }), ` ${name} ${(us / 1000).toFixed(1)} ms`);
  });
}

export async function open(body, context) {
  const limits = h("p", { class: "note" }), list = h("div");
  fill(body, h("p", { class: "note" }, "The last operations of each node that took longer than the setting slow_operation_threshold of the bucket allows, or than their command may."), limits, list);
  return {
    async refresh() {
      const own = await get("/node/settings/slowOperations");
      fill(limits, "Commands with limits of their own: ", Object.entries(own).map(([name, ms]) => `${name} ${ms} ms`).join(", "));
      const ids = context.node ? [context.node] : context.nodes.map((node) => node.id);
      const told = await Promise.allSettled(ids.map((id) => stats(context.bucket, id, "slow-operations")));
      const good = told.filter((one) => one.status === "fulfilled").map((one) => one.value);
      if (!good.length) throw told[0].reason;
      const found = good.flatMap((one) => operations(one.stats).map((operation) => ({ ...operation, node: one.node })));
      found.sort((a, b) => b.ended - a.ended);
      const rows = found.map((one) => [one.node, new Date(1000 * one.ended).toISOString().replace("T", " ").slice(0, 19), one.command, (one.duration_us / 1000).toFixed(1), one.trace, h("ul", { class: "parts" }, parts(one.spans, Number(one.duration_us))), h("span", { class: "break" }, one.key || (one.requests > 1 ? `${one.requests} requests` : ""))]);
      fill(list, told.filter((one) => one.reason).map((one) => h("p", { class: "problem" }, one.reason.message)), table(["Node", "Ended", "Command", "#Milliseconds", "Spent with", "Parts", "Key"], rows, "No operation took too long."));
    },
  };
}
