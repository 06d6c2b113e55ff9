//! Every bit of every file of a small bucket turned over: an error or a state that was, never a wrong value.

use std::path::PathBuf;

use base::env::sim::{SimDisk, SplitMix64, Survival};

use super::model::Model;
use super::tally::{Tally, Trying};
use super::verify::read_vbucket;
use super::workload::Shape;
use super::{Subject, prepared};

/// Which bits are turned over.
#[derive(Clone, Copy, Debug)]
pub enum Flips {
    /// Every so manieth of what a few changes leave.
    Every(usize),
    /// So many at random, each alone, of what many changes leave.
    Random(u64),
}

/// Changes and reads that leave small files, and large ones.
const FEW_OPS: u64 = 6;
const MANY_OPS: u64 = 300;

/// Turns over bits of what the workload of `seed` leaves.
pub fn bit_flips(subject: &Subject<'_>, flips: Flips, seed: u64) -> Tally {
    let _trying = Trying::new(format_args!("bit flips of {} with seed {seed}, {flips:?}", subject.name));
    let mut rng = SplitMix64::new(seed);
    let disk = prepared();
    let (shape, ops) = match flips {
        Flips::Every(_) => (Shape::choose(&mut rng), FEW_OPS),
        Flips::Random(_) => (Shape::large(), MANY_OPS),
    };
    let mut model = Model::new(shape.vbuckets);
    let mut tally = Tally::default();
    let mut wrong = Vec::new();
    let Ok(store) = subject.open(&disk) else {
        tally.judge(&["does not open".into()]);
        return tally;
    };
    let run = subject.run(&disk, &*store, shape);
    run.go_on(&mut model, &mut rng, ops, &mut wrong, &mut |_| false);
    drop(store);
    tally.judge(&wrong);
    let files: Vec<(PathBuf, usize)> =
        disk.contents().into_iter().map(|(path, bytes)| (path, bytes.len() * 8)).collect();
    match flips {
        Flips::Every(step) => {
            for (path, bits) in &files {
                (0..*bits)
                    .step_by(step)
                    .for_each(|bit| flip(subject, &model, &disk, (path, bit), &mut tally));
            }
        }
        // everything may have been deleted
        Flips::Random(_) if files.is_empty() => {}
        Flips::Random(count) => {
            for _ in 0..count {
                let (path, bits) = &files[rng.below(files.len() as u64) as usize];
                flip(subject, &model, &disk, (path, rng.below(*bits as u64) as usize), &mut tally);
            }
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
