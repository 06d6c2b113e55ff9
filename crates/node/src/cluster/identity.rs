//! What a node and its cluster are called by who must not take them for others: 32 hexadecimal digits each.

use std::io;
use std::path::Path;

use base::SmallFile;
use sha2::{Digest, Sha256};

use super::{Cluster, data_folder};
use crate::missing;
use crate::node::Node;

const FILE: &str = "node-uuid";

/// The file that holds a node's identity.
pub fn file(folder: &Path) -> SmallFile {
    SmallFile::new(folder, FILE)
}

/// Understands the file's content.
pub fn parse(bytes: &[u8], _version: u16) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() == 32);
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    text.map(str::to_owned).ok_or_else(|| "it holds no 32 hexadecimal digits".to_owned())
}

/// Whether the node has an identity, be it damaged.
pub(crate) fn is_known(node: &Node) -> bool {
    !matches!(file(&data_folder(node)).open(&*node.env().disk, parse, |_| {}), Ok(None))
}

/// The node's identity: made when it is asked for first, kept with its data. A node alone that has lost it gets another
/// one; a member would be another node to its cluster, and is refused.
pub(crate) fn of_node(node: &Node) -> io::Result<String> {
    let (env, folder) = (node.env(), data_folder(node));
    let file = file(&folder);
    let found = match file.open(&*env.disk, parse, |fault| tracing::error!("{fault}")) {
        Ok(None) => missing::identity(&*env.disk, &folder).map_or(Ok(None), Err),
        found => found,
    };
    match found {
        Ok(Some(uuid)) => return Ok(uuid),
        Ok(None) => {}
        Err(error) if error.is_damage() && !node.host().is_some_and(|host| host.config().is_member) => {
            tracing::error!(%error, "the node's identity is lost, and it gets another one");
        }
        Err(error) => return Err(io::Error::other(error)),
    }
    let uuid = format!("{:016x}{:016x}", env.random.next_u64(), env.random.next_u64());
    file.write(&*env.disk, uuid.as_bytes()).map_err(io::Error::other)?;
    Ok(uuid)
}

impl Cluster {
    /// The cluster's identity, the same at all its nodes; nothing before this node has read anything of it. It is that of
    /// the place where its document is: nothing in the document stays as it was.
    pub fn identity(&self) -> Option<String> {
        self.view()?;
        let digest = Sha256::digest(format!("stave cluster {}", self.store.place()));
        Some(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect())
    }
}
