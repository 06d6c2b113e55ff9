//! What a node and its cluster are called by who must not take them for others: 32 hexadecimal digits each.

use std::io;
use std::path::PathBuf;

use crate::node::Node;
use crate::{missing, node_files};

/// Understands the file's content.
pub fn parse(bytes: &[u8], _version: u16) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() == 32);
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    text.map(str::to_owned).ok_or_else(|| "it holds no 32 hexadecimal digits".to_owned())
}

/// Whether the node has an identity, be it damaged.
pub(crate) fn is_known(node: &Node) -> bool {
    !matches!(node_files::identity(&data_folder(node)).open(&*node.env().disk, parse, |_| {}), Ok(None))
}

/// The node's identity: made when it is asked for first, kept with its data. A node alone that has lost it gets another
/// one; a member would be another node to its cluster, and is refused.
pub(crate) fn of_node(node: &Node) -> io::Result<String> {
    let (env, folder) = (node.env(), data_folder(node));
    let file = node_files::identity(&folder);
    let found =
        match file.open(&*env.disk, parse, |fault| tracing::error!(event = "file_copy_damaged", "{fault}")) {
            Ok(None) => missing::identity(&*env.disk, &folder).map_or(Ok(None), Err),
            found => found,
        };
    match found {
        Ok(Some(uuid)) => return Ok(uuid),
        Ok(None) => {}
        Err(error) if error.is_damage() && !node.host().is_some_and(|host| host.config().is_member) => {
            tracing::error!(
                event = "node_identity_lost", %error,
                "the node's identity is lost, and it gets another one"
            );
        }
        Err(error) => return Err(io::Error::other(error)),
    }
    let uuid = format!("{:016x}{:016x}", env.random.next_u64(), env.random.next_u64());
    file.write(&*env.disk, uuid.as_bytes()).map_err(io::Error::other)?;
    Ok(uuid)
}

pub(super) fn data_folder(node: &Node) -> PathBuf {
    node.host().map(|host| host.config().data_dir.clone()).unwrap_or_default()
}

impl Node {
    /// Reads the node's identity, or makes it.
    pub fn know_itself(&self) -> std::io::Result<()> {
        let uuid = of_node(self)?;
        self.uuid.get_or_init(|| uuid);
        Ok(())
    }
}
