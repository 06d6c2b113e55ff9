//! How connections are protected, as far as it was set over HTTP while the node ran (record 170).
//!
//! *Guarantee:* a field that was set counts over what the configuration says of it. A field that was not set is the
//! configuration's.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::config::{CertificateField, ClientAuth, ClientNameRule, ClusterEncryption, TlsConfig, TlsVersion};

/// Rules by which the certificate of a client stands for a user.
const MOST_PREFIXES: usize = 10;
/// Bytes of a prefix, and of the characters that end a name.
const MOST_RULE_BYTES: usize = 256;
/// Cipher suites of a list.
const MOST_SUITES: usize = 64;
/// What is said of something that is neither yes nor no.
const NO_FLAG: &str = "Accepted values are 'true' and 'false'.";

/// Fields of the original that the configuration alone has here, and where.
const CONFIGURED: [(&str, &str); 7] = [
    ("scramSha1Enabled", "sasl-mechanisms"),
    ("scramSha256Enabled", "sasl-mechanisms"),
    ("scramSha512Enabled", "sasl-mechanisms"),
    ("passwordHashAlg", "argon2id-memory"),
    ("argon2idTime", "argon2id-time"),
    ("argon2idMem", "argon2id-memory"),
    ("pbkdf2HmacSha512Iterations", "scram-iterations"),
];

/// Fields of the original with the one value that they have here.
const FIXED: [(&str, &str); 2] =
    [("disableWWWAuthenticate", "false"), ("allowNonLocalCACertUpload", "false")];

/// What was set over HTTP; `None`: the configuration counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecuritySettings {
    /// The lowest version of TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_version: Option<TlsVersion>,
    /// The cipher suites, the preferred one first; all good ones if the list is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cipher_suites: Option<Vec<String>>,
    /// Whether the node's order of cipher suites counts, not the client's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub honors_order: Option<bool>,
    /// The console is not served without TLS.
    #[serde(default)]
    pub hides_console_over_http: bool,
    /// The console is not served with TLS.
    #[serde(default)]
    pub hides_console_over_https: bool,
    /// Whether clients show a certificate, and which user one stands for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_certificates: Option<ClientCertificates>,
    /// What counts for the binary protocol over that (record 184).
    #[serde(default, skip_serializing_if = "ServiceSettings::is_unset")]
    pub data: ServiceSettings,
    /// The same for HTTP.
    #[serde(default, skip_serializing_if = "ServiceSettings::is_unset")]
    pub cluster_manager: ServiceSettings,
}

/// What was set for one service; `None`: what counts for all services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceSettings {
    /// The lowest version of TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_version: Option<TlsVersion>,
    /// The cipher suites, the preferred one first; all good ones if the list is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cipher_suites: Option<Vec<String>>,
    /// Whether the node's order of cipher suites counts, not the client's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub honors_order: Option<bool>,
}

/// What a connection with TLS is for, by the original's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsService {
    /// The binary protocol.
    Data,
    /// HTTP.
    ClusterManager,
}

impl TlsService {
    /// Both.
    pub const ALL: [TlsService; 2] = [TlsService::Data, TlsService::ClusterManager];

    /// Its name in addresses and answers.
    pub fn name(self) -> &'static str {
        match self {
            TlsService::Data => "data",
            TlsService::ClusterManager => "clusterManager",
        }
    }

    /// The one of this name.
    pub fn of(name: &str) -> Option<TlsService> {
        TlsService::ALL.into_iter().find(|service| service.name() == name)
    }
}

impl ServiceSettings {
    fn is_unset(&self) -> bool {
        *self == ServiceSettings::default()
    }

    /// What was set, by the original's names of fields.
    pub fn told(&self) -> Map<String, Value> {
        let set = [
            ("tlsMinVersion", self.min_version.map(|version| json!(version.name()))),
            ("cipherSuites", self.cipher_suites.as_ref().map(|suites| json!(suites))),
            ("honorCipherOrder", self.honors_order.map(|honors| json!(honors))),
        ];
        set.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// Takes a field of a form, `None` unsets it; `false` if no service has such a field.
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool, String> {
        match name {
            "tlsMinVersion" => self.min_version = value.map(min_version).transpose()?,
            "cipherSuites" => self.cipher_suites = value.map(suites).transpose()?,
            "honorCipherOrder" => self.honors_order = value.map(flag).transpose()?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn over(&self, mut all: TlsConfig) -> TlsConfig {
        if let Some(version) = self.min_version {
            all.min_version = version;
        }
        if let Some(suites) = &self.cipher_suites {
            all.cipher_suites.clone_from(suites);
        }
        if let Some(honors) = self.honors_order {
            all.honors_order = honors;
        }
        all
    }
}

/// Whether clients show a certificate, and which user one stands for, in the original's form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientCertificates {
    /// Whether they do.
    pub state: CertificateState,
    /// Where the user's name is: the first rule that finds a name counts.
    pub prefixes: Vec<NamePrefix>,
}

/// Whether clients show a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CertificateState {
    /// They are not asked for one.
    Disable,
    /// They may.
    Enable,
    /// They may, and nodes do: all connections between nodes are encrypted.
    Hybrid,
    /// They must.
    Mandatory,
}

impl CertificateState {
    /// What it comes to for clients.
    pub fn auth(self) -> ClientAuth {
        match self {
            CertificateState::Disable => ClientAuth::Off,
            CertificateState::Enable | CertificateState::Hybrid => ClientAuth::Optional,
            CertificateState::Mandatory => ClientAuth::Required,
        }
    }

    fn of(text: &str) -> Option<CertificateState> {
        Some(match text {
            "disable" => CertificateState::Disable,
            "enable" => CertificateState::Enable,
            "hybrid" => CertificateState::Hybrid,
            "mandatory" => CertificateState::Mandatory,
            _ => return None,
        })
    }
}

/// Where a certificate has the name of its user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamePrefix {
    path: String,
    prefix: String,
    delimiter: String,
}

impl NamePrefix {
    fn field(&self) -> Option<CertificateField> {
        // The original's manual and its certificates' page name the same field differently.
        if self.path == "san.dns" {
            Some(CertificateField::SanDnsName)
        } else {
            CertificateField::of(&self.path)
        }
    }

    fn rule(&self) -> Option<ClientNameRule> {
        Some(ClientNameRule::new(self.field()?, &self.prefix, &self.delimiter))
    }

    fn of(value: &Value) -> Result<NamePrefix, String> {
        let Some(object) = value.as_object() else {
            return Err("prefixes - Each must be an object with path, prefix and delimiter.".to_owned());
        };
        if let Some(other) =
            object.keys().find(|name| !["path", "prefix", "delimiter"].contains(&name.as_str()))
        {
            return Err(format!("prefixes - Unsupported key '{other}'."));
        }
        let text = |name: &str| match object.get(name).and_then(Value::as_str) {
            Some(text) if text.len() <= MOST_RULE_BYTES && !text.chars().any(char::is_control) => {
                Ok(text.to_owned())
            }
            Some(_) => Err(format!(
                "prefixes - '{name}' must have at most {MOST_RULE_BYTES} bytes, and no control characters."
            )),
            None => Err(format!("prefixes - '{name}' must be supplied, as a string.")),
        };
        let found =
            NamePrefix { path: text("path")?, prefix: text("prefix")?, delimiter: text("delimiter")? };
        if found.field().is_none() {
            return Err(format!(
                "prefixes - path {:?} is not supported: give subject.cn, san.uri, san.dns, san.dnsname or san.email.",
                found.path
            ));
        }
        Ok(found)
    }
}

impl ClientCertificates {
    /// Reads a JSON object with `state` and `prefixes`.
    ///
    /// # Errors
    ///
    /// What is wrong with it, field by field.
    pub fn parse(body: &[u8]) -> Result<ClientCertificates, Vec<String>> {
        let body: Value = serde_json::from_slice(body)
            .map_err(|error| vec![format!("_ - The body must be JSON: {error}.")])?;
        let Some(object) = body.as_object() else {
            return Err(vec!["_ - The body must be an object with state and prefixes.".to_owned()]);
        };
        let mut wrong: Vec<String> = object
            .keys()
            .filter(|name| !["state", "prefixes"].contains(&name.as_str()))
            .map(|name| format!("{name} - Unsupported key."))
            .collect();
        let state = object.get("state").and_then(Value::as_str).and_then(CertificateState::of);
        if state.is_none() {
            wrong.push("state - Supported values are disable, enable, hybrid and mandatory.".to_owned());
        }
        let no_rules = Vec::new();
        let listed = match object.get("prefixes") {
            Some(Value::Array(listed)) => listed,
            Some(_) => {
                wrong.push("prefixes - A list must be given.".to_owned());
                &no_rules
            }
            None => &no_rules,
        };
        let mut prefixes = Vec::new();
        for one in listed.iter().take(MOST_PREFIXES) {
            match NamePrefix::of(one) {
                Ok(prefix) => prefixes.push(prefix),
                Err(why) => wrong.push(why),
            }
        }
        if listed.len() > MOST_PREFIXES {
            wrong.push(format!("prefixes - At most {MOST_PREFIXES} can be given."));
        }
        if listed.is_empty() && state.is_some_and(|state| state != CertificateState::Disable) {
            wrong.push("prefixes - At least one must be given, unless the state is disable.".to_owned());
        }
        match state.filter(|_| wrong.is_empty()) {
            Some(state) => ClientCertificates { state, prefixes }.checked(),
            None => Err(wrong),
        }
    }

    fn checked(self) -> Result<ClientCertificates, Vec<String>> {
        let mut seen = BTreeSet::new();
        for one in &self.prefixes {
            let Some(field) = one.field() else {
                return Err(vec![format!("prefixes - path {:?} is not supported.", one.path)]);
            };
            if !seen.insert((field.name(), &one.prefix)) {
                return Err(vec![format!(
                    "prefixes - path {} with prefix {:?} is there twice: each pair can be given once.",
                    one.path, one.prefix
                )]);
            }
        }
        if self.prefixes.len() > MOST_PREFIXES {
            return Err(vec![format!("prefixes - At most {MOST_PREFIXES} can be given.")]);
        }
        Ok(self)
    }

    /// As it is told: what was posted.
    pub fn told(&self) -> Value {
        json!(self)
    }
}

impl SecuritySettings {
    /// Whether nothing was set.
    pub fn is_unset(&self) -> bool {
        *self == SecuritySettings::default()
    }

    /// What is wrong with kept settings, if anything is.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self.client_certificates.clone().map(ClientCertificates::checked) {
            Some(Err(wrong)) => Err(wrong.join(" ")),
            _ => Ok(()),
        }
    }

    /// These settings with the fields of a form. Whether the node can speak TLS by them is not looked at here.
    ///
    /// # Errors
    ///
    /// What is wrong, in the original's words where it has some.
    pub fn changed(
        &self,
        fields: &[(String, String)],
        level: ClusterEncryption,
    ) -> Result<SecuritySettings, Vec<String>> {
        let (mut next, mut wrong) = (self.clone(), Vec::new());
        for (name, value) in fields {
            let told = match name.as_str() {
                "tlsMinVersion" => min_version(value).map(|version| next.min_version = Some(version)),
                "cipherSuites" => suites(value).map(|suites| next.cipher_suites = Some(suites)),
                "honorCipherOrder" => flag(value).map(|is_on| next.honors_order = Some(is_on)),
                "disableUIOverHttp" => flag(value).map(|is_on| next.hides_console_over_http = is_on),
                "disableUIOverHttps" => flag(value).map(|is_on| next.hides_console_over_https = is_on),
                "clusterEncryptionLevel" => same_level(value, level),
                name => other_field(name, value),
            };
            wrong.extend(told.err().map(|why| format!("{name} - {why}")));
        }
        if wrong.is_empty() { Ok(next) } else { Err(wrong) }
    }

    /// What was set for one service.
    pub fn of_service(&self, service: TlsService) -> &ServiceSettings {
        match service {
            TlsService::Data => &self.data,
            TlsService::ClusterManager => &self.cluster_manager,
        }
    }

    /// These settings with the fields of a form for one service, as [`SecuritySettings::changed`].
    ///
    /// # Errors
    ///
    /// What is wrong, in the original's words where it has some.
    pub fn service_changed(
        &self,
        service: TlsService,
        fields: &[(String, String)],
    ) -> Result<SecuritySettings, Vec<String>> {
        let (mut next, mut wrong) = (self.clone(), Vec::new());
        for (name, value) in fields {
            let told = match next.service_mut(service).set(name, Some(value.as_str())) {
                Ok(true) => continue,
                Ok(false) => "Unsupported setting of a single service.".to_owned(),
                Err(why) => why,
            };
            wrong.push(format!("{name} - {told}"));
        }
        if wrong.is_empty() { Ok(next) } else { Err(wrong) }
    }

    /// These settings without what was set of a field for one service; `None` if no service has such a field.
    pub fn service_unset(&self, service: TlsService, field: &str) -> Option<SecuritySettings> {
        let mut next = self.clone();
        let is_one = next.service_mut(service).set(field, None).unwrap_or(false);
        is_one.then_some(next)
    }

    /// These settings without what was set of a field for all services; `None` if there is no such field.
    pub fn unset(&self, field: &str) -> Option<SecuritySettings> {
        let mut next = self.clone();
        match field {
            "tlsMinVersion" => next.min_version = None,
            "cipherSuites" => next.cipher_suites = None,
            "honorCipherOrder" => next.honors_order = None,
            "disableUIOverHttp" => next.hides_console_over_http = false,
            "disableUIOverHttps" => next.hides_console_over_https = false,
            _ => return None,
        }
        Some(next)
    }

    fn service_mut(&mut self, service: TlsService) -> &mut ServiceSettings {
        match service {
            TlsService::Data => &mut self.data,
            TlsService::ClusterManager => &mut self.cluster_manager,
        }
    }

    /// A configuration with these settings over it, those of a service last.
    pub fn over_for(&self, service: TlsService, config: &TlsConfig) -> TlsConfig {
        self.of_service(service).over(self.over(config))
    }

    /// A configuration with these settings over it, without those of services.
    pub fn over(&self, config: &TlsConfig) -> TlsConfig {
        let SecuritySettings { min_version, cipher_suites, honors_order, .. } = self.clone();
        let mut all = ServiceSettings { min_version, cipher_suites, honors_order }.over(config.clone());
        if let Some(clients) = &self.client_certificates {
            all.client_auth = clients.state.auth();
            all.client_names = clients.prefixes.iter().filter_map(NamePrefix::rule).collect();
        }
        all
    }

    /// Flags of a configuration that these settings count over.
    pub fn overruled(&self, config: &TlsConfig) -> Vec<&'static str> {
        let all = self.over(config);
        let differs = [
            ("tls-min-version", all.min_version != config.min_version),
            ("tls-cipher-suites", all.cipher_suites != config.cipher_suites),
            ("tls-client-auth", all.client_auth != config.client_auth),
            (
                "tls-client-user",
                self.client_certificates.is_some() && all.client_names != config.client_names,
            ),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

fn flag(value: &str) -> Result<bool, String> {
    value.parse().map_err(|_| NO_FLAG.to_owned())
}

fn min_version(value: &str) -> Result<TlsVersion, String> {
    [TlsVersion::V1_2, TlsVersion::V1_3]
        .into_iter()
        .find(|version| version.name() == value)
        .ok_or_else(|| "Supported TLS versions are tlsv1.3, tlsv1.2".to_owned())
}

fn suites(value: &str) -> Result<Vec<String>, String> {
    let listed: Vec<String> =
        serde_json::from_str(value).map_err(|_| "Invalid format. Expecting a list of ciphers.".to_owned())?;
    if listed.len() > MOST_SUITES {
        return Err(format!("At most {MOST_SUITES} can be given."));
    }
    Ok(listed)
}

/// The level that a node has is taken, so that a script may say all fields each time.
fn same_level(value: &str, level: ClusterEncryption) -> Result<(), String> {
    let is_one = ["control", "all", "strict"].contains(&value);
    if !is_one {
        return Err("Cluster encryption level must be one of [\"control\",\"all\",\"strict\"]".to_owned());
    }
    if value == level.name() {
        return Ok(());
    }
    if level == ClusterEncryption::Off {
        return Err(
            "Can't set cluster encryption level when cluster encryption is disabled: start each node with \
                    --cluster-encryption."
                .to_owned(),
        );
    }
    Err(format!(
        "It is {} and cannot change while the node runs: start each node with --cluster-encryption {value}.",
        level.name()
    ))
}

fn other_field(name: &str, value: &str) -> Result<(), String> {
    if let Some((_, flag)) = CONFIGURED.iter().find(|(field, _)| *field == name) {
        return Err(format!("It cannot be set over HTTP: set {flag} in the configuration of each node."));
    }
    match FIXED.iter().find(|(field, _)| *field == name) {
        Some((_, is)) if value == *is => Ok(()),
        Some((_, is)) => Err(format!("It is {is} and cannot change.")),
        None => Err("Unsupported setting.".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(fields: &[(&str, &str)]) -> Vec<(String, String)> {
        fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_form_sets_what_it_names() {
        let fields = form(&[
            ("tlsMinVersion", "tlsv1.3"),
            ("cipherSuites", "[\"TLS_AES_128_GCM_SHA256\"]"),
            ("honorCipherOrder", "true"),
            ("disableUIOverHttp", "true"),
            ("clusterEncryptionLevel", "all"),
            ("disableWWWAuthenticate", "false"),
        ]);
        let set = SecuritySettings::default().changed(&fields, ClusterEncryption::All).expect("valid");
        assert_eq!(set.min_version, Some(TlsVersion::V1_3));
        assert_eq!(set.cipher_suites.as_deref(), Some(&["TLS_AES_128_GCM_SHA256".to_owned()][..]));
        assert!(
            set.honors_order == Some(true) && set.hides_console_over_http && !set.hides_console_over_https
        );
        let bytes = serde_json::to_vec(&set).expect("JSON");
        assert_eq!(serde_json::from_slice::<SecuritySettings>(&bytes).expect("the same"), set);
        let stays =
            set.changed(&form(&[("disableUIOverHttps", "true")]), ClusterEncryption::All).expect("valid");
        assert_eq!(stays, SecuritySettings { hides_console_over_https: true, ..set });
    }

    #[test]
    fn what_is_set_for_a_service_counts_there_over_what_is_set_for_all() {
        let all = form(&[("tlsMinVersion", "tlsv1.3"), ("honorCipherOrder", "true")]);
        let all = SecuritySettings::default().changed(&all, ClusterEncryption::Off).expect("valid");
        let own = form(&[("tlsMinVersion", "tlsv1.2"), ("cipherSuites", "[\"TLS_AES_128_GCM_SHA256\"]")]);
        let set = all.service_changed(TlsService::ClusterManager, &own).expect("valid");
        let bytes = serde_json::to_vec(&set).expect("JSON");
        assert_eq!(serde_json::from_slice::<SecuritySettings>(&bytes).expect("the same"), set);
        let told = json!({ "tlsMinVersion": "tlsv1.2", "cipherSuites": ["TLS_AES_128_GCM_SHA256"] });
        assert_eq!(Value::Object(set.of_service(TlsService::ClusterManager).told()), told);
        assert!(set.of_service(TlsService::Data).told().is_empty());
        let half = set.service_unset(TlsService::ClusterManager, "tlsMinVersion").expect("a field");
        let none = half.service_unset(TlsService::ClusterManager, "cipherSuites").expect("a field");
        assert_eq!(none, all);
        assert!(!serde_json::to_string(&none).expect("JSON").contains("cluster_manager"));
        assert_eq!(set.service_unset(TlsService::Data, "disableUIOverHttp"), None);
        for (name, value, part) in [
            ("tlsMinVersion", "", "Supported TLS versions"),
            ("disableUIOverHttp", "true", "of a single service"),
            ("clusterEncryptionLevel", "all", "of a single service"),
        ] {
            let wrong =
                all.service_changed(TlsService::Data, &form(&[(name, value)])).expect_err("it is wrong");
            assert!(wrong[0].starts_with(name) && wrong[0].contains(part), "{wrong:?}");
        }
    }

    #[test]
    fn all_that_is_wrong_with_a_form_is_told() {
        let wrong = [
            ("tlsMinVersion", "tlsv1.1", "Supported TLS versions are tlsv1.3, tlsv1.2"),
            ("cipherSuites", "TLS_AES_128_GCM_SHA256", "Expecting a list of ciphers"),
            ("honorCipherOrder", "1", NO_FLAG),
            ("disableUIOverHttp", "", NO_FLAG),
            ("clusterEncryptionLevel", "strict", "--cluster-encryption strict"),
            ("clusterEncryptionLevel", "off", "must be one of"),
            ("scramSha1Enabled", "false", "sasl-mechanisms"),
            ("disableWWWAuthenticate", "true", "cannot change"),
            ("allowedHosts", "*", "Unsupported setting"),
        ];
        let fields: Vec<_> = wrong.iter().map(|(name, value, _)| (*name, *value)).collect();
        let told = SecuritySettings::default()
            .changed(&form(&fields), ClusterEncryption::All)
            .expect_err("it is wrong");
        assert_eq!(told.len(), wrong.len(), "{told:?}");
        for ((name, _, part), told) in wrong.iter().zip(told) {
            assert!(told.starts_with(&format!("{name} - ")) && told.contains(part), "{told}");
        }
        let off = SecuritySettings::default()
            .changed(&form(&[("clusterEncryptionLevel", "all")]), ClusterEncryption::Off)
            .expect_err("it is off");
        assert!(off[0].contains("when cluster encryption is disabled"), "{off:?}");
    }

    #[test]
    fn rules_for_certificates_are_told_as_they_were_posted() {
        let body = json!({ "state": "enable", "prefixes": [
            { "path": "san.uri", "prefix": "www.", "delimiter": "." },
            { "path": "san.dns", "prefix": "", "delimiter": "" },
            { "path": "san.email", "prefix": "", "delimiter": "@" },
        ] });
        let read = ClientCertificates::parse(body.to_string().as_bytes()).expect("valid");
        assert_eq!(read.told(), body);
        let off = json!({ "state": "disable", "prefixes": [] });
        let read = ClientCertificates::parse(off.to_string().as_bytes()).expect("valid");
        assert_eq!((read.state.auth(), read.told()), (ClientAuth::Off, off));
        assert!(ClientCertificates::parse(br#"{"state":"disable"}"#).is_ok());
    }

    #[test]
    fn rules_that_cannot_be_followed_are_refused() {
        let rule = |path: &str, prefix: &str| json!({ "path": path, "prefix": prefix, "delimiter": "" });
        let eleven: Vec<Value> = (0..11).map(|at| rule("san.uri", &at.to_string())).collect();
        for (body, part) in [
            (json!([]), "an object"),
            (json!({ "state": "on", "prefixes": [rule("subject.cn", "")] }), "state - Supported values"),
            (json!({ "prefixes": [rule("subject.cn", "")] }), "state - Supported values"),
            (json!({ "state": "mandatory" }), "At least one"),
            (json!({ "state": "enable", "prefixes": "subject.cn" }), "A list must be given"),
            (json!({ "state": "enable", "prefixes": eleven }), "At most 10"),
            (json!({ "state": "enable", "prefixes": [rule("san.ip", "")] }), "is not supported"),
            (
                json!({ "state": "enable", "prefixes": [rule("san.dns", "a"), rule("san.dnsname", "a")] }),
                "twice",
            ),
            (
                json!({ "state": "enable", "prefixes": [{ "path": "subject.cn", "prefix": "" }] }),
                "'delimiter'",
            ),
            (
                json!({ "state": "enable", "prefixes": [rule("san.uri", &"x".repeat(257))] }),
                "at most 256 bytes",
            ),
            (json!({ "state": "disable", "prefixes": [], "users": 1 }), "users - Unsupported key"),
        ] {
            let wrong = ClientCertificates::parse(body.to_string().as_bytes()).expect_err("it is wrong");
            assert!(wrong.iter().any(|one| one.contains(part)), "{body}: {wrong:?}");
        }
        assert!(ClientCertificates::parse(b"state=enable").is_err());
    }
}
