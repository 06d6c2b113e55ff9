//! How much a node's process logs is changed while it runs, over HTTP and by the command that memcached has for it.
#![allow(clippy::disallowed_methods, reason = "this is a client, outside the server")]

mod support;

use std::sync::{Arc, Mutex};

use protocol::{RequestParts, Status, opcode};
use serde_json::json;
use support::{Client, http, json as ask, start};

const PATH: &str = "/node/settings/log";

#[test]
fn log_levels_are_changed_while_a_node_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = start(folder.path(), "");
    let (code, said) = http(&server, "POST", PATH, "level=debug");
    assert!(code == 400 && said.contains("no log"), "nothing follows them: {code} {said}");
    let levels = server.node().host().expect("it is hosted").config().log_levels.clone();
    let followed = Arc::new(Mutex::new(Vec::new()));
    let follows = Arc::clone(&followed);
    levels.drive("info", move |wanted| match wanted {
        "loud" => Err("there is no level \"loud\"".to_owned()),
        wanted => {
            follows.lock().expect("whole").push(wanted.to_owned());
            Ok(())
        }
    });
    assert_eq!(ask(&server, PATH), json!({ "level": "info", "configured": "info" }));
    let (code, said) = http(&server, "POST", PATH, "level=warn%2Cengine%3Ddebug");
    assert_eq!(code, 200, "{said}");
    assert_eq!(ask(&server, PATH), json!({ "level": "warn,engine=debug", "configured": "info" }));
    for (body, why) in [("level=loud", "no level"), ("levels=debug", "no such field"), ("", "give level")] {
        let (code, said) = http(&server, "POST", PATH, body);
        assert!(code == 400 && said.contains(why), "{body}: {code} {said}");
    }
    let mut client = Client::connect(&server, "default", &[]);
    let mut verbosity = |level: u32| {
        let extras = level.to_be_bytes();
        let parts = RequestParts { opcode: opcode::VERBOSITY, extras: &extras, ..RequestParts::default() };
        assert_eq!(client.request(&parts).status, Status::Success, "{level}");
        ask(&server, PATH)["level"].clone()
    };
    assert_eq!(
        [1, 2, 9, 0].map(&mut verbosity),
        ["debug", "trace", "trace", "info"].map(|level| json!(level))
    );
    assert_eq!(http(&server, "POST", PATH, "level=error").0, 200);
    assert_eq!(http(&server, "POST", PATH, "level=default").0, 200);
    // The line that tells of a change is logged between the levels before and after it.
    let changes = ["warn,engine=debug", "debug", "trace", "trace", "info", "error", "info"];
    let expected: Vec<&str> = changes.into_iter().flat_map(|level| [level, "info", level]).collect();
    assert_eq!(*followed.lock().expect("whole"), expected);
    server.stop().expect("a clean stop");
}
