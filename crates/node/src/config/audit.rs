//! The table `[audit]` of the configuration file: what it names holds from each start on, the rest is as it was last set
//! over HTTP.

use std::path::Path;

use serde::Deserialize;

use super::{ConfigError, parse_size};
use crate::audit::settings::{AuditSettings, FailurePolicy};

/// What the file says about the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct AuditTable {
    /// Whether anything is recorded.
    pub enabled: Option<bool>,
    /// Seconds after which another file is begun.
    pub rotate_interval_s: Option<u64>,
    /// Bytes of a file after which another one is begun, as `20MiB`.
    pub rotate_size: Option<String>,
    /// Minutes that earlier files are kept; 0: they stay.
    pub prune_age_min: Option<u64>,
    /// Numbers of events that are not recorded, of those that can be switched off.
    pub disabled: Option<Vec<u32>>,
    /// Names of users whose events are not recorded, where they can be switched off.
    pub disabled_users: Option<Vec<String>>,
    /// What becomes of what must be recorded and cannot be.
    pub failure_policy: Option<FailurePolicy>,
}

/// Fields of the form of `POST /settings/audit` that say the same.
pub(super) fn fields(table: Option<&AuditTable>) -> Result<Vec<(String, String)>, ConfigError> {
    let Some(table) = table else { return Ok(Vec::new()) };
    let list = |list: &[String]| list.join(",");
    let ids = |ids: &Vec<u32>| list(&ids.iter().map(u32::to_string).collect::<Vec<_>>());
    let users =
        |names: &Vec<String>| list(&names.iter().map(|name| format!("{name}/local")).collect::<Vec<_>>());
    let policy = |policy: FailurePolicy| match policy {
        FailurePolicy::Count => "count".to_owned(),
        FailurePolicy::Refuse => "refuse".to_owned(),
    };
    let rotate_size = table.rotate_size.as_deref().map(parse_size).transpose()?;
    let said = [
        ("auditdEnabled", table.enabled.map(|is_on| is_on.to_string())),
        ("rotateInterval", table.rotate_interval_s.map(|seconds| seconds.to_string())),
        ("rotateSize", rotate_size.map(|bytes| bytes.to_string())),
        ("pruneAge", table.prune_age_min.map(|minutes| minutes.to_string())),
        ("disabled", table.disabled.as_ref().map(ids)),
        ("disabledUsers", table.disabled_users.as_ref().map(users)),
        ("failurePolicy", table.failure_policy.map(policy)),
    ];
    let named = said.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let fields: Vec<(String, String)> = named.collect();
    if fields.is_empty() {
        return Ok(fields);
    }
    // A user may be made later, over HTTP.
    match AuditSettings::default().changed(&fields, Path::new(""), |_| true) {
        Ok(_) => Ok(fields),
        Err(wrong) => {
            let wrong: Vec<String> =
                wrong.into_iter().map(|(name, what)| format!("{name}: {what}")).collect();
            Err(ConfigError::Audit(wrong.join("; ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    fn fields_of(text: &str) -> Result<Vec<(String, String)>, String> {
        let settings = Settings::parse(text).map_err(|error| error.to_string())?;
        fields(settings.audit.as_ref()).map_err(|error| error.to_string())
    }

    #[test]
    fn what_the_table_names_are_the_fields_of_the_form() {
        assert_eq!(fields_of(""), Ok(Vec::new()));
        assert_eq!(fields_of("[audit]\n"), Ok(Vec::new()));
        let text = "[audit]\nenabled = true\nrotate-interval-s = 3600\nrotate-size = \"2MiB\"\nprune-age-min = 5\n\
                    disabled = [20488, 20490]\ndisabled-users = [\"ann\"]\nfailure-policy = \"refuse\"\n";
        let expected = [
            ("auditdEnabled", "true"),
            ("rotateInterval", "3600"),
            ("rotateSize", "2097152"),
            ("pruneAge", "5"),
            ("disabled", "20488,20490"),
            ("disabledUsers", "ann/local"),
            ("failurePolicy", "refuse"),
        ];
        assert_eq!(
            fields_of(text),
            Ok(expected.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
        );
    }

    #[test]
    fn what_cannot_be_is_refused_by_its_name() {
        for (text, part) in [
            ("rotate-interval-s = 1", "rotateInterval"),
            ("rotate-size = \"1KiB\"", "rotateSize"),
            ("rotate-size = \"much\"", "much"),
            ("disabled = [20481]", "20481"),
            ("failure-policy = \"panic\"", "failure-policy"),
            ("path = \"/tmp\"", "path"),
        ] {
            let refused = fields_of(&format!("[audit]\n{text}\n")).expect_err(text);
            assert!(refused.contains(part), "{text}: {refused}");
        }
    }
}
