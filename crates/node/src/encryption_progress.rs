//! How far the files of a bucket are encrypted, and how long that is worth remembering. It knows no node and no disk.

use std::collections::BTreeMap;
use std::time::Duration;

use base::encryption::{FileCount, KeyId};

/// Between two looks at a bucket whose files are not all as new ones would be.
const WHILE_SOME_ARE_LEFT: Duration = Duration::from_secs(5);
/// The same when all are.
const WHEN_DONE: Duration = Duration::from_secs(60);

/// How far the files of a bucket's folder are encrypted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncryptionProgress {
    /// Whether new files are encrypted.
    pub is_on: bool,
    /// Data keys of the folder.
    pub keys: usize,
    /// All files but those of the keys and empty ones.
    pub all: FileCount,
    /// Those in clear.
    pub in_clear: FileCount,
    /// Those that are not as new ones would be: in clear or under an earlier key; on a bucket that is to be plain the
    /// encrypted ones.
    pub outdated: FileCount,
}

/// When the files of a bucket were looked at.
pub(crate) struct ProgressLook {
    pub(crate) at: Duration,
    /// How often its keys had changed by then.
    pub(crate) key_changes: u64,
    pub(crate) found: EncryptionProgress,
}

impl ProgressLook {
    /// Whether it is too old to go by.
    pub(crate) fn is_over(&self, now: Duration, key_changes: u64) -> bool {
        let left = self.found.outdated.files > 0;
        let good_for = if left { WHILE_SOME_ARE_LEFT } else { WHEN_DONE };
        self.key_changes != key_changes || now.saturating_sub(self.at) >= good_for
    }
}

impl EncryptionProgress {
    /// `active`: the key of new files, if they are encrypted. `of_node`: the one of the node's own files. The description of a
    /// bucket is one of these, since it is read before the bucket's keys are.
    pub(crate) fn of(
        by_key: &BTreeMap<Option<KeyId>, FileCount>,
        active: Option<KeyId>,
        of_node: Option<KeyId>,
        keys: usize,
    ) -> EncryptionProgress {
        let mut progress =
            EncryptionProgress { is_on: active.is_some(), keys, ..EncryptionProgress::default() };
        for (key, count) in by_key {
            progress.all.add(*count);
            if key.is_none() {
                progress.in_clear.add(*count);
            }
            let is_of_node = active.is_some() && key.is_some() && *key == of_node;
            if *key != active && !is_of_node {
                progress.outdated.add(*count);
            }
        }
        progress
    }
}

#[cfg(test)]
mod tests {
    use base::encryption::DataKeys;
    use base::env::Env;

    use super::*;

    #[test]
    fn files_are_told_apart_by_what_new_ones_would_be() {
        let (env, _) = Env::sim(1);
        let [first, second, of_node] = [1, 2, 3].map(|_| DataKeys::ephemeral(&env).active().expect("a key"));
        let count = |files| FileCount { files, bytes: files * 100 };
        let by_key =
            [(None, count(1)), (Some(first), count(2)), (Some(second), count(4)), (Some(of_node), count(8))]
                .into();
        let of = |active| {
            let found = EncryptionProgress::of(&by_key, active, Some(of_node), 2);
            assert_eq!((found.all, found.in_clear, found.keys), (count(15), count(1), 2));
            (found.is_on, found.outdated)
        };
        assert_eq!(of(Some(second)), (true, count(3)));
        assert_eq!(of(None), (false, count(14)));
    }

    #[test]
    fn a_look_holds_for_a_minute_when_all_is_done() {
        let at = |left: u64| ProgressLook {
            at: Duration::from_secs(100),
            key_changes: 1,
            found: EncryptionProgress {
                outdated: FileCount { files: left, bytes: left },
                ..EncryptionProgress::default()
            },
        };
        let is_over = |left, second, changes| at(left).is_over(Duration::from_secs(second), changes);
        assert_eq!([104, 105].map(|second| is_over(3, second, 1)), [false, true]);
        assert_eq!([105, 159, 160].map(|second| is_over(0, second, 1)), [false, false, true]);
        assert!(is_over(0, 101, 2), "the keys were changed");
    }
}
