//! Finding one record and walking many, without recursion.

use std::ops::ControlFlow;

use crate::chunk::Source;
use crate::failure::Failure;
use crate::node::{Entries, MAX_DEPTH, NodeBuf, NodeKind, Pointer};
use crate::tree::Tree;
use crate::window::Window;

/// Is shown key and value of each record.
pub(crate) type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, Failure> + 'a;

/// A tree as one header has it.
pub(crate) struct TreeView<'a> {
    pub(crate) source: &'a Source,
    pub(crate) tree: Tree,
    pub(crate) root: Option<Pointer>,
    /// Everything of the tree ends before this.
    pub(crate) limit: u64,
}

impl TreeView<'_> {
    /// The record of `key`, as `found` makes of it.
    pub(crate) fn find<T>(&self, key: &[u8], found: impl FnOnce(&[u8]) -> T) -> Result<Option<T>, Failure> {
        let mut node = NodeBuf::default();
        let Some(mut pointer) = self.root else { return Ok(None) };
        for _ in 0..MAX_DEPTH {
            node.read(self.source, pointer, self.limit)?;
            let mut entries = node.entries();
            let entry = loop {
                match entries.next().map_err(|_| node.damaged(self.source))? {
                    None => return Ok(None),
                    Some(entry) if entry.key >= key => break entry,
                    Some(_) => {}
                }
            };
            match node.kind() {
                NodeKind::Interior => pointer = node.child(self.source, self.tree, entry.value)?,
                NodeKind::Leaf if entry.key == key => return Ok(Some(found(entry.value))),
                NodeKind::Leaf => return Ok(None),
            }
        }
        Err(self.source.damaged(pointer.offset, "a tree is too deep"))
    }

    /// Visits records from `from` on, in order, until `visit` breaks.
    pub(crate) fn walk(&self, from: &[u8], visit: &mut Visit<'_>) -> Result<(), Failure> {
        self.walk_through(from, &mut Vec::new(), &mut None, visit)
    }

    /// The same for somebody who does it often: with buffers for nodes, which are left behind for the next time, and
    /// through `window`.
    pub(crate) fn walk_ahead(
        &self,
        from: &[u8],
        spare: &mut Vec<NodeBuf>,
        window: &mut Window,
        visit: &mut Visit<'_>,
    ) -> Result<(), Failure> {
        self.walk_through(from, spare, &mut Some(window), visit)
    }

    fn walk_through(
        &self,
        from: &[u8],
        spare: &mut Vec<NodeBuf>,
        window: &mut Option<&mut Window>,
        visit: &mut Visit<'_>,
    ) -> Result<(), Failure> {
        let Some(root) = self.root else { return Ok(()) };
        // the path from the root: each node with how much of it is still to do
        let mut budget = self.limit;
        let mut path = vec![self.open(root, spare.pop().unwrap_or_default(), window, &mut budget)?];
        while let Some((node, todo)) = path.last_mut() {
            let bytes = node.bytes();
            let entries = Entries::of(&bytes[bytes.len() - *todo..]);
            let child = match node.kind() {
                NodeKind::Leaf => {
                    if self.leaf(node, entries, from, visit)?.is_break() {
                        spare.extend(path.into_iter().map(|(node, _)| node));
                        return Ok(());
                    }
                    None
                }
                NodeKind::Interior => self.next_child(node, entries, todo, from)?,
            };
            let Some(child) = child else {
                spare.extend(path.pop().map(|(node, _)| node));
                continue;
            };
            if path.len() == MAX_DEPTH {
                return Err(self.source.damaged(child.offset, "a tree is too deep"));
            }
            path.push(self.open(child, spare.pop().unwrap_or_default(), window, &mut budget)?);
        }
        Ok(())
    }

    /// Visits the records of a leaf from `from` on.
    fn leaf(
        &self,
        node: &NodeBuf,
        mut entries: Entries<'_>,
        from: &[u8],
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>, Failure> {
        while let Some(entry) = entries.next().map_err(|_| node.damaged(self.source))? {
            if entry.key >= from && visit(entry.key, entry.value)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The next child of an interior node with something from `from` on; `todo` is what is left of the node behind it.
    fn next_child(
        &self,
        node: &NodeBuf,
        mut entries: Entries<'_>,
        todo: &mut usize,
        from: &[u8],
    ) -> Result<Option<Pointer>, Failure> {
        while let Some(entry) = entries.next().map_err(|_| node.damaged(self.source))? {
            if entry.key >= from {
                *todo = entries.remaining();
                return node.child(self.source, self.tree, entry.value).map(Some);
            }
        }
        Ok(None)
    }

    fn open(
        &self,
        pointer: Pointer,
        mut node: NodeBuf,
        window: &mut Option<&mut Window>,
        budget: &mut u64,
    ) -> Result<(NodeBuf, usize), Failure> {
        match window {
            Some(window) => node.read_ahead(self.source, pointer, self.limit, window)?,
            None => node.read(self.source, pointer, self.limit)?,
        }
        node.spend(self.source, budget)?;
        let todo = node.entries().remaining();
        Ok((node, todo))
    }
}
