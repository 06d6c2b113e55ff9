//! What a node is started with: a TOML file under what the command line says, checked before anything is opened.

mod addresses;
mod audit;
mod bucket;
mod client_names;
mod compaction;
pub(crate) mod descriptors;
mod error;
mod hashing;
mod http_limits;
mod listening;
mod log;
mod metrics_login;
mod settings;
mod switch;
mod tls;
mod tls_words;
mod traces;
mod users;

use std::net::SocketAddr;
use std::path::PathBuf;

use ::cluster::state::Alternate;
use base::encryption::WrappingKeys;
use bucket::parse_size;
use descriptors::Asked;

use crate::alternate::is_host;
use crate::connection_memory::LEAST_LIMIT_BYTES;
use crate::log_levels::LogLevels;
use crate::password_policy::PasswordPolicy;
use crate::recent_log::RecentLog;
use crate::sasl::hash::Hashing;
use crate::sasl::offer::SaslOffer;
use crate::slow::limits::SlowLimit;
use crate::user_names::can_log_in;

pub use audit::AuditTable;
pub use bucket::{BucketSpec, BucketTable, DEFAULT_QUOTA_BYTES, Hints, MOST_REPLICAS};
pub use client_names::{CertificateField, ClientAuth, ClientNameRule};
pub use compaction::CompactionRules;
pub use error::ConfigError;
pub use http_limits::HttpLimits;
pub use listening::{Listening, shown};
pub use log::{LogConfig, LogFile, LogFormat};
pub use metrics_login::MetricsLogin;
pub use settings::Settings;
pub use switch::Switch;
pub use tls::TlsConfig;
pub use tls_words::{ClusterEncryption, TlsVersion};
pub use traces::TraceEndpoint;
pub use users::{Role, UserSpec};

/// Bounds that protect the node from its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// KV connections at the same time.
    pub connections: usize,
    /// Of these, from one address (of IPv6: from one network of 64 bits); `None`: as many as there may be.
    pub connections_per_address: Option<usize>,
    /// From accept to logged in, in seconds.
    pub login_timeout_s: u64,
    /// From the first byte of a frame to its last, in seconds; large frames get longer.
    pub frame_timeout_s: u64,
    /// Without taking a byte of what was sent, in seconds.
    pub write_timeout_s: u64,
    /// Answers that may wait for a slow reader before no more requests are read, in bytes.
    pub pending_output_bytes: usize,
    /// What all connections may hold together; nothing: it follows the quotas of the buckets.
    pub memory_bytes: Option<u64>,
    /// HTTP.
    pub http: HttpLimits,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            connections: 60_000,
            connections_per_address: None,
            login_timeout_s: 30,
            frame_timeout_s: 60,
            write_timeout_s: 60,
            pending_output_bytes: 4 << 20,
            memory_bytes: None,
            http: HttpLimits::default(),
        }
    }
}

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct Config {
    /// Whether a cluster decides what this node serves: until it does, it serves nothing, and the buckets named here
    /// are not opened.
    pub is_member: bool,
    /// Whether the folder of data is made that of a node that never was in a cluster, with the copies that it has.
    pub leaves_cluster: bool,
    /// So many seconds the files of a bucket that the cluster deleted are kept.
    pub quarantine_s: u64,
    /// Where the data are.
    pub data_dir: PathBuf,
    /// Address for clients: the first one, if it is not off.
    pub kv_addr: SocketAddr,
    /// Address for HTTP: the first one, if it is not off.
    pub http_addr: SocketAddr,
    /// Which further addresses there are without TLS, and which are off.
    pub listening: Listening,
    /// What encrypted connections are served with; nothing if there are none.
    pub tls: Option<TlsConfig>,
    /// How users may log in.
    pub sasl: SaslOffer,
    /// How much work passwords are that are set from now on.
    pub hashing: Hashing,
    /// Users; the first is the administrator.
    pub users: Vec<UserSpec>,
    /// Whether the administrator's password was made up here and must be shown once.
    pub password_was_generated: bool,
    /// Buckets.
    pub buckets: Vec<BucketSpec>,
    /// vBuckets of each bucket.
    pub vbuckets: u16,
    /// Worker threads.
    pub threads: usize,
    /// The name or address that clients reach this node by; if missing, the one they connected to.
    pub advertise: Option<String>,
    /// Where clients of another network reach it, unless something else was said over HTTP.
    pub alternate: Option<Alternate>,
    /// Bounds that protect the node from its clients.
    pub limits: ConnectionLimits,
    /// What was lowered so that the descriptors of the process suffice, in words; nothing if nothing was.
    pub lowered: Option<String>,
    /// Who may read `/metrics`.
    pub metrics_login: MetricsLogin,
    /// What holds for the audit log from the start on, as fields of `POST /settings/audit`.
    pub audit: Vec<(String, String)>,
    /// Where traces of slow operations go; nowhere if it is missing.
    pub trace_endpoint: Option<TraceEndpoint>,
    /// How long commands may take that are named.
    pub slow_limits: Vec<SlowLimit>,
    /// The last lines of the process's log.
    pub recent_log: RecentLog,
    /// How much the process logs.
    pub log_levels: LogLevels,
    /// Whether changes go to a journal before they go to the files.
    pub journal: Switch,
    /// Files of documents that may be open at the same time, of all buckets together.
    pub max_open_files: usize,
    /// When files are compacted.
    pub compaction: CompactionRules,
    /// The most that the quotas of all buckets may come to when another is made while the node runs, in bytes; if
    /// missing, four fifths of the machine's memory, or of the limit that its control group has.
    pub memory_quota_bytes: Option<u64>,
    /// What the keys of encrypted files are wrapped with; `None` if files are plain.
    pub encryption: Option<WrappingKeys>,
    /// Whether files are encrypted with other keys from this start on.
    pub rotates_keys: bool,
}

/// What clients may take, but for their shares of the descriptors.
fn connection_limits(settings: &Settings) -> Result<ConnectionLimits, ConfigError> {
    let defaults = ConnectionLimits::default();
    let http = HttpLimits {
        idle_timeout_s: settings.http_idle_timeout_s.unwrap_or(defaults.http.idle_timeout_s),
        ..defaults.http
    };
    Ok(ConnectionLimits {
        connections_per_address: settings.max_connections_per_address,
        login_timeout_s: settings.login_timeout_s.unwrap_or(defaults.login_timeout_s),
        memory_bytes: settings.connection_memory.as_deref().map(parse_size).transpose()?,
        http,
        ..defaults
    })
}

/// Long enough to notice that a bucket is gone, in seconds.
const DEFAULT_QUARANTINE_S: u64 = 3_600;

impl Config {
    /// Completes and checks settings. `data_dir` and `threads` are for those who do not say; `new_password` makes a
    /// password up.
    pub fn new(
        settings: Settings,
        data_dir: PathBuf,
        threads: usize,
        new_password: impl FnOnce() -> String,
    ) -> Result<Config, ConfigError> {
        let limits = connection_limits(&settings)?;
        let compaction = CompactionRules::new(&settings)?;
        let memory_quota_bytes = settings.memory_quota.as_deref().map(parse_size).transpose()?;
        let hashing = hashing::of(&settings)?;
        let tls = TlsConfig::of(&settings)?;
        let (kv_addr, http_addr, listening) = Listening::of(&settings, tls.as_ref())?;
        let sasl = SaslOffer::of(settings.sasl_mechanisms, settings.tls_sasl_mechanisms);
        let alternate = settings.alternate_address.map(alternate_of).transpose()?;
        let password_was_generated = settings.password.is_none();
        let name = settings.username.unwrap_or_else(|| "Administrator".to_owned());
        let password = settings.password.unwrap_or_else(new_password);
        let administrator = UserSpec { name, password, role: Role::Admin, buckets: None };
        let buckets = bucket_specs(settings.buckets, settings.bucket)?;
        let asked = Asked {
            files: settings.max_open_files,
            kv: settings.max_connections,
            http: settings.max_http_connections,
            buckets: buckets.len(),
        };
        let shares = descriptors::share(settings.descriptors, &asked)?;
        let per_address = settings.max_http_connections_per_address;
        let per_address = per_address.unwrap_or_else(|| shares.http.div_ceil(2));
        let http = HttpLimits { connections: shares.http, per_address, ..limits.http };
        let config = Config {
            is_member: false,
            leaves_cluster: false,
            quarantine_s: settings.quarantine_s.unwrap_or(DEFAULT_QUARANTINE_S),
            data_dir: settings.data.unwrap_or(data_dir),
            kv_addr,
            http_addr,
            listening,
            tls,
            sasl,
            hashing,
            users: std::iter::once(administrator).chain(settings.user).collect(),
            password_was_generated,
            buckets,
            vbuckets: settings.vbuckets.unwrap_or(base::limits::DEFAULT_VBUCKETS),
            threads: settings.threads.unwrap_or(threads),
            advertise: settings.advertise,
            alternate,
            limits: ConnectionLimits { connections: shares.kv, http, ..limits },
            lowered: shares.lowered,
            metrics_login: settings.metrics_login.unwrap_or_default(),
            audit: audit::fields(settings.audit.as_ref())?,
            trace_endpoint: TraceEndpoint::of(
                settings.trace_endpoint.as_deref(),
                settings.trace_ca.as_ref(),
            )?,
            slow_limits: traces::slow_limits(settings.slow_operations.as_ref())?,
            recent_log: RecentLog::default(),
            log_levels: LogLevels::default(),
            journal: settings.journal.unwrap_or(Switch::On),
            max_open_files: shares.files,
            compaction,
            memory_quota_bytes,
            encryption: None,
            rotates_keys: false,
        };
        config.check().map(|()| config)
    }

    /// The addresses for clients without TLS; none if they are off.
    pub fn plain_kv(&self) -> Vec<SocketAddr> {
        let first = (!self.listening.kv_is_off).then_some(self.kv_addr);
        first.into_iter().chain(self.listening.more_kv.iter().copied()).collect()
    }

    /// The same for HTTP.
    pub fn plain_http(&self) -> Vec<SocketAddr> {
        let first = (!self.listening.http_is_off).then_some(self.http_addr);
        first.into_iter().chain(self.listening.more_http.iter().copied()).collect()
    }

    fn check(&self) -> Result<(), ConfigError> {
        if !self.vbuckets.is_power_of_two() || self.vbuckets > 1024 {
            return Err(ConfigError::Vbuckets(self.vbuckets));
        }
        if !(1..=1024).contains(&self.threads) {
            return Err(ConfigError::Threads(self.threads));
        }
        self.check_buckets()?;
        let least_files = 4 * self.buckets.len();
        for (name, is_enough) in [
            ("max-connections", self.limits.connections > 0),
            ("max-connections-per-address", self.limits.connections_per_address != Some(0)),
            ("max-http-connections", self.limits.http.connections > 0),
            ("max-http-connections-per-address", self.limits.http.per_address > 0),
            ("http-idle-timeout-s", self.limits.http.idle_timeout_s > 0),
            ("max-open-files", self.max_open_files >= least_files),
            ("login-timeout-s", self.limits.login_timeout_s > 0),
        ] {
            if !is_enough {
                return Err(ConfigError::Limit(name));
            }
        }
        if let Some(bytes) = self.limits.memory_bytes
            && bytes < LEAST_LIMIT_BYTES
        {
            return Err(ConfigError::ConnectionMemory(bytes));
        }
        self.check_users()?;
        if let Some(host) = self.advertise.as_ref().filter(|host| !is_host(host.trim_matches(['[', ']']))) {
            return Err(ConfigError::Advertise(host.clone()));
        }
        let tls = self.tls.iter().flat_map(|tls| [tls.kv_addrs(), tls.http_addrs()]);
        let mut addresses = [self.plain_kv(), self.plain_http()].into_iter().chain(tls).flatten();
        let open = addresses.find(|addr| !addr.ip().is_loopback());
        match open {
            Some(addr) if self.password_was_generated => Err(ConfigError::OpenWithoutPassword(addr)),
            Some(addr) => self.check_passwords(addr),
            None => Ok(()),
        }
    }

    /// A client that reaches `addr` may guess: passwords keep the policy that new users made over HTTP have by default.
    fn check_passwords(&self, addr: SocketAddr) -> Result<(), ConfigError> {
        let policy = PasswordPolicy::default();
        let weak = self.users.iter().find_map(|user| Some((&user.name, policy.fault(&user.password)?)));
        match weak {
            Some((user, fault)) => Err(ConfigError::OpenWithWeakPassword { addr, user: user.clone(), fault }),
            None => Ok(()),
        }
    }

    fn check_buckets(&self) -> Result<(), ConfigError> {
        for (at, bucket) in self.buckets.iter().enumerate() {
            let is_same = |other: &&BucketSpec| other.name.eq_ignore_ascii_case(&bucket.name);
            match self.buckets[..at].iter().find(is_same) {
                Some(other) if other.name == bucket.name => {
                    return Err(ConfigError::BucketTwice(bucket.name.clone()));
                }
                Some(other) => {
                    return Err(ConfigError::BucketCase(other.name.clone(), bucket.name.clone()));
                }
                None => {}
            }
            if !bucket.backend.is_built_in() {
                return Err(ConfigError::NotBuiltIn(bucket.name.clone()));
            }
            if self.journal == Switch::Off && bucket.backend.needs_journal() {
                return Err(ConfigError::NeedsJournal(bucket.name.clone()));
            }
            if let Err(error) = bucket.settings.check_history(bucket.backend) {
                return Err(ConfigError::Setting { bucket: bucket.name.clone(), error });
            }
        }
        if self.buckets.is_empty() { Err(ConfigError::NoBuckets) } else { Ok(()) }
    }

    fn check_users(&self) -> Result<(), ConfigError> {
        for (at, user) in self.users.iter().enumerate() {
            if !can_log_in(&user.name) || user.password.is_empty() {
                return Err(ConfigError::User(user.name.clone()));
            }
            if self.users[..at].iter().any(|other| other.name == user.name) {
                return Err(ConfigError::UserTwice(user.name.clone()));
            }
            if matches!(user.role, Role::Grants(_)) && user.buckets.is_some() {
                return Err(ConfigError::UserPlaces(user.name.clone()));
            }
            let unknown = |name: &&String| self.buckets.iter().all(|bucket| bucket.name != **name);
            if let Some(bucket) = user.buckets.iter().flatten().find(unknown) {
                let (user, bucket) = (user.name.clone(), bucket.clone());
                return Err(ConfigError::UserBucket { user, bucket });
            }
        }
        Ok(())
    }
}

/// The buckets of a list and of tables; one called `default` if there is neither.
fn bucket_specs(list: Option<Vec<String>>, tables: Vec<BucketTable>) -> Result<Vec<BucketSpec>, ConfigError> {
    let unsaid = || if tables.is_empty() { vec!["default".to_owned()] } else { Vec::new() };
    let list = list.unwrap_or_else(unsaid);
    let listed = list.iter().map(|spec| BucketSpec::parse(spec));
    listed.chain(tables.iter().map(BucketTable::spec)).collect()
}

fn alternate_of(word: String) -> Result<Alternate, ConfigError> {
    crate::alternate::from_word(&word).map_err(|what| ConfigError::Alternate { word, what })
}

#[cfg(test)]
mod tests {
    use engine::BucketKind;

    use super::*;

    fn config(toml: &str) -> Result<Config, ConfigError> {
        Config::new(Settings::parse(toml)?, "/data".into(), 2, || "made-up".to_owned())
    }

    #[test]
    fn nothing_said_gives_the_defaults() {
        let config = config("").expect("the defaults are valid");
        assert_eq!(config.kv_addr.to_string(), "127.0.0.1:11210");
        assert_eq!(config.users[0].password, "made-up");
        assert!(config.password_was_generated);
        assert_eq!(config.buckets, [BucketSpec::parse("default:256MiB:couchstore").expect("valid")]);
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let file = Settings::parse("kv = \"127.0.0.1:1\"\nthreads = 3").expect("valid");
        let line = Settings { kv: Some("127.0.0.1:2".to_owned()), ..Settings::default() };
        let both = line.over(file);
        assert_eq!((both.kv.as_deref(), both.threads), (Some("127.0.0.1:2"), Some(3)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert!(matches!(config("kvv = 1"), Err(ConfigError::File(_))));
        assert_eq!(config("buckets = [\"a b\"]").err(), Some(ConfigError::BucketName("a b".to_owned())));
        assert_eq!(config("buckets = [\"a:12\"]").err(), Some(ConfigError::Quota("12".to_owned())));
        assert_eq!(config("buckets = [\"a\", \"a\"]").err(), Some(ConfigError::BucketTwice("a".to_owned())));
        let case = ConfigError::BucketCase("a".to_owned(), "A".to_owned());
        assert_eq!(config("buckets = [\"a\", \"A\"]").err(), Some(case));
        let without = config("journal = \"off\"\nbuckets = [\"b:1GiB:magma\"]").err();
        assert_eq!(without, Some(ConfigError::NeedsJournal("b".to_owned())));
        let rocks = config("buckets = [\"b:1GiB:rocksdb\"]").err();
        let not_built_in = ConfigError::NotBuiltIn("b".to_owned());
        assert_eq!(rocks, (!kvstore::HAS_ROCKSDB).then_some(not_built_in));
        assert!(config("journal = \"off\"\nbuckets = [\"b:1GiB:ephemeral\"]").is_ok());
        assert_eq!(config("vbuckets = 3").err(), Some(ConfigError::Vbuckets(3)));
        assert_eq!(config("threads = 0").err(), Some(ConfigError::Threads(0)));
        assert_eq!(config("max-open-files = 3").err(), Some(ConfigError::Limit("max-open-files")));
        let error = config("compaction-fragmentation-percent = 5").err();
        assert_eq!(error, Some(ConfigError::Fragmentation(5)));
        assert_eq!(config("compaction-min-waste = \"x\"").err(), Some(ConfigError::Size("x".to_owned())));
        assert!(matches!(config("journal = true"), Err(ConfigError::File(_))));
        for limit in ["max-http-connections", "max-http-connections-per-address", "http-idle-timeout-s"] {
            assert_eq!(config(&format!("{limit} = 0")).err(), Some(ConfigError::Limit(limit)));
        }
        let little = config("connection-memory = \"39MiB\"").err();
        assert_eq!(little, Some(ConfigError::ConnectionMemory(39 << 20)));
        assert_eq!(config("max-connections = 0").err(), Some(ConfigError::Limit("max-connections")));
        let per_address = config("max-connections-per-address = 0").err();
        assert_eq!(per_address, Some(ConfigError::Limit("max-connections-per-address")));
        assert_eq!(config("buckets = []").err(), Some(ConfigError::NoBuckets));
        assert!(matches!(config("buckets = [\"a:1GiB:memcached\"]").err(), Some(ConfigError::BucketType(_))));
        assert!(matches!(
            config("buckets = [\"a:1GiB:ephemeral:x\"]").err(),
            Some(ConfigError::BucketSpec(_))
        ));
        let user = "[[user]]\nname = \"a\"\npassword = \"b\"\nrole = \"read-only\"\nbuckets = [\"c\"]";
        assert!(matches!(config(user).err(), Some(ConfigError::UserBucket { .. })));
        let wrong =
            config("[[user]]\nname = \"a\"\npassword = \"b\"\nrole = \"data_reader\"").expect_err("no place");
        assert!(wrong.to_string().contains("role \"data_reader\""), "{wrong}");
        let twice =
            "[[user]]\nname = \"a\"\npassword = \"b\"\nrole = \"data_reader[*]\"\nbuckets = [\"default\"]";
        assert_eq!(config(twice).err(), Some(ConfigError::UserPlaces("a".to_owned())));
        for name in ["a:b", "@node", ""] {
            let told = config(&format!("username = \"{name}\"")).err();
            assert_eq!(told, Some(ConfigError::User(name.to_owned())));
        }
        for host in ["http://x", "a:11210", ""] {
            let told = config(&format!("advertise = \"{host}\"")).err();
            assert_eq!(told, Some(ConfigError::Advertise(host.to_owned())));
        }
        assert!(
            ["db.example.org", "::1", "[::1]"]
                .iter()
                .all(|host| config(&format!("advertise = \"{host}\"")).is_ok())
        );
        assert!(matches!(config("kv = \"x\"").err(), Some(ConfigError::Address(_))));
        assert!(matches!(config("kv = \"0.0.0.0:0\"").err(), Some(ConfigError::OpenWithoutPassword(_))));
        assert!(config("kv = \"0.0.0.0:0\"\npassword = \"chosen\"").is_ok());
    }

    #[test]
    fn passwords_of_a_node_that_others_reach_keep_the_policy() {
        const TLS: &str = "tls-cert = \"c\"\ntls-key = \"k\"\n";
        let user = |password| {
            format!("[[user]]\nname = \"ann\"\npassword = \"{password}\"\nrole = \"data_reader[*]\"")
        };
        for open in [
            "kv = \"0.0.0.0:0\"\n",
            "http = \"127.0.0.1:0,192.0.2.1:0\"\n",
            "kv = \"[2001:db8::1]:0\"\n",
            &format!("{TLS}kv-tls = \"0.0.0.0:0\"\n"),
            &format!("{TLS}http-tls = \"0.0.0.0:0\"\n"),
        ] {
            let told = |rest: &str| config(&format!("{open}{rest}")).err().map(|error| error.to_string());
            for weak in ["x", "short"] {
                let why = told(&format!("password = \"{weak}\"")).expect(open);
                for part in [
                    "beyond this machine",
                    "at least 6 characters",
                    "the user Administrator",
                    "--password-file",
                ] {
                    assert!(why.contains(part), "{open}: {part}: {why}");
                }
                assert!(!why.contains(&format!("\"{weak}\"")), "it is not told: {why}");
            }
            let why = told(&format!("password = \"chosen\"\n{}", user("x"))).expect(open);
            assert!(why.contains("the user ann"), "{why}");
            assert_eq!(told(&format!("password = \"chosen\"\n{}", user("chosen"))), None);
        }
        for alone in ["", "kv = \"127.0.0.1:0\"\n", "kv = \"[::1]:0\"\n"] {
            assert!(config(&format!("{alone}password = \"x\"\n{}", user("y"))).is_ok(), "{alone}");
        }
    }

    #[test]
    fn a_bucket_can_have_a_table_of_its_own() {
        let config = config(
            "buckets = [\"a\", \"b:1GiB:ephemeral\"]
            [[bucket]]
            name = \"c\"
            quota = \"512MiB\"
            type = \"ephemeral\"
            eviction-policy = \"nruEviction\"
            max-ttl = 3600
            compression-mode = \"active\"
            [bucket.settings]
            mem_high_wat_percent = 95
            mem_low_wat_percent = 90
            mutation_mem_ratio = 0.97
            exp_pager_enabled = false
            checkpoint_max_size = \"1MiB\"",
        );
        let buckets = config.expect("valid").buckets;
        let kinds: Vec<_> = buckets.iter().map(|spec| (spec.name.as_str(), spec.kind)).collect();
        let (disk, memory) = (BucketKind::Persistent, BucketKind::Ephemeral);
        assert_eq!(kinds, [("a", disk), ("b", memory), ("c", memory)]);
        let show = |bucket: usize, name| {
            let setting = engine::settings::find(name).expect("there is one");
            buckets[bucket].settings.show(setting.key)
        };
        assert_eq!(buckets[2].quota_bytes, 512 << 20);
        for (name, value) in [
            ("max_size", "536870912"),
            ("item_eviction_policy", "auto_delete"),
            ("max_ttl", "3600"),
            ("compression_mode", "active"),
            ("mem_high_wat_percent", "95"),
            ("mem_low_wat_percent", "90"),
            ("mutation_mem_ratio", "0.97"),
            ("exp_pager_enabled", "false"),
            ("checkpoint_max_size", "1048576"),
        ] {
            assert_eq!(show(2, name), value, "{name}");
        }
        // Nothing is lost unless somebody asks for that.
        assert_eq!(show(0, "item_eviction_policy"), "value_only");
        assert_eq!(show(1, "item_eviction_policy"), "fail_new_data");
    }

    #[test]
    fn a_table_of_a_bucket_says_what_is_wrong_with_it() {
        for (table, said) in [
            ("", "missing field `name`"),
            ("name = \"a\"\nquotta = 1", "unknown field `quotta`"),
            ("name = \"a b\"", "bucket name \"a b\""),
            ("name = \"a\"\nquota = \"much\"", "quota \"much\""),
            ("name = \"a\"\ntype = \"leveldb\"", "bucket type \"leveldb\""),
            ("name = \"a\"\neviction-policy = \"lru\"", "item_eviction_policy = \"lru\": give one of"),
            (
                "name = \"a\"\neviction-policy = \"noEviction\"",
                "value_only or full_eviction for a bucket on disk",
            ),
            ("name = \"a\"\nmax-ttl = -1", "max_ttl = \"-1\""),
            ("name = \"a\"\n[bucket.settings]\nmax_sise = 1", "there is no setting \"max_sise\""),
            ("name = \"a\"\n[bucket.settings]\nmax_size = 1", "write quota beside"),
            ("name = \"a\"\nmax-ttl = 5\n[bucket.settings]\nmax_ttl = 1", "write max-ttl beside"),
            (
                "name = \"a\"\n[bucket.settings]\nmem_high_wat_percent = 50",
                "give more than mem_low_wat_percent",
            ),
            ("name = \"a\"\n[bucket.settings]\nchk_max_items = [1]", "did not match"),
            ("name = \"default\"\n[[bucket]]\nname = \"default\"", "is given twice"),
        ] {
            let error = config(&format!("[[bucket]]\n{table}")).expect_err(table).to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn buckets_of_the_command_line_replace_those_of_the_file() {
        let file = Settings::parse("[[bucket]]\nname = \"a\"").expect("valid");
        let line = Settings { buckets: Some(vec!["b".to_owned()]), ..Settings::default() };
        let config = Config::new(line.over(file), "/data".into(), 1, || "made-up".to_owned()).expect("valid");
        assert_eq!(config.buckets, [BucketSpec::parse("b").expect("valid")]);
    }

    #[test]
    fn the_documented_file_is_valid() {
        let page = include_str!("../../../docs/reference/configuration.md");
        let block = page.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```"));
        let config = config(block.expect("there is one").0).expect("valid");
        assert_eq!(config.buckets.len(), 3);
        // All that is said of compaction there are the defaults.
        let defaults = CompactionRules::new(&Settings::default()).expect("valid");
        assert_eq!(config.compaction, defaults);
    }

    #[test]
    fn the_documented_file_names_everything_that_is_understood() {
        let page = include_str!("../../../docs/reference/configuration.md");
        let block = page.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```"));
        let block = block.expect("there is one").0;
        let names = |text: &str| {
            let error = Settings::parse(text).expect_err("no such name").to_string();
            let known =
                error.split_once("expected one of ").expect("it names those that there are").1.to_owned();
            known.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
        };
        for text in ["no-such = 1", "[[bucket]]\nno-such = 1", "[[user]]\nno-such = 1"] {
            for name in names(text) {
                let is_named = block.lines().any(|line| {
                    let line = line.trim_start_matches(['#', ' ']);
                    line.starts_with(&format!("{name} = "))
                        || line.contains(&format!("[{name}]"))
                        || line.contains(&format!(".{name}]"))
                });
                assert!(is_named, "docs/reference/configuration.md says nothing of {name}");
            }
        }
    }

    #[test]
    fn passwords_stay_out_of_debug_output() {
        let config = config("password = \"canary\"").expect("valid");
        assert!(!format!("{config:?}").contains("canary"));
    }
}
