//! A whole node in the test's own process, on ports that the system chose.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base::VbId;
use base::env::Env;
use node::{Config, Settings};
use server::Server;

use crate::backup::{ChainReader, Repository, TakeOptions, Version, take};
use crate::cli::profile::ProfileFlags;
use crate::cli::{NodeFlags, WaitFlags};
use crate::client::{Client, ClientTlsFlags, Dialect, HttpTarget, Target};
use crate::commands::password::PasswordFlags;
use crate::commands::restore::collection_names;

/// The bucket that is there from the start.
pub const BUCKET: &str = "default";
/// Never told to end.
pub static NOT_INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// A node with few vBuckets, in a folder of its own.
pub struct TestServer {
    server: Option<Server>,
    folder: tempfile::TempDir,
}

impl TestServer {
    pub fn start() -> TestServer {
        let folder = tempfile::tempdir().expect("a folder");
        let mut server = TestServer { server: None, folder };
        server.start_again();
        server
    }

    fn start_again(&mut self) {
        let settings =
            "kv = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\npassword = \"password\"\nvbuckets = 4\n";
        let settings = Settings::parse(settings).expect("valid settings");
        let folder = self.folder.path().to_owned();
        let config = Config::new(settings, folder, 2, String::new).expect("a valid configuration");
        self.server = Some(server::serve(config, Env::real()).expect("the node starts"));
    }

    /// Stops it and starts it again in the same folder, at another port.
    pub fn restart(&mut self) {
        self.stop();
        self.start_again();
    }

    pub fn stop(&mut self) {
        self.server.take().map(Server::stop).transpose().expect("a clean stop");
    }

    /// Its bucket, whose vBuckets a test may give replicas that are not there.
    pub fn bucket(&self) -> std::sync::Arc<engine::Bucket> {
        self.server.as_ref().expect("it runs").node().bucket(BUCKET).expect("it is served")
    }

    /// What the commands are given to find it.
    pub fn flags(&self) -> NodeFlags {
        let server = self.server.as_ref().expect("it runs");
        NodeFlags {
            addr: server.kv_addr().to_string(),
            username: "Administrator".to_owned(),
            password: PasswordFlags::of("password"),
            profile: ProfileFlags::default(),
            wait: WaitFlags { timeout: Duration::from_secs(10) },
            tls: ClientTlsFlags::default(),
        }
    }

    /// Where it is asked over HTTP.
    pub fn http_addr(&self) -> String {
        self.server.as_ref().expect("it runs").http_addr().to_string()
    }

    /// How the administrator asks it over HTTP.
    pub fn http_target(&self) -> HttpTarget {
        self.target().over_http(self.http_addr())
    }

    pub fn target(&self) -> Target {
        self.flags().target(BUCKET, Dialect::Couchbase).expect("a password")
    }

    pub fn client(&self) -> Client {
        Client::open(&Env::real(), &self.target()).expect("the node lets us in")
    }
}

/// By collection and key: deleted, CAS, revision, expiry, flags, datatype, value.
pub type Contents = BTreeMap<(String, Vec<u8>), (bool, u64, u64, u32, u32, u8, Vec<u8>)>;

/// Everything that a server holds.
pub fn contents(server: &TestServer) -> Contents {
    let (env, folder) = (Env::real(), tempfile::tempdir().expect("a folder"));
    let repository = Repository::new(&env, folder.path());
    let options = TakeOptions::default();
    let taken = take(&env, &server.target(), &repository, &options, &NOT_INTERRUPTED, &mut |_| {});
    let manifest = taken.expect("a backup").manifest;
    let named = collection_names(&manifest.collections);
    let chain = repository.chain(BUCKET, None).expect("a backup");
    let mut reader = ChainReader::open(&repository, &chain).expect("sound");
    let mut all = Contents::new();
    for vb in 0..manifest.vbuckets {
        let visit = &mut |version: &Version<'_>| -> anyhow::Result<()> {
            let one = &version.record;
            let expiry = if one.deleted { 0 } else { one.expiry };
            let what =
                (one.deleted, one.cas, one.rev_seqno, expiry, one.flags, one.datatype.0, one.value.to_vec());
            let collection = named[&one.key.collection.0].path();
            all.insert((collection, one.key.key.to_vec()), what);
            Ok(())
        };
        reader.newest(VbId(vb), visit).expect("read");
    }
    all
}

/// The keys in which two servers differ.
pub fn differences(from: &TestServer, to: &TestServer) -> Vec<String> {
    let (there, here) = (contents(from), contents(to));
    let keys: BTreeSet<_> = there.keys().chain(here.keys()).collect();
    keys.into_iter().filter(|key| there.get(*key) != here.get(*key)).map(|key| format!("{key:?}")).collect()
}
