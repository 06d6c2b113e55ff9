//! Where clients of another network reach a node: changes while it runs.

use std::time::Duration;

use ::cluster::state::Alternate;

use crate::alternate::{KeptAddress, file, parse};
use crate::node::Node;
use crate::written;

/// How long an order waits for the maps of its node.
const TOLD_WITHIN: Duration = Duration::from_secs(2);

impl Node {
    /// Takes over what was said over HTTP before, or else what the configuration says. Called before clients are served.
    ///
    /// A file that cannot be read is told, and the configuration counts.
    pub fn read_alternate(&self) {
        let Some(host) = self.host() else { return };
        let folder = host.data_dir().path();
        let say = |fault: &str| tracing::error!(event = "file_copy_damaged", "{fault}");
        let kept = written::open(&*self.env().disk, folder, &file(folder), parse, say);
        let alternate = match kept {
            Ok(Some(kept)) => kept.external,
            Ok(None) => host.config().alternate.clone(),
            Err(error) => {
                tracing::error!(
                    event = "alternate_address_unreadable", %error,
                    "the address for clients of another network is as the configuration has it"
                );
                host.config().alternate.clone()
            }
        };
        self.set_alternate(alternate);
    }

    /// Clients of another network reach the node here: maps say so from now on, and in a cluster those of all nodes soon.
    fn set_alternate(&self, alternate: Option<Alternate>) {
        self.map().set_alternate(alternate);
        if let Some(cluster) = self.cluster() {
            cluster.address_has_changed();
        }
    }

    /// Changes where clients of another network reach the node, durably; nothing: it is not reached from there. A member of a
    /// cluster waits until its own maps say so, for two seconds at the most.
    ///
    /// # Errors
    ///
    /// What is wrong with the disk, in words; everything is as before then.
    pub fn change_alternate(&self, alternate: Option<Alternate>) -> Result<(), String> {
        let changing = self.changing.begin().map_err(|error| error.to_string())?;
        if let Some(host) = self.host() {
            let kept = serde_json::to_vec(&KeptAddress { external: alternate.clone() }).unwrap_or_default();
            let folder = host.data_dir().path();
            written::write(&*self.env().disk, folder, &file(folder), &kept)
                .map_err(|error| error.to_string())?;
        }
        self.set_alternate(alternate.clone());
        self.redraw_map().map_err(|error| error.to_string())?;
        drop(changing);
        if let Some(cluster) = self.cluster() {
            // Clients connect by the new address as soon as they have the answer; a cluster that is slower follows later.
            cluster.wait_until(TOLD_WITHIN, |view, applied| {
                let this = view.state.node_of(cluster.uuid());
                let is_told = this.is_some_and(|(_, node)| node.address.alternate == alternate);
                is_told && applied >= view.state.revision
            });
        }
        Ok(())
    }
}
