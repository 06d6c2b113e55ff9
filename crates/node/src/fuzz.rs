//! Bodies of fuzz targets: whatever a client sends, the connection answers, waits or closes, and never panics; whatever is
//! in a file or a form is read or refused.

use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Waker};

use base::SmallFile;
use base::env::{OpenMode, SimHandles};
use protocol::{RequestParts, opcode, write_request};

use crate::audit::settings as audit_settings;
use crate::bucket_form::BucketForm;
use crate::changes::short::Short;
use crate::changes::token::Token;
use crate::cluster::{flushed, founding, noted, seen_users};
use crate::config::{BucketSpec, Config, Settings};
use crate::connection::{Connection, Next};
use crate::counters::WorkerCounters;
use crate::dcp::STEP_BYTES;
use crate::node::Node;
use crate::output::Output;
use crate::roles::Grant;
use crate::small_files::{bucket_faults, node_faults};
use crate::{form, kept_users, node_files};

/// Steps of a connection that streams or is streamed to.
const MOST_STEPS: usize = 100;

/// Feeds bytes to a fresh connection, then to one that has logged in and selected a bucket.
pub fn connection(node: &Arc<Node>, login: &[u8], bytes: &[u8]) {
    feed(&mut fresh(node), bytes);
    let mut connection = fresh(node);
    feed(&mut connection, login);
    feed(&mut connection, bytes);
    let (mut out, cx) = (Output::default(), Context::from_waker(Waker::noop()));
    // What came for vBuckets that it feeds is applied.
    for _ in 0..MOST_STEPS {
        if !connection.stream(STEP_BYTES, &cx, &mut out) {
            return;
        }
        out.clear();
    }
}

fn fresh(node: &Arc<Node>) -> Connection {
    Connection::new(Arc::clone(node), Arc::new(WorkerCounters::default()))
}

/// Gives all bytes to a connection; returns what it answered and what it waits for then.
pub fn feed(connection: &mut Connection, bytes: &[u8]) -> (Vec<u8>, Next) {
    let mut out = Output::default();
    let mut answers = Vec::new();
    let mut at = 0;
    loop {
        let received = connection.receive(&bytes[at..], &mut out);
        at += received.consumed;
        answers.extend(out.to_vec());
        out.clear();
        let goes_on = match received.next {
            Next::Turn => true,
            Next::Later => {
                let ready = connection.poll_later(&mut Context::from_waker(Waker::noop()), &mut out);
                answers.extend(out.to_vec());
                out.clear();
                ready
            }
            Next::Bytes(_) | Next::Close(_) => false,
        };
        if !goes_on {
            return (answers, received.next);
        }
    }
}

/// What a client sends to log in with PLAIN, agree on `features` and select `bucket`.
pub fn login(name: &str, password: &str, bucket: &str, features: &[u8]) -> Vec<u8> {
    let message = format!("\0{name}\0{password}");
    let requests = [
        RequestParts { opcode: opcode::HELLO, key: b"test", value: features, ..RequestParts::default() },
        RequestParts {
            opcode: opcode::SASL_AUTH,
            key: b"PLAIN",
            value: message.as_bytes(),
            ..RequestParts::default()
        },
        RequestParts { opcode: opcode::SELECT_BUCKET, key: bucket.as_bytes(), ..RequestParts::default() },
    ];
    let mut out = Vec::new();
    for request in &requests {
        assert!(write_request(&mut out, request), "these requests are short");
    }
    out
}

/// Any bytes as each of the small files of a node and of a bucket.
pub fn small_files(bytes: &[u8]) {
    let env = SimHandles::new(1).env();
    let folder = Path::new("/fuzz");
    env.disk.create_dir_all(folder).expect("a folder");
    let files = [
        node_files::bucket_list(folder),
        node_files::revision(folder),
        node_files::identity(folder),
        noted::file(folder),
        seen_users::file(folder),
        kept_users::file(folder),
        audit_settings::file(folder),
        node_files::bucket(folder),
        flushed::file(folder),
        founding::file(folder),
        SmallFile::new(folder, "membership"),
        SmallFile::new(folder, "alternate-address.json"),
        SmallFile::new(folder, "manifest.json"),
        SmallFile::new(folder, "bucket.uuid"),
    ];
    for path in files.iter().map(SmallFile::path) {
        // Without the header of a small file the bytes are the content.
        let file = env.disk.open(&path, OpenMode::CreateNew).expect("no two have one name");
        file.write_at(bytes, 0).expect("a write");
    }
    let _ = node_faults(&*env.disk, folder);
    let _ = bucket_faults(&*env.disk, folder);
}

/// Any bytes as a form of HTTP, and what is read from forms and addresses.
pub fn forms(bytes: &[u8]) {
    let fields = form::parse(bytes);
    for (name, value) in &fields {
        let _ = Grant::parse_list(value);
        let again = form::parse(format!("{}={}", form::escaped(name), form::escaped(value)).as_bytes());
        assert_eq!(again, [(name.clone(), value.clone())], "a field is read as it was escaped");
        let _ = Token::decode(value, 4);
        let _ = Short::decode(value);
        let _ = BucketSpec::parse(value);
    }
    let made = BucketForm::new(fields.clone()).create(4);
    let spec = made.unwrap_or_else(|_| BucketSpec::parse("b").expect("valid"));
    let _ = BucketForm::new(fields).change(&spec, 4);
}

/// Any bytes as a configuration file.
pub fn configuration(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(settings) = Settings::parse(text) else { return };
    let _ = Config::new(settings, "/fuzz".into(), 1, || "password".to_owned());
}

#[cfg(test)]
mod tests {
    use base::fuzz::replay;

    use super::*;

    fn seeds(texts: &[&str]) -> Vec<Vec<u8>> {
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    #[test]
    fn damaged_files_never_panic() {
        let list = r#"{"buckets":[{"name":"a","quota":104857600,"type":"couchstore","replicas":1}],"removing":["b"]}"#;
        let manifest = r#"{"manifest":{"uid":"1","scopes":[{"name":"_default","uid":"0","collections":[]}]},"next_scope":8,"next_collection":8}"#;
        replay(1, 2_000, &seeds(&[list, manifest, "00000000000000000012\n", "{\"users\":{}}"]), small_files);
    }

    #[test]
    fn damaged_forms_never_panic() {
        let bucket =
            "name=orders&ramQuotaMB=100&replicaNumber=1&bucketType=couchbase&evictionPolicy=valueOnly";
        replay(
            2,
            20_000,
            &seeds(&[bucket, "roles=data_reader[a:b:c],admin&password=a%20b+c", "a=b%&=&&"]),
            forms,
        );
    }

    #[test]
    fn damaged_configurations_never_panic() {
        let file = "password = \"secret1\"\nkv = \"127.0.0.1:0\"\nbuckets = [\"a:100MiB\"]\n[[user]]\nname = \"u\"\n";
        replay(3, 5_000, &seeds(&[file, "[[bucket]]\nname = \"c\"\nquota = \"1GiB\"\n"]), configuration);
    }
}
