// The nodes, which of them serves which vBucket, failover and rebalance.
import { encode, get, post } from "./api.js";
import { button, dialog, field, fill, h, seconds, select, table, toast } from "./dom.js";

export const title = "Nodes";
export const takes = ["bucket"];
export const every = 2000;

const COLUMNS = 64, CELL = 10;

function ask(what, text, action, path, form, danger) {
  return async () => {
    const done = await dialog({ title: what, text, action, danger, act: () => post(path, typeof form === "function" ? form() : form) });
    if (done) toast(`${action}: asked for.`);
  };
}

function actions(node, canManage) {
  if (!canManage) return "";
  const of = { otpNode: node.otpNode };
  const out = [];
  if (node.clusterMembership === "active") {
    out.push(button("Fail over…", failOver(node), { "data-act": "failover" }));
    out.push(button("Remove…", ask(`Remove ${node.id}`, "Its vBuckets move to the other nodes, then it leaves the cluster.", "Rebalance it out", "/controller/rebalance", { ejectedNodes: node.otpNode })));
  } else if (node.clusterMembership === "inactiveFailed") {
    const kind = select([["delta", "delta: with the documents that it has"], ["full", "full: from the beginning"]], "delta");
    out.push(button("Take back…", async () => {
      const done = await dialog({
        title: `Take ${node.id} back`, text: "It has its share again after the next rebalance.", content: field("Recovery", kind),
        action: "Take back", act: () => post("/controller/setRecoveryType", { ...of, recoveryType: kind.value }),
      });
      if (done) toast("It is taken back. Rebalance now.");
    }, { "data-act": "recover" }));
    out.push(button("Remove…", ask(`Remove ${node.id}`, "It leaves the cluster. Its copies are not used any more.", "Rebalance it out", "/controller/rebalance", { ejectedNodes: node.otpNode })));
  } else {
    out.push(button("Let go…", ask(`Let ${node.id} go`, "It leaves the cluster; it has no vBuckets.", "Let go", "/controller/ejectNode", of)));
  }
  return h("div", { class: "buttons" }, out);
}

function failOver(node) {
  return async () => {
    const way = select([["graceful", "gracefully: other nodes take over without loss"], ["hard", "at once: for a node that is down"], ["unsafe", "at once, also if writes are lost"]], "graceful");
    const done = await dialog({
      title: `Fail over ${node.id}`, text: `${node.hostname} serves nothing afterwards, and stays in the cluster until it is taken back or removed.`,
      content: field("How", way), action: "Fail over", danger: true,
      act: () => (way.value === "graceful"
        ? post("/controller/startGracefulFailover", { otpNode: node.otpNode })
        : post("/controller/failOver", { otpNode: node.otpNode, allowUnsafe: String(way.value === "unsafe") })),
    });
    if (done) toast("The failover is under way.");
  };
}

// One cell for each vBucket, in the colour of the node that is active for it.
function picture(map, names) {
  const rows = map.vBucketMap;
  const columns = Math.min(COLUMNS, rows.length);
  const height = Math.ceil(rows.length / columns);
  const canvas = h("canvas", { width: columns * CELL, height: height * CELL, class: "map", role: "img", tabindex: "0" });
  const styles = getComputedStyle(document.documentElement);
  const colour = (at) => styles.getPropertyValue(at < 0 ? "--lost" : `--node${at % 8}`).trim();
  const brush = canvas.getContext("2d");
  const counts = names.map(() => ({ active: 0, replica: 0 }));
  let unserved = 0;
  rows.forEach((chain, vb) => {
    const active = chain[0] ?? -1;
    if (active < 0) unserved += 1;
    chain.forEach((at, place) => { if (at >= 0 && counts[at]) counts[at][place ? "replica" : "active"] += 1; });
    brush.fillStyle = colour(active);
    brush.fillRect((vb % columns) * CELL, Math.floor(vb / columns) * CELL, CELL - 1, CELL - 1);
  });
  const told = h("p", { class: "note", "aria-live": "polite" }, "Point at a vBucket to see where it is.");
  const tell = (vb) => {
    const chain = rows[vb];
    if (!chain) return;
    const of = (at) => (at >= 0 ? names[at] : "no node");
    fill(told, `vBucket ${vb}: active on ${of(chain[0])}; replicas on ${chain.slice(1).filter((at) => at >= 0).map(of).join(", ") || "no node"}.`);
  };
  let focused = 0;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const scale = canvas.width / box.width;
    tell(Math.floor(((event.clientY - box.top) * scale) / CELL) * columns + Math.floor(((event.clientX - box.left) * scale) / CELL));
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (!step) return;
    event.preventDefault();
    focused = Math.min(rows.length - 1, Math.max(0, focused + step));
    tell(focused);
  });
  const summary = names.map((name, at) => `${name} is active for ${counts[at].active}, replica of ${counts[at].replica}`);
  canvas.setAttribute("aria-label", `Map of ${rows.length} vBuckets: ${summary.join("; ")}; ${unserved} without an active node. Arrow keys go from one to the next.`);
  const legend = h("ul", { class: "keys" }, names.map((name, at) => h("li", null, h("i", { class: `square n${at % 8}` }), `${name}: ${counts[at].active} active, ${counts[at].replica} replica`)),
    unserved ? h("li", { class: "problem" }, h("i", { class: "square lost" }), `${unserved} vBuckets without an active node`) : null);
  return h("div", null, legend, canvas, told);
}

export async function open(body, context) {
  const list = h("div"), map = h("section"), notes = h("div"), progress = h("div"), manage = h("div", { class: "buttons" });
  fill(body, progress, notes, list, manage, map);
  let cluster = null, drawn = "", listed = "", managed = null;
  const rebalance = ask("Rebalance", "vBuckets move until each node has its share. Clients go on meanwhile.", "Rebalance", "/controller/rebalance", {});
  const add = async () => {
    const hostname = h("input", { placeholder: "host:8091", required: true });
    const done = await dialog({ title: "Add a node", text: "The node must have been started with --join for this cluster.", content: field("HTTP address", hostname), action: "Add", act: () => post("/controller/addNode", { hostname: hostname.value }) });
    if (done) toast("The node was added. Rebalance to give it its share.");
  };
  return {
    async refresh() {
      try {
        cluster = await get("/v1/cluster");
      } catch (error) {
        if (error.status === 0) throw error;
        cluster = null;
      }
      const tasks = await get("/pools/default/tasks");
      const running = tasks.find((task) => task.type === "rebalance" && task.status === "running");
      fill(progress, running ? h("div", { class: "progress" }, `${running.subtype === "gracefulFailover" ? "Graceful failover" : "Rebalance"}: ${Math.round(running.progress)} %`,
        h("progress", { max: 100, value: running.progress, "aria-label": "progress" }), cluster ? button("Stop", ask("Stop the rebalance", "vBuckets stay where they are now.", "Stop", "/controller/stopRebalance", {})) : null) : null);
      fill(notes, cluster && cluster.notes.length ? h("ul", { class: "notes" }, cluster.notes.map((note) => h("li", null, note))) : null);
      const key = JSON.stringify([context.nodes, !!cluster]);
      if (key !== listed) {
        listed = key;
        fill(list, table(["Node", "Address", "State", "In the cluster", "Up for", "Version", ""], context.nodes.map((node) => [
          h("b", null, node.id), node.hostname, h("span", { class: `state ${node.status}` }, node.status),
          { active: "active", inactiveFailed: "failed over", inactiveAdded: "added, without vBuckets" }[node.clusterMembership] || node.clusterMembership,
          node.uptime === "0" ? "" : seconds(Number(node.uptime)), node.staveVersion || "", actions(node, !!cluster)])));
      }
      if (managed !== !!cluster) {
        managed = !!cluster;
        fill(manage, cluster ? [button("Rebalance…", rebalance, { id: "rebalance" }), button("Add a node…", add)] : h("p", { class: "note" }, "Failover and rebalance are for nodes of a cluster and administrators of it."));
      }
      const told = await get(`/pools/default/b/${encode(context.bucket)}`);
      const vbuckets = told.vBucketServerMap;
      if (drawn !== JSON.stringify(vbuckets)) {
        drawn = JSON.stringify(vbuckets);
        const byAddress = new Map(context.nodes.map((node) => [`${node.hostname.replace(/:\d+$/, "")}:${node.ports.direct}`, node.id]));
        const names = vbuckets.serverList.map((address) => byAddress.get(address.replace("$HOST", location.hostname)) || address);
        fill(map, h("h2", null, `vBuckets of ${context.bucket}`), picture(vbuckets, names));
      }
    },
  };
}
