//! One program for all fuzz bodies: `STAVE_FUZZ_TARGET` names the one that libFuzzer calls, `STAVE_FUZZ_SEEDS` a folder that
//! gets its seeds before. `cargo xtask fuzz` starts it.
#![no_main]

mod targets;

use std::path::Path;
use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

use crate::targets::{TARGETS, Target};

static CHOSEN: OnceLock<&Target> = OnceLock::new();

/// Errors end the process with a message: libFuzzer takes none.
fn choose() {
    let name = std::env::var("STAVE_FUZZ_TARGET").unwrap_or_default();
    let Some(target) = TARGETS.iter().find(|target| target.name == name) else {
        eprintln!("STAVE_FUZZ_TARGET={name:?} is none of the targets:");
        TARGETS.iter().for_each(|target| eprintln!("{}", target.name));
        std::process::exit(2);
    };
    if let Some(folder) = std::env::var_os("STAVE_FUZZ_SEEDS") {
        for (number, seed) in (target.seeds)().iter().enumerate() {
            let path = Path::new(&folder).join(format!("seed-{number}"));
            if let Err(error) = std::fs::write(&path, seed) {
                eprintln!("cannot write {}: {error}", path.display());
                std::process::exit(2);
            }
        }
    }
    let _ = CHOSEN.set(target);
}

fuzz_target!(init: choose(), |bytes: &[u8]| {
    if let Some(target) = CHOSEN.get() {
        (target.body)(bytes);
    }
});
