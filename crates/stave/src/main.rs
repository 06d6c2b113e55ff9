//! The binary `stave`: hands its arguments to the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    base::memory::settle_system();
    stave::cli::run()
}
