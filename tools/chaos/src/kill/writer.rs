//! One connection that changes its documents as fast as it can and notes what the server promises.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use base::{Seqno, VbId};
use harness::client::{Answer, Client, observed_persisted};
use protocol::Status;

use super::document;
use super::ledger::Ledger;

/// The most changes in one batch.
const MAX_BATCH: u64 = 32;
/// Percent of changes that are deletions.
const DELETES: u64 = 15;
/// Percent of batches whose changes ask for durability on disk.
/// Few, because each makes the flusher write at once, and then a kill finds little to lose.
const DURABLE: u64 = 5;
/// Percent of changes that make a new document.
const NEW: u64 = 25;
/// Percent of batches after which the writer waits for the disk; after the others it only asks how far it is.
const WAITS: u64 = 50;

/// A change on its way.
struct Sent {
    document: usize,
    version: u32,
    deleted: bool,
    durable: bool,
}

/// Writes until the connection breaks, which is an error unless `dying`.
pub fn run(kv: &str, ledger: &mut Ledger, dying: &dyn Fn() -> bool) -> Result<()> {
    match write(kv, ledger) {
        Err(error) if !dying() => Err(error),
        _ => Ok(()),
    }
}

/// Only an error ends it.
fn write(kv: &str, ledger: &mut Ledger) -> Result<()> {
    let mut client = Client::connect(kv)?;
    let mut uuids = BTreeMap::new();
    loop {
        let batch = send_batch(&mut client, ledger)?;
        for sent in batch {
            let answer = client.answer()?;
            if let Some(token) = note(ledger, &sent, &answer)? {
                uuids.insert(ledger.document(sent.document).vbucket, token);
            }
        }
        if ledger.rng.chance(WAITS) {
            wait_for_disk(&mut client, ledger)?;
        } else {
            ask_the_disk(&mut client, ledger, &uuids)?;
        }
    }
}

fn send_batch(client: &mut Client, ledger: &mut Ledger) -> Result<Vec<Sent>> {
    let mut batch = Vec::new();
    let durable = ledger.rng.chance(DURABLE);
    for _ in 0..=ledger.rng.below(MAX_BATCH) {
        let index = choose_document(ledger);
        let exists = ledger.document(index).latest().is_some_and(|change| !change.deleted);
        let deleted = exists && ledger.rng.chance(DELETES);
        let version = ledger.sent(index, deleted);
        let document = ledger.document(index);
        if deleted {
            client.push_delete(document.vbucket, &document.key, durable);
        } else {
            let value = document::value(&document.key, version);
            client.push_set(document.vbucket, &document.key, version, &value, durable);
        }
        batch.push(Sent { document: index, version, deleted, durable });
    }
    client.flush()?;
    Ok(batch)
}

fn choose_document(ledger: &mut Ledger) -> usize {
    if ledger.documents() == 0 || ledger.rng.chance(NEW) {
        ledger.add_document()
    } else {
        let documents = ledger.documents();
        ledger.rng.below(documents) as usize
    }
}

/// Notes an answer; the uuid of the vBucket's history if it carries one.
fn note(ledger: &mut Ledger, sent: &Sent, answer: &Answer) -> Result<Option<u64>> {
    if answer.is_ok() {
        let Some(token) = answer.token() else { bail!("a change was acknowledged without a mutation token") };
        if sent.durable {
            ledger.acked_persisted(sent.document, sent.version, token.seqno);
        } else {
            ledger.acked(sent.document, sent.version, token.seqno);
        }
        return Ok(Some(token.uuid.0));
    }
    let refusals = [Status::Ebusy, Status::Etmpfail, Status::Enomem].map(Status::code);
    // A deletion finds nothing if the change before it was refused.
    let found_nothing = sent.deleted && answer.status_code == Status::KeyEnoent.code();
    if found_nothing || refusals.contains(&answer.status_code) {
        ledger.refused(sent.document, sent.version);
    } else if answer.status_code != Status::SyncWriteAmbiguous.code() {
        bail!("a change was answered with status 0x{:02x}", answer.status_code);
    }
    Ok(None)
}

/// Waits for seqno persistence of everything that waits.
fn wait_for_disk(client: &mut Client, ledger: &mut Ledger) -> Result<()> {
    let waiting: Vec<(VbId, Seqno)> = ledger
        .waiting_vbuckets()
        .into_iter()
        .filter_map(|vbucket| Some((vbucket, ledger.waiting_for(vbucket)?)))
        .collect();
    for (vbucket, seqno) in &waiting {
        client.push_seqno_persistence(*vbucket, *seqno);
    }
    client.flush()?;
    for (vbucket, seqno) in waiting {
        if client.answer()?.is_ok() {
            ledger.persisted_up_to(vbucket, seqno);
        }
    }
    Ok(())
}

/// Asks by observe-seqno how far each vBucket is on disk.
fn ask_the_disk(client: &mut Client, ledger: &mut Ledger, uuids: &BTreeMap<VbId, u64>) -> Result<()> {
    let waiting = ledger.waiting_vbuckets();
    let asked: Vec<(VbId, u64)> =
        waiting.into_iter().filter_map(|vbucket| Some((vbucket, *uuids.get(&vbucket)?))).collect();
    for (vbucket, uuid) in &asked {
        client.push_observe_seqno(*vbucket, *uuid);
    }
    client.flush()?;
    for (vbucket, _) in asked {
        let answer = client.answer()?;
        if let Some(seqno) = answer.is_ok().then(|| observed_persisted(&answer.value)).flatten() {
            ledger.persisted_up_to(vbucket, seqno);
        }
    }
    Ok(())
}
