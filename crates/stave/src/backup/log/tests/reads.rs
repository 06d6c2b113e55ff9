//! How often a log is read.

use super::*;

#[test]
fn a_log_is_read_once_for_its_frames_and_gaps() {
    let (env, handles) = Env::sim(4);
    let mut history = History::begin(&env, 4);
    (0..20).for_each(|_| {
        history.run(100);
        history.restart(true);
    });
    let repository = Repository::new(&env, Path::new(DIR));
    let reads = |most: usize| {
        let log = open_keeping(&env, most).expect("sound");
        let segments = log.segments.len() as u64;
        let wanted = WantedMoment::At(log.epochs().pop().expect("there is one").horizon);
        let before = handles.disk.calls(base::env::sim::On::Kind(base::env::sim::Call::Read));
        let at = log.resolve(&repository, BUCKET, &wanted, 0).expect("it is there");
        let mut reader = MomentReader::open(&repository, &log, &at).expect("read");
        reader.collections().expect("read");
        (handles.disk.calls(base::env::sim::On::Kind(base::env::sim::Call::Read)) - before, segments)
    };
    let ((kept, segments), (again, _)) = (reads(1 << 20), reads(0));
    println!("{kept} reads of {segments} segments, {again} if frames are not kept");
    assert!(kept + 3 * segments < again, "{kept} {again} {segments}");
}

#[test]
fn a_restore_reads_each_segment_once_for_all_vbuckets() {
    let (env, handles) = Env::sim(4);
    let mut history = History::begin(&env, 4);
    (0..20).for_each(|_| {
        history.run(100);
        history.restart(true);
    });
    let repository = Repository::new(&env, Path::new(DIR));
    let log = open(&env).expect("sound");
    let segments = log.segments.len() as u64;
    let wanted = WantedMoment::At(log.epochs().pop().expect("there is one").horizon);
    let at = log.resolve(&repository, BUCKET, &wanted, 0).expect("it is there");
    let reads = |most: Option<usize>| {
        let mut reader = MomentReader::open(&repository, &log, &at).expect("read");
        most.into_iter().for_each(|most| reader.hold_at_most(most));
        let before = handles.disk.calls(base::env::sim::On::Kind(base::env::sim::Call::Read));
        for vb in 0..VBUCKETS {
            reader.newest(VbId(vb), &mut |_| Ok::<(), BackupError>(())).expect("read");
        }
        handles.disk.calls(base::env::sim::On::Kind(base::env::sim::Call::Read)) - before
    };
    let (together, alone) = (reads(None), reads(Some(0)));
    println!("{together} reads of {segments} segments, {alone} with each frame alone");
    // The backup is read, too, vBucket by vBucket.
    assert!(together <= segments + 4 * u64::from(VBUCKETS) && 2 * together < alone, "{together} {alone}");
}
