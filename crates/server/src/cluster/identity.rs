//! What a node and its cluster are called by who must not take them for others: 32 hexadecimal digits each.

use std::io;

use base::env::OpenMode;
use sha2::{Digest, Sha256};

use super::{Cluster, data_folder};
use crate::node::Node;

const FILE: &str = "node-uuid";

/// The node's identity: made when it is asked for first, kept with its data.
pub(crate) fn of_node(node: &Node) -> io::Result<String> {
    let folder = data_folder(node);
    let (env, path) = (node.env(), folder.join(FILE));
    let file = env.disk.open(&path, OpenMode::Create)?;
    let mut text = [0; 32];
    let read = file.read_at(&mut text, 0)?;
    match std::str::from_utf8(&text[..read]) {
        Ok(text) if read == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) => Ok(text.to_owned()),
        _ => {
            let uuid = format!("{:016x}{:016x}", env.random.next_u64(), env.random.next_u64());
            file.write_at(uuid.as_bytes(), 0)?;
            file.sync_data()?;
            env.disk.sync_dir(&folder)?;
            Ok(uuid)
        }
    }
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
