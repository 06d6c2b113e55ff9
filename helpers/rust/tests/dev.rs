//! The helper against a cluster.

use std::path::Path;

use stave_dev::{Dev, Injection};

#[test]
fn orders_change_the_cluster_and_a_reset_undoes_that() {
    let stave = Dev::options().nodes(2).start().expect("a cluster");
    stave.fail(&Injection::of("get").times(3)).expect("it is done");
    stave.delay(100, &Injection::all().node(2)).expect("it is done");
    let told = stave.status().expect("an answer");
    assert!(told.contains("\"left\":3") && told.contains("\"delay_ms\":100"), "{told}");
    stave.stop(1).expect("it is done");
    stave.reset().expect("it is done");
    let told = stave.status().expect("an answer");
    assert!(!told.contains("\"left\"") && !told.contains("\"may_serve\":false"), "{told}");
    stave.freeze(2).expect("it is done");
    stave.thaw(2).expect("it is done");
    stave.restart(2).expect("it is done");
    stave.heal().expect("it is done");
    stave.advance_clock(60).expect("it is done");
    let refused = stave.kill(9).expect_err("there is none").to_string();
    assert!(refused.contains("404: {\"message\":\"there is no node 9"), "{refused}");
}

#[test]
fn the_seed_file_is_loaded_or_refused() {
    let seed = std::env::temp_dir().join(format!("stave-seed-{}.json", std::process::id()));
    std::fs::write(&seed, "{\"buckets\": {\"travel\": {\"documents\": {\"a\": 1}}}}").expect("a file");
    let stave = Dev::options().seed_file(&seed).start().expect("a cluster");
    stave.reset().expect("it is done");
    drop(stave);
    std::fs::write(&seed, "{}").expect("a file");
    let refused = Dev::options().seed_file(&seed).start().expect_err("it is wrong").to_string();
    assert!(refused.contains("missing field `buckets` at line 1"), "{refused}");
    std::fs::remove_file(&seed).expect("it is there");
}

#[test]
fn what_does_not_start_says_why() {
    let refused = Dev::options().replicas(5).start().expect_err("it is wrong").to_string();
    assert!(refused.contains("--replicas 5: give a number"), "{refused}");
    let refused = Dev::options().binary("/nowhere/stave").start().expect_err("it is wrong").to_string();
    assert!(refused.contains("/nowhere/stave is not an executable file"), "{refused}");
}

#[test]
fn the_process_ends_with_the_value() {
    let stave = Dev::options().start().expect("a cluster");
    let process = format!("/proc/{}", stave.pid());
    assert!(Path::new(&process).exists());
    drop(stave);
    assert!(!Path::new(&process).exists());
}
