//! One simulated file: what is durable, what the page cache shows, and the unsynced writes between the two.
//!
//! The model is that of a page cache over a disk that writes 512-byte sectors whole.
//! Until a sync, each sector may reach the disk at any moment and in any order, so after a power loss it holds its
//! durable bytes or those of some moment since; the file's length likewise.
//! Cutting a file is metadata: it happens in order with whatever follows.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SECTOR_BYTES;
use super::content::{Content, sectors};
use super::crash::Survival;
use super::random::{SplitMix64, mix};

/// What one operation did to one sector.
#[derive(Clone, Debug)]
struct Piece {
    op: u64,
    start: usize,
    bytes: PieceBytes,
}

#[derive(Clone, Debug)]
enum PieceBytes {
    Written { buf: Arc<[u8]>, from: usize, to: usize },
    Cut,
}

#[derive(Clone, Debug)]
struct Length {
    op: u64,
    len: u64,
    is_cut: bool,
}

/// A file without its name.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    durable: Content,
    current: Content,
    pending: BTreeMap<u64, Vec<Piece>>,
    lengths: Vec<Length>,
    next_op: u64,
    /// Operations before this one were in the page cache when a sync failed: the kernel may have dropped them and
    /// marked their pages clean, so no later sync vouches for them.
    doubtful_before: u64,
}

impl Inode {
    /// A file whose content is durable.
    pub(super) fn durable(content: Content) -> Inode {
        Inode { durable: content.clone(), current: content, ..Inode::default() }
    }

    /// What a reader sees.
    pub(super) fn current(&self) -> &Content {
        &self.current
    }

    pub(super) fn write_at(&mut self, buf: &Arc<[u8]>, offset: u64) {
        let op = self.take_op();
        let before = self.current.len();
        self.current.write_at(buf, offset);
        for (sector, start, range) in sectors(offset, buf.len()) {
            let bytes = PieceBytes::Written { buf: Arc::clone(buf), from: range.start, to: range.end };
            self.pending.entry(sector).or_default().push(Piece { op, start, bytes });
        }
        if self.current.len() != before {
            self.lengths.push(Length { op, len: self.current.len(), is_cut: false });
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        let before = self.current.len();
        if len == before {
            return;
        }
        let op = self.take_op();
        self.current.set_len(len);
        if len < before {
            for sector in len / SECTOR_BYTES..before.div_ceil(SECTOR_BYTES) {
                let start = len.saturating_sub(sector * SECTOR_BYTES) as usize;
                self.pending.entry(sector).or_default().push(Piece { op, start, bytes: PieceBytes::Cut });
            }
        }
        self.lengths.push(Length { op, len, is_cut: len < before });
    }

    fn take_op(&mut self) -> u64 {
        self.next_op += 1;
        self.next_op
    }

    /// Everything written since the last sync becomes durable, except what a failed sync left in doubt.
    pub(super) fn sync(&mut self) {
        let doubtful_before = self.doubtful_before;
        // A cut goes through the journal of the file system, which fails as a whole or not at all:
        // a sync that follows vouches for it and, to keep the model small, for everything.
        let all = self.lengths.iter().any(|l| l.is_cut);
        let durable = &mut self.durable;
        self.pending.retain(|&sector, pieces| {
            // A page written again after the failure is dirty again, and goes to the disk as it stands.
            let is_dirty = all || pieces.last().is_some_and(|p| p.op >= doubtful_before);
            if is_dirty {
                pieces.iter().for_each(|p| p.apply(sector, durable));
            }
            !is_dirty
        });
        if all || self.lengths.last().is_some_and(|l| l.op >= doubtful_before) {
            self.lengths.clear();
        }
        let durable_len = match self.lengths.first() {
            Some(_) => self.durable.len(),
            None => self.current.len(),
        };
        self.durable.set_len(durable_len);
    }

    /// A sync failed: from now on nothing vouches for what was unsynced.
    pub(super) fn fail_sync(&mut self) {
        self.doubtful_before = self.next_op + 1;
    }

    /// What is on the disk after the power went.
    pub(super) fn after_power_loss(&self, survival: Survival, rng: &mut SplitMix64) -> Content {
        match survival {
            Survival::Synced => self.durable.clone(),
            Survival::Everything => self.current.clone(),
            Survival::Seeded(_) => self.seeded(rng),
        }
    }

    /// Whether anything waits for a sync.
    pub(super) fn is_unsynced(&self) -> bool {
        !self.pending.is_empty() || !self.lengths.is_empty()
    }

    /// A number for where `content`, one of those that a power loss may leave, differs from what is durable.
    pub(super) fn mark_of(&self, content: &Content) -> u64 {
        let mut mark = mix(content.len() ^ self.durable.len().rotate_left(32));
        if content.len() == self.durable.len() {
            mark = 0;
        }
        for &sector in self.pending.keys() {
            let (now, then) = (content.sector(sector), self.durable.sector(sector));
            if now != then {
                let words =
                    now.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")));
                mark = mark.wrapping_add(words.fold(mix(sector), |sum, word| mix(sum ^ word)));
            }
        }
        mark
    }

    fn seeded(&self, rng: &mut SplitMix64) -> Content {
        let window = self.choose_window(rng);
        let style = Style::choose(rng, self.first_pending_op().max(window.after), window.before);
        let mut content = self.durable.clone();
        let mut kept_end = 0;
        for (&sector, pieces) in &self.pending {
            let least = pieces.iter().rposition(|p| p.is_cut() && p.op <= window.after).map_or(0, |i| i + 1);
            let most = pieces.iter().take_while(|p| p.op < window.before).count();
            let kept = style.pieces(rng, &pieces[..most], least);
            pieces[..kept].iter().for_each(|p| p.apply(sector, &mut content));
            let end = pieces[..kept].last().map_or(0, |p| p.end(sector));
            kept_end = kept_end.max(end);
        }
        content.set_len(self.choose_len(rng, window, style, kept_end));
        content
    }

    fn first_pending_op(&self) -> u64 {
        let pieces = self.pending.values().filter_map(|pieces| pieces.first()).map(|p| p.op);
        pieces.chain(self.lengths.first().map(|l| l.op)).min().unwrap_or(0)
    }

    /// Cuts happen in order: some number of them did, and nothing behind the first that did not.
    fn choose_window(&self, rng: &mut SplitMix64) -> Window {
        let cuts: Vec<u64> = self.lengths.iter().filter(|l| l.is_cut).map(|l| l.op).collect();
        let done = rng.between(0, cuts.len() as u64) as usize;
        Window {
            after: if done == 0 { 0 } else { cuts[done - 1] },
            before: cuts.get(done).copied().unwrap_or(self.next_op + 1),
        }
    }

    /// The length is that of some moment, or ends with a sector inside a write that grew the file.
    fn choose_len(&self, rng: &mut SplitMix64, window: Window, style: Style, kept_end: u64) -> u64 {
        let mut lens = Vec::new();
        if window.after == 0 {
            lens.push((0, self.durable.len()));
        }
        let inside = |l: &&Length| l.op >= window.after && l.op < window.before;
        lens.extend(self.lengths.iter().filter(inside).map(|l| (l.op, l.len)));
        let least = lens[0].1;
        let most = lens[lens.len() - 1].1;
        if let Style::Prefix { until } = style {
            let upto = lens.iter().take_while(|(op, _)| *op <= until).count();
            return lens[upto.max(1) - 1].1.min(kept_end.max(least));
        }
        let choice = if matches!(style, Style::Suffix { .. }) { 0 } else { rng.below(4) };
        match choice {
            0 | 1 => kept_end.clamp(least, most),
            2 => lens[rng.below(lens.len() as u64) as usize].1,
            _ => {
                let at = rng.between(least, most);
                (at - at % SECTOR_BYTES).max(least)
            }
        }
    }
}

impl Piece {
    fn is_cut(&self) -> bool {
        matches!(self.bytes, PieceBytes::Cut)
    }

    fn end(&self, sector: u64) -> u64 {
        let len = match self.bytes {
            PieceBytes::Written { from, to, .. } => to - from,
            PieceBytes::Cut => 0,
        };
        sector * SECTOR_BYTES + (self.start + len) as u64
    }

    fn apply(&self, sector: u64, content: &mut Content) {
        let at = sector * SECTOR_BYTES + self.start as u64;
        match &self.bytes {
            PieceBytes::Written { buf, from, to } => content.write_at(&buf[*from..*to], at),
            PieceBytes::Cut => {
                let zeros = [0; SECTOR_BYTES as usize];
                content.write_at(&zeros[self.start..], at);
            }
        }
    }
}

/// The operations that may have reached the disk: later than the last cut that did, before the first that did not.
#[derive(Clone, Copy)]
struct Window {
    after: u64,
    before: u64,
}

/// How the unsynced sectors of one file fare. Purely independent sectors would hardly ever give the states in which
/// nearly everything, or a clean prefix, survived, and those are the ones that recovery code gets wrong.
#[derive(Clone, Copy)]
enum Style {
    /// Everything before an operation, that one torn, nothing after.
    Prefix { until: u64 },
    /// Everything from an operation on, nothing before: a header without what it points at.
    Suffix { from: u64 },
    /// Each sector by itself.
    Independent,
    /// Few sectors are lost.
    MostlyKept,
    /// Few sectors survive.
    MostlyLost,
}

impl Style {
    fn choose(rng: &mut SplitMix64, first: u64, before: u64) -> Style {
        let any = rng.between(first.min(before), before);
        match rng.below(5) {
            0 => Style::Prefix { until: any },
            1 => Style::Suffix { from: any },
            2 => Style::Independent,
            3 => Style::MostlyKept,
            _ => Style::MostlyLost,
        }
    }

    /// How many of a sector's pieces, which came one after the other, are on the disk.
    fn pieces(self, rng: &mut SplitMix64, pieces: &[Piece], least: usize) -> usize {
        let most = pieces.len();
        if least >= most {
            return most;
        }
        let any = rng.between(least as u64, most as u64) as usize;
        match self {
            Style::Prefix { until } => {
                let done = pieces.iter().take_while(|p| p.op < until).count();
                let torn = pieces.get(done).is_some_and(|p| p.op == until) && rng.chance(1, 2);
                (done + usize::from(torn)).max(least)
            }
            Style::Suffix { from } if pieces[most - 1].op >= from => most,
            Style::Suffix { .. } => least,
            Style::Independent => any,
            Style::MostlyKept => {
                if rng.chance(1, 8) {
                    any
                } else {
                    most
                }
            }
            Style::MostlyLost => {
                if rng.chance(1, 8) {
                    any
                } else {
                    least
                }
            }
        }
    }
}
