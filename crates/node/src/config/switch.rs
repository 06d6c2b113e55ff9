//! What is on or off.

use serde::Deserialize;

/// Something that is used or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Switch {
    /// It is used.
    On,
    /// It is not.
    Off,
}

impl std::str::FromStr for Switch {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Switch, &'static str> {
        match text {
            "on" => Ok(Switch::On),
            "off" => Ok(Switch::Off),
            _ => Err("write on or off"),
        }
    }
}
