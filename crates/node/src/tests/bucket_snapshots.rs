//! Snapshots of a bucket on the wire: who writes while changes are held waits.

use serde_json::{Value, json};

use super::*;

const ID: &str = "f7970e20-ca1b-4059-8542-3196e93f6927";

fn ask(connection: &mut Connection, wanted: &Value) -> (Status, Value) {
    let (value, opcode, datatype) = (wanted.to_string(), opcode::BUCKET_SNAPSHOT, base::Datatype::JSON.0);
    let value = value.as_bytes();
    let (answers, _) =
        feed(connection, &request(&RequestParts { opcode, value, datatype, ..RequestParts::default() }));
    let mut all = each(&answers, |answer| {
        (answer.status().expect("a known status"), serde_json::from_slice(answer.value).unwrap_or_default())
    });
    assert_eq!(all.len(), 1, "{wanted}");
    all.remove(0)
}

fn step(connection: &mut Connection, what: &str) -> (Status, Value) {
    ask(connection, &json!({ "do": what, "id": ID, "most_ms": 1000 }))
}

/// Also one that a mistake must fail.
#[test]
pub(super) fn changes_wait_until_the_moment_is_taken() {
    let node = node();
    let (mut admin, mut writer) = (connect_as(&node, "admin", FULL), connect_as(&node, "admin", FULL));
    let (answers, _) = feed(&mut writer, &set(b"k", b"1", 1));
    assert_eq!(statuses(&answers), [(1, Status::Success)]);
    let (status, held) = step(&mut admin, "hold");
    assert_eq!((status, held["vbuckets"].as_array().map(Vec::len)), (Status::Success, Some(4)));
    let (answers, _) = feed(&mut writer, &set(b"k", b"2", 2));
    assert_eq!(statuses(&answers), [], "it waits");
    let (status, taken) = step(&mut admin, "take");
    assert_eq!((status, &taken), (Status::Success, &held), "nothing came in between");
    let (answers, _) = feed(&mut writer, b"");
    assert_eq!(statuses(&answers), [(2, Status::Success)], "and goes on");
    assert!(node.bucket("default").expect("it is served").flushing().flush_all());
    let (status, told) = step(&mut admin, "look");
    assert_eq!((status, &told["waiting"], &told["lost"]), (Status::Success, &json!(0), &json!([])));
    assert_eq!(told["vbuckets"], taken["vbuckets"]);
    let (_, all) = ask(&mut admin, &json!({ "do": "list" }));
    assert_eq!(all["snapshots"].as_array().map(Vec::len), Some(1));
    assert_eq!(step(&mut admin, "drop").0, Status::Success);
    assert_eq!(step(&mut admin, "drop").0, Status::KeyEnoent);
    assert_eq!(step(&mut admin, "look").0, Status::KeyEnoent);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let node = node();
    let mut admin = connect_as(&node, "admin", FULL);
    assert_eq!(step(&mut admin, "take").0, Status::Etmpfail, "changes are not held");
    for wrong in [
        json!([]),
        json!({}),
        json!({ "do": "hold" }),
        json!({ "do": "hold", "id": "x", "most_ms": 1 }),
        json!({ "do": "hold", "id": ID }),
        json!({ "do": "hold", "id": ID, "most_ms": 0 }),
        json!({ "do": "hold", "id": ID, "most_ms": -1 }),
        json!({ "do": "else", "id": ID }),
    ] {
        assert_eq!(ask(&mut admin, &wrong).0, Status::Einval, "{wrong}");
    }
    let (status, released) = step(&mut admin, "release");
    assert_eq!((status, &released["held"]), (Status::Success, &json!(false)));
}
