//! Appending, releasing and preparing at the same time.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[test]
fn what_other_threads_do_does_not_disturb_an_append() {
    let disk = fresh_disk();
    let config = small();
    let (journal, _) = recover(&disk, config).expect("a journal");
    let is_done = AtomicBool::new(false);
    let mut maker = Maker::new(9);
    maker.most_value = 300;
    let (mut all, mut frames) = (Vec::new(), Vec::new());
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                let before = journal.next_frame().0.saturating_sub(20);
                journal.release(Frame(before)).expect("a release");
            }
        });
        threads.spawn(|| {
            while !is_done.load(Ordering::Acquire) {
                journal.prepare_step().expect("a step");
                assert!(journal.stats().spares <= 3);
            }
        });
        for _ in 0..2000 {
            let save = maker.save(3);
            frames.push(journal.append(&[save.record()], &Vec::new).expect("a call"));
            all.push(save.save().expect("a save"));
        }
        is_done.store(true, Ordering::Release);
    });
    assert!(frames.is_sorted());
    let released = journal.next_frame().0.saturating_sub(20);
    drop(journal);
    let (_, told) = recover(&disk, config).expect("a recovery");
    let saves: Vec<String> = told.saves.into_iter().map(|(_, save)| save).collect();
    assert_eq!(saves, all[all.len() - saves.len()..]);
    let kept = frames.iter().filter(|frame| frame.0 >= released).count();
    assert!(saves.len() >= kept);
}
