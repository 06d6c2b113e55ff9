//! The settings of the audit log: their form over HTTP, their bounds, and the small file of the data directory that keeps
//! them (record 57).

use std::collections::BTreeSet;
use std::path::Path;

use base::SmallFile;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::events::{AUDIT_EVENTS, AuditEvent, AuditRow, filterable};
use super::record::LOCAL;

const FILE: &str = "audit.json";
/// Seconds between rotations: quarter of an hour to a week.
const ROTATE_INTERVAL_S: std::ops::RangeInclusive<u64> = 15 * 60..=7 * 24 * 60 * 60;
/// Bytes of a file.
const ROTATE_SIZE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=500 << 20;
/// Minutes that rotated files are kept.
const MOST_PRUNE_AGE_MIN: u64 = 35_791_394;
/// Users that can be left out.
const MOST_USERS: usize = 1_024;
/// Domains of users.
const DOMAINS: [&str; 3] = [LOCAL, "external", "unknown"];

/// The file of a data directory.
pub(crate) fn file(folder: &Path) -> SmallFile {
    SmallFile::new(folder, FILE)
}

/// What is wrong with its content, if anything is.
pub(crate) fn check(bytes: &[u8], version: u16) -> Result<(), String> {
    parse(bytes, version).map(drop)
}

pub(crate) fn parse(bytes: &[u8], _version: u16) -> Result<AuditSettings, String> {
    let settings: AuditSettings = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let is_within = ROTATE_INTERVAL_S.contains(&settings.rotate_interval)
        && ROTATE_SIZE_BYTES.contains(&settings.rotate_size)
        && settings.prune_age <= MOST_PRUNE_AGE_MIN;
    if is_within { Ok(settings) } else { Err("a number is out of its bounds".to_owned()) }
}

/// What becomes of what must be recorded and cannot be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailurePolicy {
    /// It is done all the same; records that are left out are counted.
    #[default]
    Count,
    /// It is refused.
    Refuse,
}

/// A user who is left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeftOut {
    name: String,
    domain: String,
}

/// The settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AuditSettings {
    pub(crate) auditd_enabled: bool,
    /// Seconds.
    pub(crate) rotate_interval: u64,
    /// Bytes.
    pub(crate) rotate_size: u64,
    /// Minutes; 0: rotated files stay.
    pub(crate) prune_age: u64,
    /// Events that can be switched off and are.
    disabled: BTreeSet<u32>,
    /// Events that can be switched on and are.
    enabled: BTreeSet<u32>,
    disabled_users: BTreeSet<LeftOut>,
    pub(crate) failure_policy: FailurePolicy,
    /// Another one after each change.
    pub(crate) uid: u64,
}

impl Default for AuditSettings {
    fn default() -> AuditSettings {
        AuditSettings {
            auditd_enabled: false,
            rotate_interval: 86_400,
            rotate_size: 20 << 20,
            prune_age: 0,
            disabled: BTreeSet::new(),
            enabled: BTreeSet::new(),
            disabled_users: BTreeSet::new(),
            failure_policy: FailurePolicy::Count,
            uid: 0,
        }
    }
}

/// Why a field of the form is not valid: the field, and what is wrong.
pub type WrongField = (String, String);

fn number(value: &str, within: std::ops::RangeInclusive<u64>, unit: &str) -> Result<u64, String> {
    let parsed = value.parse::<u64>().ok().filter(|number| within.contains(number));
    parsed.ok_or_else(|| {
        format!("The value must be a number of {unit} from {} to {}", within.start(), within.end())
    })
}

fn ids(value: &str) -> Result<BTreeSet<u32>, String> {
    let words: Vec<&str> = value.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let parsed: Option<BTreeSet<u32>> = words.iter().map(|word| word.parse().ok()).collect();
    let parsed = parsed.ok_or("All event id's must be integers")?;
    let wrong: Vec<String> =
        parsed.iter().filter(|id| filterable(**id).is_none()).map(u32::to_string).collect();
    if wrong.is_empty() {
        return Ok(parsed);
    }
    Err(format!("These events are unknown or cannot be switched off: {}", wrong.join(",")))
}

fn users(value: &str, is_user: impl Fn(&str) -> bool) -> Result<BTreeSet<LeftOut>, String> {
    let words: Vec<&str> = value.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    if words.len() > MOST_USERS {
        return Err(format!("At most {MOST_USERS} users can be left out"));
    }
    let parsed = words.iter().map(|word| {
        let (name, domain) = word.rsplit_once('/').ok_or(*word)?;
        let is_there = DOMAINS.contains(&domain) && (domain != LOCAL || is_user(name));
        if is_there { Ok(LeftOut { name: name.to_owned(), domain: domain.to_owned() }) } else { Err(*word) }
    });
    let (good, wrong): (Vec<_>, Vec<_>) = parsed.partition(Result::is_ok);
    if wrong.is_empty() {
        return Ok(good.into_iter().flatten().collect());
    }
    let wrong: Vec<&str> = wrong.into_iter().filter_map(Result::err).collect();
    Err(format!("There are no such users; each is NAME/local: {}", wrong.join(",")))
}

impl AuditSettings {
    /// The defaults, but on.
    pub(crate) fn switched_on() -> AuditSettings {
        AuditSettings { auditd_enabled: true, ..AuditSettings::default() }
    }

    /// The settings with the fields of a form changed: all of them or none.
    pub fn changed(
        &self,
        fields: &[(String, String)],
        log_path: &Path,
        is_user: impl Fn(&str) -> bool,
    ) -> Result<AuditSettings, Vec<WrongField>> {
        let (mut next, mut wrong) = (self.clone(), Vec::new());
        if fields.is_empty() {
            return Err(vec![("_".to_owned(), "Name at least one setting".to_owned())]);
        }
        for (name, value) in fields {
            if let Err(what) = next.set(name, value, log_path, &is_user) {
                wrong.push((name.clone(), what));
            }
        }
        if wrong.is_empty() { Ok(next) } else { Err(wrong) }
    }

    fn set(
        &mut self,
        name: &str,
        value: &str,
        log_path: &Path,
        is_user: impl Fn(&str) -> bool,
    ) -> Result<(), String> {
        match name {
            "auditdEnabled" => {
                self.auditd_enabled = value.parse().map_err(|_| "The value must be true or false")?;
            }
            "rotateInterval" => {
                let seconds = number(value, ROTATE_INTERVAL_S, "seconds")?;
                if !seconds.is_multiple_of(60) {
                    return Err("The value must be a whole number of minutes, in seconds".to_owned());
                }
                self.rotate_interval = seconds;
            }
            "rotateSize" => self.rotate_size = number(value, ROTATE_SIZE_BYTES, "bytes")?,
            "pruneAge" => self.prune_age = number(value, 0..=MOST_PRUNE_AGE_MIN, "minutes")?,
            "disabled" => {
                // Both lists are kept, so that another version's defaults change nothing.
                self.disabled = ids(value)?;
                let all = AUDIT_EVENTS.iter().filter(|row| row.is_filterable).map(|row| row.id);
                self.enabled = all.filter(|id| !self.disabled.contains(id)).collect();
            }
            "disabledUsers" | "disabledusers" => self.disabled_users = users(value, is_user)?,
            "failurePolicy" => {
                self.failure_policy = match value {
                    "count" => FailurePolicy::Count,
                    "refuse" => FailurePolicy::Refuse,
                    _ => return Err("The value must be count or refuse".to_owned()),
                };
            }
            "logPath" if Path::new(value) == log_path => {}
            "logPath" => {
                return Err(format!(
                    "The folder is {} and cannot be changed by a request: no request names a path of the machine",
                    log_path.display()
                ));
            }
            _ => return Err("There is no such setting".to_owned()),
        }
        Ok(())
    }

    fn is_on(&self, row: &AuditRow) -> bool {
        !row.is_filterable
            || self.enabled.contains(&row.id)
            || (row.is_on && !self.disabled.contains(&row.id))
    }

    /// The set of events that are recorded; empty if the log is off.
    pub(crate) fn recorded(&self) -> u64 {
        let on = AuditEvent::ALL.iter().filter(|event| self.auditd_enabled && self.is_on(event.row()));
        on.fold(0, |set, event| set | event.bit())
    }

    /// Whether what this user does is left out, where it can be.
    pub(crate) fn leaves_out(&self, user: &str) -> bool {
        self.disabled_users.iter().any(|one| one.domain == LOCAL && one.name == user)
    }

    /// Events that could be recorded and are not.
    fn switched_off(&self) -> Vec<u32> {
        AUDIT_EVENTS.iter().filter(|row| !self.is_on(row)).map(|row| row.id).collect()
    }

    /// As `GET /settings/audit` tells it.
    pub fn told(&self, log_path: &Path) -> Value {
        json!({
            "auditdEnabled": self.auditd_enabled,
            "disabled": self.switched_off(),
            "disabledUsers": self.disabled_users,
            "failurePolicy": self.failure_policy,
            "logPath": log_path.display().to_string(),
            "pruneAge": self.prune_age,
            "rotateInterval": self.rotate_interval,
            "rotateSize": self.rotate_size,
            "uid": self.uid.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(of: &AuditSettings, fields: &[(&str, &str)]) -> Result<AuditSettings, Vec<String>> {
        let fields: Vec<_> =
            fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let wrong = |wrong: Vec<WrongField>| wrong.into_iter().map(|(name, _)| name).collect();
        of.changed(&fields, Path::new("/data/audit"), |name| name == "ann").map_err(wrong)
    }

    #[test]
    fn a_form_is_taken_as_a_whole_within_its_bounds() {
        let first = AuditSettings::default();
        let good = [
            ("auditdEnabled", "true"),
            ("rotateInterval", "900"),
            ("rotateSize", "1048576"),
            ("pruneAge", "35791394"),
            ("disabled", "20480, 20492"),
            ("disabledUsers", "ann/local,x/external"),
            ("failurePolicy", "refuse"),
            ("logPath", "/data/audit"),
        ];
        let next = changed(&first, &good).expect("a valid form");
        assert_eq!(parse(&serde_json::to_vec(&next).expect("JSON"), 1), Ok(next.clone()));
        let told = next.told(Path::new("/data/audit"));
        assert_eq!(told["disabled"], json!([20_480, 20_492]));
        assert_eq!(told["disabledUsers"][0], json!({ "name": "ann", "domain": "local" }));
        assert!(next.leaves_out("ann") && !next.leaves_out("x"));
        for wrong in [
            ("auditdEnabled", "yes"),
            ("rotateInterval", "899"),
            ("rotateInterval", "901"),
            ("rotateInterval", "604860"),
            ("rotateSize", "1048575"),
            ("rotateSize", "524288001"),
            ("pruneAge", "35791395"),
            ("pruneAge", "-1"),
            ("disabled", "20480,x"),
            ("disabled", "20481"),
            ("disabledUsers", "bob/local"),
            ("disabledUsers", "ann"),
            ("failurePolicy", "stop"),
            ("logPath", "/etc"),
            ("password", "x"),
        ] {
            let both = [("auditdEnabled", "true"), wrong];
            assert_eq!(changed(&first, &both), Err(vec![wrong.0.to_owned()]), "{wrong:?}");
        }
        assert_eq!(changed(&first, &[]), Err(vec!["_".to_owned()]));
    }

    #[test]
    fn events_that_are_off_by_themselves_are_switched_on_by_a_list_without_them() {
        let is_on = |settings: &AuditSettings, event: AuditEvent| settings.recorded() & event.bit() != 0;
        let off = AuditSettings::default();
        assert_eq!(off.recorded(), 0);
        let on = changed(&off, &[("auditdEnabled", "true")]).expect("valid");
        assert!(is_on(&on, AuditEvent::DcpOpened) && !is_on(&on, AuditEvent::DocumentRead));
        let all = changed(&on, &[("disabled", "")]).expect("valid");
        assert!(is_on(&all, AuditEvent::DocumentRead));
        assert_eq!(all.switched_off(), Vec::<u32>::new());
        let some = changed(&on, &[("disabled", "20480")]).expect("valid");
        assert!(!is_on(&some, AuditEvent::DcpOpened) && is_on(&some, AuditEvent::LoginFailed));
    }
}
