//! How much work passwords are: what is configured, within its bounds.

use super::bucket::parse_size;
use super::{ConfigError, Settings};
use crate::sasl::hash::{self, Hashing};
use crate::sasl::scram;

/// How much work passwords are.
pub(super) fn of(settings: &Settings) -> Result<Hashing, ConfigError> {
    let wrong = |name, given: String, least, most| ConfigError::Hashing { name, given, least, most };
    let defaults = Hashing::default();
    let memory_kib = match &settings.argon2id_memory {
        Some(text) => u32::try_from(parse_size(text)? >> 10).unwrap_or(u32::MAX),
        None => defaults.memory_kib,
    };
    let hashing = Hashing {
        scram_iterations: settings.scram_iterations.unwrap_or(defaults.scram_iterations),
        memory_kib,
        passes: settings.argon2id_time.unwrap_or(defaults.passes),
    };
    if !scram::ITERATIONS_RANGE.contains(&hashing.scram_iterations) {
        let given = hashing.scram_iterations.to_string();
        return Err(wrong("scram-iterations", given, "4096", "1000000"));
    }
    if !hash::MEMORY_KIB.contains(&memory_kib) {
        let given = settings.argon2id_memory.clone().unwrap_or_default();
        return Err(wrong("argon2id-memory", given, "1MiB", "256MiB"));
    }
    if !hash::PASSES.contains(&hashing.passes) {
        return Err(wrong("argon2id-time", hashing.passes.to_string(), "1", "100"));
    }
    Ok(hashing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_text(text: &str) -> Result<Hashing, String> {
        of(&Settings::parse(text).expect("settings")).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_as_it_was_and_all_has_bounds() {
        assert_eq!(of_text(""), Ok(Hashing::default()));
        let text = "scram-iterations = 20000\nargon2id-memory = \"64MiB\"\nargon2id-time = 2";
        assert_eq!(of_text(text), Ok(Hashing { scram_iterations: 20_000, memory_kib: 64 << 10, passes: 2 }));
        for (text, what) in [
            ("scram-iterations = 4095", "scram-iterations = 4095: give 4096 to 1000000"),
            ("argon2id-memory = \"512KiB\"", "argon2id-memory = 512KiB: give 1MiB to 256MiB"),
            ("argon2id-memory = \"8TiB\"", "argon2id-memory = 8TiB: give 1MiB to 256MiB"),
            ("argon2id-time = 0", "argon2id-time = 0: give 1 to 100"),
        ] {
            assert_eq!(of_text(text), Err(what.to_owned()));
        }
    }
}
