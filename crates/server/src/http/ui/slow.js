// Operations that took longer than they may.
import { fill, h, table } from "./dom.js";
import { stats } from "./streams.js";

export const title = "Slow operations";
export const takes = ["bucket", "node"];

export async function open(body, context) {
  const list = h("div");
  fill(body, h("p", { class: "note" }, "The last operations of each node that took longer than the setting slow_operation_threshold of the bucket allows."), list);
  return {
    async refresh() {
      const ids = context.node ? [context.node] : context.nodes.map((node) => node.id);
      const told = await Promise.allSettled(ids.map((id) => stats(context.bucket, id, "slow-operations")));
      const good = told.filter((one) => one.status === "fulfilled").map((one) => one.value);
      if (!good.length) throw told[0].reason;
      const rows = good.flatMap((one) => one.stats.map(([name, value]) => [one.node, h("code", null, name), h("span", { class: "break" }, value)]));
      fill(list, told.filter((one) => one.reason).map((one) => h("p", { class: "problem" }, one.reason.message)), table(["Node", "Stat", "Value"], rows, "No operation took too long."));
    },
  };
}
