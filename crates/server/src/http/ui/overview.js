// The last hour of a bucket: operations, latency, memory, disk.
import { encode, get } from "./api.js";
import { lineChart } from "./chart.js";
import { bytes, clock, count, fill, h, micros } from "./dom.js";

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

// The sample of a node for a time: the nearest that is less than a step away. Samples are in the order of their times.
function nearest(samples, at, everyS, from) {
  let best = null, next = from;
  for (let index = from; index < samples.length && samples[index].at_s < at + everyS; index += 1) {
    const away = Math.abs(samples[index].at_s - at);
    if (samples[index].at_s <= at) next = index;
    if (away < everyS && (best === null || away < Math.abs(best.at_s - at))) best = samples[index];
  }
  return { best, next };
}

// Whether a node without a sample at a time leaves a gap there: it has missed a few, or goes or comes just then.
function isGap(samples, at, everyS, before) {
  const since = at - samples[before].at_s, until = before + 1 < samples.length ? samples[before + 1].at_s - at : Infinity;
  return since > 0 && (since < 2 * everyS || until < 2 * everyS || since + until <= 4 * everyS);
}

// Samples of several nodes, put together by the time at which they were taken. of: by node its samples, and whether it
// answers no more. Sums are of the nodes that were there. A gap is where one of them has missed a few samples, since neither
// its share nor the sum is known, and where one goes or comes, since the sum is of other nodes from then on.
export function together(of, everyS) {
  const told = of.filter((node) => node.samples.length);
  if (!told.length) return [];
  const first = (node) => node.samples[0].at_s, last = (node) => node.samples[node.samples.length - 1].at_s;
  const slot = (at) => Math.round(at / everyS) * everyS;
  // What a node that answers has not told yet is waited for, but not for long: its clock may be behind.
  const live = told.filter((node) => !node.gone), newest = Math.max(...(live.length ? live : told).map(last));
  const end = live.length ? Math.max(Math.min(...live.map(last)), newest - 3 * everyS) : newest;
  const places = told.map(() => 0), rows = [];
  for (let at = slot(Math.max(end - HOUR, Math.min(...told.map(first)))); at <= slot(end); at += everyS) {
    const sum = { at, gap: false, nodes: 0, gets: 0, stores: 0, deletes: 0, misses: 0, fetched: 0, written: 0, documents: 0, used: 0, quota: 0, queue: 0, p50: 0, p99: 0, p999: 0, get: NaN, set: NaN, durable: NaN };
    told.forEach(({ samples }, number) => {
      const { best, next } = nearest(samples, at, everyS, places[number]);
      places[number] = next;
      if (best) add(sum, best);
      else if (isGap(samples, at, everyS, next)) sum.gap = true;
    });
    if (sum.nodes || sum.gap) rows.push(sum);
  }
  // The newest figures are shown beside the charts.
  while (rows.length && rows[rows.length - 1].gap) rows.pop();
  return rows;
}

function add(sum, one) {
  const per = 1000 / Math.max(1, one.over_ms);
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
      // What a node told before stays.
      const nodes = ids.map((id, at) => ({ gone: failed.includes(id), samples: results[at].value?.samples || kept.of.get(id) || [] }));
      if (!context.node) for (const [id, samples] of kept.of) if (!ids.includes(id)) nodes.push({ gone: true, samples });
      const since = (id) => {
        const had = kept.of.get(id);
        return had && had.length ? `${id} since ${clock(had[had.length - 1].at_s * 1000)}` : `${id}, whose last hour is not here`;
      };
      fill(note, failed.length ? h("span", { class: "problem" }, `Without ${failed.map(since).join("; ")}: ${results.find((one) => one.reason).reason.message}`) : null);
      const rows = together(nodes, good[0].everyS);
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
      const gaps = rows.map((row) => row.gap);
      const valuesOf = (field) => rows.map((row) => (row.gap ? NaN : row[field]));
      const perSecond = (value) => `${count(value)}/s`;
      fill(charts,
        lineChart({ title: "Operations", times, gaps, show: perSecond, series: [{ name: "reads", values: valuesOf("gets"), area: true }, { name: "stores", values: valuesOf("stores") }, { name: "deletes", values: valuesOf("deletes") }] }),
        lineChart({ title: "Latency at the server", times, gaps, show: micros, series: [{ name: "p99", values: valuesOf("p99"), area: true }, { name: "p50", values: valuesOf("p50") }, { name: "p99.9", values: valuesOf("p999") }] }),
        lineChart({ title: "Latency p99 by operation", times, gaps, show: micros, series: [{ name: "reads", values: valuesOf("get") }, { name: "stores", values: valuesOf("set") }, { name: "durable writes", values: valuesOf("durable") }] }),
        lineChart({ title: "Memory", times, gaps, show: bytes, binary: true, series: [{ name: "used", values: valuesOf("used"), area: true }, { name: "quota", values: valuesOf("quota"), dashed: true }] }),
        lineChart({ title: "Disk", times, gaps, show: count, series: [{ name: "items queued", values: valuesOf("queue"), area: true }, { name: "items written per second", values: valuesOf("written") }, { name: "values read per second", values: valuesOf("fetched") }] }),
        lineChart({ title: "Documents", times, gaps, show: count, series: [{ name: "documents", values: valuesOf("documents"), area: true }] }));
    },
  };
}
