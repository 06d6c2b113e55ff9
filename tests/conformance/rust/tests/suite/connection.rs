//! Bootstrap, authentication, ping and diagnostics.

use couchbase::diagnostics::ConnectionState;
use couchbase::error::ErrorKind;
use couchbase::options::diagnostic_options::{ClusterState, PingOptions, WaitUntilReadyOptions};
use couchbase::results::diagnostics::PingState;
use couchbase::service_type::ServiceType;
use tokio::time::timeout;

use crate::support::*;

#[test]
fn bucket_becomes_ready() {
    run(async |_, _| {
        let options = WaitUntilReadyOptions::new()
            .desired_state(ClusterState::Online)
            .service_types(vec![ServiceType::KV]);
        bucket().wait_until_ready(options).await.unwrap();
    });
}

#[test]
fn a_second_connection_becomes_ready() {
    run(async |_, key| {
        let other = connect(&env("STAVE_USER"), &env("STAVE_PASSWORD")).await.unwrap();
        let bucket = other.bucket(env("STAVE_BUCKET"));
        wait_until_ready(&bucket).await;
        bucket.default_collection().upsert(&key, 1, None).await.unwrap();
    });
}

/// Connecting and writing either fails for the documented reason or is tried again until the caller gives up.
async fn assert_not_authenticated(user: &str, password: &str) {
    let write = async {
        let collection = connect(user, password).await?.bucket(env("STAVE_BUCKET")).default_collection();
        collection.upsert(new_key(), 1, None).await
    };
    match timeout(SHORT * 5, write).await {
        Err(_elapsed) => {}
        Ok(result) => refused(result, ErrorKind::AuthenticationFailure),
    }
}

#[test]
fn wrong_password() {
    run(async |_, _| assert_not_authenticated(&env("STAVE_USER"), "not the password").await);
}

#[test]
fn unknown_user() {
    run(async |_, _| assert_not_authenticated("nobody", &env("STAVE_PASSWORD")).await);
}

#[test]
fn unknown_bucket() {
    run(async |_, key| {
        let absent = cluster().bucket("no-such-bucket").default_collection();
        // The SDK goes on trying until the caller gives up.
        match timeout(SHORT, absent.upsert(&key, 1, None)).await {
            Err(_elapsed) => {}
            Ok(result) => refused(result, ErrorKind::BucketNotFound),
        }
    });
}

#[test]
fn ping_reaches_the_key_value_service() {
    run(async |_, _| {
        let options = PingOptions::new().service_types(vec![ServiceType::KV]);
        let report = bucket().ping(options).await.unwrap();
        let endpoints = &report.services[&ServiceType::KV];
        assert!(!endpoints.is_empty());
        for endpoint in endpoints {
            assert_eq!(endpoint.state, PingState::Ok, "{:?}", endpoint.error);
            assert!(!endpoint.latency.is_zero());
        }
    });
}

#[test]
fn diagnostics_lists_connected_endpoints() {
    run(async |collection, key| {
        collection.upsert(&key, 1, None).await.unwrap();
        let report = cluster().diagnostics(None).await.unwrap();
        let endpoints = &report.services[&ServiceType::KV];
        assert!(endpoints.iter().any(|endpoint| endpoint.state == ConnectionState::Connected));
    });
}
