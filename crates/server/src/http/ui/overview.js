// The last hour of a bucket: operations, latency, memory, disk.
import { encode, get } from "./api.js";
import { lineChart } from "./chart.js";
import { bytes, count, fill, h, micros } from "./dom.js";

export const title = "Overview";
export const takes = ["bucket", "node"];

const HOUR = 3600;
// What was fetched so far, by node.
let kept = { bucket: "", of: new Map() };

async function follow(bucket, node) {
  if (kept.bucket !== bucket) kept = { bucket, of: new Map() };
  const mine = kept.of;
  const have = mine.get(node) || [];
  const since = have.length ? have[have.length - 1].at_s : 0;
  const told = await get(`/v1/buckets/${encode(bucket)}/samples?node=${encode(node)}&since=${since}`);
  const all = have.concat(told.samples.filter((one) => one.at_s > since));
  const last = all.length ? all[all.length - 1].at_s : 0;
  mine.set(node, all.filter((one) => one.at_s > last - HOUR));
  return { everyS: told.everyS, samples: mine.get(node) };
}

// Samples of several nodes, put together by the time at which they were taken.
function together(all, everyS) {
  const slots = new Map();
  for (const samples of all) {
    for (const one of samples) {
      const slot = Math.round(one.at_s / everyS) * everyS;
      const per = 1000 / Math.max(1, one.over_ms);
      const sum = slots.get(slot) || { at: slot, nodes: 0, gets: 0, stores: 0, deletes: 0, misses: 0, fetched: 0, written: 0, documents: 0, used: 0, quota: 0, queue: 0, p50: 0, p99: 0, p999: 0, get: NaN, set: NaN, durable: NaN };
      sum.nodes += 1;
      for (const field of ["gets", "stores", "deletes", "misses", "fetched", "written"]) sum[field] += one[field] * per;
      sum.documents += one.documents;
      sum.used += one.used_bytes;
      sum.quota += one.quota_bytes;
      sum.queue += one.disk_queue;
      // Of several nodes the slowest counts.
      sum.p50 = Math.max(sum.p50, one.p50_us);
      sum.p99 = Math.max(sum.p99, one.p99_us);
      sum.p999 = Math.max(sum.p999, one.p999_us || 0);
      // Without a request there is no latency, which is not 0.
      for (const kind of ["get", "set", "durable"]) if (one[kind]) sum[kind] = Math.max(sum[kind] || 0, one[kind].p99_us);
      slots.set(slot, sum);
    }
  }
  const rows = [...slots.values()].sort((a, b) => a.at - b.at);
  // The newest slot of a cluster is left out while a node has not told of it.
  if (rows.length > 1 && rows[rows.length - 1].nodes < rows[rows.length - 2].nodes) rows.pop();
  return rows;
}

const card = (name, value, hint) => h("div", { class: "card" }, h("span", null, name), h("b", null, value), h("small", null, hint || ""));

export async function open(body, context) {
  const cards = h("div", { class: "cards" });
  const charts = h("div", { class: "charts" });
  const note = h("p", { class: "note" });
  fill(body, note, cards, charts);
  return {
    async refresh() {
      const bucket = context.buckets.find((one) => one.name === context.bucket);
      const ids = context.node ? [context.node] : context.nodes.map((node) => node.id);
      const results = await Promise.allSettled(ids.map((id) => follow(context.bucket, id)));
      const good = results.filter((one) => one.status === "fulfilled").map((one) => one.value);
      const failed = ids.filter((_, at) => results[at].status !== "fulfilled");
      if (!good.length) throw results[0].reason;
      fill(note, failed.length ? h("span", { class: "problem" }, `Without ${failed.join(", ")}: ${results.find((one) => one.reason).reason.message}`) : null);
      const rows = together(good.map((one) => one.samples), good[0].everyS);
      const stats = bucket && bucket.basicStats;
      if (!rows.length) {
        fill(cards, card("Documents", stats ? count(stats.itemCount) : "–"));
        fill(charts, h("p", { class: "empty" }, "The first figures come within 10 seconds of the start of the node."));
        return;
      }
      const last = rows[rows.length - 1];
      const ops = last.gets + last.stores + last.deletes;
      fill(cards,
        card("Operations", `${count(ops)}/s`, `${count(last.gets)} reads, ${count(last.stores + last.deletes)} changes`),
        card("Latency p99", last.p99 ? micros(last.p99) : "–", last.p99 ? `p50 ${micros(last.p50)}, at the server` : "none was measured"),
        card("Memory", bytes(last.used), `${last.quota ? Math.round((last.used / last.quota) * 100) : 0} % of ${bytes(last.quota)}`),
        card("Disk queue", count(last.queue), `${count(last.written)}/s written`),
        card("Documents", count(last.documents), `${count(last.fetched)}/s read from disk`),
        card("Hit rate", last.gets ? `${(100 * (1 - last.misses / last.gets)).toFixed(1)} %` : "–", "of reads"));
      const times = rows.map((row) => row.at);
      const of = (field) => rows.map((row) => row[field]);
      const perSecond = (value) => `${count(value)}/s`;
      fill(charts,
        lineChart({ title: "Operations", times, show: perSecond, series: [{ name: "reads", values: of("gets"), area: true }, { name: "stores", values: of("stores") }, { name: "deletes", values: of("deletes") }] }),
        lineChart({ title: "Latency at the server", times, show: micros, series: [{ name: "p99", values: of("p99"), area: true }, { name: "p50", values: of("p50") }, { name: "p99.9", values: of("p999") }] }),
        lineChart({ title: "Latency p99 by operation", times, show: micros, series: [{ name: "reads", values: of("get") }, { name: "stores", values: of("set") }, { name: "durable writes", values: of("durable") }] }),
        lineChart({ title: "Memory", times, show: bytes, binary: true, series: [{ name: "used", values: of("used"), area: true }, { name: "quota", values: of("quota"), dashed: true }] }),
        lineChart({ title: "Disk", times, show: count, series: [{ name: "items queued", values: of("queue"), area: true }, { name: "items written per second", values: of("written") }, { name: "values read per second", values: of("fetched") }] }),
        lineChart({ title: "Documents", times, show: count, series: [{ name: "documents", values: of("documents"), area: true }] }));
    },
  };
}
