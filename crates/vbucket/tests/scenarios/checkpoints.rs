//! Commands on a checkpoint manager.

use std::collections::HashMap;
use std::fmt::Write;

use base::{DocKey, ItemKind, NewVersion, Seqno, VersionMeta};
use vbucket::{CheckpointLimits, CheckpointManager, CursorId, RegisterRefusal};

use crate::{Player, number};

/// A checkpoint manager, and as much of a hash table as it needs: the last seqno of each key.
pub struct Checkpoints {
    manager: CheckpointManager,
    table: HashMap<String, Seqno>,
    cursors: Vec<(String, CursorId)>,
}

impl Checkpoints {
    pub fn new() -> Checkpoints {
        Checkpoints {
            manager: CheckpointManager::new(Seqno(0), CheckpointLimits::default()),
            table: HashMap::new(),
            cursors: Vec::new(),
        }
    }

    fn restart(&mut self, words: &[&str]) -> String {
        let mut limits = CheckpointLimits::default();
        if let Some(items) = number(words, "items") {
            limits.max_items = items as u32;
        }
        *self = Checkpoints::new();
        self.manager = CheckpointManager::new(Seqno(number(words, "high").unwrap_or(0)), limits);
        String::new()
    }

    fn queue(&mut self, kind: ItemKind, key: &str, received: Option<u64>) -> String {
        let by_seqno = received.map_or(self.manager.high_seqno().next(), Seqno);
        let meta = VersionMeta { by_seqno, kind, ..VersionMeta::default() };
        let version =
            NewVersion::new(base::Heap::shared(), meta, DocKey::new(key.as_bytes()), &[b"value"]).publish();
        let old = self.table.insert(key.to_owned(), by_seqno);
        let merged = if received.is_some() {
            self.manager.queue_received(version, old)
        } else {
            self.manager.queue(version, old)
        };
        let mut answer = format!("seqno {by_seqno} in checkpoint {}", self.manager.open_id());
        if let Some(merged) = merged {
            _ = write!(answer, ", takes the place of {}", merged.meta().by_seqno);
        }
        answer
    }

    fn cursor(&self, name: &str) -> CursorId {
        self.cursors.iter().find(|(known, _)| known == name).expect("a cursor of this name").1
    }

    fn register(&mut self, name: &str, from: u64) -> String {
        match self.manager.register_cursor(name, Seqno(from)) {
            Ok(id) => {
                self.cursors.push((name.to_owned(), id));
                String::new()
            }
            Err(RegisterRefusal::BelowMemory { memory_start }) => {
                format!("refused: memory starts at {memory_start}")
            }
            Err(RegisterRefusal::AboveHigh { high }) => format!("refused: the last change is {high}"),
        }
    }

    fn take(&mut self, name: &str, max: Option<u64>) -> String {
        let id = self.cursor(name);
        let Some(range) = self.manager.take_range(id, max.unwrap_or(u64::MAX)) else {
            return "nothing".to_owned();
        };
        let mut answer = format!("{} to {}\n", range.start(), range.end());
        for view in range.checkpoints() {
            let bounds = (view.snapshot_start(), view.snapshot_end());
            _ = write!(answer, "checkpoint {}, snapshot {} to {}:", view.id(), bounds.0, bounds.1);
            for version in view.iter() {
                let mark = match version.meta().kind {
                    ItemKind::Mutation => "",
                    ItemKind::Deletion | ItemKind::Expiration => " deleted",
                    ItemKind::SystemEvent => " event",
                };
                let key = version.key().key.escape_ascii();
                _ = write!(answer, " ({} {key}{mark})", version.meta().by_seqno);
            }
            answer.push('\n');
        }
        answer
    }

    fn remove(&mut self) -> String {
        let removed = self.manager.remove_closed();
        format!("{} checkpoints with {} changes", removed.checkpoints(), removed.items())
    }

    fn state(&self) -> String {
        let manager = &self.manager;
        let mut answer = format!(
            "memory {} to {}, {} checkpoints, {} changes, {} of them in the open checkpoint {}\n",
            manager.memory_start(),
            manager.high_seqno(),
            manager.checkpoints(),
            manager.items(),
            manager.open_items(),
            manager.open_id(),
        );
        for cursor in manager.cursors() {
            _ = writeln!(answer, "{} at {}, {} behind", cursor.name, cursor.position, cursor.items_behind);
        }
        answer
    }
}

impl Player for Checkpoints {
    fn play(&mut self, words: &[&str]) -> String {
        let nth = |at: usize| words[at].parse().expect("a number");
        match words {
            ["vbucket", ..] => self.restart(words),
            ["set", key] => self.queue(ItemKind::Mutation, key, None),
            ["delete", key] => self.queue(ItemKind::Deletion, key, None),
            ["event", key] => self.queue(ItemKind::SystemEvent, key, None),
            ["receive", _, key] => self.queue(ItemKind::Mutation, key, Some(nth(1))),
            ["register", name, "from", _] => self.register(name, nth(3)),
            ["take", name, ..] => self.take(name, number(words, "max")),
            ["advance", name, "to", _] => {
                let id = self.cursor(name);
                assert!(self.manager.advance(id, Seqno(nth(3))));
                String::new()
            }
            ["drop", name] => {
                let id = self.cursor(name);
                self.cursors.retain(|(_, known)| *known != id);
                assert!(self.manager.drop_cursor(id));
                String::new()
            }
            ["close"] => {
                self.manager.close();
                String::new()
            }
            ["remove"] => self.remove(),
            ["state"] => self.state(),
            _ => panic!("unknown command {words:?}"),
        }
    }
}
