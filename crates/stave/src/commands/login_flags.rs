//! How much work checking a password is: flags of `stave serve`.

use clap::Args;
use node::Settings;

/// How much work passwords are.
#[derive(Clone, Debug, Default, Args)]
pub struct LoginFlags {
    /// How often SCRAM hashes passwords that are set from now on, 4096 to 1000000; those that are kept keep their number
    /// [default: 4096]
    #[arg(long, value_name = "N", env = "STAVE_SCRAM_ITERATIONS")]
    scram_iterations: Option<u32>,
    /// The memory of the hash by which passwords are checked that come as they are (PLAIN, HTTP), 1MiB to 256MiB, for
    /// passwords that are set from now on [default: 12MiB]
    #[arg(long, value_name = "SIZE", env = "STAVE_ARGON2ID_MEMORY")]
    argon2id_memory: Option<String>,
    /// How often that memory is gone through, 1 to 100 [default: 3]
    #[arg(long, value_name = "N", env = "STAVE_ARGON2ID_TIME")]
    argon2id_time: Option<u32>,
}

impl LoginFlags {
    /// As settings, which the configuration file may have, too.
    pub fn settings(self) -> Settings {
        Settings {
            scram_iterations: self.scram_iterations,
            argon2id_memory: self.argon2id_memory,
            argon2id_time: self.argon2id_time,
            ..Settings::default()
        }
    }
}
