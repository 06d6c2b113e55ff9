//! How the server presents itself to clients that ask for its version.

use base::FormatVersions;

/// The versions of the state of a cluster that a node reads and writes.
pub const STATE_FORMATS: FormatVersions = ::cluster::state::FORMATS;

/// Clients gate features on the leading digits, which name the server release whose protocol this is; the build number
/// must be a number that is not 0 and has four digits, and the last part stands where others name their edition.
pub const SERVER_VERSION: &str = "7.6.2-1000-stave";
