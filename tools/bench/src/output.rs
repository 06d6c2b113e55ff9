//! What measurements have in common: how they print, and which program they measure.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use harness::child::release_build;
use harness::tree;

/// How to print.
#[derive(Args)]
pub struct Output {
    /// Close with one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// Which program is measured.
#[derive(Args)]
pub struct Program {
    /// Measure this program; without it the release build of this tree, which is built first.
    #[arg(long, value_name = "PROGRAM")]
    program: Option<PathBuf>,
}

impl Program {
    /// Where it is.
    pub fn ready(&self) -> Result<PathBuf> {
        if let Some(program) = &self.program {
            return Ok(program.clone());
        }
        release_build()?;
        Ok(tree::release_binary())
    }
}
