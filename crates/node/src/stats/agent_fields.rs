//! THE table of what `/pools/default/buckets/BUCKET/stats` tells monitoring agents: the field's names, and how each is made
//! of figures that nodes keep (`stats::monitored`).
//!
//! Figures of several nodes are added before anything is computed from them: ratios and averages are those of all nodes
//! together.

use std::collections::HashMap;

/// How a field is made.
#[derive(Clone, Copy, Debug)]
enum FieldMade {
    /// As it is kept, or under another name: the sum of figures.
    Sum(&'static [&'static str]),
    /// A share of the sum, times a factor; the last one if there is nothing to have a share of.
    Share { part: &'static [&'static str], whole: &'static [&'static str], times: f64, empty: f64 },
    /// What is left, times a factor, of the second without the first.
    Rest { without: &'static [&'static str], whole: &'static [&'static str], times: f64, empty: f64 },
    /// There is none of this here, so 0 is the truth.
    Nothing,
}

use FieldMade::{Nothing, Rest, Share, Sum};

const GETS: &[&str] = &["get_hits", "get_misses"];
const OPS: &[&str] = &["get_hits", "get_misses", "cmd_set", "delete_hits"];
const MISSES: &[&str] = &["get_misses", "delete_misses", "incr_misses", "decr_misses", "cas_misses"];
const XDC: &[&str] = &["ep_num_ops_get_meta", "ep_num_ops_set_meta", "ep_num_ops_del_meta"];
const QUEUES: &[&str] = &["vb_active_queue_size", "vb_replica_queue_size", "vb_pending_queue_size"];
const AGES: &[&str] = &["vb_active_queue_age", "vb_replica_queue_age", "vb_pending_queue_age"];
const CPU: &[&str] = &["cpu_local_ms"];

const fn percent(part: &'static [&'static str], whole: &'static [&'static str]) -> FieldMade {
    Share { part, whole, times: 100.0, empty: 0.0 }
}

/// An average: the sum of something by how many there were, in units of which `per` are one of those told.
const fn mean(sum: &'static [&'static str], count: &'static [&'static str], per: f64) -> FieldMade {
    Share { part: sum, whole: count, times: 1.0 / per, empty: 0.0 }
}

/// How many of a hundred documents have their value in memory; all of them where there are none.
const fn resident(without: &'static [&'static str], whole: &'static [&'static str]) -> FieldMade {
    Rest { without, whole, times: 100.0, empty: 100.0 }
}

/// Fields that are not kept under their own name.
const COMPUTED: &[(&str, FieldMade)] = &[
    ("cmd_get", Sum(GETS)),
    ("cmd_lookup", Sum(GETS)),
    ("ops", Sum(OPS)),
    ("misses", Sum(MISSES)),
    ("xdc_ops", Sum(XDC)),
    ("hit_ratio", percent(&["get_hits"], GETS)),
    ("ep_cache_miss_rate", percent(&["ep_bg_fetched"], GETS)),
    ("ep_cache_miss_ratio", percent(&["ep_bg_fetched"], GETS)),
    ("evictions", Sum(&["ep_num_value_ejects"])),
    ("ep_resident_items_rate", resident(&["ep_num_non_resident"], &["curr_items_tot"])),
    ("vb_active_resident_items_ratio", resident(&["vb_active_num_non_resident"], &["vb_active_curr_items"])),
    (
        "vb_replica_resident_items_ratio",
        resident(&["vb_replica_num_non_resident"], &["vb_replica_curr_items"]),
    ),
    (
        "vb_pending_resident_items_ratio",
        resident(&["vb_pending_num_non_resident"], &["vb_pending_curr_items"]),
    ),
    ("ep_ops_create", Sum(&["vb_active_ops_create", "vb_replica_ops_create", "vb_pending_ops_create"])),
    ("ep_ops_update", Sum(&["vb_active_ops_update", "vb_replica_ops_update", "vb_pending_ops_update"])),
    ("disk_write_queue", Sum(&["ep_queue_size"])),
    ("ep_diskqueue_items", Sum(&["ep_queue_size"])),
    ("vb_active_queue_items", Sum(&["vb_active_queue_size"])),
    ("vb_total_queue_age", Sum(AGES)),
    ("vb_avg_active_queue_age", mean(&["vb_active_queue_age"], &["vb_active_queue_size"], 1e3)),
    ("vb_avg_replica_queue_age", mean(&["vb_replica_queue_age"], &["vb_replica_queue_size"], 1e3)),
    ("vb_avg_pending_queue_age", mean(&["vb_pending_queue_age"], &["vb_pending_queue_size"], 1e3)),
    ("vb_avg_total_queue_age", mean(AGES, QUEUES, 1e3)),
    ("avg_disk_commit_time", mean(&["disk_commit_total"], &["disk_commit_count"], 1e6)),
    ("avg_disk_update_time", mean(&["disk_update_total"], &["disk_update_count"], 1.0)),
    ("avg_bg_wait_time", mean(&["bg_wait_total"], &["bg_wait_count"], 1.0)),
    ("avg_active_timestamp_drift", mean(&["ep_active_hlc_drift"], &["ep_active_hlc_drift_count"], 1e6)),
    ("avg_replica_timestamp_drift", mean(&["ep_replica_hlc_drift"], &["ep_replica_hlc_drift_count"], 1e6)),
    (
        "ep_clock_cas_drift_threshold_exceeded",
        Sum(&["ep_active_ahead_exceptions", "ep_replica_ahead_exceptions"]),
    ),
    ("couch_total_disk_size", Sum(&["couch_docs_actual_disk_size"])),
    ("couch_docs_disk_size", Sum(&["couch_docs_actual_disk_size"])),
    (
        "couch_docs_fragmentation",
        Rest {
            without: &["couch_docs_data_size"],
            whole: &["couch_docs_actual_disk_size"],
            times: 100.0,
            empty: 0.0,
        },
    ),
    ("ep_dcp_views+indexes_count", Sum(&["ep_dcp_views_count", "ep_dcp_2i_count"])),
    (
        "ep_dcp_views+indexes_producer_count",
        Sum(&["ep_dcp_views_producer_count", "ep_dcp_2i_producer_count"]),
    ),
    (
        "ep_dcp_views+indexes_items_remaining",
        Sum(&["ep_dcp_views_items_remaining", "ep_dcp_2i_items_remaining"]),
    ),
    (
        "ep_dcp_views+indexes_total_backlog_size",
        Sum(&["ep_dcp_views_total_backlog_size", "ep_dcp_2i_total_backlog_size"]),
    ),
    ("ep_dcp_views+indexes_items_sent", Sum(&["ep_dcp_views_items_sent", "ep_dcp_2i_items_sent"])),
    ("ep_dcp_views+indexes_total_bytes", Sum(&["ep_dcp_views_total_bytes", "ep_dcp_2i_total_bytes"])),
    ("ep_dcp_views+indexes_backoff", Sum(&["ep_dcp_views_backoff", "ep_dcp_2i_backoff"])),
    (
        "ep_dcp_total_bytes",
        Sum(&[
            "ep_dcp_replica_total_bytes",
            "ep_dcp_xdcr_total_bytes",
            "ep_dcp_views_total_bytes",
            "ep_dcp_2i_total_bytes",
            "ep_dcp_fts_total_bytes",
            "ep_dcp_cbas_total_bytes",
            "ep_dcp_eventing_total_bytes",
            "ep_dcp_other_total_bytes",
        ]),
    ),
    ("mem_free", Sum(&["mem_actual_free"])),
    ("cpu_utilization_rate", Rest { without: &["cpu_idle_ms"], whole: CPU, times: 100.0, empty: 0.0 }),
    ("cpu_user_rate", percent(&["cpu_user_ms"], CPU)),
    ("cpu_sys_rate", percent(&["cpu_sys_ms"], CPU)),
    ("cpu_irq_rate", percent(&["cpu_irq_ms"], CPU)),
    ("cpu_stolen_rate", percent(&["cpu_stolen_ms"], CPU)),
];

/// What is not here, and of which there are 0: views, indexes of places, metering of hosted clusters; HTTP streams are never
/// hibernated; what the flusher works on counts as queued.
const NONE_HERE: [&str; 12] = [
    "couch_views_actual_disk_size",
    "couch_views_data_size",
    "couch_views_disk_size",
    "couch_views_fragmentation",
    "couch_views_ops",
    "couch_spatial_data_size",
    "couch_spatial_disk_size",
    "couch_spatial_ops",
    "ep_flusher_todo",
    "hibernated_requests",
    "hibernated_waked",
    "odp_report_failed",
];

/// Figures that are kept for others alone.
const PARTS: [&str; 9] = [
    "cpu_user_ms",
    "cpu_sys_ms",
    "cpu_irq_ms",
    "cpu_stolen_ms",
    "vb_active_curr_items",
    "lock_errors",
    "ep_num_not_my_vbuckets",
    "ep_num_ops_set_meta_res_fail",
    "ep_num_ops_del_meta_res_fail",
];

/// Figures by name, at one time.
pub type FiguresByName<'a> = HashMap<&'a str, f64>;

/// Every field that can be made of these figures, with its value.
pub fn of_figures(figures: &FiguresByName<'_>) -> Vec<(String, f64)> {
    let kept = figures.iter().filter(|(name, _)| !PARTS.contains(name));
    let kept = kept.map(|(name, figure)| ((*name).to_owned(), *figure));
    let none = NONE_HERE.iter().map(|name| ((*name).to_owned(), Nothing));
    let computed = COMPUTED.iter().map(|(name, made)| ((*name).to_owned(), *made)).chain(none);
    let computed = computed.filter_map(|(name, made)| Some((name, made.of(figures)?)));
    kept.chain(computed).collect()
}

impl FieldMade {
    /// `None` if one of the figures is not there.
    fn of(self, figures: &FiguresByName<'_>) -> Option<f64> {
        let sum = |names: &[&str]| names.iter().map(|name| figures.get(name).copied()).sum::<Option<f64>>();
        let share =
            |part: f64, whole: f64, times, empty| if whole > 0.0 { part * times / whole } else { empty };
        match self {
            Sum(names) => sum(names),
            Share { part, whole, times, empty } => Some(share(sum(part)?, sum(whole)?, times, empty)),
            Rest { without, whole, times, empty } => {
                let whole = sum(whole)?;
                Some(share((whole - sum(without)?).max(0.0), whole, times, empty))
            }
            Nothing => Some(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A figure that does not exist would leave its field out without a word.
    #[test]
    fn every_field_is_made_of_figures_that_are_kept() {
        let mut names: Vec<String> = super::super::monitored::names().into_iter().map(|of| of.name).collect();
        names.extend(AGES.iter().map(|name| (*name).to_owned()));
        let figures: FiguresByName<'_> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
        let fields = of_figures(&figures);
        let has = |wanted: &str| fields.iter().filter(|(name, _)| name == wanted).count() == 1;
        for name in COMPUTED.iter().map(|(name, _)| *name).chain(NONE_HERE) {
            assert!(has(name), "{name}");
        }
        assert!(PARTS.iter().all(|name| figures.contains_key(name) && !has(name)));
    }

    #[test]
    fn ratios_are_of_all_nodes_together() {
        let figures = FiguresByName::from([
            ("get_hits", 30.0),
            ("get_misses", 10.0),
            ("ep_bg_fetched", 2.0),
            ("curr_items_tot", 0.0),
            ("ep_num_non_resident", 0.0),
            ("disk_commit_total", 5_000_000.0),
            ("disk_commit_count", 10.0),
            ("cpu_local_ms", 400.0),
            ("cpu_idle_ms", 100.0),
        ]);
        let fields: HashMap<String, f64> = of_figures(&figures).into_iter().collect();
        assert_eq!((fields["cmd_get"], fields["hit_ratio"], fields["ep_cache_miss_rate"]), (40.0, 75.0, 5.0));
        assert_eq!(fields["ep_resident_items_rate"], 100.0, "there are none");
        assert_eq!(fields["avg_disk_commit_time"], 0.5, "in seconds");
        assert_eq!(fields["cpu_utilization_rate"], 75.0);
        assert!(!fields.contains_key("ops"), "what was stored is not known");
    }
}
