//! The mark of a clean stop: whether the last one was, and which vBuckets have not been read since a crash.
//!
//! *Guarantee:* a vBucket goes on with its history only if no crash has happened since it was last read and saved. One
//! that could not be read in the start after a crash is named in the mark of the next clean stop, until it is read.
//! A mark has the number of the start that wrote it (`starts.rs`): one that is put back after a later start, which then
//! crashed, is not believed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base::VbId;
use base::env::{Disk, Env, OpenMode};
use base::planted::{self, Bug};

use crate::config::BucketConfig;
use crate::failure::Failure;
use crate::starts::LastStart;

/// Present while the last stop was a clean one.
const NAME: &str = "clean";
/// Where it is.
pub(crate) fn path(dir: &Path) -> PathBuf {
    dir.join(NAME)
}

/// Removes the mark of a bucket's folder, durably: what is done to its files next is followed by new histories, as after a
/// crash. Fine if there is none.
pub fn forget_clean_stop(env: &Env, dir: &Path) -> Result<(), Failure> {
    let path = path(dir);
    match env.disk.remove_file(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        removed => removed.map_err(|source| Failure::io("remove", &path, source))?,
    }
    env.disk.sync_dir(dir).map_err(|source| Failure::io("sync", dir, source))
}

/// What an earlier version wrote: it knew of no vBuckets that were not read.
const EARLIER: &[u8] = b"clean\n";
/// The next version did, and knew of no numbers of starts.
const WITHOUT_START: &str = "clean 2";
const FIRST_LINE: &str = "clean 3";
/// No mark is larger: 1,024 vBuckets of at most six characters, and the rest.
const MAX_BYTES: usize = 64 << 10;

/// How the last stop was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LastStop {
    is_clean: bool,
    /// vBuckets for which it was not.
    crashed: BTreeSet<VbId>,
}

impl LastStop {
    pub(crate) const CLEAN: LastStop = LastStop { is_clean: true, crashed: BTreeSet::new() };
    const CRASH: LastStop = LastStop { is_clean: false, crashed: BTreeSet::new() };

    /// What the log says of it. A bucket without a single stored vBucket is new: no stop came before.
    pub(crate) fn name(&self, has_vbuckets: bool) -> &'static str {
        match (self.is_clean, has_vbuckets) {
            (true, _) => "clean",
            (false, true) => "crash",
            (false, false) => "none",
        }
    }

    /// Whether nothing of a vBucket can have been lost.
    pub(crate) fn was_clean_for(&self, vb: VbId) -> bool {
        self.is_clean && !self.crashed.contains(&vb)
    }

    /// Reads and removes the mark of a bucket: from now on the next stop is a crash, until it is clean. A mark beside a
    /// store that was not closed, if that is known, is an old one that came back, and so is one of another start than the
    /// last one.
    pub(crate) fn take(
        config: &BucketConfig,
        env: &Env,
        bucket: &str,
        was_closed: Option<bool>,
        starts: &LastStart,
    ) -> Result<LastStop, Failure> {
        let path = config.dir.join(NAME);
        let file = match env.disk.open(&path, OpenMode::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(LastStop::CRASH),
            Err(source) => return Err(Failure::io("open", &path, source)),
        };
        let mut bytes = vec![0; MAX_BYTES];
        let read = file.read_at(&mut bytes, 0).map_err(|source| Failure::io("read", &path, source))?;
        let parsed = match was_closed {
            Some(false) => Err("the files are those of a bucket that was not stopped"),
            _ => LastStop::parse(&bytes[..read], bucket)
                .and_then(|(stop, start)| is_of_last(start, starts).map(|()| stop)),
        };
        let stop = parsed.unwrap_or_else(|why| {
            let path = path.display();
            tracing::error!(
                event = "clean_mark_not_believed", mark = %path, why,
                "the mark of a clean stop is not believed; histories begin anew"
            );
            LastStop::CRASH
        });
        env.disk.remove_file(&path).map_err(|source| Failure::io("remove", &path, source))?;
        env.disk.sync_dir(&config.dir).map_err(|source| Failure::io("sync", &config.dir, source))?;
        Ok(stop)
    }

    /// What is wrong with the mark of a bucket, if there is one; changes nothing.
    pub(crate) fn fault(disk: &dyn Disk, dir: &Path, bucket: &str) -> Option<String> {
        let file = disk.open(&dir.join(NAME), OpenMode::Read).ok()?;
        let mut bytes = vec![0; MAX_BYTES];
        match file.read_at(&mut bytes, 0) {
            Ok(read) => LastStop::parse(&bytes[..read], bucket).err().map(str::to_owned),
            Err(error) => Some(format!("it cannot be read: {error}")),
        }
    }

    /// With the number of the start that wrote it, if it has one.
    fn parse(bytes: &[u8], bucket: &str) -> Result<(LastStop, Option<u64>), &'static str> {
        if bytes == EARLIER {
            return Ok((LastStop::CLEAN, None));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| "it is no text")?;
        let (body, crc) = text
            .strip_suffix('\n')
            .and_then(|text| text.rsplit_once("crc32c "))
            .ok_or("its end is missing")?;
        if u32::from_str_radix(crc, 16) != Ok(crc32c::crc32c(body.as_bytes())) {
            return Err("its checksum does not fit");
        }
        let mut lines = body.lines();
        let has_start = match lines.next() {
            Some(FIRST_LINE) => true,
            Some(WITHOUT_START) => false,
            _ => return Err("it is of an unknown version"),
        };
        if lines.next().and_then(|line| line.strip_prefix("bucket ")) != Some(bucket) {
            return Err("it is of another bucket");
        }
        let start = has_start.then(|| lines.next()?.strip_prefix("start ")?.parse().ok());
        if start == Some(None) {
            return Err("the number of its start is missing");
        }
        let crashed =
            lines.next().and_then(|line| line.strip_prefix("crashed")).ok_or("a line is missing")?;
        let crashed: Result<_, _> = crashed.split_ascii_whitespace().map(|vb| vb.parse().map(VbId)).collect();
        let stop = LastStop { is_clean: true, crashed: crashed.map_err(|_| "a vBucket is no number")? };
        Ok((stop, start.flatten()))
    }

    /// Everything is on disk: marks the stop of this start as clean but for these vBuckets, durably.
    pub(crate) fn mark(
        config: &BucketConfig,
        env: &Env,
        bucket: &str,
        start: u64,
        crashed: &BTreeSet<VbId>,
    ) -> Result<(), Failure> {
        let crashed = crashed.iter().filter(|_| !planted::is(Bug::CrashForgotten));
        let crashed: String = crashed.map(|vb| format!(" {vb}")).collect();
        let body = format!("{FIRST_LINE}\nbucket {bucket}\nstart {start}\ncrashed{crashed}\n");
        let text = format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()));
        write_file(env, &config.dir.join(NAME), text.as_bytes())?;
        env.disk.sync_dir(&config.dir).map_err(|source| Failure::io("sync", &config.dir, source))
    }
}

/// Whether a mark is of the last start.
fn is_of_last(start: Option<u64>, starts: &LastStart) -> Result<(), &'static str> {
    match (start, starts) {
        _ if planted::is(Bug::StartsDoNotVouch) => Ok(()),
        (_, LastStart::Damaged(why)) => Err(why),
        (Some(_), LastStart::Missing) => Err("the number of the last start is missing"),
        (start, LastStart::Whole(noted)) if start != Some(noted.start) => {
            Err("the bucket was started again since that stop")
        }
        _ => Ok(()),
    }
}

/// Writes a file of the bucket's folder, durably but for its name.
fn write_file(env: &Env, path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let write = || {
        let file = env.disk.open(path, OpenMode::Create)?;
        file.set_len(0)?;
        file.write_at(bytes, 0)?;
        file.sync_data()
    };
    write().map_err(|source| Failure::io("write", path, source))
}

#[cfg(test)]
mod tests {
    use vbucket::ManifestUid;

    use super::*;
    use crate::collections::NextIds;
    use crate::starts::Noted;

    #[test]
    fn what_is_marked_is_taken_once_and_every_flipped_bit_is_a_crash() {
        let (env, handles) = Env::sim(1);
        let config = BucketConfig::new("b", "/data/b".into());
        env.disk.create_dir_all(&config.dir).expect("the disk works");
        let last = of_start(7);
        let take = |bucket: &str| LastStop::take(&config, &env, bucket, None, &last).expect("the disk works");
        assert_eq!(take("id"), LastStop::CRASH);
        let crashed: BTreeSet<VbId> = [VbId(3), VbId(1023)].into();
        let mark = || LastStop::mark(&config, &env, "id", 7, &crashed).expect("the disk works");
        mark();
        assert_eq!(take("id"), LastStop { is_clean: true, crashed: crashed.clone() });
        assert_eq!(take("id"), LastStop::CRASH);
        mark();
        assert_eq!(take("another"), LastStop::CRASH);
        mark();
        let beside =
            |was_closed| LastStop::take(&config, &env, "id", was_closed, &last).expect("the disk works");
        assert_eq!(beside(Some(false)), LastStop::CRASH);
        mark();
        assert_ne!(beside(Some(true)), LastStop::CRASH);
        mark();
        let path = config.dir.join(NAME);
        let len = handles.disk.contents().into_iter().find(|(found, _)| *found == path);
        for bit in 0..len.expect("it is there").1.len() * 8 {
            mark();
            handles.disk.rot(&path, bit as u64 / 8, 1 << (bit % 8)).expect("it is there");
            let taken = take("id");
            // a digit of the checksum may be written in another case
            assert!(taken == LastStop::CRASH || !taken.was_clean_for(VbId(3)), "bit {bit}: {taken:?}");
        }
    }

    fn of_start(start: u64) -> LastStart {
        LastStart::Whole(Noted { start, manifest: ManifestUid(0), ids: NextIds::default() })
    }

    #[test]
    fn a_mark_counts_for_the_start_that_wrote_it_alone() {
        let (env, _) = Env::sim(1);
        let config = BucketConfig::new("b", "/data/b".into());
        env.disk.create_dir_all(&config.dir).expect("the disk works");
        let cases = [
            (of_start(7), LastStop::CLEAN),
            (of_start(8), LastStop::CRASH),
            (of_start(6), LastStop::CRASH),
            (LastStart::Damaged("why"), LastStop::CRASH),
            (LastStart::Missing, LastStop::CRASH),
        ];
        for (last, expected) in cases {
            LastStop::mark(&config, &env, "id", 7, &BTreeSet::new()).expect("the disk works");
            assert_eq!(LastStop::take(&config, &env, "id", None, &last).ok(), Some(expected), "{last:?}");
        }
    }

    #[test]
    fn the_mark_of_an_earlier_version_is_believed() {
        let body = "clean 2\nbucket id\ncrashed 3\n";
        let text = format!("{body}crc32c {:08x}\n", crc32c::crc32c(body.as_bytes()));
        let (stop, start) =
            LastStop::parse(text.as_bytes(), "id").expect("the version before knew no starts");
        assert!(!stop.was_clean_for(VbId(3)) && stop.was_clean_for(VbId(4)));
        assert_eq!(is_of_last(start, &LastStart::Missing), Ok(()));
        assert!(is_of_last(start, &of_start(7)).is_err(), "this version has run since");
        assert_eq!(LastStop::parse(EARLIER, "id"), Ok((LastStop::CLEAN, None)));
        assert!(LastStop::parse(b"", "id").is_err() && LastStop::parse(b"clean", "id").is_err());
    }
}
