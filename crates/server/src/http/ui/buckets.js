// Buckets with their settings, scopes and collections.
import { encode, get, post, request } from "./api.js";
import { button, bytes, count, dialog, field, fill, h, select, table, toast } from "./dom.js";

export const title = "Buckets";
export const takes = ["bucket"];

const at = (name) => `/pools/default/buckets/${encode(name)}`;

// What a new bucket of each kind is; the first way of eviction is the usual one.
const KINDS = {
  couchstore: { text: "persistent: couchstore", form: { bucketType: "couchbase", storageBackend: "couchstore" }, evictions: ["valueOnly", "fullEviction"] },
  magma: { text: "persistent: magma, for more documents than memory", form: { bucketType: "couchbase", storageBackend: "magma" }, evictions: ["fullEviction", "valueOnly"] },
  ephemeral: { text: "ephemeral: in memory alone", form: { bucketType: "ephemeral" }, evictions: ["noEviction", "nruEviction"] },
};

// What is chosen once, when a bucket is made.
function creationForm() {
  const kind = select(Object.entries(KINDS).map(([id, one]) => [id, one.text]), "couchstore", { id: "bucket-kind" });
  const ways = () => KINDS[kind.value].evictions.map((one) => h("option", { value: one }, one));
  const inputs = {
    name: h("input", { required: true, maxlength: 100, pattern: "[A-Za-z0-9_%.\\-]+", spellcheck: "false" }),
    evictionPolicy: h("select", null, ways()),
    conflictResolutionType: select([["seqno", "sequence numbers"], ["lww", "last write wins"]], "seqno"),
  };
  kind.addEventListener("change", () => fill(inputs.evictionPolicy, ways()));
  const fields = [field("Name", inputs.name), field("Kind", kind), field("Eviction", inputs.evictionPolicy), field("Conflict resolution", inputs.conflictResolutionType)];
  return { inputs, fields, form: () => KINDS[kind.value].form };
}

function bucketForm(bucket, nodes) {
  const creation = bucket ? null : creationForm();
  const number = (value, properties) => h("input", { type: "number", value, required: true, ...properties });
  const inputs = {
    ...(creation ? creation.inputs : {}),
    ramQuotaMB: number(bucket ? Math.round(bucket.quota.rawRAM / 1048576) : 100, { min: 1 }),
    replicaNumber: number(bucket ? bucket.replicaNumber : Math.min(nodes - 1, 1), { min: 0, max: 3 }),
    compressionMode: select(["off", "passive", "active"], bucket ? bucket.compressionMode : "passive"),
    maxTTL: number(bucket ? bucket.maxTTL : 0, { min: 0, max: 2147483647 }),
    durabilityMinLevel: select(["none", "majority", "majorityAndPersistActive", "persistToMajority"], bucket ? bucket.durabilityMinLevel : "none"),
    flushEnabled: select([["0", "no"], ["1", "yes"]], bucket && bucket.controllers.flush ? "1" : "0"),
  };
  const content = h("div", { class: "grid" },
    creation ? creation.fields : null,
    field("Memory for each node (MiB)", inputs.ramQuotaMB), field("Replicas", inputs.replicaNumber),
    field("Compression", inputs.compressionMode), field("Max TTL (s)", inputs.maxTTL, "0: documents need not expire"),
    field("Least durability", inputs.durabilityMinLevel), field("May be flushed", inputs.flushEnabled));
  const values = () => ({ ...Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value])), ...(creation ? creation.form() : {}) });
  return { content, values };
}

async function create(context) {
  const { content, values } = bucketForm(null, context.nodes.length);
  const done = await dialog({ title: "Create a bucket", content, action: "Create", act: () => post("/pools/default/buckets", values()) });
  if (done) { toast("The bucket was created."); context.reload(); }
}

async function edit(bucket, context) {
  const { content, values } = bucketForm(bucket);
  const done = await dialog({ title: `Bucket ${bucket.name}`, content, action: "Save", act: () => post(at(bucket.name), values()) });
  if (done) { toast("The bucket was changed."); context.reload(); }
}

// The name has to be typed: documents are lost by this.
async function destroy(bucket, context, what, text, act) {
  const name = h("input", { required: true, autocomplete: "off", spellcheck: "false" });
  const done = await dialog({
    title: `${what} ${bucket.name}`, text, content: field(`Type ${bucket.name} to confirm`, name), action: what, danger: true,
    act: async () => {
      if (name.value !== bucket.name) throw new Error("That is not the name of the bucket.");
      await act();
    },
  });
  if (done) { toast(`${what}: done.`); context.reload(); }
}

function listBuckets(context) {
  return table(["Bucket", "Kind", "#Documents", "#Memory", "#Quota for each node", "#Replicas", "Eviction", ""], context.buckets.map((bucket) => {
    const stats = bucket.basicStats;
    return [h("b", null, bucket.name), bucket.bucketType === "ephemeral" ? "ephemeral" : `persistent: ${bucket.storageBackend}`, stats ? count(stats.itemCount) : "–",
      stats ? `${bytes(stats.memUsed)} (${Math.round(stats.quotaPercentUsed)} %)` : "–", bytes(bucket.quota.rawRAM), bucket.replicaNumber, bucket.evictionPolicy,
      h("div", { class: "buttons" }, button("Edit…", () => edit(bucket, context), { "data-edit": bucket.name }),
        bucket.controllers.flush ? button("Flush…", () => destroy(bucket, context, "Flush", "All of its documents are removed.", () => post(`${at(bucket.name)}/controller/doFlush`))) : null,
        button("Delete…", () => destroy(bucket, context, "Delete", "The bucket goes with all of its documents.", () => request("DELETE", at(bucket.name))), { "data-delete": bucket.name }))];
  }));
}

async function changeSetting(bucket, setting, context) {
  const input = setting.unit === "switch" ? select(["true", "false"], String(setting.value))
    : setting.choices ? select(setting.choices, setting.value) : h("input", { value: String(setting.value), required: true });
  const parse = (text) => (setting.unit === "switch" ? text === "true" : setting.choices ? text : Number(text));
  const done = await dialog({
    title: setting.name, text: setting.doc, content: field(`Value (${setting.takes})`, input, `Default: ${setting.default}`), action: "Save",
    act: () => request("PATCH", `/v1/buckets/${encode(bucket)}/settings`, { json: { [setting.name]: parse(input.value) } }),
  });
  if (done) { toast(`${setting.name} was changed.`); context.reload(); }
}

function listCollections(bucket, manifest, context) {
  const path = `${at(bucket)}/scopes`;
  const after = (done, what) => { if (done) { toast(what); context.reload(); } };
  const name = () => h("input", { required: true, maxlength: 251, spellcheck: "false" });
  const addScope = async () => {
    const input = name();
    after(await dialog({ title: "Create a scope", content: field("Name", input), action: "Create", act: () => post(path, { name: input.value }) }), "The scope was created.");
  };
  const addCollection = (scope) => async () => {
    const input = name(), ttl = h("input", { type: "number", min: -1, value: 0 });
    after(await dialog({ title: `Create a collection in ${scope}`, content: h("div", null, field("Name", input), field("Max TTL (s)", ttl, "0: that of the bucket; -1: none")), action: "Create", act: () => post(`${path}/${encode(scope)}/collections`, { name: input.value, maxTTL: ttl.value }) }), "The collection was created.");
  };
  const drop = (what, where) => async () => after(await dialog({ title: `Drop ${what}`, text: "Its documents go with it.", action: "Drop", danger: true, act: () => request("DELETE", where) }), `${what} was dropped.`);
  return [h("div", { class: "buttons" }, button("Create a scope…", addScope, { id: "add-scope" })),
    manifest.scopes.map((scope) => h("div", { class: "scope" },
      h("div", { class: "row" }, h("h3", null, scope.name), h("div", { class: "buttons" }, button("Create a collection…", addCollection(scope.name), { "data-add": scope.name }),
        scope.name.startsWith("_") ? null : button("Drop…", drop(`scope ${scope.name}`, `${path}/${encode(scope.name)}`)))),
      table(["Collection", "Number", "#Max TTL (s)", ""], scope.collections.map((one) => [one.name, `0x${one.uid}`, one.maxTTL ?? "", h("div", { class: "buttons" },
        h("a", { class: "button", href: `#/documents/${encode(scope.name)}/${encode(one.name)}` }, "Documents"),
        one.name.startsWith("_") ? null : button("Drop…", drop(`collection ${scope.name}.${one.name}`, `${path}/${encode(scope.name)}/collections/${encode(one.name)}`), { "data-drop": one.name }))]), "No collections.")))];
}

export async function open(body, context) {
  const list = h("div"), collections = h("div"), settings = h("div");
  fill(body, h("div", { class: "buttons" }, creation(context)), list,
    h("h2", null, `Scopes and collections of ${context.bucket}`), collections,
    h("h2", null, `Settings of ${context.bucket}`), settings);
  let listed = "", drawn = "", manifest = "";
  return {
    async refresh() {
      const key = JSON.stringify(context.buckets.map((bucket) => ({ ...bucket, nodes: 0, vBucketServerMap: 0 })));
      if (key !== listed) { listed = key; fill(list, listBuckets(context)); }
      const told = await get(`${at(context.bucket)}/scopes`);
      if (JSON.stringify(told) !== manifest) { manifest = JSON.stringify(told); fill(collections, listCollections(context.bucket, told, context)); }
      const all = await get(`/v1/buckets/${encode(context.bucket)}/settings`);
      if (JSON.stringify(all) !== drawn) {
        drawn = JSON.stringify(all);
        fill(settings, table(["Setting", "#Value", "#Default", "Unit", "Meaning", ""], all.settings.map((one) => [
          h("code", null, one.name), h(one.value === one.default ? "span" : "b", null, String(one.value)), String(one.default), one.unit, one.doc,
          button("Change…", () => changeSetting(context.bucket, one, context), { "data-setting": one.name })])));
      }
    },
  };
}
// Without a bucket there is still one to create.
export const creation = (context) => button("Create a bucket…", () => create(context), { id: "create-bucket", class: "primary" });
