//! How far off the clock is what comes from elsewhere, in stats and in what becomes of it.

use base::{Cas, Datatype, DocKey, RevSeqno, VbId, VersionMeta};
use engine::{Refusal, WithMetaRequest};

use super::World;

/// A document that comes from elsewhere with this CAS.
fn bring(world: &World, key: &str, cas: u64) -> Result<Cas, Refusal> {
    let request = WithMetaRequest {
        key: DocKey::new(key.as_bytes()),
        value: b"foreign",
        datatype: Datatype::RAW,
        meta: VersionMeta { cas: Cas(cas), rev_seqno: RevSeqno(5), ..VersionMeta::default() },
        add: false,
        expected: Cas::ANY,
        force: false,
        regenerate_cas: false,
        late: None,
    };
    let bucket = &world.bucket;
    bucket.documents().apply_with_meta(VbId(1), &request, bucket.now()).map(|mutated| mutated.cas)
}

#[test]
fn drift_is_counted_by_role_and_by_vbucket() {
    let world = World::new();
    let now = world.bucket.now().0;
    let second = 1_000_000_000;
    bring(&world, "near", now).expect("it is taken");
    bring(&world, "ahead", now + 6 * second).expect("it is taken");
    bring(&world, "behind", now - 7 * second).expect("it is taken");
    bring(&world, "also", now - 4 * second).expect("it is taken");
    let stats = world.stats("");
    for (name, value) in [
        ("ep_active_hlc_drift_count", "4"),
        ("ep_active_ahead_exceptions", "1"),
        ("ep_active_behind_exceptions", "1"),
        ("ep_replica_hlc_drift_count", "0"),
        ("ep_clock_cas_drift_threshold_exceeded", "1"),
    ] {
        assert_eq!(stats[name], value, "{name}");
    }
    let drift: u64 = stats["ep_active_hlc_drift"].parse().expect("microseconds");
    assert!((16_990_000..=17_010_000).contains(&drift), "{drift}");
    let of_vb = world.stats("vbucket-details 1");
    for (name, value) in [
        ("total_abs_drift_count", "4"),
        ("drift_ahead_threshold", "5000000000"),
        ("drift_ahead_threshold_exceeded", "1"),
        ("drift_behind_threshold_exceeded", "1"),
        ("logical_clock_ticks", "0"),
    ] {
        assert_eq!(of_vb[&format!("vb_1:{name}")], value, "{name}");
    }
    world.bucket.set_param("hlc_drift_behind_threshold_us", "3000000").expect("it fits");
    bring(&world, "counted", now - 4 * second).expect("it is taken");
    assert_eq!(world.stats("")["ep_active_behind_exceptions"], "2");
    // The clock is ahead of the wall clock, so it counts on.
    world.set("own", 1);
    assert_eq!(world.stats("vbucket-details 1")["vb_1:logical_clock_ticks"], "1");
}

#[test]
fn an_impossible_cas_is_taken_refused_or_replaced_as_the_setting_says() {
    let world = World::new();
    let now = world.bucket.now().0;
    let far = now + 4_000 * 1_000_000_000;
    assert_eq!(bring(&world, "taken", far), Ok(Cas(far)));
    world.bucket.set_param("hlc_invalid_strategy", "error").expect("it fits");
    assert_eq!(bring(&world, "refused", far), Err(Refusal::ImpossibleCas));
    assert_eq!(crate::status_map::status_of(Refusal::ImpossibleCas), protocol::Status::CasValueInvalid);
    world.bucket.set_param("hlc_invalid_strategy", "replace").expect("it fits");
    let replaced = bring(&world, "replaced", far).expect("it is taken");
    assert!(replaced.0 < now + 1_000_000_000, "a CAS of this node: {replaced:?}");
    assert_eq!(bring(&world, "near", now + 1), Ok(Cas(now + 1)), "what is possible is kept");
    world.bucket.set_param("hlc_max_future_threshold_us", "5000000000").expect("it fits");
    assert_eq!(bring(&world, "possible", far), Ok(Cas(far)));
    assert!(world.bucket.set_param("hlc_invalid_strategy", "guess").is_err());
}
