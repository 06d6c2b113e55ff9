//! Versions and cipher suites that TLS is spoken with.

use std::sync::Arc;

use ::node::config::{TlsConfig, TlsVersion};
use rustls::crypto::{CryptoProvider, ring};
use rustls::sign::SigningKey;
use rustls::{SupportedCipherSuite, SupportedProtocolVersion, version};

/// Versions and cipher suites.
#[derive(Clone)]
pub(crate) struct Spoken {
    pub(super) provider: Arc<CryptoProvider>,
    pub(super) versions: &'static [&'static SupportedProtocolVersion],
    /// Whether a server's order of cipher suites counts, not the client's.
    pub(super) honors_order: bool,
}

/// Cipher suites with which nothing can be spoken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuiteError {
    /// There is no such suite.
    #[error("{name:?} is no cipher suite that is spoken here; there are {}", all_names().join(", "))]
    Unknown {
        /// What was given.
        name: String,
    },
    /// All of them are of a version that is not spoken.
    #[error("none of them is of TLS 1.3, and tls-min-version is 1.3")]
    OtherVersion,
    /// A server has no key that one of them works with.
    #[error(
        "none of them can be spoken with the key of tls-key: add one for a key of its kind, or one of TLS 1.3"
    )]
    OtherKey,
}

static FROM_1_2: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
static FROM_1_3: [&SupportedProtocolVersion; 1] = [&version::TLS13];
static ONLY_1_2: [&SupportedProtocolVersion; 1] = [&version::TLS12];

/// A suite's name in the registry of IANA.
fn name_of(suite: &SupportedCipherSuite) -> String {
    let name = suite.suite().as_str().unwrap_or_default();
    // The registry has no number in the names of 1.3.
    name.replace("TLS13_", "TLS_")
}

/// The names of all suites that are spoken, the preferred one first.
pub(crate) fn all_names() -> Vec<String> {
    ring::ALL_CIPHER_SUITES.iter().map(name_of).collect()
}

impl Spoken {
    /// All that is good, from TLS 1.2 on.
    pub(crate) fn any() -> Spoken {
        let provider = Arc::new(ring::default_provider());
        Spoken { provider, versions: &FROM_1_2, honors_order: false }
    }

    /// What a configuration says.
    pub(super) fn of(config: &TlsConfig) -> Result<Spoken, SuiteError> {
        let is_1_3 = config.min_version == TlsVersion::V1_3;
        let from = if is_1_3 { &FROM_1_3[..] } else { &FROM_1_2[..] };
        if config.cipher_suites.is_empty() {
            return Ok(Spoken { versions: from, honors_order: config.honors_order, ..Spoken::any() });
        }
        let known = |name: &String| {
            let mut all = ring::ALL_CIPHER_SUITES.iter();
            let found = all.find(|suite| name_of(suite).eq_ignore_ascii_case(name)).copied();
            found.ok_or_else(|| SuiteError::Unknown { name: name.clone() })
        };
        let cipher_suites: Vec<_> = config.cipher_suites.iter().map(known).collect::<Result<_, _>>()?;
        // A version none of whose suites is there is not spoken.
        let is_there = |of: &SupportedProtocolVersion| {
            cipher_suites.iter().any(|suite| suite.version().version == of.version)
        };
        let versions: &'static [_] = match (is_there(&version::TLS13), is_there(&version::TLS12)) {
            (true, true) => from,
            (true, false) => &FROM_1_3,
            (false, _) if is_1_3 => return Err(SuiteError::OtherVersion),
            (false, _) => &ONLY_1_2,
        };
        Ok(Spoken {
            provider: Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() }),
            versions,
            honors_order: config.honors_order,
        })
    }

    /// Whether a server with this key can agree with some client on a suite.
    pub(super) fn works_with(&self, key: &dyn SigningKey) -> bool {
        let is_spoken = |suite: &SupportedCipherSuite| {
            self.versions.iter().any(|version| version.version == suite.version().version)
        };
        self.provider.cipher_suites.iter().filter(|suite| is_spoken(suite)).any(|suite| match suite {
            SupportedCipherSuite::Tls12(suite) => key.choose_scheme(suite.sign).is_some(),
            SupportedCipherSuite::Tls13(_) => true,
        })
    }
}
