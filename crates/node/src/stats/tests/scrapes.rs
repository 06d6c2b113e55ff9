//! Counters of `/metrics` and of the main group never go down while the process lives (Prometheus documentation, Metric
//! types), whatever becomes of the vBuckets and collections that were counted.

use base::{CollectionId, Seqno};
use vbucket::Manifest;

use super::*;

/// Each series that is told as a counter, parts of histograms among them.
fn counters(world: &World) -> BTreeMap<String, f64> {
    let mut text = String::new();
    metrics::render(&world.node, &mut text);
    let typed = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let types: BTreeMap<&str, &str> = typed.collect();
    let is_gauge = |series: &str| {
        let name = series.split('{').next().unwrap_or_default();
        // The field's figures of vBuckets by state are gauges whose names Prometheus would not have for such.
        let is_of_states = name == "kv_ep_vb_total" || name.starts_with("kv_vb_");
        // So are sums of connections that are there, and these.
        let others = ["kv_collection_item_count", "kv_ep_hlc_drift_count"];
        let is_field_s = name.starts_with("kv_dcp_") || others.contains(&name);
        types.get(name) == Some(&"gauge") || is_of_states || is_field_s
    };
    let mut samples = parse_metrics(&text);
    samples.retain(|series, _| !is_gauge(series));
    samples
}

/// What the main group counts of the disk queue.
fn queue(world: &World) -> [u64; 5] {
    let stats = world.stats("");
    let names =
        ["ep_diskqueue_fill", "ep_diskqueue_drain", "ep_total_enqueued", "ep_total_deduplicated", "cmd_set"];
    names.map(|name| stats[name].parse().expect("a number"))
}

impl World {
    /// Documents that are read, changed and deleted in a vBucket, in both collections; some of it is on disk.
    fn work(&self, vb: u16) {
        let now = self.bucket.now();
        for collection in [CollectionId::DEFAULT, CollectionId(8)] {
            for name in ["a", "b", "a"] {
                let key = DocKey { collection, key: name.as_bytes() };
                self.bucket
                    .documents()
                    .store(VbId(vb), &StoreRequest { key, ..request(name) }, now)
                    .expect("there is room");
                assert!(self.bucket.documents().get(VbId(vb), key, now).is_ok());
            }
            let b = DocKey { collection, key: b"b" };
            self.bucket.documents().delete(VbId(vb), b, Cas::ANY, now).expect("it is there");
            assert!(self.bucket.documents().get(VbId(vb), b, now).is_err());
            if collection == CollectionId::DEFAULT {
                assert!(self.bucket.flushing().flush_all());
            }
        }
    }

    fn declare(&self, collections: &str) {
        let uid = if collections.is_empty() { 2 } else { 1 };
        let default = r#"{"name":"_default","uid":"0"}"#;
        let json = format!(
            r#"{{"uid":"{uid}","scopes":[{{"name":"_default","uid":"0","collections":[{default}{collections}]}}]}}"#
        );
        let manifest = Manifest::parse(json.as_bytes()).expect("a manifest");
        self.bucket.collections().set_manifest(manifest).expect("a successor");
    }
}

#[test]
fn no_counter_goes_down() {
    let world = World::new();
    world.declare(r#",{"name":"c","uid":"8"}"#);
    (0..4).for_each(|vb| world.work(vb));
    let (bucket, replica) = (&world.bucket, |vb| {
        world.bucket.roles().set_vbucket_state(VbId(vb), VbState::Replica, None).expect("it is there");
    });
    let steps: [(&str, &dyn Fn()); 7] = [
        ("flush", &|| assert!(bucket.flushing().flush_all())),
        ("changes", &|| world.work(1)),
        ("rollback", &|| {
            replica(1);
            bucket.roles().rollback(VbId(1), Seqno(3)).expect("a replica").expect("the disk works");
        }),
        ("deletion of a vBucket", &|| {
            world.work(2);
            bucket.roles().set_vbucket_state(VbId(2), VbState::Dead, None).expect("it is there");
            assert!(matches!(bucket.roles().delete_vbucket(VbId(2)), Ok(Ok(()))));
        }),
        ("the vBucket again", &|| {
            bucket.roles().set_vbucket_state(VbId(2), VbState::Active, None).expect("it is made");
            world.work(2);
        }),
        ("removing all documents", &|| {
            world.work(3);
            bucket.roles().remove_all_documents().expect("the disk works");
        }),
        ("dropping a collection", &|| world.declare("")),
    ];
    for (step, act) in steps {
        let (before, queued) = (counters(&world), queue(&world));
        act();
        let (after, queued_after) = (counters(&world), queue(&world));
        for (series, value) in &before {
            match after.get(series) {
                Some(now) => assert!(now >= value, "{step}: {series} was {value} and is {now}"),
                None => assert!(series.contains("collection=\"c\""), "{step}: {series} is gone"),
            }
        }
        let fell = queued.iter().zip(queued_after).any(|(before, after)| *before > after);
        assert!(!fell, "{step}: {queued:?}, then {queued_after:?}");
    }
    // That the comparison sees what is counted.
    let all = counters(&world);
    let of = |series: &str| all[series];
    assert_eq!(of("stave_ops_total{bucket=\"travel\",op=\"store\"}"), 48.0);
    assert_eq!(of("kv_ep_rollback_count{bucket=\"travel\"}"), 1.0);
}
