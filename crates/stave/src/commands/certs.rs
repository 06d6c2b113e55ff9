//! `stave certs`: certificates for those who have no CA of their own.

use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use base::env::{Env, OpenMode};
use clap::{Args, Subcommand};
use node::data_dir::let_all_read;
use node::user_names::{NAME_RULE, is_user_name};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
};
use serde_json::{Value, json};
use server::tls;
use time::{Duration, OffsetDateTime};

use super::http_flags::HttpFlags;
use super::serve::read_text;
use crate::cli::{Outcome, WrongArguments};

/// How long a CA's certificate is valid, in days.
const CA_DAYS: i64 = 3_650;
/// Clocks of others may be behind by this.
const BEFORE: Duration = Duration::hours(1);
const CA_CERTIFICATE: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const NODE_CERTIFICATE: &str = "node.pem";
const NODE_KEY: &str = "node.key";
/// How long a node's certificate is valid if nothing else is said, in days.
const NODE_DAYS: u32 = 825;
/// What a certificate is for if nothing else is said.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Make certificates for nodes and clients.
#[derive(Clone, Debug, Args)]
pub struct CertsFlags {
    #[command(subcommand)]
    what: CertsCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum CertsCommand {
    Init(InitFlags),
    Node(NodeCertFlags),
    Client(ClientCertFlags),
    Reload(ReloadFlags),
}

/// Have a node read its certificate and key again, and say whether it can use them.
///
/// It notices new files by itself within two seconds; this is for scripts that have to know how that went. Connections
/// that are there go on with what they were made with. It asks the one node of --addr: in a cluster each node has files of
/// its own, and is asked for itself.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave certs reload
  stave certs reload --addr db1.example.org:18091 --tls-ca certs/ca.pem --json")]
struct ReloadFlags {
    #[command(flatten)]
    to: HttpFlags,
}

/// Make a CA, and a certificate for a node.
///
/// It writes ca.pem, which clients trust; ca.key, which signs further certificates and should not stay on a node;
/// node.pem and node.key, which a node is started with. Keys are ECDSA P-256, and readable by their owner alone; every user
/// may read ca.pem, which is to be handed on.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave certs init --out certs
  stave certs init --out certs --name db1.example.org --name 10.0.0.1
  stave serve --tls-cert certs/node.pem --tls-key certs/node.key --password secret1

A file that is there already is not written over.")]
struct InitFlags {
    #[command(flatten)]
    made: MadeFlags,
}

/// Make a certificate for another node, or a new one, with the CA that `stave certs init` made.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave certs node --ca certs --out db2 --name db2.example.org
  stave certs node --ca certs --out renewed --days 90 --json

A node that runs takes new files over when they are moved into the place of its old ones.")]
struct NodeCertFlags {
    /// The folder with ca.pem and ca.key
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    #[command(flatten)]
    made: MadeFlags,
}

/// Make a certificate by which a client logs in as a user, with the CA that `stave certs init` made.
///
/// It writes client.pem and client.key; the user's name is the certificate's common name.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:
  stave certs client --ca certs --out ada --user ada
  stave certs client --ca certs --out ada --user ada --days 30 --json
  stave serve --tls-cert certs/node.pem --tls-key certs/node.key --tls-ca certs/ca.pem --tls-client-auth optional \
    --password secret1

A file that is there already is not written over.")]
struct ClientCertFlags {
    /// The folder with ca.pem and ca.key
    #[arg(long, value_name = "DIR")]
    ca: PathBuf,
    /// The user that the certificate stands for
    #[arg(long, value_name = "USER")]
    user: String,
    /// The folder to write to; it is made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// How many days the certificate is valid
    #[arg(long, value_name = "N", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=CA_DAYS))]
    days: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is made, and for whom.
#[derive(Clone, Debug, Args)]
struct MadeFlags {
    /// The folder to write to; it is made if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A name or address that clients and other nodes reach the node by; may be repeated [default: localhost, 127.0.0.1,
    /// ::1]
    #[arg(long, value_name = "NAME|IP")]
    name: Vec<String>,
    /// How many days the node's certificate is valid
    #[arg(long, value_name = "N", default_value_t = NODE_DAYS, value_parser = clap::value_parser!(u32).range(1..=CA_DAYS))]
    days: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A file to write.
struct PemFile {
    name: &'static str,
    text: String,
}

/// Runs the command.
pub fn run(env: &Env, flags: &CertsFlags) -> anyhow::Result<Outcome> {
    let now = now(env)?;
    let (written, files) = match &flags.what {
        CertsCommand::Reload(ReloadFlags { to }) => {
            std::io::stdout().lock().write_all(reload(to)?.as_bytes())?;
            return Ok(Outcome::Done);
        }
        CertsCommand::Init(InitFlags { made }) => (Written::of_node(made), run_init(env, made)?),
        CertsCommand::Node(NodeCertFlags { ca, made }) => {
            let files = of_node(made, &read_ca(env, ca)?, now)?;
            write_all(env, &made.out, &files)?;
            (Written::of_node(made), files.into())
        }
        CertsCommand::Client(client) => {
            let files = of_client(client, &read_ca(env, &client.ca)?, now)?;
            write_all(env, &client.out, &files)?;
            (Written::of_client(client), files.into())
        }
    };
    std::io::stdout().lock().write_all(written.said(&files, now).as_bytes())?;
    Ok(Outcome::Done)
}

/// Has a node read its files again; what is to be printed.
fn reload(to: &HttpFlags) -> anyhow::Result<String> {
    let target = to.target()?;
    let (status, body) = target.exchange("POST", "/node/controller/reloadCertificate", String::new())?;
    let told = target.answer(status, &body)?;
    if to.json {
        return Ok(format!("{told}\n"));
    }
    let is_true = |name: &str| told[name].as_bool() == Some(true);
    let what = match (is_true("changed"), is_true("casChanged")) {
        (true, false) => "new connections are made with the new certificate",
        (true, true) => "new connections are made with what the files hold now",
        _ => "certificate and key have not changed",
    };
    let moment = |name: &str| {
        let moment = told[name].as_i64().and_then(|s| OffsetDateTime::from_unix_timestamp(s).ok());
        moment.map(|at| format!("{} {:02}:{:02}:{:02} UTC", at.date(), at.hour(), at.minute(), at.second()))
    };
    let cas = told["cas"].as_u64().zip(moment("casSince")).map_or_else(String::new, |(cas, since)| {
        let which = if cas == 1 { "CA counts" } else { "CAs count" };
        format!("tls-ca: {cas} {which}, as the file has been since {since}\n")
    });
    let warnings = told["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let warnings: String = warnings.map(|warning| format!("warning: {warning}\n")).collect();
    let end = told["validUntil"].as_i64().and_then(|end_s| OffsetDateTime::from_unix_timestamp(end_s).ok());
    let end = end.map_or_else(String::new, |end| format!("; the certificate is valid until {}", end.date()));
    Ok(format!("{what}{end}\n{cas}{warnings}"))
}

/// The files of a CA and of a node of this machine.
pub(super) struct OwnCertificates {
    /// What clients trust.
    pub ca: PathBuf,
    /// What the node shows.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// The certificates of this machine's own names that a folder has; they are made if it has none. Nodes at `hosts` know each
/// other by them.
pub(super) fn of_this_machine(env: &Env, folder: &Path, hosts: &[IpAddr]) -> anyhow::Result<OwnCertificates> {
    let made = OwnCertificates {
        ca: folder.join(CA_CERTIFICATE),
        certificate: folder.join(NODE_CERTIFICATE),
        key: folder.join(NODE_KEY),
    };
    let is_there = |path: &Path| env.disk.open(path, OpenMode::Read).is_ok();
    if !(is_there(&made.ca) && is_there(&made.certificate) && is_there(&made.key)) {
        let mut name = OWN_NAMES.map(str::to_owned).to_vec();
        let others = hosts.iter().map(IpAddr::to_string);
        others.for_each(|host| {
            if !name.contains(&host) {
                name.push(host)
            }
        });
        run_init(env, &MadeFlags { out: folder.to_owned(), name, days: NODE_DAYS, json: false })?;
    }
    let (ca, certificate) = (read_text(env, &made.ca)?, read_text(env, &made.certificate)?);
    for host in hosts {
        tls::knows(env, ca.as_bytes(), certificate.as_bytes(), *host).map_err(|why| {
            WrongArguments(format!(
                "{}: not a certificate by which {host} is known to who trusts {}: {why}; nodes could not connect to each \
                 other: give another folder, which may be empty",
                made.certificate.display(),
                made.ca.display()
            ))
        })?;
    }
    Ok(made)
}

/// Makes a CA and a node's certificate; what was written.
fn run_init(env: &Env, made: &MadeFlags) -> anyhow::Result<Vec<PemFile>> {
    let now = now(env)?;
    let key = KeyPair::generate()?;
    let ca = CertifiedIssuer::self_signed(ca_params(now, &key), key)?;
    let mut files = vec![
        PemFile { name: CA_CERTIFICATE, text: ca.pem() },
        PemFile { name: CA_KEY, text: ca.key().serialize_pem() },
    ];
    files.extend(of_node(made, &ca, now)?);
    write_all(env, &made.out, &files)?;
    Ok(files)
}

fn now(env: &Env) -> anyhow::Result<OffsetDateTime> {
    Ok(OffsetDateTime::from_unix_timestamp(env.clock.unix_s().into())?)
}

/// What is told of what was written.
struct Written<'f> {
    out: &'f Path,
    names: Vec<String>,
    days: u32,
    json: bool,
}

impl<'f> Written<'f> {
    fn of_node(flags: &'f MadeFlags) -> Written<'f> {
        Written { out: &flags.out, names: names(flags), days: flags.days, json: flags.json }
    }

    fn of_client(flags: &'f ClientCertFlags) -> Written<'f> {
        Written { out: &flags.out, names: vec![flags.user.clone()], days: flags.days, json: flags.json }
    }

    fn said(&self, files: &[PemFile], now: OffsetDateTime) -> String {
        let until = (now + Duration::days(i64::from(self.days))).date().to_string();
        let paths: Vec<String> =
            files.iter().map(|file| self.out.join(file.name).display().to_string()).collect();
        if self.json {
            return format!("{}\n", json!({ "files": paths, "names": self.names, "valid_until": until }));
        }
        format!("written: {}\nvalid for {} until {until}\n", paths.join(", "), self.names.join(", "))
    }
}

/// Each CA has a name of its own, by its key: while one CA takes the place of another, who does not know one says so, and not
/// that a signature is wrong.
fn ca_params(now: OffsetDateTime, key: &KeyPair) -> CertificateParams {
    let mut params = CertificateParams::default();
    let of_key: String =
        params.key_identifier(key).iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    params.distinguished_name = named(&format!("Stave CA {of_key}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (params.not_before, params.not_after) = (now - BEFORE, now + Duration::days(CA_DAYS));
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// The names that a certificate is for.
fn names(flags: &MadeFlags) -> Vec<String> {
    if flags.name.is_empty() { OWN_NAMES.map(str::to_owned).to_vec() } else { flags.name.clone() }
}

/// An IPv6 address has colons, too, and no port behind them.
fn has_port(name: &str) -> bool {
    name.contains(':') && name.parse::<IpAddr>().is_err()
}

fn of_node(
    flags: &MadeFlags,
    issuer: &Issuer<'_, KeyPair>,
    now: OffsetDateTime,
) -> anyhow::Result<[PemFile; 2]> {
    let names = names(flags);
    if let Some(wrong) = names
        .iter()
        .find(|name| name.is_empty() || !name.is_ascii() || name.contains(['/', ' ']) || has_port(name))
    {
        let what = format!("--name {wrong:?}: give a host name or an IP address, without scheme and port");
        bail!(WrongArguments(what));
    }
    let mut params = CertificateParams::new(names.clone())
        .map_err(|error| WrongArguments(format!("--name {}: {error}", names.join(", "))))?;
    params.distinguished_name = named(&names[0]);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // Between nodes each is the other's client.
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = (now - BEFORE, now + Duration::days(i64::from(flags.days)));
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?;
    Ok([
        PemFile { name: NODE_CERTIFICATE, text: certificate.pem() },
        PemFile { name: NODE_KEY, text: key.serialize_pem() },
    ])
}

fn of_client(
    flags: &ClientCertFlags,
    issuer: &Issuer<'_, KeyPair>,
    now: OffsetDateTime,
) -> anyhow::Result<[PemFile; 2]> {
    // The most that a common name may have (RFC 5280, ub-common-name).
    if flags.user.is_empty() || flags.user.chars().count() > 64 {
        bail!(WrongArguments("--user: a certificate's common name has 1 to 64 characters".to_owned()));
    }
    if !is_user_name(&flags.user) {
        let what = format!(
            "--user {:?}: no user that is made over HTTP can have this name. {NAME_RULE}",
            flags.user
        );
        bail!(WrongArguments(what));
    }
    let mut params = CertificateParams::default();
    params.distinguished_name = named(&flags.user);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    (params.not_before, params.not_after) = (now - BEFORE, now + Duration::days(i64::from(flags.days)));
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, issuer)?;
    Ok([
        PemFile { name: "client.pem", text: certificate.pem() },
        PemFile { name: "client.key", text: key.serialize_pem() },
    ])
}

/// The CA of a folder.
fn read_ca(env: &Env, folder: &Path) -> anyhow::Result<Issuer<'static, KeyPair>> {
    let key = folder.join(CA_KEY);
    let key = KeyPair::from_pem(&read_text(env, &key)?)
        .with_context(|| format!("{} is no key that this can sign with", key.display()))?;
    let certificate = folder.join(CA_CERTIFICATE);
    let text = read_text(env, &certificate)?;
    let is_its_key = tls::is_for_key(text.as_bytes(), &key.subject_public_key_info());
    if !is_its_key.with_context(|| certificate.display().to_string())? {
        bail!(WrongArguments(format!(
            "{CA_KEY} in {} is not the key of {CA_CERTIFICATE} there: nothing was written, since who trusts that CA would \
             refuse what this key signs; put the two of one CA together again",
            folder.display()
        )));
    }
    Issuer::from_ca_cert_pem(&text, key)
        .with_context(|| format!("{} is no certificate of a CA", certificate.display()))
}

/// Writes all files, or none if one of them is there.
fn write_all(env: &Env, folder: &Path, files: &[PemFile]) -> anyhow::Result<()> {
    let made = || format!("cannot make {}", folder.display());
    env.disk.create_dir_all_synced(folder).with_context(made)?;
    let there = env.disk.read_dir(folder).with_context(made)?;
    if let Some(file) = files.iter().find(|file| there.iter().any(|name| name == file.name)) {
        bail!(WrongArguments(format!(
            "{} is there already: nothing was written; give another folder with --out, or move the file away",
            folder.join(file.name).display()
        )));
    }
    for file in files {
        let path = folder.join(file.name);
        let write = || {
            let made = env.disk.open(&path, OpenMode::CreateNew)?;
            made.write_at(file.text.as_bytes(), 0)?;
            // Clients, of other users and on other machines, have to read it, and it tells nothing that TLS does not.
            if file.name == CA_CERTIFICATE {
                let_all_read(&path)?;
            }
            made.sync_data()
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
    }
    env.disk.sync_dir(folder).with_context(made)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests look at files that the command wrote")]
mod tests {
    use clap::Parser;
    use node::config::{ClientAuth, ClusterEncryption, TlsConfig, TlsVersion};
    use server::tls::Tls;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: CertsFlags,
    }

    fn certs(words: &[&str]) -> anyhow::Result<Outcome> {
        let line = Line::try_parse_from([&["certs"], words].concat())?;
        run(&Env::real(), &line.flags)
    }

    /// Whether a node could be started with what is in a folder.
    fn is_usable(folder: &Path) -> bool {
        let addr = "127.0.0.1:0".parse().expect("an address");
        let (certificate, key) = (folder.join("node.pem"), folder.join("node.key"));
        let config = TlsConfig {
            kv_addr: addr,
            http_addr: addr,
            more_kv: Vec::new(),
            more_http: Vec::new(),
            certificate,
            key,
            min_version: TlsVersion::V1_2,
            cipher_suites: Vec::new(),
            honors_order: false,
            ca: None,
            client_auth: ClientAuth::Off,
            client_names: Vec::new(),
            cluster_encryption: ClusterEncryption::Off,
        };
        Tls::load(&Env::real(), &config, false).is_ok()
    }

    #[test]
    fn a_ca_and_nodes_that_it_signs_for() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = |name: &str| root.path().join(name);
        let text = |path: &Path| path.display().to_string();
        certs(&["init", "--out", &text(&folder("a"))]).expect("made");
        assert!(is_usable(&folder("a")));
        certs(&["node", "--ca", &text(&folder("a")), "--out", &text(&folder("b")), "--name", "db2"])
            .expect("made");
        assert!(is_usable(&folder("b")));
        assert!(!folder("b").join("ca.key").exists());
        certs(&["client", "--ca", &text(&folder("a")), "--out", &text(&folder("c")), "--user", "ada"])
            .expect("made");
        assert!(folder("c").join("client.pem").exists());
        for name in ["a/b", "a\nb", "@node", "a,b", " ada"] {
            let out = text(&folder("d"));
            let refused = certs(&["client", "--ca", &text(&folder("a")), "--out", &out, "--user", name]);
            let why = refused.expect_err("no user can have this name").to_string();
            assert!(why.contains(&format!("--user {name:?}: no user that is made over HTTP")), "{why}");
            assert!(!folder("d").exists());
        }
        for key in ["a/ca.key", "a/node.key", "b/node.key", "c/client.key"] {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(folder(key)).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{key} is readable by others");
        }
        let mode = {
            use std::os::unix::fs::PermissionsExt;
            std::fs::metadata(folder("a/ca.pem")).expect("it is there").permissions().mode()
        };
        assert_eq!(mode & 0o777, 0o644, "what clients trust is for all to read");
    }

    #[test]
    fn each_ca_has_a_name_of_its_own() {
        let name = || {
            let key = KeyPair::generate().expect("a key");
            let params = ca_params(OffsetDateTime::UNIX_EPOCH, &key);
            let name = params.distinguished_name.get(&DnType::CommonName).cloned();
            format!("{:?}", name.expect("it has a name"))
        };
        let (one, other) = (name(), name());
        assert!(one.contains("Stave CA ") && one != other, "{one} {other}");
    }

    #[test]
    fn a_key_of_another_ca_signs_nothing() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = |name: &str| root.path().join(name).display().to_string();
        certs(&["init", "--out", &folder("a")]).expect("made");
        certs(&["init", "--out", &folder("b")]).expect("made");
        std::fs::copy(root.path().join("b/ca.key"), root.path().join("a/ca.key")).expect("copied");
        let why =
            certs(&["node", "--ca", &folder("a"), "--out", &folder("c")]).expect_err("mixed").to_string();
        assert!(why.contains("ca.key") && why.contains("is not the key of ca.pem"), "{why}");
        assert!(!root.path().join("c").exists());
        certs(&["node", "--ca", &folder("b"), "--out", &folder("c")]).expect("made");
    }

    #[test]
    fn nothing_is_written_over_and_nothing_made_of_what_is_no_ca() {
        let root = tempfile::tempdir().expect("a folder");
        let out = root.path().display().to_string();
        std::fs::write(root.path().join("node.key"), "mine").expect("written");
        let why = certs(&["init", "--out", &out]).expect_err("it is there").to_string();
        assert!(why.contains("node.key is there already"), "{why}");
        assert!(!root.path().join("ca.pem").exists());
        let why = certs(&["node", "--ca", &out, "--out", &out]).expect_err("there is no CA").to_string();
        assert!(why.contains("ca.key"), "{why}");
        let why = certs(&["init", "--out", "x", "--name", "https://db/"]).expect_err("no name").to_string();
        assert!(why.contains("without scheme and port"), "{why}");
        let why = certs(&["init", "--out", "x", "--name", "db1:11207"]).expect_err("no name").to_string();
        assert!(why.contains("without scheme and port"), "{why}");
    }
}
