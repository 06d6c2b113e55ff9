//! TLS with clients and between nodes: certificate and key from files, which may be replaced while the node runs.

mod certificate;
mod client_cas;
mod fault;
pub mod fuzz;
mod identity;
mod peers;
mod spoken;
mod stream;
mod transport;
mod unfit;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::env::{Clock, Env, OpenMode};
use parking_lot::Mutex;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{ClientConfig, ServerConfig};

use ::node::Node;
use ::node::config::{ClientAuth, ClientNameRule, TlsConfig};
use ::node::kept_users::security::{SecuritySettings, TlsService};

pub use self::certificate::{CertificateError, PairError, is_for_key};
use self::certificate::{can_serve, certificates, client_verifier, no_client, server_config};
pub(crate) use self::certificate::{client_config, roots};
pub(crate) use self::fault::cure;
pub(crate) use self::peers::PeerTls;
pub use self::peers::server_name;
pub(crate) use self::spoken::Spoken;
pub use self::spoken::SuiteError;
pub(crate) use self::spoken::all_names as cipher_suite_names;
use self::stream::TlsStream;
pub(crate) use self::transport::Transport;
pub use self::unfit::RefusedByNodes;
use self::unfit::{DAY_S, Shown};

/// How long a client may take to agree on encryption, in seconds.
pub(crate) const HANDSHAKE_S: u64 = 10;
/// The largest file of certificates or of a key.
const MOST_FILE_BYTES: usize = 1 << 20;
/// Between two looks at whether the files have changed.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// From this look on that cannot read the CAs, no certificate of a client counts: one may come while they are written.
const LOOKS_WITHOUT_CAS: u32 = 2;

/// What a client outside of a node speaks TLS with: it accepts servers with a certificate of the CAs in `ca`, and shows
/// `own`, a chain and its key, to servers that ask for one. All of it is PEM.
pub fn client_of(ca: &[u8], own: Option<(&[u8], &[u8])>) -> Result<Arc<ClientConfig>, PairError> {
    client_config(roots(ca).map_err(PairError::Certificate)?, own, &Spoken::any())
}

/// Whether a server with a certificate is known at `host` to who trusts `ca`. Both are PEM.
///
/// # Errors
///
/// Why it is not.
pub fn knows(env: &Env, ca: &[u8], certificate: &[u8], host: IpAddr) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    let roots = Arc::new(roots(ca).map_err(|error| told(&error))?);
    let chain = certificates(certificate).map_err(|error| told(&error))?;
    let (first, between) = chain.split_first().ok_or("there is none")?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
    let now = UnixTime::since_unix_epoch(Duration::from_secs(env.clock.unix_s().into()));
    let verified = verifier.map_err(|error| told(&error))?.verify_server_cert(
        first,
        between,
        &ServerName::from(host),
        &[],
        now,
    );
    verified.map(drop).map_err(|error| told(&error))
}

/// Why certificate and key are not served with.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is larger than such files are.
    #[error("{} is larger than such a file may be: {MOST_FILE_BYTES} bytes", .0.display())]
    TooLarge(PathBuf),
    /// The CAs by which other nodes are known are not what they should be.
    #[error("{}: {error}", path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: CertificateError,
    },
    /// Clients must show certificates that no CA is there for.
    #[error(
        "clients are asked for certificates, and no CA is given to know them by: start the node with --tls-ca, or have clients log in otherwise (--tls-client-auth off, or state disable at /settings/clientCertAuth)"
    )]
    NoCa,
    /// Other nodes would refuse this node's certificate.
    #[error(
        "{}: {why}; the other nodes of the cluster, to which this node encrypts (cluster-encryption), would refuse this \
         certificate, and nothing would be replicated",
        certificate.display()
    )]
    RefusedByNodes {
        /// The file of certificates.
        certificate: PathBuf,
        /// Why they would.
        why: RefusedByNodes,
    },
    /// Nothing can be spoken with the cipher suites.
    #[error("tls-cipher-suites: {0}")]
    Suites(SuiteError),
    /// They are not what they should be, or do not belong together.
    #[error("{} and {}: {error}", certificate.display(), key.display())]
    Pair {
        /// The file of certificates.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// What is wrong.
        error: PairError,
    },
    /// Certificate and key stay as they were; what says which certificates of clients count was taken without them.
    #[error(
        "{0}; certificate, key and the other settings of TLS stay as they were, and the CAs and rules for certificates of \
         clients (tls-ca, tls-client-auth, tls-client-user) that were read with them count"
    )]
    RulesAlone(Box<TlsError>),
    /// Which certificates of clients count is not known any more.
    #[error(
        "{0}; until the CAs can be read again, new connections of clients that show a certificate are refused: put a file with \
         the CAs that are to count into the place of tls-ca"
    )]
    NoClientCas(Box<TlsError>),
}

impl TlsError {
    /// Why what is there cannot be served with, without what was done about it.
    fn cause(&self) -> String {
        match self {
            TlsError::RulesAlone(error) => error.to_string(),
            error => error.to_string(),
        }
    }
}

/// What encrypted connections are made with. Connections that are there keep what they were made with.
pub struct Tls {
    present: Mutex<Present>,
    /// Whether the node is a member of a cluster: it shows its certificate to other nodes, too.
    is_member: bool,
    /// Held by the one change that is being worked out; taken first.
    changing: Mutex<()>,
    clock: Arc<dyn Clock>,
}

struct Present {
    /// As the configuration says it.
    config: TlsConfig,
    /// What was set over HTTP, and counts over that.
    kept: SecuritySettings,
    files: Files,
    made: Made,
    /// Connections are refused: what was set over HTTP cannot be done with the node's files.
    is_shut: bool,
    /// How many looks in a row have found that the CAs cannot be read.
    looks_without_cas: u32,
    /// How often files were taken: what was read before the last time may be older than what counts.
    changes: u64,
    taken: TlsTaken,
}

/// What of the files new connections are made with, in seconds of Unix time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsTaken {
    /// Since when certificate and key are.
    pub(crate) pair_since_s: u64,
    /// How many CAs `tls-ca` has; `None` without one.
    pub(crate) cas: Option<usize>,
    /// Since when these are.
    pub(crate) cas_since_s: u64,
}

/// What is different since files were read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsChanges {
    /// Certificate, key, or what the configuration says of TLS.
    pub(crate) pair: bool,
    /// The CAs.
    pub(crate) cas: bool,
}

impl TlsChanges {
    /// Whether anything is.
    pub(crate) fn any(self) -> bool {
        self.pair || self.cas
    }
}

/// What an encrypted connection is accepted with.
#[derive(Clone)]
pub(crate) struct Acceptance {
    config: Arc<ServerConfig>,
    /// Whom a client's certificate stands for.
    names: Arc<[ClientNameRule]>,
}

/// What connections are made with.
#[derive(Clone)]
struct Made {
    /// For the binary protocol.
    data: MadeFor,
    /// For HTTP.
    cluster_manager: MadeFor,
    /// What is known of the certificates.
    shown: Shown,
}

/// What connections for one service are made with.
#[derive(Clone)]
struct MadeFor {
    accepted: Acceptance,
    /// To other nodes, if it is said how these are known.
    client: Option<Arc<ClientConfig>>,
}

impl Present {
    /// Whether clients of some service may show certificates.
    fn asks_clients(&self) -> bool {
        let services = [TlsService::Data, TlsService::ClusterManager];
        services
            .iter()
            .any(|service| self.kept.over_for(*service, &self.config).client_auth != ClientAuth::Off)
    }
}

impl Made {
    fn of(&self, service: TlsService) -> &MadeFor {
        match service {
            TlsService::Data => &self.data,
            TlsService::ClusterManager => &self.cluster_manager,
        }
    }
}

/// What the files hold.
#[derive(Clone, PartialEq, Eq)]
struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    ca: Option<Vec<u8>>,
    /// The file of `ca` cannot be read any more: other nodes are known by what it held, and clients by none.
    knows_no_clients: bool,
}

/// Certificate, key and CAs, and the CAs alone, which count without the others.
type ReadFiles = (Result<Files, TlsError>, Option<Vec<u8>>);

impl Files {
    fn read(env: &Env, config: &TlsConfig) -> Result<Files, TlsError> {
        Files::with_cas(env, config, read_cas(env, config)?)
    }

    /// Reads certificate and key.
    fn with_cas(env: &Env, config: &TlsConfig, ca: Option<Vec<u8>>) -> Result<Files, TlsError> {
        let (certificate, key) = (read(env, &config.certificate)?, read(env, &config.key)?);
        Ok(Files { certificate, key, ca, knows_no_clients: false })
    }

    fn make(&self, config: &TlsConfig, settings: &SecuritySettings) -> Result<Made, TlsError> {
        let chain = certificates(&self.certificate).map_err(|error| TlsError::Pair {
            certificate: config.certificate.clone(),
            key: config.key.clone(),
            error: PairError::Certificate(error),
        })?;
        let of_ca = |error| TlsError::Ca { path: config.ca.clone().unwrap_or_default(), error };
        let cas = self.ca.as_deref().map(certificates).transpose().map_err(of_ca)?;
        let make = |service| self.make_for(&settings.over_for(service, config));
        Ok(Made {
            data: make(TlsService::Data)?,
            cluster_manager: make(TlsService::ClusterManager)?,
            shown: Shown::new(chain, cas.unwrap_or_default()),
        })
    }

    /// `config` is what counts for the service.
    fn make_for(&self, config: &TlsConfig) -> Result<MadeFor, TlsError> {
        let pair = |error| TlsError::Pair {
            certificate: config.certificate.clone(),
            key: config.key.clone(),
            error,
        };
        let spoken = Spoken::of(config).map_err(TlsError::Suites)?;
        if config.client_auth != ClientAuth::Off && self.ca.is_none() {
            return Err(TlsError::NoCa);
        }
        let of_ca = |error| TlsError::Ca { path: config.ca.clone().unwrap_or_default(), error };
        let roots = self.ca.as_deref().map(roots).transpose().map_err(of_ca)?;
        let cas = self.ca.as_deref().map(certificates).transpose().map_err(of_ca)?;
        let clients = match self.knows_no_clients {
            true => no_client(config.client_auth),
            false => client_verifier(cas.as_deref(), config.client_auth).map_err(of_ca)?,
        };
        let server = server_config(&self.certificate, &self.key, clients, &spoken).map_err(pair)?;
        if !can_serve(&self.key, &spoken).map_err(pair)? {
            return Err(TlsError::Suites(SuiteError::OtherKey));
        }
        let own = Some((&*self.certificate, &*self.key));
        let client = roots.map(|roots| client_config(roots, own, &spoken).map_err(pair)).transpose()?;
        let accepted = Acceptance { config: server, names: config.client_names.as_slice().into() };
        Ok(MadeFor { accepted, client })
    }
}

fn read_cas(env: &Env, config: &TlsConfig) -> Result<Option<Vec<u8>>, TlsError> {
    config.ca.as_ref().map(|path| read(env, path)).transpose()
}

fn read(env: &Env, path: &Path) -> Result<Vec<u8>, TlsError> {
    let read = || {
        let file = env.disk.open(path, OpenMode::Read)?;
        let len = usize::try_from(file.len()?).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len.min(MOST_FILE_BYTES + 1)];
        let count = file.read_at(&mut bytes, 0)?;
        bytes.truncate(count);
        Ok(bytes)
    };
    match read() {
        Ok(bytes) if bytes.len() > MOST_FILE_BYTES => Err(TlsError::TooLarge(path.to_owned())),
        Ok(bytes) => Ok(bytes),
        Err(source) => Err(TlsError::Read { path: path.to_owned(), source }),
    }
}

/// What a server is spoken to with whose certificate must be of the CAs in a file.
///
/// # Errors
///
/// The file cannot be read, or has no CAs.
pub(crate) fn with_ca(env: &Env, ca: &Path) -> Result<Arc<ClientConfig>, TlsError> {
    client_of(&read(env, ca)?, None).map_err(|error| match error {
        PairError::Certificate(error) | PairError::Key(error) => TlsError::Ca { path: ca.to_owned(), error },
        error => TlsError::Pair { certificate: ca.to_owned(), key: ca.to_owned(), error },
    })
}

/// The hosts that clients are told: of this network, and of another one.
fn hosts_told(node: &Node) -> Vec<String> {
    let alternate = node.map().alternate().map(|alternate| alternate.host);
    node.address().host.clone().into_iter().chain(alternate).collect()
}

/// What the log has been told of the certificates.
#[derive(Default)]
struct Told {
    /// The day on which it was told last that the certificate ends.
    certificate_day: Option<u64>,
    /// The same of CAs.
    ca_day: Option<u64>,
    /// What they are not for.
    unfit: Vec<String>,
}

impl Tls {
    /// Reads certificate and key of a node, which may be a member of a cluster.
    ///
    /// # Errors
    ///
    /// A file cannot be read, certificate and key cannot be served with, or other nodes would refuse the certificate.
    pub fn load(env: &Env, config: &TlsConfig, is_member: bool) -> Result<Tls, TlsError> {
        let (files, kept) = (Files::read(env, config)?, SecuritySettings::default());
        let made = files.make(config, &kept)?;
        let now_s = u64::from(env.clock.unix_s());
        if let Some(why) = made.shown.refused_by_nodes(config, now_s).filter(|_| is_member) {
            return Err(TlsError::RefusedByNodes { certificate: config.certificate.clone(), why });
        }
        let (config, is_shut) = (config.clone(), false);
        let taken = TlsTaken { pair_since_s: now_s, cas: None, cas_since_s: now_s };
        let present = Present { config, kept, files, made, is_shut, looks_without_cas: 0, changes: 0, taken };
        let clock = Arc::clone(&env.clock);
        Ok(Tls { present: Mutex::new(present), is_member, changing: Mutex::default(), clock })
    }

    /// What a start warns of, a line each: the ends of certificate and CAs, and what the certificate is not for. `hosts`
    /// are what clients are told.
    pub(crate) fn warnings(&self, now_s: u64, hosts: &[String]) -> Vec<String> {
        let present = self.present.lock();
        let shown = &present.made.shown;
        let (config, ca) = (&present.config, present.config.ca.as_deref());
        let end = shown
            .end(now_s)
            .map(|what| format!("{what}; put a new one into {}", config.certificate.display()));
        let cas = shown.ends_of_cas(now_s).into_iter();
        let cas = cas.map(|what| format!("{}: {what}", ca.unwrap_or(Path::new("tls-ca")).display()));
        let unfit = shown.unfit(hosts).into_iter().chain(self.unfit_for_nodes(&present, now_s));
        end.into_iter().chain(cas).chain(unfit).collect()
    }

    /// The same without what is said of ends, for who has put new files into their place.
    pub(crate) fn unfit(&self, node: &Node) -> Vec<String> {
        let (hosts, now_s) = (hosts_told(node), node.env().clock.unix_s().into());
        let present = self.present.lock();
        present.made.shown.unfit(&hosts).into_iter().chain(self.unfit_for_nodes(&present, now_s)).collect()
    }

    /// What other nodes refuse of the certificate all the same: it was taken before they did, or they see it over HTTP alone.
    fn unfit_for_nodes(&self, present: &Present, now_s: u64) -> Vec<String> {
        if !self.is_member {
            return Vec::new();
        }
        let (config, shown) = (present.kept.over(&present.config), &present.made.shown);
        let of_documents = shown.refused_by_nodes(&config, now_s).map(|why| {
            format!(
                "other nodes refuse the node's certificate (tls-cert), and nothing is replicated to or from this node: {why}"
            )
        });
        let over_http = shown.refused_over_http(&config, now_s).map(|why| {
            format!(
                "with cluster-encryption = \"control\" other nodes refuse the node's certificate (tls-cert) over HTTP, for \
                 figures, and for promises without which a node stops serving if the coordination store goes away: {why}"
            )
        });
        of_documents.into_iter().chain(over_http).collect()
    }

    /// What new connections are made with, and since when.
    pub(crate) fn taken(&self) -> TlsTaken {
        let present = self.present.lock();
        TlsTaken {
            cas: present.files.ca.as_ref().map(|_| present.made.shown.count_of_cas()),
            ..present.taken
        }
    }

    /// Whether the certificate that clients are shown is for a host.
    pub(crate) fn is_for(&self, host: &str) -> bool {
        self.present.lock().made.shown.is_for(host)
    }

    /// What flags and configuration file say, whatever was set over HTTP.
    pub(crate) fn own_config(&self) -> TlsConfig {
        self.present.lock().config.clone()
    }

    /// The configuration that connections are made with, with what was set over HTTP.
    pub(crate) fn config(&self) -> TlsConfig {
        let present = self.present.lock();
        present.kept.over(&present.config)
    }

    /// What the next connection for a service is made with; `None` if it is refused.
    pub(crate) fn present(&self, service: TlsService) -> Option<Acceptance> {
        let present = self.present.lock();
        (!present.is_shut).then(|| present.made.of(service).accepted.clone())
    }

    /// Whether connections could be made by these settings with the files that there are.
    ///
    /// # Errors
    ///
    /// Why they could not.
    pub(crate) fn check(&self, settings: &SecuritySettings) -> Result<(), TlsError> {
        let (files, config) = {
            let present = self.present.lock();
            (present.files.clone(), present.config.clone())
        };
        let made = files.make(&config, settings)?;
        self.fit(&made, &settings.over(&config))
    }

    /// Refuses what the other nodes would refuse, unless they do so with what is there: then a new certificate may still be
    /// the better one for clients.
    fn fit(&self, made: &Made, config: &TlsConfig) -> Result<(), TlsError> {
        let Some(why) = self.refused_by_nodes(made, config) else { return Ok(()) };
        let present = self.present.lock();
        let was_refused = self.refused_by_nodes(&present.made, &present.kept.over(&present.config)).is_some();
        if was_refused { Ok(()) } else { Err(why) }
    }

    /// Why the other nodes of this one's cluster would refuse what it shows; `None` if they would not, or there are none.
    fn refused_by_nodes(&self, made: &Made, config: &TlsConfig) -> Option<TlsError> {
        let now_s = self.clock.unix_s().into();
        let why = made.shown.refused_by_nodes(config, now_s).filter(|_| self.is_member)?;
        Some(TlsError::RefusedByNodes { certificate: config.certificate.clone(), why })
    }

    /// Connections from now on are made by these settings. If that cannot be done, none is made: no client is let in that
    /// was to be kept out.
    pub(crate) fn follow(&self, settings: &SecuritySettings) {
        let _changing = self.changing.lock();
        let (files, config) = {
            let present = self.present.lock();
            (present.files.clone(), present.config.clone())
        };
        let made = files.make(&config, settings);
        if let Ok(made) = &made {
            self.warn_of_nodes(made, &settings.over(&config));
        }
        let mut present = self.present.lock();
        present.kept = settings.clone();
        present.is_shut = made.is_err();
        match made {
            Ok(made) => {
                present.made = made;
                drop(present);
                let flags = settings.overruled(&config).join(", ");
                if !flags.is_empty() {
                    tracing::info!(
                        event = "tls_settings_override",
                        flags,
                        "what was set over HTTP counts over the configuration"
                    );
                }
            }
            Err(error) => {
                drop(present);
                tracing::error!(
                    event = "tls_refused",
                    %error,
                    "connections with TLS are refused: what was set over HTTP cannot be done with this node's files"
                );
            }
        }
    }

    /// What was set over HTTP, on another node or before a certificate was replaced, holds whatever this one's is.
    fn warn_of_nodes(&self, made: &Made, config: &TlsConfig) {
        if let Some(error) = self.refused_by_nodes(made, config) {
            tracing::error!(
                event = "certificate_refused_by_nodes",
                %error,
                "other nodes refuse the certificate of this node"
            );
        }
    }

    /// Tells the node's metrics when its certificate, or one between it and the CA, is not valid any more, in seconds of
    /// Unix time; and when the first of the CAs ends.
    pub(crate) fn note_end(&self, node: &Node) -> Option<u64> {
        let (end_s, ca_end_s) = {
            let present = self.present.lock();
            (present.made.shown.end_s(), present.made.shown.first_ca_end_s())
        };
        let accepting = node.workers().accepting();
        accepting.ca_end_s.store(ca_end_s.unwrap_or(0), Ordering::Relaxed);
        accepting.certificate_end_s.store(end_s?, Ordering::Relaxed);
        end_s
    }

    /// What the next connection to another node is made with, for a service; nothing if it is not said how these are known.
    pub(crate) fn client(&self, service: TlsService) -> Option<Arc<ClientConfig>> {
        self.present.lock().made.of(service).client.clone()
    }

    /// Reads the files again, those that `config` names; connections from now on are made with them. Whether anything
    /// is different. Blocks while the disk works.
    ///
    /// # Errors
    ///
    /// As [`Tls::load`]; certificate and key stay as they were. Which certificates of clients count does not: a CA that
    /// was taken out must not count because of a key that does not fit. If the CAs cannot be read, none counts.
    pub fn reload(&self, env: &Env, config: &TlsConfig) -> Result<bool, TlsError> {
        self.reload_by(env, Some(config)).map(TlsChanges::any)
    }

    /// The same by the configuration that there is, if no other one is given.
    fn reload_by(&self, env: &Env, wanted: Option<&TlsConfig>) -> Result<TlsChanges, TlsError> {
        loop {
            let (before, config) = {
                let present = self.present.lock();
                (present.changes, wanted.unwrap_or(&present.config).clone())
            };
            // Without a lock: a disk may not answer.
            let read = read_cas(env, &config).map(|ca| (Files::with_cas(env, &config, ca.clone()), ca));
            let _changing = self.changing.lock();
            // Another thread has taken files meanwhile: these may be older, and so may the configuration that names them.
            if self.present.lock().changes == before {
                return self.take_read(read, &config, env.clock.unix_s().into());
            }
        }
    }

    /// Takes what was read of the files that `config` names: certificate and key, if they could be read, and CAs.
    fn take_read(
        &self,
        read: Result<ReadFiles, TlsError>,
        config: &TlsConfig,
        now_s: u64,
    ) -> Result<TlsChanges, TlsError> {
        let (files, ca) = match read {
            Ok(read) => read,
            Err(error) => return Err(self.without_cas(config, error)),
        };
        match files.and_then(|files| self.take(files, config, now_s, true)) {
            Ok(changes) => Ok(changes),
            Err(error @ TlsError::Ca { .. }) => Err(self.without_cas(config, error)),
            Err(error) => Err(self.take_rules(ca, config, now_s, error)),
        }
    }

    /// What new connections are made with from now on, and what of it is something else than before. If it `must_fit`, what
    /// other nodes would refuse is refused.
    fn take(
        &self,
        files: Files,
        config: &TlsConfig,
        now_s: u64,
        must_fit: bool,
    ) -> Result<TlsChanges, TlsError> {
        let (kept, changes, taken, told) = {
            let mut present = self.present.lock();
            let before = &present.files;
            let is_pair = before.certificate != files.certificate || before.key != files.key;
            let is_cas = before.ca != files.ca || before.knows_no_clients != files.knows_no_clients;
            let told = TlsChanges { pair: is_pair || present.config != *config, cas: is_cas };
            if !told.any() {
                present.looks_without_cas = 0;
                return Ok(told);
            }
            let mut taken = present.taken;
            if is_pair {
                taken.pair_since_s = now_s;
            }
            if is_cas {
                taken.cas_since_s = now_s;
            }
            (present.kept.clone(), present.changes + 1, taken, told)
        };
        let made = files.make(config, &kept)?;
        if must_fit {
            self.fit(&made, &kept.over(config))?;
        }
        let (config, is_shut) = (config.clone(), false);
        *self.present.lock() =
            Present { config, kept, files, made, is_shut, looks_without_cas: 0, changes, taken };
        Ok(told)
    }

    /// Takes the CAs and the rules for certificates of clients, and leaves certificate and key as they are: these cannot be
    /// taken for a reason, which comes back with what was done.
    fn take_rules(&self, ca: Option<Vec<u8>>, config: &TlsConfig, now_s: u64, why: TlsError) -> TlsError {
        let (files, rules) = {
            let present = self.present.lock();
            let files = Files { ca, knows_no_clients: false, ..present.files.clone() };
            let client_names = config.client_names.clone();
            let client_auth = config.client_auth;
            let rules =
                TlsConfig { ca: config.ca.clone(), client_auth, client_names, ..present.config.clone() };
            (files, rules)
        };
        // A CA that is taken out counts no more, even if it is the one of this node's certificate.
        match self.take(files, &rules, now_s, false) {
            Ok(_) => TlsError::RulesAlone(Box::new(why)),
            Err(error @ TlsError::Ca { .. }) => self.without_cas(config, error),
            Err(_) => why,
        }
    }

    /// The CAs that `named` names cannot be read, or are none: if a second look finds the same, no certificate of a client
    /// counts any more. A configuration that was not taken names files that never counted: it says nothing of those that do.
    fn without_cas(&self, named: &TlsConfig, why: TlsError) -> TlsError {
        let (files, config, kept) = {
            let mut present = self.present.lock();
            if present.config != *named {
                return why;
            }
            present.looks_without_cas = present.looks_without_cas.saturating_add(1);
            if present.looks_without_cas < LOOKS_WITHOUT_CAS || !present.asks_clients() {
                return why;
            }
            (present.files.clone(), present.config.clone(), present.kept.clone())
        };
        if !files.knows_no_clients {
            let files = Files { knows_no_clients: true, ..files };
            let made = files.make(&config, &kept);
            let mut present = self.present.lock();
            // What there is was made of the same, so that this can be made, too; if not, no connection is.
            present.is_shut |= made.is_err();
            present.changes += 1;
            present.files = files;
            if let Ok(made) = made {
                present.made = made;
            }
        }
        TlsError::NoClientCas(Box::new(why))
    }

    /// Whether certificates of clients are refused, since the CAs that are to count cannot be read.
    pub(crate) fn knows_no_clients(&self) -> bool {
        self.present.lock().files.knows_no_clients
    }

    /// What `config` says differently than the present configuration, to no effect, because it was set over HTTP.
    pub(crate) fn overruled(&self, config: &TlsConfig) -> Vec<&'static str> {
        let present = self.present.lock();
        let before = &present.config;
        let is_new = |name: &&str| match *name {
            "tls-min-version" => before.min_version != config.min_version,
            "tls-cipher-suites" => before.cipher_suites != config.cipher_suites,
            "tls-client-auth" => before.client_auth != config.client_auth,
            _ => before.client_names != config.client_names,
        };
        present.kept.overruled(config).into_iter().filter(is_new).collect()
    }

    /// As [`Tls::reload`], with the configuration that there is.
    pub(crate) fn reload_same(&self, env: &Env) -> Result<TlsChanges, TlsError> {
        self.reload_by(env, None)
    }

    /// Tells the node when its certificate and CAs end, and the log what a person has to know of them.
    fn look_at_certificates(&self, node: &Node, told: &mut Told) {
        self.note_end(node);
        let now_s = u64::from(node.env().clock.unix_s());
        let (end, cas) = {
            let present = self.present.lock();
            (present.made.shown.end(now_s), present.made.shown.ends_of_cas(now_s))
        };
        let today = now_s / DAY_S;
        if let Some(what) = end.filter(|_| told.certificate_day != Some(today)) {
            told.certificate_day = Some(today);
            tracing::warn!(
                event = "certificate_ends_soon",
                "{what}; put new ones into the place of tls-cert and tls-key"
            );
        }
        if told.ca_day != Some(today) && !cas.is_empty() {
            told.ca_day = Some(today);
            cas.iter().for_each(|what| tracing::warn!(event = "ca_ends_soon", "tls-ca: {what}"));
        }
        let unfit = self.unfit(node);
        if unfit != told.unfit {
            unfit.iter().for_each(|what| tracing::warn!(event = "certificate_unfit", "{what}"));
            told.unfit = unfit;
        }
    }

    /// Tells the log what is different since the files were read again.
    fn tell(&self, changes: TlsChanges) {
        if changes.pair {
            tracing::info!(
                event = "certificate_changed",
                "certificate and key have changed: new connections are made with them"
            );
        }
        if changes.cas {
            let cas = self.taken().cas.unwrap_or(0);
            tracing::info!(
                event = "cas_changed",
                cas,
                "the CAs of tls-ca have changed: those that are there now count for new connections"
            );
        }
    }

    /// Looks again and again whether the files have changed, until the future is dropped; what cannot be served with is
    /// told once, and what there was stays. A certificate or CA that ends soon is told once a day.
    pub(crate) async fn follow_files(self: Arc<Tls>, env: Env, node: Arc<Node>) {
        let mut told = String::new();
        let mut warned = Told::default();
        loop {
            self.look_at_certificates(&node, &mut warned);
            tokio::time::sleep(LOOK_EVERY).await;
            let (tls, env) = (Arc::clone(&self), env.clone());
            let look = move || tls.reload_same(&env);
            // A thread of its own: a disk that does not answer keeps no client out.
            let Ok(looked) = tokio::task::spawn_blocking(look).await else { continue };
            match looked {
                Ok(changes) => {
                    told.clear();
                    self.tell(changes);
                }
                Err(error) => {
                    let cause = error.cause();
                    if cause != told {
                        tell_unusable(&error);
                        told = cause;
                    }
                }
            }
        }
    }
}

fn tell_unusable(error: &TlsError) {
    if let TlsError::NoClientCas(error) = error {
        tracing::error!(
            event = "client_cas_unusable",
            %error,
            "the CAs of tls-ca cannot be used: new connections of clients that show a certificate are refused until they can"
        );
        return;
    }
    tracing::error!(
        event = "certificate_unusable",
        %error,
        "certificate, key or CAs have changed and cannot be used: certificate and key before are kept"
    );
}
