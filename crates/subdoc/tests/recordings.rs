//! Replays the recorded sub-document conversations against a model of a store that is one map.

use base64::Engine;
use serde_json::Value;
use std::collections::HashMap;
use subdoc::exec::{self, Document, Metadata};
use subdoc::request::{self, Features, LookupRequest, MutationRequest, Refusal};
use subdoc::{DATATYPE_JSON, DATATYPE_SNAPPY, DATATYPE_XATTR, json::is_json, reply, xattr};

const GROUPS: [&str; 9] = [
    include_str!("../../../tests/recordings/kv/subdoc_array.jsonl"),
    include_str!("../../../tests/recordings/kv/subdoc_counter.jsonl"),
    include_str!("../../../tests/recordings/kv/subdoc_dict.jsonl"),
    include_str!("../../../tests/recordings/kv/subdoc_lookup.jsonl"),
    include_str!("../../../tests/recordings/kv/subdoc_macro.jsonl"),
    include_str!("../../../tests/recordings/kv/subdoc_multi.jsonl"),
    include_str!("../../../tests/recordings/kv/subdoc_tombstone.jsonl"),
    include_str!("../../../tests/recordings/kv/subdoc_vattr.jsonl"),
    include_str!("../../../tests/recordings/kv/subdoc_xattr.jsonl"),
];
const WHOLE_DOCUMENT: &str = include_str!("../../../tests/recordings/kv/subdoc_wholedoc.jsonl");
/// What follows from the original's documents and tests where no recording shows it.
const DERIVED: &str = include_str!("../../../tests/recordings/derived/derived_subdoc.jsonl");
const PROFILES: &str = include_str!("../../../tests/recordings/kv/profiles.json");

/// Removing the only attribute answers *out of memory* there; here it succeeds.
const DIFFERENT_ON_PURPOSE: [&str; 2] =
    ["subdoc_tombstone/access_deleted_mutation", "subdoc_xattr/remove_last"];

const NOW_S: u64 = 1_700_000_000;

#[derive(Clone, Default)]
struct Stored {
    value: Vec<u8>,
    datatype: u8,
    deleted: bool,
    metadata: Metadata,
}

#[derive(Debug, Default)]
struct Reply {
    status: u16,
    is_json: bool,
    body: Vec<u8>,
    context: &'static str,
    cas: u64,
    seqno: u64,
}

#[derive(Default)]
struct Model {
    documents: HashMap<Vec<u8>, Stored>,
    steps: u64,
    replies: HashMap<u64, (u64, u64)>,
}

fn bytes_of(value: &Value) -> Vec<u8> {
    if let Some(text) = value["t"].as_str() {
        return text.as_bytes().to_vec();
    }
    if let Some(text) = value["b"].as_str() {
        return base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
    }
    match value["gen"].as_str() {
        Some("repeat") => bytes_of(&value["of"]).repeat(value["n"].as_u64().expect("n") as usize),
        Some("nested") => {
            let levels = value["n"].as_u64().expect("n") as usize;
            format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels)).into_bytes()
        }
        Some("snappy") => bytes_of(&value["of"]),
        _ => Vec::new(),
    }
}

fn number(text: &Value) -> u64 {
    let text = text.as_str().expect("number");
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hexadecimal")
}

fn hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap_or("");
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("hex")).collect()
}

fn refuse(refusal: Refusal) -> Reply {
    let Refusal { status, context } = refusal;
    Reply { status, context, ..Reply::default() }
}

impl Model {
    fn metadata(&mut self) -> Metadata {
        self.steps += 1;
        Metadata {
            cas: 0x1700_0000_0000_0000 + self.steps * 0x10000,
            seqno: 300 + self.steps,
            rev_seqno: self.steps,
            vbucket_uuid: 0x1234_5678_9abc,
            last_modified_s: NOW_S,
            hlc_now_s: NOW_S,
            ..Metadata::default()
        }
    }

    fn store(&mut self, key: &[u8], value: Vec<u8>, datatype: u8, deleted: bool, extras: &[u8]) -> Reply {
        let mut metadata = self.metadata();
        if let Some((flags, _)) = extras.split_first_chunk::<4>() {
            metadata.flags = u32::from_be_bytes(*flags);
        }
        let Metadata { cas, seqno, .. } = metadata;
        self.documents.insert(key.to_vec(), Stored { value, datatype, deleted, metadata });
        Reply { cas, seqno, ..Reply::default() }
    }

    /// SET, ADD and REPLACE; attributes of a live document are kept.
    fn set(&mut self, op: u64, key: &[u8], body: &[u8], request: &Value, extras: &[u8]) -> Reply {
        let live = self.documents.get(key).filter(|stored| !stored.deleted).cloned();
        if (op == 3 && live.is_none()) || (op == 2 && live.is_some()) {
            return Reply { status: if op == 3 { 1 } else { 2 }, ..Reply::default() };
        }
        let mut value = Vec::new();
        let mut datatype = if is_json(body) { DATATYPE_JSON } else { 0 };
        datatype |= request["dt"].as_u64().map_or(0, |bits| bits as u8 & DATATYPE_SNAPPY);
        if let Some(stored) = live {
            datatype |= stored.datatype & DATATYPE_XATTR;
            xattr::split(&stored.value, stored.datatype).expect("own value").0.write_section(&mut value);
        }
        value.extend_from_slice(body);
        self.store(key, value, datatype, false, extras)
    }

    fn get(&self, key: &[u8]) -> Reply {
        match self.documents.get(key) {
            Some(stored) if !stored.deleted => Reply {
                is_json: stored.datatype & DATATYPE_JSON != 0,
                body: xattr::split(&stored.value, stored.datatype).expect("own value").1.to_vec(),
                cas: stored.metadata.cas,
                ..Reply::default()
            },
            _ => Reply { status: 1, ..Reply::default() },
        }
    }

    fn delete(&mut self, key: &[u8]) -> Reply {
        let Some(stored) = self.documents.get(key).filter(|stored| !stored.deleted) else {
            return Reply { status: 1, ..Reply::default() };
        };
        let value = xattr::split(&stored.value, stored.datatype).expect("own value").0.system_section();
        let datatype = if value.is_empty() { 0 } else { DATATYPE_XATTR };
        self.store(key, value, datatype, true, b"")
    }

    fn lookup(&self, key: &[u8], request: Result<LookupRequest<'_>, Refusal>, cas: u64) -> Reply {
        let mut request = match request {
            Ok(request) => request,
            Err(refusal) => return refuse(refusal),
        };
        request.cas = cas;
        let outcome = exec::lookup(self.documents.get(key).map(document), &request);
        let mut body = Vec::new();
        let is_json = reply::write_lookup(&outcome, &mut body);
        let cas = self.documents.get(key).map_or(0, |stored| stored.metadata.cas);
        Reply { status: outcome.status, is_json, body, cas, ..Reply::default() }
    }

    fn mutate(&mut self, key: &[u8], request: Result<MutationRequest<'_>, Refusal>, cas: u64) -> Reply {
        let mut request = match request {
            Ok(request) => request,
            Err(refusal) => return refuse(refusal),
        };
        request.cas = cas;
        let mut outcome = exec::mutate(self.documents.get(key).map(document), &request);
        let mut body = Vec::new();
        let is_json = reply::write_mutation(&outcome, &mut body);
        let mut reply = Reply { status: outcome.status, is_json, body, ..Reply::default() };
        if let Some(mut new) = outcome.new.take() {
            let metadata = self.metadata();
            new.late.fill(&mut new.value, metadata.cas, metadata.seqno);
            let stored = Stored { value: new.value, datatype: new.datatype, deleted: new.deleted, metadata };
            if stored.datatype & DATATYPE_XATTR != 0 {
                xattr::validate(&stored.value).expect("own section");
            }
            self.documents.insert(key.to_vec(), stored);
            reply.cas = metadata.cas;
            reply.seqno = metadata.seqno;
        }
        reply
    }

    /// Runs one step; `None` is a step that is not about documents.
    fn step(&mut self, request: &Value, features: &Features) -> Option<Reply> {
        let key = request.get("key").map(bytes_of)?;
        let extras = hex(&request["extras"]);
        let value = bytes_of(&request["value"]);
        let cas = match &request["cas"] {
            Value::Object(of) => {
                self.replies[&of["step"].as_u64().expect("step")].0 + of.get("add").map_or(0, |_| 1)
            }
            Value::String(_) => number(&request["cas"]),
            _ => 0,
        };
        let op = number(&request["op"]);
        Some(match op {
            0x00 => self.get(&key),
            0x01..=0x03 => self.set(op, &key, &value, request, &extras),
            0x04 => self.delete(&key),
            0xd0 => self.lookup(&key, request::parse_multi_lookup(&extras, &value, features), cas),
            0xd1 => self.mutate(&key, request::parse_multi_mutation(&extras, &value, features), cas),
            0xc5 | 0xc6 | 0xd2 => {
                self.lookup(&key, request::parse_single_lookup(op as u8, &extras, &value, features), cas)
            }
            0xc7..=0xd3 => {
                self.mutate(&key, request::parse_single_mutation(op as u8, &extras, &value, features), cas)
            }
            _ => return None,
        })
    }

    fn compare(&self, expected: &Value, reply: &Reply) -> Result<(), String> {
        let status = number(&expected["status"]) as u16;
        if status != reply.status {
            return Err(format!("status {:#x}, recorded {status:#x}", reply.status));
        }
        let value = &expected["value"];
        if let Some(error) = value.get("error") {
            let recorded = error["context"].as_str().unwrap_or("");
            let same = recorded == reply.context;
            return same.then_some(()).ok_or(format!("{:?}, recorded {recorded:?}", reply.context));
        }
        if !reply.context.is_empty() {
            return Err(format!("context {:?}, recorded none", reply.context));
        }
        if expected["dt"].as_u64() != Some(u64::from(reply.is_json)) {
            return Err(format!("datatype {}, recorded {}", reply.is_json, expected["dt"]));
        }
        if let Some(results) = value["lookup"].as_array() {
            let mut rest = &reply.body[..];
            for result in results {
                let head = rest.get(..6).ok_or("short")?;
                let status = u16::from_be_bytes([head[0], head[1]]);
                let len = u32::from_be_bytes([head[2], head[3], head[4], head[5]]) as usize;
                if number(&result["status"]) as u16 != status {
                    return Err(format!("result {status:#x}, recorded {result}"));
                }
                self.compare_value(&result["value"], &rest[6..6 + len], reply)?;
                rest = &rest[6 + len..];
            }
            return if rest.is_empty() { Ok(()) } else { Err("bytes left".into()) };
        }
        if let Some(results) = value["mutation"].as_array() {
            let mut body = Vec::new();
            for result in results {
                let status = number(&result["status"]) as u16;
                let value = bytes_of(&result["value"]);
                body.push(result["index"].as_u64().expect("index") as u8);
                body.extend_from_slice(&status.to_be_bytes());
                if status == 0 {
                    body.extend_from_slice(&(value.len() as u32).to_be_bytes());
                    body.extend_from_slice(&value);
                }
            }
            return if body == reply.body { Ok(()) } else { Err(format!("{:?}", reply.body)) };
        }
        self.compare_value(value, &reply.body, reply)
    }

    fn compare_value(&self, expected: &Value, actual: &[u8], reply: &Reply) -> Result<(), String> {
        let shown = String::from_utf8_lossy(actual).into_owned();
        let Some(json) = expected.get("json") else {
            let same = bytes_of(expected) == actual;
            return same.then_some(()).ok_or(format!("value {shown}, recorded {expected}"));
        };
        let mut json = json.clone();
        let mut actual: Value = serde_json::from_slice(actual).map_err(|error| error.to_string())?;
        for (path, rule) in expected["vars"].as_object().into_iter().flatten() {
            let pointer = path.replace('.', "/");
            let found = actual.pointer_mut(&pointer).ok_or(format!("no {path}: {shown}"))?.take();
            *json.pointer_mut(&pointer).ok_or("no such path")? = Value::Null;
            let of = |step: &Value| match step.as_u64() {
                Some(step) => self.replies[&step],
                None => (reply.cas, reply.seqno),
            };
            let wanted = match rule.as_object().and_then(|rule| rule.iter().next()) {
                Some((name, step)) if name == "cas_be" => format!("{:#018x}", of(step).0),
                Some((name, step)) if name == "cas_le" => format!("{:#018x}", of(step).0.swap_bytes()),
                Some((name, step)) if name == "seqno_hex" => format!("{:#018x}", of(step).1),
                _ => continue,
            };
            if found != Value::String(wanted.clone()) {
                return Err(format!("{path}: {found}, wanted {wanted}"));
            }
        }
        (json == actual).then_some(()).ok_or(format!("{actual}, recorded {json}"))
    }
}

fn document(stored: &Stored) -> Document<'_> {
    Document {
        value: &stored.value,
        datatype: stored.datatype,
        deleted: stored.deleted,
        metadata: stored.metadata,
    }
}

/// Replays the scenarios of one group; gives the names of those that differ, and how many there were.
fn replay(lines: &str, differing: &mut Vec<(String, String)>) -> usize {
    let profiles: Value = serde_json::from_str(PROFILES).expect("profiles");
    let mut model = Model::default();
    let mut scenario = String::new();
    let mut scenarios = 0;
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).expect("a line is JSON");
        let name = line["scenario"].as_str().expect("name");
        if name != scenario {
            scenario = name.to_string();
            scenarios += 1;
            model = Model::default();
        }
        let codes = &profiles[line["profile"].as_str().expect("profile")]["hello"];
        let has_xattr = codes.as_array().is_some_and(|codes| codes.contains(&Value::from(6)));
        let features = Features { xattr: has_xattr, multiple_xattr_keys: false };
        let Some(mut reply) = model.step(&line["req"], &features) else {
            continue;
        };
        // Without the JSON feature (11) the front end takes the bit off again.
        let has_json = codes.as_array().is_some_and(|codes| codes.contains(&Value::from(11)));
        reply.is_json &= has_json;
        if let Err(error) = model.compare(&line["resp"], &reply)
            && differing.last().is_none_or(|(last, _)| *last != scenario)
        {
            differing.push((scenario.clone(), format!("step {}: {error}", line["step"])));
        }
        model.replies.insert(line["step"].as_u64().expect("step"), (reply.cas, reply.seqno));
    }
    scenarios
}

#[test]
fn answers_as_derived() {
    let mut differing = Vec::new();
    let scenarios = replay(DERIVED, &mut differing);
    assert!(differing.is_empty(), "{} of {scenarios} differ: {differing:#?}", differing.len());
    assert!(scenarios > 9, "the scenarios are there");
}

#[test]
fn answers_as_recorded() {
    let mut differing = Vec::new();
    let groups = GROUPS.iter().chain([&WHOLE_DOCUMENT]);
    let scenarios: usize = groups.map(|lines| replay(lines, &mut differing)).sum();
    differing.retain(|(name, _)| !DIFFERENT_ON_PURPOSE.contains(&name.as_str()));
    assert!(differing.is_empty(), "{} of {scenarios} differ: {differing:#?}", differing.len());
    assert_eq!(scenarios, 232);
}
