//! How the descriptors of the process are shared: files of documents, KV clients, HTTP clients, and a reserve.
//!
//! The reserve is for what must never fail because clients took everything: the journal's next segment, catalogs and
//! lists, files that are being compacted, connections to other nodes and to etcd, one more client to be turned away.

use base::planted::{self, Bug};

use super::{ConfigError, HttpLimits};

/// More than there are vBuckets in several buckets gains nothing.
const MOST_FILES: usize = 20_000;
/// Files if the configuration does not say, and the limit of descriptors is not known.
const FILES_WITHOUT_LIMIT: usize = 400;
/// KV connections if the configuration does not say.
const MOST_KV: usize = 60_000;
/// KV and HTTP connections below which a node is not worth starting.
const LEAST_CLIENTS: usize = 16;
/// The reserve is an eighth of all, within these bounds.
const RESERVE: std::ops::RangeInclusive<usize> = 64..=1_024;

/// What the configuration says.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asked {
    pub(super) files: Option<usize>,
    pub(super) kv: Option<usize>,
    pub(super) http: Option<usize>,
    pub(super) buckets: usize,
}

/// What each may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) files: usize,
    pub(super) kv: usize,
    pub(super) http: usize,
    /// What is less than was asked for.
    pub(super) lowered: Option<String>,
}

/// Shares `limit` descriptors out. Files go before KV clients: a file that cannot be opened is a document not served.
pub(super) fn share(limit: Option<u64>, asked: &Asked) -> Result<Shares, ConfigError> {
    let http_without_limit = HttpLimits::default().connections;
    let Some(limit) = limit else {
        let files = asked.files.unwrap_or(FILES_WITHOUT_LIMIT);
        let (kv, http) = (asked.kv.unwrap_or(MOST_KV), asked.http.unwrap_or(http_without_limit));
        return Ok(Shares { files, kv, http, lowered: None });
    };
    let all = usize::try_from(limit).unwrap_or(usize::MAX);
    let is_reserved = !planted::is(Bug::NoDescriptorsInReserve);
    let reserve = if is_reserved { (all / 8).clamp(*RESERVE.start(), *RESERVE.end()) } else { 0 };
    let least_files = asked.buckets.saturating_mul(4);
    let http = asked.http.unwrap_or_else(|| (all / 16).clamp(LEAST_CLIENTS, http_without_limit));
    let needed = [http, least_files, LEAST_CLIENTS].into_iter().fold(reserve, usize::saturating_add);
    let Some(spare) = all.checked_sub(needed) else { return Err(ConfigError::Descriptors { limit, needed }) };
    let wanted_files = asked.files.unwrap_or_else(|| (all / 2).min(MOST_FILES));
    let files = wanted_files.min(least_files + spare);
    let room = all - reserve - http - files.max(least_files);
    let kv = asked.kv.unwrap_or(MOST_KV).min(room);
    let lowered = [("max-open-files", asked.files, files), ("max-connections", asked.kv, kv)];
    let lowered: Vec<String> = lowered
        .iter()
        .filter_map(|(name, asked, got)| {
            let asked = asked.filter(|asked| asked > got)?;
            Some(format!("{name} from {asked} to {got}"))
        })
        .collect();
    Ok(Shares { files, kv, http, lowered: (!lowered.is_empty()).then(|| lowered.join(", ")) })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn of(limit: u64, asked: Asked) -> Shares {
        share(Some(limit), &Asked { buckets: 1, ..asked }).expect("enough")
    }

    #[test]
    fn more_than_there_can_be_is_refused() {
        let asked = Asked { http: Some(usize::MAX), ..Asked::default() };
        assert!(matches!(share(Some(1_024), &asked), Err(ConfigError::Descriptors { .. })));
    }

    #[test]
    pub(crate) fn all_shares_and_the_reserve_fit() {
        for limit in [128, 256, 512, 1_024, 4_096, 65_536, 1_048_576, u64::MAX] {
            let shares = of(limit, Asked::default());
            let all = usize::try_from(limit).expect("64 bits");
            let reserve = (all / 8).clamp(64, 1_024);
            assert!(shares.files + shares.kv + shares.http + reserve <= all, "{limit}: {shares:?}");
            assert!(shares.files >= 4 && shares.kv >= 16 && shares.http >= 16, "{limit}: {shares:?}");
            assert_eq!(shares.lowered, None);
        }
        assert_eq!(of(1_024, Asked::default()), Shares { files: 512, kv: 320, http: 64, lowered: None });
        let all = of(1_048_576, Asked::default());
        assert_eq!((all.files, all.kv, all.http), (20_000, 60_000, 1_000));
    }

    #[test]
    fn what_does_not_fit_is_lowered_and_told() {
        let shares = of(4_096, Asked { files: Some(1_000), kv: Some(60_000), ..Asked::default() });
        assert_eq!((shares.files, shares.kv, shares.http), (1_000, 4_096 - 512 - 256 - 1_000, 256));
        assert_eq!(shares.lowered.as_deref(), Some("max-connections from 60000 to 2328"));
        let shares = of(1_024, Asked { files: Some(2_000), kv: Some(100), ..Asked::default() });
        assert_eq!((shares.files, shares.kv), (816, 16));
        let told = "max-open-files from 2000 to 816, max-connections from 100 to 16";
        assert_eq!(shares.lowered.as_deref(), Some(told));
    }

    #[test]
    fn too_few_are_refused() {
        let refused = share(Some(64), &Asked { buckets: 1, ..Asked::default() });
        assert_eq!(refused, Err(ConfigError::Descriptors { limit: 64, needed: 100 }));
        let many = Asked { http: Some(5_000), buckets: 1, ..Asked::default() };
        assert_eq!(share(Some(4_096), &many), Err(ConfigError::Descriptors { limit: 4_096, needed: 5_532 }));
        let unlimited = share(None, &Asked { kv: Some(7), ..Asked::default() });
        assert_eq!(unlimited, Ok(Shares { files: 400, kv: 7, http: 1_000, lowered: None }));
    }
}
