//! The binary `stave`: hands its arguments to the library of the same name.

use std::process::ExitCode;

// No release build contains the mistakes that the simulators look for, whatever a profile says of single packages.
const _: () =
    assert!(cfg!(debug_assertions) || !base::planted::IS_COMPILED_IN, "built with planted mistakes");

fn main() -> ExitCode {
    base::memory::settle_system();
    stave::cli::run()
}
