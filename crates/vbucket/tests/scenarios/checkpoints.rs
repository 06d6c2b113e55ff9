//! Commands on a checkpoint manager.

use std::collections::HashMap;
use std::fmt::Write;

use base::{DocKey, ItemKind, NewVersion, Seqno, VersionMeta};
use vbucket::{
    BucketContext, CheckpointLimits, CheckpointManager, CursorId, Dropped, RangeLimit, RegisterRefusal,
    Removed,
};

use crate::{Player, number};

/// A checkpoint manager, and as much of a hash table as it needs: the last seqno of each key.
pub struct Checkpoints {
    manager: CheckpointManager,
    table: HashMap<String, Seqno>,
    cursors: Vec<(String, CursorId)>,
}

impl Checkpoints {
    pub fn new() -> Checkpoints {
        Checkpoints::with(CheckpointLimits::default(), Seqno(0))
    }

    fn with(limits: CheckpointLimits, high: Seqno) -> Checkpoints {
        let context = BucketContext::new(1, 2, base::Heap::default());
        context.checkpoints.set_limits(limits);
        Checkpoints {
            manager: CheckpointManager::new(&context, high),
            table: HashMap::new(),
            cursors: Vec::new(),
        }
    }

    fn restart(&mut self, words: &[&str]) -> String {
        let mut limits = CheckpointLimits::default();
        if let Some(items) = number(words, "items") {
            limits.max_items = items as u32;
        }
        if let Some(bytes) = number(words, "bytes") {
            limits.max_bytes = bytes as u32;
        }
        *self = Checkpoints::with(limits, Seqno(number(words, "high").unwrap_or(0)));
        String::new()
    }

    fn queue(&mut self, kind: ItemKind, key: &str, received: Option<u64>) -> String {
        self.queue_sized(kind, key, received, 5)
    }

    fn queue_sized(&mut self, kind: ItemKind, key: &str, received: Option<u64>, size: u64) -> String {
        let value = vec![b'v'; size as usize];
        let by_seqno = received.map_or(self.manager.high_seqno().next(), Seqno);
        let meta = VersionMeta { by_seqno, kind, ..VersionMeta::default() };
        let version =
            NewVersion::new(base::Heap::shared(), meta, DocKey::new(key.as_bytes()), &[&value]).publish();
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
        let range = match self.manager.take_range(id, RangeLimit::items(max.unwrap_or(u64::MAX))) {
            Ok(Some(range)) => range,
            Ok(None) => return "nothing".to_owned(),
            Err(Dropped) => return "dropped".to_owned(),
        };
        let mut answer = format!("{} to {}\n", range.start(), range.end());
        for view in range.checkpoints() {
            let bounds = (view.snapshot_start(), view.snapshot_end());
            _ = write!(answer, "checkpoint {}, snapshot {} to {}:", view.id(), bounds.0, bounds.1);
            let changes = view.iter().count();
            if changes > 20 {
                _ = write!(answer, " {changes} changes");
            }
            for version in view.iter().filter(|_| changes <= 20) {
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

    fn removed(removed: &Removed) -> String {
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
            ["set", key, _] => {
                self.queue_sized(ItemKind::Mutation, key, None, number(words, "size").expect("a size"))
            }
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
            ["remove"] => Checkpoints::removed(&self.manager.remove_closed()),
            ["expel"] => Checkpoints::removed(&self.manager.expel()),
            ["drop-slowest", ..] => {
                let dropped = self.manager.drop_slowest_cursor(number(words, "bytes").unwrap_or(1));
                dropped.map_or("nobody".to_owned(), |(_, name)| name.to_string())
            }
            ["fill", n] => {
                (0..n.parse().expect("a number"))
                    .for_each(|i| _ = self.queue(ItemKind::Mutation, &format!("fill{i}"), None));
                format!("the last change is {}", self.manager.high_seqno())
            }
            ["last", name, ..] => {
                // as `register`, but never dropped
                let id = self.manager.register_lasting_cursor(*name, Seqno(nth(3))).expect("in memory");
                self.cursors.push(((*name).to_owned(), id));
                String::new()
            }
            ["state"] => self.state(),
            _ => panic!("unknown command {words:?}"),
        }
    }
}
