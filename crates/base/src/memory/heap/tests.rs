//! Heaps against a model, on one thread and on many.

use std::sync::mpsc;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::memory::classes::MOST_BYTES;
use crate::memory::shard::SLACK_DRIFT;

/// An allocation that knows what is written in it.
struct Block {
    at: NonNull<u8>,
    bytes: usize,
    mark: u8,
}

// SAFETY: a block is the only owner of its bytes.
unsafe impl Send for Block {}

impl Block {
    fn new(heap: &Heap, bytes: usize, mark: u8) -> Block {
        let at = heap.allocate(bytes);
        assert_eq!(at.as_ptr() as usize % 8, 0);
        // SAFETY: the bytes are ours.
        unsafe { at.write_bytes(mark, bytes) };
        Block { at, bytes, mark }
    }

    fn is_sparse(&self, percent: u32) -> bool {
        // SAFETY: the block is in use.
        unsafe { Heap::is_sparse(self.at, self.bytes, percent) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the bytes are ours, initialised, and given up here.
        unsafe {
            let bytes = std::slice::from_raw_parts(self.at.as_ptr(), self.bytes);
            assert!(bytes.iter().all(|byte| *byte == self.mark), "somebody else wrote here");
            Heap::free(self.at, self.bytes);
        }
    }
}

fn documents(heap: &Heap) -> usize {
    heap.account().exact()[Part::Documents as usize] as usize
}

#[test]
fn what_is_used_is_what_is_charged() {
    let heap = Heap::default();
    let sizes = [1, 16, 17, 573, 1024, 1025, MOST_BYTES, MOST_BYTES + 1, 200_000];
    let blocks: Vec<Block> = sizes.iter().map(|bytes| Block::new(&heap, *bytes, 7)).collect();
    let charged = sizes.iter().map(|bytes| Heap::charged_bytes(*bytes)).sum::<usize>();
    assert_eq!((documents(&heap), heap.usage().used_bytes), (charged, charged as u64));
    drop(blocks);
    assert_eq!((documents(&heap), heap.usage().used_bytes), (0, 0));
}

#[test]
fn free_slots_are_used_before_new_ones() {
    let heap = Heap::default();
    let mut blocks: Vec<Block> = (0..10_000).map(|_| Block::new(&heap, 500, 1)).collect();
    let held = heap.usage().held_bytes;
    for round in 0..20_usize {
        for at in (round % 7..blocks.len()).step_by(7) {
            blocks[at] = Block::new(&heap, 500, 2);
        }
    }
    let now = heap.usage().held_bytes;
    assert!(now <= held + held / 20, "{held} became {now}");
}

#[test]
fn a_thread_allocates_from_what_others_left() {
    let heap = Heap::default();
    let mut blocks = thread::scope(|scope| {
        let fill = || (0..10_000).map(|_| Block::new(&heap, 500, 1)).collect::<Vec<Block>>();
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(fill)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<Block>>()
    });
    let held = heap.usage().held_bytes;
    let mut n = 0;
    blocks.retain(|_| {
        n += 1;
        n % 2 == 0
    });
    blocks.extend((0..20_000).map(|_| Block::new(&heap, 500, 1)));
    let now = heap.usage().held_bytes;
    assert!(now <= held + held / 20, "{held} became {now}");
}

#[test]
fn what_empties_is_given_back() {
    let heap = Heap::default();
    let blocks: Vec<Block> = (0..10_000).map(|_| Block::new(&heap, 500, 1)).collect();
    assert!(heap.usage().held_bytes >= 5_000_000);
    drop(blocks);
    heap.trim();
    assert_eq!(heap.usage(), HeapUsage::default());
}

#[test]
fn slack_is_told_as_it_comes_and_goes() {
    let heap = Heap::default();
    let mut blocks: Vec<Block> = (0..10_000).map(|n| Block::new(&heap, 400 + n % 3 * 100, 1)).collect();
    let most_off = heap.0.shards.len() as u64 * SLACK_DRIFT as u64;
    assert!(heap.slack_estimate() <= most_off, "all is used");
    let mut n = 0;
    blocks.retain(|_| {
        n += 1;
        n % 4 == 0
    });
    heap.trim();
    let slack = heap.usage().slack_bytes();
    assert!(slack > 3_000_000 && slack.abs_diff(heap.slack_estimate()) <= most_off, "{slack}");
    blocks.extend((0..7_500).map(|n| Block::new(&heap, 400 + n % 3 * 100, 1)));
    assert!(heap.slack_estimate() <= slack / 10, "{} of {slack}", heap.slack_estimate());
    drop(blocks);
    heap.trim();
    assert!(heap.slack_estimate() <= most_off, "{}", heap.slack_estimate());
}

#[test]
fn a_version_outlives_its_heap() {
    let account = Account::new();
    let heap = Heap::new(account.clone());
    let blocks: Vec<Block> = [40, 573, 100_000].map(|bytes| Block::new(&heap, bytes, 9)).into();
    drop(heap);
    assert!(account.exact()[Part::Documents as usize] > 0);
    thread::scope(|scope| _ = scope.spawn(move || drop(blocks)));
    assert_eq!(account.exact(), [0; crate::memory::PARTS]);
}

#[test]
fn sparse_is_what_could_be_moved_together() {
    let heap = Heap::default();
    let mut blocks: Vec<Block> = (0..5_000).map(|_| Block::new(&heap, 500, 1)).collect();
    assert!(blocks.iter().all(|block| !block.is_sparse(50)), "all are full, or allocated from");
    let mut n = 0;
    blocks.retain(|_| {
        n += 1;
        n % 4 == 0
    });
    heap.trim();
    let held = heap.usage().held_bytes;
    let sparse = blocks.iter().filter(|block| block.is_sparse(50)).count();
    assert!(sparse > 1_000, "{sparse}");
    let moving = heap.moving();
    for block in &mut blocks {
        if block.is_sparse(50) {
            *block = Block::new(&heap, 500, 1);
        }
    }
    drop(moving);
    heap.trim();
    let now = heap.usage().held_bytes;
    assert!(now < held / 2, "{held} became {now}");
    assert!(!Block::new(&heap, 100_000, 1).is_sparse(100));
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    Free(usize),
    /// To the next thread, which frees it in the end.
    Send(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let bytes = prop_oneof![4 => 0..1200_usize, 2 => 560..580_usize, 1 => 0..40_000_usize];
    let step = prop_oneof![
        4 => bytes.prop_map(Step::Allocate),
        2 => any::<usize>().prop_map(Step::Free),
        1 => any::<usize>().prop_map(Step::Send),
    ];
    proptest::collection::vec(step, 0..600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn many_threads_neither_share_nor_leak(threads in proptest::collection::vec(steps(), 1..7)) {
        let heap = Heap::default();
        let (senders, receivers): (Vec<_>, Vec<_>) = threads.iter().map(|_| mpsc::channel::<Block>()).unzip();
        let left: Vec<Block> = thread::scope(|scope| {
            let running: Vec<_> = threads.iter().zip(receivers).enumerate().map(|(at, (steps, receiver))| {
                let (heap, to) = (&heap, senders[(at + 1) % senders.len()].clone());
                scope.spawn(move || {
                    let mut mine: Vec<Block> = Vec::new();
                    for (n, step) in steps.iter().enumerate() {
                        match step {
                            Step::Allocate(bytes) => mine.push(Block::new(heap, *bytes, (n * 7 + at) as u8)),
                            Step::Free(any) if !mine.is_empty() => drop(mine.swap_remove(any % mine.len())),
                            Step::Send(any) if !mine.is_empty() => {
                                // One that has ended does not take it: it is freed here.
                                drop(to.send(mine.swap_remove(any % mine.len())));
                            }
                            _ => {}
                        }
                        receiver.try_iter().for_each(drop);
                    }
                    mine.extend(receiver.try_iter());
                    // What is sent later is dropped, and freed, with the channel.
                    mine
                })
            }).collect();
            running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        drop(senders);
        let used: usize = left.iter().map(|block| Heap::charged_bytes(block.bytes)).sum();
        prop_assert_eq!((documents(&heap), heap.usage().used_bytes), (used, used as u64));
        heap.trim();
        let slack = heap.usage().slack_bytes();
        let off = slack.abs_diff(heap.slack_estimate());
        prop_assert!(off <= heap.0.shards.len() as u64 * SLACK_DRIFT as u64, "{} of {}", off, slack);
        drop(left);
        prop_assert_eq!((documents(&heap), heap.usage().used_bytes), (0, 0));
    }
}
