// Documents: found by key, listed by prefix, edited with the CAS that was read.
import { encode, get, lines, request } from "./api.js";
import { button, bytes, dialog, endToast, field, fill, h, select, table, toast } from "./dom.js";

export const title = "Documents";
export const takes = ["bucket"];

const MOST_VERSIONS = 200, MOST_SHOWN = 1 << 20;

const chosen = () => {
  const [, scope, collection] = location.hash.replace(/^#\//, "").split("/").map(decodeURIComponent);
  return [scope || "_default", collection || "_default"];
};

function pretty(text) {
  // What would not come back as it was, such as a number of more than 53 bits, stays as it is.
  try {
    const parsed = JSON.parse(text);
    const same = (a) => a.replace(/\s+/g, "");
    return same(JSON.stringify(parsed)) === same(text) ? JSON.stringify(parsed, null, 2) : text;
  } catch {
    return text;
  }
}

export async function open(body, context) {
  const bucket = context.bucket;
  let [scope, collection] = chosen();
  const manifest = await get(`/pools/default/buckets/${encode(bucket)}/scopes`).catch(() => ({ scopes: [] }));
  const places = manifest.scopes.flatMap((one) => one.collections.map((of) => `${one.name}.${of.name}`));
  if (places.length && !places.includes(`${scope}.${collection}`)) [scope, collection] = places[0].split(".");
  const where = `scope=${encode(scope)}&collection=${encode(collection)}`;
  const place = select(places, `${scope}.${collection}`, { id: "collection" });
  place.addEventListener("change", () => { location.hash = `#/documents/${place.value.split(".").map(encode).join("/")}`; });
  const key = h("input", { id: "key", spellcheck: "false", autocapitalize: "none", autocomplete: "off", maxlength: 250, required: true });
  const prefix = h("input", { id: "prefix", spellcheck: "false", autocapitalize: "none", autocomplete: "off", maxlength: 250 });
  const list = h("div", { class: "list" }), shown = h("section", { class: "document", "aria-live": "polite" }), problem = h("p", { class: "problem", role: "alert", id: "document-problem" });
  const url = (name) => `/v1/buckets/${encode(bucket)}/document?${where}&key=${encode(name)}`;

  async function guarded(work) {
    fill(problem);
    endToast();
    try { await work(); } catch (error) { fill(problem, error.message); }
  }

  const browse = (from) => guarded(async () => {
    if (!from) fill(list, h("p", { class: "note" }, "Reading…"));
    const page = await get(`/v1/buckets/${encode(bucket)}/documents?${where}&prefix=${encode(prefix.value)}&limit=50${from ? `&from=${encode(from)}` : ""}`);
    const items = page.keys.map((one) => h("li", null, one.isText ? button(one.key, () => { key.value = one.key; show(one.key); }, { class: "key" }) : h("span", { class: "note" }, `${one.key} (a key that is no text)`)));
    const old = from ? [...list.querySelectorAll("li")] : [];
    fill(list, old.length + items.length ? h("ul", { class: "plain" }, old, items) : h("p", { class: "empty" }, "No documents that are on disk."),
      page.unserved.length ? h("p", { class: "problem" }, `${page.unserved.length} vBuckets were left out: no node answers for them.`) : null,
      page.next ? button("More", () => browse(page.next), { id: "more" }) : null);
  });

  const show = (name) => guarded(async () => {
    fill(shown, h("p", { class: "note" }, "Reading…"));
    try {
      draw(await get(url(name)));
    } catch (error) {
      fill(shown);
      throw error;
    }
  });

  function draw(one) {
    const meta = one.meta;
    const facts = [["Node", one.node], ["vBucket", one.vbucket], ["CAS", one.cas], ["Seqno", meta.seqno], ["Revision", meta.revid], ["Bytes", bytes(one.bytes)],
      ["Expires", meta.exptime ? new Date(meta.exptime * 1000).toLocaleString() : "never"], ["Flags", `0x${Number(meta.flags || 0).toString(16)}`],
      ["Changed", meta.last_modified ? new Date(Number(meta.last_modified) * 1000).toLocaleString() : ""], ["Kind", (meta.datatype || []).join(", ")]];
    const isText = typeof one.text === "string";
    const shownText = isText ? (one.isJson ? pretty(one.text) : one.text) : "";
    // A text area makes a line feed of a carriage return: what is saved would not be what was shown.
    const isEdited = isText && !one.tooLarge && !shownText.includes("\r");
    const text = h("textarea", { id: "value", "aria-label": "Value", rows: Math.min(30, Math.max(8, shownText.split("\n").length + 1)), spellcheck: "false", value: shownText });
    const save = button("Save", () => guarded(async () => {
      if (one.isJson) {
        try { JSON.parse(text.value); } catch (error) { throw new Error(`That is no JSON: ${error.message}`); }
      }
      await request("PUT", url(one.key), { body: text.value, headers: { "If-Match": `"${one.cas}"` } });
      await show(one.key);
      toast("The document was saved.");
    }), { class: "primary", id: "save" });
    const remove = button("Delete…", async () => {
      const done = await dialog({ title: "Delete the document", text: one.key, action: "Delete", danger: true, act: () => request("DELETE", url(one.key), { headers: { "If-Match": `"${one.cas}"` } }) });
      if (done) { fill(shown); await browse(); toast("The document was deleted."); }
    }, { id: "delete" });
    const body = one.tooLarge ? h("p", { class: "note" }, `The value has ${bytes(one.bytes)}: values up to 1 MiB are shown.`)
      : isEdited ? text
      : isText ? [h("p", { class: "note" }, "The value has carriage returns and is not edited here:"), h("pre", { class: "wrap" }, shownText)]
      : [h("p", { class: "note" }, "The value is no text; in Base64:"), h("pre", { class: "wrap" }, one.base64)];
    fill(shown, h("h2", { class: "break", id: "shown-key" }, one.key), h("dl", { class: "facts" }, facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value ?? "")))), body,
      h("div", { class: "buttons" }, isEdited ? save : null, button("Read again", () => show(one.key)), button("History", () => history(one.key)), remove),
      h("h3", null, "Extended attributes"), Object.keys(one.xattrs || {}).length ? h("pre", { class: "wrap", id: "xattrs" }, JSON.stringify(one.xattrs, null, 2)) : h("p", { class: "note" }, "None."),
      one.xattrsLeftOut ? h("p", { class: "note" }, `${one.xattrsLeftOut} more are not shown.`) : null);
  }

  // Where the bucket keeps no history of changes, its stream has the newest version of the document alone, deleted or not.
  const history = (name) => guarded(async () => {
    if (!name) throw new Error("Give a key.");
    fill(shown, h("p", { class: "note" }, "Reading…"));
    try {
      const of = await get(`/pools/default/buckets/${encode(bucket)}`);
      const isKept = of.storageBackend === "magma" && (of.historyRetentionSeconds > 0 || of.historyRetentionBytes > 0);
      const stream = `/v1/buckets/${encode(bucket)}/changes?follow=false&collections=${encode(`${scope}.${collection}`)}&key=${encode(name)}${isKept ? "&history=true" : ""}`;
      const versions = [];
      let older = 0;
      await lines(stream, (one) => {
        if (one.event === "ended") throw new Error(`The stream of the vBucket ended: ${one.message || one.reason}.`);
        if (one.event === "rollback") versions.splice(0, versions.length, ...versions.filter((of) => of.seqno <= one.seqno));
        if (one.key === undefined) return;
        versions.unshift(one);
        if (versions.length > MOST_VERSIONS) { versions.pop(); older += 1; }
      });
      drawHistory(name, stream, isKept, versions, older);
    } catch (error) {
      fill(shown);
      throw error;
    }
  });

  // The CAS is the time of the change in nanoseconds; its lowest 16 bits are a counter.
  const changed = (cas) => new Date(Number(BigInt(cas) / 1000000n)).toLocaleString();

  function drawHistory(name, stream, isKept, versions, older) {
    const value = h("section", { id: "version", "aria-live": "polite" });
    const read = (one) => guarded(async () => {
      let found = null;
      await lines(`${stream}&include=values`, (of) => of.seqno !== one.seqno || of.key === undefined || ((found = of), false));
      if (!found) throw new Error("This version is no longer in the stream: read the history again.");
      const text = found.value === undefined ? found.value_base64 : JSON.stringify(found.value, null, 2);
      fill(value, h("h3", null, `Value at seqno ${one.seqno}`), found.value === undefined ? h("p", { class: "note" }, "It is no JSON; in Base64:") : null,
        h("pre", { class: "wrap" }, text.slice(0, MOST_SHOWN)), text.length > MOST_SHOWN ? h("p", { class: "note" }, "The rest is not shown.") : null);
    });
    const row = (one) => [one.event, one.seqno, one.rev, one.cas, changed(one.cas), one.event === "mutation" ? button("Show", () => read(one), { "data-version": one.seqno }) : ""];
    const first = versions[0];
    fill(shown, h("h2", { class: "break", id: "shown-key" }, name),
      h("p", { class: "note", id: "history-kind" }, isKept ? "Versions in the history of changes, the newest first." : "This bucket keeps no history of changes: its stream has the newest version alone."),
      first ? h("dl", { class: "facts" }, [["State", first.event === "mutation" ? "there" : "deleted"], ["vBucket", first.vbucket], ["vBucket UUID", first.uuid]].map(([of, what]) => h("div", null, h("dt", null, of), h("dd", null, what)))) : null,
      h("div", { id: "versions" }, table(["Change", "#Seqno", "#Revision", "CAS", "When", "Value"], versions.map(row), "No change of this key is in the stream.")),
      older ? h("p", { class: "note" }, `${older} older ones are not shown.`) : null, value,
      h("div", { class: "buttons" }, button("Read again", () => history(name))));
  }

  async function create() {
    const name = h("input", { required: true, maxlength: 250, value: key.value, spellcheck: "false" });
    const value = h("textarea", { rows: 10, spellcheck: "false", value: "{}" });
    const ttl = h("input", { type: "number", min: 0, value: 0 });
    const done = await dialog({
      title: `New document in ${scope}.${collection}`, content: h("div", null, field("Key", name), field("Value (JSON)", value), field("Expires after (s)", ttl, "0: never")), action: "Store",
      act: async () => {
        JSON.parse(value.value);
        // More than 30 days are a moment, as in the KV protocol.
        const after = Number(ttl.value) || 0;
        const expiry = after > 2592000 ? Math.round(Date.now() / 1000) + after : after;
        await request("PUT", `${url(name.value)}&expiry=${expiry}`, { body: value.value, headers: { "If-None-Match": "*" } });
      },
    });
    if (done) { key.value = name.value; await show(name.value); toast("The document was stored."); }
  }

  const find = h("form", { class: "row", id: "find" }, field("Key", key), h("button", { type: "submit", class: "primary" }, "Find"), button("History", () => history(key.value), { id: "history" }), button("New…", create, { id: "new" }));
  find.addEventListener("submit", (event) => { event.preventDefault(); show(key.value); });
  const search = h("form", { class: "row", id: "browse" }, field("Keys that begin with", prefix), h("button", { type: "submit" }, "List"));
  search.addEventListener("submit", (event) => { event.preventDefault(); browse(); });
  fill(body, h("div", { class: "finders" }, field("Collection", place), search, find), problem, h("div", { class: "split" }, list, shown));
  await browse();
  return { refresh: async () => {} };
}
