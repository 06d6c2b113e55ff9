//! The binary `stave`: hands its arguments to the library of the same name.

use std::process::ExitCode;

// What serves never makes the mistakes that the simulators look for.
const _: () = assert!(!base::planted::IS_COMPILED_IN, "built with the feature `planted`");

fn main() -> ExitCode {
    base::memory::settle_system();
    stave::cli::run()
}
