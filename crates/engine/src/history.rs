//! The history of changes: how much of it the bucket keeps, as its settings say.

use base::VbId;
use kvstore::HistoryRetention;
use vbucket::follow_history;

use crate::bucket_core::Core;
use crate::settings::{Changed, Key, SettingError, Settings, is_of_history};
use crate::shard_guard::Holder;

/// What to do if the store did not take a change.
const NOT_TAKEN: &str = "the store could not begin or end its history, see the log of the node; try again";

/// How much history of each vBucket settings ask for.
pub fn history_retention(settings: &Settings, vbuckets: u16) -> HistoryRetention {
    let bytes = settings.get(Key::HistoryBytes).div_ceil(u64::from(vbuckets.max(1)));
    HistoryRetention { seconds: settings.get(Key::HistorySeconds), bytes }
}

impl Core {
    /// Has vBuckets and store keep as much history as the settings say. If the store refuses, all goes on as before.
    fn follow_history_settings(&self) -> Result<(), kvstore::Failure> {
        let mut present = self.history.lock();
        let wanted = history_retention(&self.settings, self.vbuckets());
        if *present == wanted {
            return Ok(());
        }
        // No version is left out any more when the store begins; one that lacks versions never counts as the beginning.
        let_follow(self, wanted.is_on());
        if let Err(failure) = self.store.keep_history(wanted) {
            let_follow(self, present.is_on());
            return Err(failure);
        }
        *present = wanted;
        Ok(())
    }

    /// Follows settings that were changed, or changes them back.
    pub(crate) fn follow_history(&self, changed: &[Changed]) -> Result<(), Vec<SettingError>> {
        let Some(one) = changed.iter().find(|one| is_of_history(one.setting.key)) else { return Ok(()) };
        let Err(failure) = self.follow_history_settings() else { return Ok(()) };
        if let Some(left_out) = self.failure_log.admit_of_user("history_not_changed") {
            tracing::error!(
                event = "history_not_changed", bucket = self.name(), %failure, left_out,
                "how much history is kept could not be changed"
            );
        }
        for Changed { setting, old, .. } in changed.iter().rev() {
            if let Ok(value) = setting.parse(old) {
                self.settings.put(setting.key, value);
            }
        }
        Err(vec![SettingError::Conflict { name: one.setting.name, value: one.new.clone(), why: NOT_TAKEN }])
    }
}

fn let_follow(core: &Core, keeps: bool) {
    core.context.keep_history(keeps);
    for vb in (0..core.vbuckets()).map(VbId) {
        follow_history(&mut core.vbuckets.hold(vb, Holder::Roles).vb);
    }
}
