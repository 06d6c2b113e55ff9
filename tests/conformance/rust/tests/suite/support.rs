//! One connection for the whole run, a fresh key for every test, and small things that tests share.

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use couchbase::authenticator::{Authenticator, PasswordAuthenticator};
use couchbase::bucket::Bucket;
use couchbase::cluster::Cluster;
use couchbase::collection::Collection;
use couchbase::error::{Error, ErrorKind};
use couchbase::options::cluster_options::{ClusterOptions, TlsOptions};
use couchbase::options::diagnostic_options::WaitUntilReadyOptions;
use couchbase::options::kv_options::GetOptions;
use couchbase::retry::{RetryAction, RetryReason, RetryRequest, RetryStrategy};
use couchbase::service_type::ServiceType;
use couchbase::transcoding;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::{Instant, interval, timeout};

pub const MIB: usize = 1024 * 1024;

/// An operation that the SDK retries for ever is given this much.
pub const SHORT: Duration = Duration::from_millis(400);

/// No test may take longer: the SDK itself has no timeout for an operation.
const TEST_DEADLINE: Duration = Duration::from_secs(60);

/// How long a document with an expiry of one second may take to be gone.
pub const EXPIRY_DEADLINE: Duration = Duration::from_secs(10);

pub const HUNDRED: Duration = Duration::from_secs(100);

pub type SdkResult<T> = Result<T, Error>;

struct Shared {
    runtime: Runtime,
    cluster: Cluster,
}

static SHARED: LazyLock<Shared> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("a runtime");
    let cluster = runtime.block_on(async {
        let cluster = connect(&env("STAVE_USER"), &env("STAVE_PASSWORD")).await.expect("a connection");
        wait_until_ready(&cluster.bucket(env("STAVE_BUCKET"))).await;
        cluster
    });
    Shared { runtime, cluster }
});

/// A missing variable is an error, not a skipped test.
pub fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run tests/conformance/run.sh"))
}

/// With TLS, if the node's CA is given.
pub async fn connect(user: &str, password: &str) -> SdkResult<Cluster> {
    let login = PasswordAuthenticator::new(user, password).into();
    connect_as(&env("STAVE_CONN"), std::env::var("STAVE_CA").ok().as_deref(), login).await
}

/// Connects to `conn`, trusting the CA of this file.
pub async fn connect_as(conn: &str, ca: Option<&str>, login: Authenticator) -> SdkResult<Cluster> {
    let mut options = ClusterOptions::new(login);
    if let Some(ca) = ca {
        let ca = CertificateDer::from_pem_file(ca).expect("a certificate");
        options = options.tls_options(TlsOptions::new().add_ca_certificate(ca));
    }
    Cluster::connect(conn, options).await
}

pub async fn wait_until_ready(bucket: &Bucket) {
    let options = WaitUntilReadyOptions::new().service_types(vec![ServiceType::KV]);
    timeout(EXPIRY_DEADLINE, bucket.wait_until_ready(options)).await.expect("ready in time").expect("ready");
}

pub fn cluster() -> &'static Cluster {
    &SHARED.cluster
}

pub fn bucket() -> Bucket {
    cluster().bucket(env("STAVE_BUCKET"))
}

/// Runs one test on the shared connection, with a key of its own.
pub fn run(test: impl AsyncFnOnce(Collection, String)) {
    let shared = &*SHARED;
    shared.runtime.block_on(async {
        timeout(TEST_DEADLINE, test(bucket().default_collection(), new_key())).await.expect("the test hangs");
    });
}

/// A key no other test and no earlier run on the same server has used.
pub fn new_key() -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("test");
    let unique = RandomState::new().hash_one(name);
    format!("rs:{name}:{unique:016x}")
}

/// The operation fails with exactly this kind of error.
#[track_caller]
pub fn refused<T: Debug>(result: SdkResult<T>, kind: ErrorKind) {
    let error = result.expect_err("the operation should fail");
    assert_eq!(*error.kind(), kind, "{error}");
}

#[track_caller]
pub fn refused_as_invalid_argument<T: Debug>(result: SdkResult<T>) {
    let error = result.expect_err("the operation should fail");
    assert!(matches!(error.kind(), ErrorKind::InvalidArgument(_)), "{error}");
}

/// Gives the reason of the first failure instead of trying again.
#[derive(Debug)]
struct FailFast;

impl RetryStrategy for FailFast {
    fn retry_after(&self, _: &RetryRequest, _: &RetryReason) -> Option<RetryAction> {
        None
    }
}

pub fn fail_fast() -> Arc<dyn RetryStrategy> {
    Arc::new(FailFast)
}

pub async fn content(collection: &Collection, key: &str) -> Value {
    collection.get(key, None).await.unwrap().content_as().unwrap()
}

/// Of a key without even a tombstone this SDK's `exists` says "not found" instead of false.
pub async fn exists(collection: &Collection, key: &str) -> bool {
    match collection.exists(key, None).await {
        Err(error) if *error.kind() == ErrorKind::DocumentNotFound => false,
        result => result.unwrap().exists(),
    }
}

pub async fn store_raw(collection: &Collection, key: &str, value: &[u8]) -> SdkResult<u64> {
    let (value, flags) = transcoding::raw_binary::encode(value)?;
    Ok(collection.upsert_raw(key, value, flags, None).await?.cas())
}

pub async fn load_raw(collection: &Collection, key: &str) -> Vec<u8> {
    let result = collection.get(key, None).await.unwrap();
    let (value, flags) = result.content_as_raw();
    transcoding::raw_binary::decode(value, flags).unwrap().to_vec()
}

/// Seconds since the epoch, or 0 for a document without an expiry.
pub async fn stored_expiry(collection: &Collection, key: &str) -> i64 {
    let result = collection.get(key, GetOptions::new().expiry(true)).await.unwrap();
    result.expiry_time().map_or(0, |at| at.timestamp())
}

pub async fn assert_expires_in(collection: &Collection, key: &str, expected: Duration) {
    let at_s = stored_expiry(collection, key).await;
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
    let (left_s, expected_s) = (at_s - now_s, expected.as_secs() as i64);
    assert!((expected_s - 4..=expected_s + 2).contains(&left_s), "{left_s} s left of {expected_s} s");
}

/// Polls, so that the test lasts as long as the expiry does and no longer.
pub async fn wait_until_gone(collection: &Collection, key: &str) {
    let deadline = Instant::now() + EXPIRY_DEADLINE;
    let mut ticks = interval(Duration::from_millis(20));
    while Instant::now() < deadline {
        match collection.get(key, None).await {
            Err(error) if *error.kind() == ErrorKind::DocumentNotFound => return,
            result => drop(result.unwrap()),
        }
        ticks.tick().await;
    }
    panic!("{key} is still there {EXPIRY_DEADLINE:?} after it should have expired");
}

/// Bytes that Snappy cannot make smaller (xorshift).
pub fn incompressible(size: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.flatten().take(size).collect()
}

/// Castagnoli's CRC, bit by bit: slow, short, and independent of the server's.
pub fn crc32c(data: &[u8]) -> u64 {
    let mut crc = u32::MAX;
    for byte in data {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    u64::from(!crc)
}
