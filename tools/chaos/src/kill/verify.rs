//! After a restart: is everything there that was promised?

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use base::{Seqno, VbId};
use harness::client::{Answer, Client};
use protocol::Status;

use super::document;
use super::ledger::{Document, Ledger};

/// Documents that are asked for in one batch.
const BATCH: usize = 128;

/// What was found.
#[derive(Default)]
pub struct Verified {
    /// Documents that were looked at and of which something was promised.
    pub documents: u64,
    /// Of them, those found in a newer version than promised.
    pub newer: u64,
    /// What is not as promised, in words.
    pub lost: Vec<String>,
}

impl Verified {
    /// Adds another round.
    pub fn add(&mut self, other: Verified) {
        self.documents += other.documents;
        self.newer += other.newer;
        self.lost.extend(other.lost);
    }
}

/// Looks at every document of every ledger.
pub fn all(kv: &str, ledgers: &mut [Ledger]) -> Result<Verified> {
    let mut client = Client::connect(kv)?;
    let mut verified = Verified::default();
    let seqnos = high_seqnos(&mut client)?;
    for ledger in ledgers {
        ledger.forget_waiting();
        check_seqnos(ledger, &seqnos, &mut verified);
        for documents in ledger.documents_mut().chunks_mut(BATCH) {
            check_documents(&mut client, documents, &mut verified)?;
        }
    }
    Ok(verified)
}

/// Where each vBucket's history ends, prepares in flight included, which readers are not told of.
fn high_seqnos(client: &mut Client) -> Result<BTreeMap<VbId, Seqno>> {
    let figures = client.stats("vbucket-seqno")?.context("there are no figures of vBuckets")?;
    let read = |(name, value): &(String, String)| {
        let vbucket = name.strip_prefix("vb_")?.strip_suffix(":high_seqno")?;
        Some((VbId(vbucket.parse().ok()?), Seqno(value.parse().ok()?)))
    };
    Ok(figures.iter().filter_map(read).collect())
}

/// No vBucket's history may end before what was said to be on disk.
fn check_seqnos(ledger: &Ledger, seqnos: &BTreeMap<VbId, Seqno>, verified: &mut Verified) {
    for (vbucket, promised) in ledger.persisted_seqnos() {
        let found = seqnos.get(vbucket).copied().unwrap_or_default();
        if found < *promised {
            verified.lost.push(format!(
                "vBucket {}: persisted up to seqno {} before the kill, but it ends at {}",
                vbucket.0, promised.0, found.0
            ));
        }
    }
}

fn check_documents(client: &mut Client, documents: &mut [Document], verified: &mut Verified) -> Result<()> {
    for document in &*documents {
        client.push_get(document.vbucket, &document.key);
    }
    client.flush()?;
    for document in documents {
        let answer = client.answer()?;
        verified.documents += u64::from(document.floor.is_some());
        let found = found_version(document, &answer)?;
        let explained = match found {
            Found::Version(version) => document.explain(version),
            Found::Damaged => None,
        };
        let Some(change) = explained else {
            verified.lost.push(describe(document, &found));
            // Told once is enough: what is there now is what the next rounds hold it to.
            document.settle(None);
            continue;
        };
        verified.newer += u64::from(document.floor.is_some() && change != document.floor);
        document.settle(change);
    }
    Ok(())
}

/// What a get brought.
enum Found {
    /// This version, or no document.
    Version(Option<u32>),
    /// Bytes that were never sent.
    Damaged,
}

fn found_version(document: &Document, answer: &Answer) -> Result<Found> {
    if answer.status_code == Status::KeyEnoent.code() {
        return Ok(Found::Version(None));
    }
    if !answer.is_ok() {
        bail!("a get was answered with status 0x{:02x}", answer.status_code);
    }
    let version = document::version_of(&answer.value);
    let whole = version.is_some_and(|version| {
        document::value(&document.key, version) == answer.value && answer.extras == version.to_be_bytes()
    });
    Ok(if whole { Found::Version(version) } else { Found::Damaged })
}

fn describe(document: &Document, found: &Found) -> String {
    let found = match found {
        Found::Version(Some(version)) => format!("version {version}"),
        Found::Version(None) => "nothing".to_owned(),
        Found::Damaged => "a damaged value".to_owned(),
    };
    let key = String::from_utf8_lossy(&document.key);
    format!(
        "{key} (vBucket {}): found {found}, promised {:?} or one of {:?}",
        document.vbucket.0, document.floor, document.newer
    )
}
