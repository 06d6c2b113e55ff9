//! Every bit of every file of a small bucket turned over: an error or a state that was, never a wrong value.

use std::path::PathBuf;

use base::env::sim::{SimDisk, SplitMix64, Survival};

use super::model::Model;
use super::tally::{Tally, Trying};
use super::verify::read_vbucket;
use super::workload::{Run, Shape};
use super::{Subject, prepared};

/// Turns over every `every`-th bit of what the workload of `seed` leaves.
pub fn bit_flips(subject: &Subject<'_>, ops: u64, every: usize, seed: u64) -> Tally {
    let _trying = Trying::new(format_args!("bit flips of {} with seed {seed}", subject.name));
    let mut rng = SplitMix64::new(seed);
    let disk = prepared();
    let shape = Shape::choose(&mut rng);
    let mut model = Model::new(shape.vbuckets);
    let mut tally = Tally::default();
    let mut wrong = Vec::new();
    let Ok(store) = subject.open(&disk) else {
        tally.judge(&["does not open".into()]);
        return tally;
    };
    let run = Run { disk: &disk, store: &*store, shape };
    run.go_on(&mut model, &mut rng, ops, &mut wrong, &mut |_| false);
    drop(store);
    tally.judge(&wrong);
    for (path, bytes) in disk.contents() {
        for bit in (0..bytes.len() * 8).step_by(every) {
            flip(subject, &model, &disk, (&path, bit), &mut tally);
        }
    }
    tally
}

fn flip(
    subject: &Subject<'_>,
    model: &Model,
    disk: &SimDisk,
    (path, bit): (&PathBuf, usize),
    tally: &mut Tally,
) {
    let _trying = Trying::new(format_args!("bit {bit} of {}", path.display()));
    let image = disk.image(Survival::Everything);
    image.rot(path, bit as u64 / 8, 1 << (bit % 8)).expect("the file is there");
    let mut wrong = Vec::new();
    if let Ok(store) = subject.open(&image) {
        // what cannot be read is told as such, and promises nothing
        for (vb, stored) in store.states().unwrap_or_default() {
            let Ok(stored) = stored else { continue };
            let Ok(found) = read_vbucket(&*store, vb, &stored, &mut wrong) else { continue };
            if let Err(what) = model.was_once(vb, &found) {
                wrong.push(format!("{vb}: {what}"));
            }
        }
    }
    tally.bit_flips += 1;
    tally.judge(&wrong);
}
