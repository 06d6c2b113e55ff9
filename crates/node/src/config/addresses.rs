//! Addresses as a configuration has them.

use std::net::SocketAddr;

use super::ConfigError;

/// The word for a kind of ports that the node does not have.
pub(super) const OFF: &str = "off";

/// Whether a text means that there is no address.
pub(super) fn is_off(text: &str) -> bool {
    text.trim() == OFF
}

/// The first of some addresses, and the others. Others are told of the first.
pub(super) fn parse_addresses(text: &str) -> Result<(SocketAddr, Vec<SocketAddr>), ConfigError> {
    let mut all = text.split(',').map(|one| parse_address(one.trim()));
    let first = all.next().unwrap_or_else(|| Err(ConfigError::Address(text.to_owned())))?;
    Ok((first, all.collect::<Result<_, _>>()?))
}

pub(super) fn parse_address(text: &str) -> Result<SocketAddr, ConfigError> {
    let text =
        text.strip_prefix("localhost:").map_or_else(|| text.to_owned(), |port| format!("127.0.0.1:{port}"));
    text.parse().map_err(|_| ConfigError::Address(text))
}
