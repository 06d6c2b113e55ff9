//! Sends a cluster map to a client.

use base::Datatype;
use protocol::Status;
use protocol::feature::Feature;

use super::Map;
use crate::reply::{Answer, Reply};
use crate::session::Session;

impl Map {
    /// Sends it, compressed if the client agreed to that for any answer.
    pub fn send(&self, reply: &mut Reply<'_>, session: &Session, status: Status) {
        let compress = session.has(Feature::SnappyEverywhere) && session.has(Feature::Snappy);
        // With "not my vBucket" the map is marked as JSON even for those who did not ask for that mark.
        let json = if status == Status::NotMyVbucket {
            Datatype::JSON
        } else {
            session.visible_datatype(Datatype::JSON)
        };
        if !compress || self.snappy.is_empty() {
            return reply.send(&Answer { status, datatype: json, value: &self.json, ..Answer::default() });
        }
        let datatype = json.with(Datatype::SNAPPY);
        reply.send(&Answer { status, datatype, value: &self.snappy, ..Answer::default() });
    }
}
