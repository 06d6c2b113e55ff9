//! Errors of a command that talks to two clusters name the flags that apply to the cluster that failed.

use crate::cli::explain;

/// What the flags are called that say how one of the two clusters is reached, each behind what errors call it.
#[derive(Clone, Copy, Debug)]
pub struct FlagNames(&'static [(&'static str, &'static str)]);

impl FlagNames {
    /// As errors call them.
    pub const USUAL: FlagNames = FlagNames(&[]);
    /// Of the cluster that `stave import cluster` reads.
    pub const IMPORT_SOURCE: FlagNames = FlagNames(&[
        ("--addr HOST:PORT", "couchbase://HOST:PORT"),
        ("--addr 127.0.0.1:11210", "couchbase://127.0.0.1:11210"),
        ("--addr", "the URL"),
        ("--username", "--from-username"),
        ("--password", "--from-password"),
        ("STAVE_PASSWORD", "STAVE_FROM_PASSWORD"),
        ("give --tls-ca", "give couchbases:// and --from-tls-ca"),
        ("no CA of --tls-ca", "no CA of --from-tls-ca (without it: --tls-ca)"),
    ]);
    /// Of the cluster that `stave import cluster` writes to.
    pub const IMPORT_TARGET: FlagNames = FlagNames(&[("--bucket", "--to-bucket")]);
    /// Of the node that `stave replicate --continuous` reads.
    pub const REPLICATE_SOURCE: FlagNames = FlagNames(&[
        ("--addr", "--from"),
        (
            "--password or STAVE_PASSWORD",
            "--from-password (STAVE_FROM_PASSWORD) or, if it is the same in both clusters, --password (STAVE_PASSWORD)",
        ),
        NO_TIMEOUT,
    ]);
    /// Of the cluster that `stave replicate --continuous` writes to.
    pub const REPLICATE_TARGET: FlagNames = FlagNames(&[
        ("--addr HOST:PORT", "--to couchbase://HOST:PORT"),
        ("--addr 127.0.0.1:11210", "--to couchbase://127.0.0.1:11210"),
        ("--addr", "--to"),
        ("--username", "--to-username"),
        ("--password", "--to-password"),
        ("STAVE_PASSWORD", "STAVE_TO_PASSWORD"),
        ("--bucket", "--to-bucket"),
        ("give --tls-ca", "give couchbases:// and --to-tls-ca"),
        ("no CA of --tls-ca", "no CA of --to-tls-ca (without it: --tls-ca)"),
        NO_TIMEOUT,
    ]);
    /// Of the node that `stave replicate` and `stave move-vbuckets` ask over HTTP.
    pub const FOLLOWER: FlagNames = FlagNames(&[("--addr", "--to"), NO_TIMEOUT]);

    /// What an error says, with these names.
    pub fn applied(self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (usual, here)| text.replace(usual, here))
    }

    /// The error, with these names in what it and its causes say.
    pub fn told(self, error: impl Into<anyhow::Error>) -> anyhow::Error {
        anyhow::Error::msg(self.applied(&explain(&error.into())))
    }
}

/// Of commands whose --timeout is not about a single answer.
const NO_TIMEOUT: (&str, &str) = ("; --timeout gives it longer", "");

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::ClientError;

    #[test]
    fn errors_name_the_flags_of_the_cluster_that_failed() {
        let login = || ClientError::Login { addr: "h:1".to_owned(), username: "ann".to_owned() };
        let said = |names: FlagNames| names.told(login()).to_string();
        assert_eq!(said(FlagNames::USUAL), login().to_string());
        assert!(
            said(FlagNames::IMPORT_SOURCE)
                .ends_with("check --from-username, and --from-password or STAVE_FROM_PASSWORD")
        );
        assert!(
            said(FlagNames::REPLICATE_TARGET)
                .ends_with("check --to-username, and --to-password or STAVE_TO_PASSWORD")
        );
        assert!(said(FlagNames::REPLICATE_SOURCE).contains("check --username, and --from-password"));
        let bucket = ClientError::Bucket {
            addr: "h:1".to_owned(),
            bucket: "b".to_owned(),
            username: "ann".to_owned(),
        };
        let said = FlagNames::IMPORT_TARGET.told(bucket).to_string();
        assert!(said.contains("; --to-bucket NAME names another"), "{said}");
        let what = "a word".to_owned();
        let waited = ClientError::Waited { operation: "get", waited: Duration::from_secs(1), what };
        let said = FlagNames::REPLICATE_TARGET.told(waited).to_string();
        assert!(said.ends_with("a word"), "{said}");
    }

    #[test]
    fn the_other_cluster_is_named_by_its_url() {
        for (at, names) in [FlagNames::IMPORT_SOURCE, FlagNames::REPLICATE_TARGET].into_iter().enumerate() {
            let source = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            let refused = names.told(ClientError::Connect { addr: "h:1".to_owned(), source });
            let said = refused.to_string();
            assert!(said.contains("couchbase://HOST:PORT names another"), "{at}: {said}");
            assert!(!said.contains("--addr"), "{at}: {said}");
        }
    }
}
