//! Whether `/metrics` asks for a user (record 0108).

use serde::Deserialize;

/// Who may read `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MetricsLogin {
    /// Users who may export figures.
    #[default]
    Required,
    /// Any client.
    None,
}

impl std::str::FromStr for MetricsLogin {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<MetricsLogin, &'static str> {
        match text {
            "required" => Ok(MetricsLogin::Required),
            "none" => Ok(MetricsLogin::None),
            _ => Err("write required or none"),
        }
    }
}
