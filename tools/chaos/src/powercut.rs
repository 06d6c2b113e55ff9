//! `cargo xtask powercut`: the server under load on a real file system that is shut down without a warning, as by a
//! power cut, mounted again and looked through for documents that it had promised.
//!
//! What was synced stays, what was not goes; sectors are neither torn nor reordered, which `cargo xtask crash` does.

use std::path::Path;

use anyhow::Result;
use clap::Args;
use harness::child::{headline, is_installed};
use harness::stave::Stave;
use harness::totals::Totals;
use harness::tree::Scratch;

use crate::image::Image;
use crate::kill::{self, Place};

/// How often and on what.
#[derive(Args)]
pub struct PowercutOptions {
    /// How often the power goes, on each file system.
    #[arg(long, default_value_t = 50)]
    rounds: u32,
    /// Decides keys, values, deletes and the moments of the cuts; the machine decides the rest.
    #[arg(long)]
    seed: Option<u64>,
    /// The longest time under load before a cut.
    #[arg(long, default_value_t = 600)]
    load_ms: u64,
    /// Only this file system: ext4 or xfs.
    #[arg(long)]
    only: Option<String>,
    /// What keeps the bucket's documents, by the word of its type.
    #[arg(long, value_parser = ["couchstore", "magma"])]
    store: Option<String>,
    /// Whether the server encrypts its files.
    #[arg(long)]
    encrypted: bool,
}

/// File systems that can be shut down, and the program that makes them.
const FILE_SYSTEMS: [(&str, &str, &[&str]); 2] =
    [("ext4", "mkfs.ext4", &["-q", "-F"]), ("xfs", "mkfs.xfs", &["-q", "-f"])];
/// Size of the image; it is sparse.
const IMAGE_BYTES: u64 = 2 << 30;

/// Why it cannot be done here, if so.
pub fn cannot() -> Option<&'static str> {
    if !rustix::process::getuid().is_root() {
        Some("only root can mount a file system")
    } else if !Path::new("/dev/loop-control").exists() {
        Some("there are no loop devices")
    } else if !["mount", "umount"].iter().all(|program| is_installed(program)) {
        Some("mount or umount is missing")
    } else if !FILE_SYSTEMS.iter().any(|(_, make, _)| is_installed(make)) {
        Some("neither mkfs.ext4 nor mkfs.xfs is installed")
    } else {
        None
    }
}

/// Cuts the power on each file system that can be made here; each cut is one verdict.
pub fn run(options: &PowercutOptions) -> Result<Totals> {
    let mut totals = Totals::default();
    for (name, make, arguments) in FILE_SYSTEMS {
        if options.only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        headline(&format!("power cuts on {name}"));
        if !is_installed(make) {
            println!("skipped: {make} is not installed");
            continue;
        }
        totals += cut(options, make, arguments)?;
    }
    Ok(totals)
}

fn cut(options: &PowercutOptions, make: &str, arguments: &[&str]) -> Result<Totals> {
    let mut scratch = Scratch::new("powercut")?;
    let result = on_image(options, make, arguments, scratch.path());
    if !matches!(&result, Ok(totals) if totals.good()) {
        scratch.keep();
    }
    result
}

fn on_image(options: &PowercutOptions, make: &str, arguments: &[&str], scratch: &Path) -> Result<Totals> {
    let (image, at) = (scratch.join("image"), scratch.join("mounted"));
    let mounted = Image::make(image, IMAGE_BYTES, make, arguments, at)?;
    let kill = |server: Stave| {
        mounted.power_off()?;
        server.kill()?;
        mounted.mount_again()
    };
    let place = Place { data: &mounted.path().join("data"), logs: scratch, kill: &kill };
    let rounds = kill::KillOptions::rounds(options.rounds).with(options.seed, options.load_ms);
    let rounds = rounds.encrypted(options.encrypted).in_store(options.store.clone());
    kill::rounds(&rounds, &place)
}
