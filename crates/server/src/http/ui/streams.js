// Streams and replicas: who follows which node, how far replicas are.
import { encode, get } from "./api.js";
import { bytes, fill, h, table } from "./dom.js";

export const title = "Streams";
export const takes = ["bucket", "node"];

export const stats = (bucket, node, group) => get(`/v1/buckets/${encode(bucket)}/stats/${encode(group)}?node=${encode(node)}`);

// eq_dcpq:NAME:FIELD; a name may have colons, a field of a connection has none, that of a stream begins with stream_.
function connections(pairs) {
  const all = new Map();
  for (const [name, value] of pairs) {
    const found = /^(?:eq_dcpq:|replication:)?(.+):([^:]+)$/.exec(name);
    if (!found || !name.startsWith("eq_dcpq:")) continue;
    const one = all.get(found[1]) || {};
    one[found[2]] = value;
    all.set(found[1], one);
  }
  return all;
}

export async function open(body, context) {
  const streams = h("div"), roles = h("div"), follows = h("div");
  fill(body, h("h2", null, "Connections for streams"), streams, h("h2", null, "vBuckets by role"), roles, h("h2", null, "Nodes that the node you are logged in at follows"), follows);
  return {
    async refresh() {
      const ids = context.node ? [context.node] : context.nodes.map((node) => node.id);
      const rows = [], counts = [], problems = [];
      for (const id of ids) {
        try {
          const dcp = await stats(context.bucket, id, "dcp skip");
          for (const [name, one] of connections(dcp.stats)) {
            const moved = one.type === "consumer" ? one.total_bytes_received : one.total_bytes_sent;
            const state = one.paused_current_reason === "BufferLogFull" ? "waits for acknowledgements" : one.connected === "false" ? "not connected" : one.type === "consumer" ? "receives" : "sends";
            rows.push([id, h("span", { class: "break" }, name), one.type || "", one.num_streams ?? "", one.items_remaining ?? "", bytes(Number(moved || 0)), bytes(Number(one.unacked_bytes || 0)), state]);
          }
          const states = (await stats(context.bucket, id, "vbucket")).stats;
          const of = (state) => states.filter(([, value]) => value === state).length;
          counts.push([id, of("active"), of("replica"), of("pending"), of("dead")]);
        } catch (error) {
          if (error.status === 0 || error.status === 403) throw error;
          problems.push(error.message);
        }
      }
      fill(streams, problems.map((problem) => h("p", { class: "problem" }, problem)), table(["Node", "Connection", "Kind", "#Streams", "#Changes left", "#Moved", "#Not acknowledged", "State"], rows, "No connection for streams."));
      fill(roles, table(["Node", "#Active", "#Replica", "#Pending", "#Not there"], counts));
      try {
        const told = await get(`/v1/buckets/${encode(context.bucket)}/replication`);
        fill(follows, table(["From", "State", "#vBuckets", "#Streaming", "#Changes behind", "#Received", "#Rollbacks", "Trouble"], told.links.map((one) => [one.node, one.caught_up ? `${one.state}, caught up` : one.state, one.following, one.streaming, one.lag, bytes(one.received_bytes), one.rollbacks, h("span", { class: "break" }, one.trouble || (one.state === "connected" ? "" : one.last_error) || "")]), "This node follows no other one."));
      } catch (error) {
        if (error.status === 0) throw error;
        fill(follows, h("p", { class: "note" }, error.message));
      }
    },
  };
}
