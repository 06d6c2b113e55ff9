//! `bench scan`: range scans of a whole bucket by one client, beside a stream of the same documents.

use std::time::Instant;

use anyhow::{Result, bail, ensure};
use base::leb128::decode_leb128;
use base::{Datatype, VbId};
use harness::client::Client;
use harness::stave::Stave;
use protocol::{RequestParts, Status, opcode};

use super::common::{MomentOptions, p99_beside, stream_rate, with_filled};
use crate::process::resident_bytes;
use crate::report::{Goal, Report, median};

/// The least of a stream's rate.
const RATE_GOAL: f64 = 0.5;
/// The most that point reads take beside a scan.
const P99_GOAL: f64 = 1.3;
/// As the servers that are measured have it.
const VBUCKETS: u16 = 1024;
/// Scans that are open at once.
const AT_ONCE: usize = 1000;
/// Bytes of one answer of a scan, about.
const BATCH_BYTES: u32 = 128 << 10;
/// Bytes of the identifier of a scan.
const ID_BYTES: usize = 16;
/// The most memory that a scan of everything takes.
const MEMORY_GOAL_MIB: f64 = 64.0;

/// Measures.
pub fn run(options: &MomentOptions) -> Result<Report> {
    with_filled("scan", options, |server, _, report| measure(server, options, report))
}

fn measure(server: &Stave, options: &MomentOptions, report: &mut Report) -> Result<()> {
    let mut rates = [Vec::new(), Vec::new()];
    let before = resident_bytes(server.pid())?;
    // The first one warms what is cached.
    stream_rate(server)?;
    println!("{:<6} {:>14} {:>14} {:>14}", "round", "stream/s", "keys/s", "documents/s");
    for round in 1..=options.rounds {
        let stream = stream_rate(server)?;
        let (keys, documents) = (scan_rate(server, options, true)?, scan_rate(server, options, false)?);
        println!("{round:<6} {stream:>14.0} {keys:>14.0} {documents:>14.0}");
        rates[0].push(keys / stream);
        rates[1].push(documents / stream);
    }
    let grown = resident_bytes(server.pid())?.saturating_sub(before) as f64 / f64::from(1 << 20);
    let [keys, documents] = &mut rates;
    report.figure("keys_of_stream", median(keys), Some(Goal::AtLeast(RATE_GOAL)));
    report.figure("documents_of_stream", median(documents), Some(Goal::AtLeast(RATE_GOAL)));
    report.add("memory_mib", grown, Some(MEMORY_GOAL_MIB));
    let (open, refused) = many(server)?;
    report.add("scans_at_once", open as f64, None);
    report.add("scans_refused", refused as f64, None);
    let beside = p99_beside(server, options, &|| scan_rate(server, options, false).map(drop))?;
    report.add("point_reads_p99_beside", beside, Some(P99_GOAL));
    Ok(())
}

/// Documents a second of a scan of all vBuckets by one client, all of which must come.
fn scan_rate(server: &Stave, options: &MomentOptions, key_only: bool) -> Result<f64> {
    let mut client = Client::connect(&server.kv)?;
    let (begun, mut count) = (Instant::now(), 0);
    for vb in (0..VBUCKETS).map(VbId) {
        let Some(id) = create(&mut client, vb, key_only)? else { continue };
        loop {
            let (more, is_complete) = go_on(&mut client, vb, &id, key_only)?;
            count += more;
            if is_complete {
                break;
            }
        }
    }
    // What the load beside has stored comes, too.
    ensure!(count >= u64::from(options.documents), "a scan brought {count} of {}", options.documents);
    Ok(count as f64 / begun.elapsed().as_secs_f64())
}

/// The identifier of a scan of a vBucket; `None` if that has no document.
fn create(client: &mut Client, vb: VbId, key_only: bool) -> Result<Option<[u8; ID_BYTES]>> {
    // From the lowest key to the highest one, in Base64.
    let json = format!("{{\"range\":{{\"start\":\"AA==\",\"end\":\"/w==\"}},\"key_only\":{key_only}}}");
    client.push(&RequestParts {
        opcode: opcode::RANGE_SCAN_CREATE,
        vbucket: vb,
        datatype: Datatype::JSON.0,
        value: json.as_bytes(),
        ..RequestParts::default()
    });
    client.flush()?;
    let answer = client.answer()?;
    match Status::from_code(answer.status_code) {
        Some(Status::Success) => Ok(Some(answer.value.as_slice().try_into()?)),
        Some(Status::KeyEnoent) => Ok(None),
        _ => bail!("no scan of vBucket {vb}: status 0x{:02x}", answer.status_code),
    }
}

/// How many documents came, and whether these were the last ones.
fn go_on(client: &mut Client, vb: VbId, id: &[u8], key_only: bool) -> Result<(u64, bool)> {
    let limits = [[0; 4], [0; 4], BATCH_BYTES.to_be_bytes()].concat();
    client.push(&RequestParts {
        opcode: opcode::RANGE_SCAN_CONTINUE,
        vbucket: vb,
        extras: &[id, &limits].concat(),
        ..RequestParts::default()
    });
    client.flush()?;
    let mut count = 0;
    loop {
        let answer = client.answer()?;
        count += items_in(&answer.value, key_only)?;
        match Status::from_code(answer.status_code) {
            Some(Status::Success) => {}
            Some(Status::RangeScanMore) => return Ok((count, false)),
            Some(Status::RangeScanComplete) => return Ok((count, true)),
            _ => bail!("a scan of vBucket {vb} ended: status 0x{:02x}", answer.status_code),
        }
    }
}

/// Keys, each behind its length; documents have metadata in front and a value behind.
fn items_in(mut bytes: &[u8], key_only: bool) -> Result<u64> {
    const META_BYTES: usize = 25;
    let mut count = 0;
    while !bytes.is_empty() {
        let skipped = if key_only { Some(bytes) } else { bytes.get(META_BYTES..) };
        let rest = skipped.and_then(pass_over);
        let rest = if key_only { rest } else { rest.and_then(pass_over) };
        let Some(rest) = rest else { bail!("a scan brought what is no list of items") };
        (bytes, count) = (rest, count + 1);
    }
    Ok(count)
}

/// What is behind a LEB128 length and as many bytes.
fn pass_over(bytes: &[u8]) -> Option<&[u8]> {
    let (len, at) = decode_leb128(bytes)?;
    bytes.get(at + len as usize..)
}

/// How many scans are open at once, and how many were refused as too many.
fn many(server: &Stave) -> Result<(usize, usize)> {
    let mut client = Client::connect(&server.kv)?;
    let (mut open, mut refused) = (Vec::new(), 0);
    for at in 0..AT_ONCE {
        let vb = VbId((at % usize::from(VBUCKETS)) as u16);
        match create(&mut client, vb, true) {
            Ok(Some(id)) => open.push((vb, id)),
            Ok(None) => {}
            Err(_) => refused += 1,
        }
    }
    for (vb, id) in &open {
        while !go_on(&mut client, *vb, id, true)?.1 {}
    }
    Ok((open.len(), refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_counted() {
        let keys = [&[1][..], b"a", &[2], b"bc"].concat();
        assert_eq!(items_in(&keys, true).expect("a list"), 2);
        let long = vec![7; 300];
        let document = [&[0; 25][..], &[1], b"k", &[0xac, 0x02], &long].concat();
        assert_eq!(items_in(&[&document[..], &document].concat(), false).expect("a list"), 2);
        assert_eq!(items_in(&[], true).expect("nothing"), 0);
        assert!(items_in(&document[..40], false).is_err());
    }
}
