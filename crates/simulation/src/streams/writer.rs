//! A client that changes documents wherever a node takes it, by frames.

use std::collections::BTreeMap;

use base::{Datatype, DurabilityLevel, VbId, VbState};
use protocol::feature::Feature;
use protocol::frame_info::Durability;
use protocol::{FrameInfos, RequestParts, opcode, write_request};

use super::histories::{At, Histories, KEYS, role};
use crate::connections::{ClientConnection, connect};
use crate::dice::Dice;
use crate::nodes::Nodes;

/// How long a sync write may take.
const DURABLE_TIMEOUT_MS: u16 = 3_000;

/// What it agrees to: answers may come in another order, so that what waits for the disk holds up nothing.
const FEATURES: [Feature; 3] = [Feature::UnorderedExecution, Feature::Xattr, Feature::Json];

/// The client.
#[derive(Default)]
pub struct Writer {
    /// By node.
    connections: BTreeMap<usize, ClientConnection>,
    written: u64,
}

fn xattrs(value: &str, written: u64) -> Vec<u8> {
    let mut pairs = Vec::new();
    for (key, value) in [("_system", format!("{{\"n\":{written}}}")), ("user", "1".to_owned())] {
        let pair = [key.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat();
        pairs.extend((pair.len() as u32).to_be_bytes());
        pairs.extend(pair);
    }
    [&(pairs.len() as u32).to_be_bytes()[..], &pairs, value.as_bytes()].concat()
}

/// A request about a document of the default collection.
fn frame(parts: &RequestParts<'_>, vb: VbId, name: &[u8]) -> Vec<u8> {
    let key = [&[0][..], name].concat();
    let mut bytes = Vec::new();
    assert!(write_request(&mut bytes, &RequestParts { vbucket: vb, key: &key, ..*parts }), "short requests");
    bytes
}

impl Writer {
    /// Asks a node for something. It looks for a connection if it has none; a node that closes it has lost it.
    fn ask(&mut self, nodes: &Nodes, node: usize, frame: &[u8]) {
        if !self.connections.contains_key(&node)
            && let Some(connection) = connect(&nodes[node].front_end, &FEATURES)
        {
            self.connections.insert(node, connection);
        }
        if self.connections.get_mut(&node).is_some_and(|connection| !connection.ask(frame)) {
            self.connections.remove(&node);
        }
    }

    /// A node's threads have worked: what waited for them goes on.
    pub fn go_on(&mut self, nodes: &Nodes, node: usize) {
        if self.connections.contains_key(&node) {
            self.ask(nodes, node, &[]);
        }
    }

    /// A node has ended.
    pub fn lose(&mut self, node: usize) {
        self.connections.remove(&node);
    }

    /// Changes a document at a node, if that is active.
    pub fn change(&mut self, nodes: &Nodes, histories: &mut Histories, at: At, dice: &mut Dice) {
        if role(nodes, at) != Some(VbState::Active) {
            return;
        }
        let name = histories.name(dice.below(KEYS));
        // It may expire by being looked at.
        let read = RequestParts { opcode: opcode::GET, ..RequestParts::default() };
        self.ask(nodes, at.node, &frame(&read, at.vb, &name));
        histories.learn(nodes, at);
        self.written += 1;
        let change = self.next_change(at.vb, &name, dice);
        self.ask(nodes, at.node, &change);
        histories.learn(nodes, at);
        histories.counts.writes += 1;
    }

    /// The bytes of a change.
    fn next_change(&self, vb: VbId, name: &[u8], dice: &mut Dice) -> Vec<u8> {
        let mut frame_infos = Vec::new();
        // Some are prepared, and committed at once with the seqno behind: the active node is alone.
        if dice.one_in(8) {
            let (level, timeout_ms) = (DurabilityLevel::Majority, Some(DURABLE_TIMEOUT_MS));
            let durability = Some(Durability { level, timeout_ms });
            FrameInfos { durability, ..FrameInfos::default() }.encode(&mut frame_infos);
        }
        let parts = RequestParts { frame_infos: &frame_infos, ..RequestParts::default() };
        if dice.one_in(4) {
            return frame(&RequestParts { opcode: opcode::DELETE, ..parts }, vb, name);
        }
        let size = if dice.one_in(15) { 30_000 } else { 30 };
        let mut value = format!("{}:{}", self.written, "v".repeat(dice.below(size) as usize));
        if dice.one_in(6) {
            value = format!("{{\"n\":{}}}", self.written);
        }
        let (value, datatype) = match dice.one_in(5) {
            true => (xattrs(&value, self.written), Datatype::XATTR),
            false => (value.into_bytes(), Datatype::RAW),
        };
        let expiry = if dice.one_in(5) { 1 + dice.below(5) as u32 } else { 0 };
        let extras = [(self.written as u32).to_be_bytes(), expiry.to_be_bytes()].concat();
        let set = RequestParts {
            opcode: opcode::SET,
            extras: &extras,
            value: &value,
            datatype: datatype.0,
            ..parts
        };
        frame(&set, vb, name)
    }
}
