// How long commands, sync writes, background tasks and the store take, as bars.
import { bars } from "./chart.js";
import { count, fill, h, micros, select } from "./dom.js";
import { stats } from "./streams.js";

export const title = "Timings";
export const takes = ["bucket", "node"];
const GROUPS = [["timings", "commands and sync writes"], ["kvtimings", "operations of the store"], ["runtimes", "background tasks: run"], ["scheduler", "background tasks: wait"]];

// NAME_FROM,TO in microseconds, by name; several nodes are added up.
export function histograms(all) {
  const out = new Map();
  for (const pairs of all) {
    for (const [key, value] of pairs) {
      const found = /^(.+)_(\d+),(\d+)$/.exec(key);
      if (!found) continue;
      const ranges = out.get(found[1]) || new Map();
      const range = `${found[2]},${found[3]}`;
      const one = ranges.get(range) || { from: Number(found[2]), to: Number(found[3]), count: 0 };
      one.count += Number(value);
      ranges.set(range, one);
      out.set(found[1], ranges);
    }
  }
  return [...out].map(([name, ranges]) => {
    const rows = [...ranges.values()].sort((a, b) => a.from - b.from);
    return { name, rows, total: rows.reduce((sum, row) => sum + row.count, 0) };
  }).sort((a, b) => b.total - a.total);
}

function draw({ name, rows, total }) {
  let sum = 0;
  const lines = rows.map((row) => {
    sum += row.count;
    return { label: `${micros(row.from)} – ${micros(row.to)}`, count: row.count, text: `${count(row.count)}  ${((100 * sum) / total).toFixed(1)} %` };
  });
  const below = (part) => { let seen = 0; return rows.find((row) => (seen += row.count) >= total * part).to; };
  return h("section", { class: "timing" }, h("h2", null, name), h("p", { class: "note" }, `${count(total)} measured, p50 up to ${micros(below(0.5))}, p99 up to ${micros(below(0.99))}`), bars(lines));
}

let group = "timings";
export async function open(body, context) {
  const list = h("div", { class: "timings" }), note = h("div");
  const chosen = select(GROUPS, group, { id: "group", "aria-label": "What is timed" });
  chosen.addEventListener("change", () => { group = chosen.value; context.reload(); });
  fill(body, h("div", { class: "row" }, chosen, h("p", { class: "note" }, "Of commands, one turn of a connection in 64 is measured.")), note, list);
  return {
    async refresh() {
      const ids = context.node ? [context.node] : context.nodes.map((node) => node.id);
      const told = await Promise.allSettled(ids.map((id) => stats(context.bucket, id, group)));
      const good = told.filter((one) => one.status === "fulfilled");
      if (!good.length) throw told[0].reason;
      fill(note, told.filter((one) => one.reason).map((one) => h("p", { class: "problem" }, one.reason.message)));
      const all = histograms(good.map((one) => one.value.stats));
      fill(list, all.length ? all.map(draw) : h("p", { class: "empty" }, "Nothing was measured yet."));
    },
  };
}
