//! What recording a time costs, beside a look at the clock.
//!
//! `cargo run --release -p base --example histogram`

use base::Histogram;
use base::env::Env;

const TIMES: u64 = 20_000_000;

fn main() {
    let clock = Env::real().clock;
    let histogram = Histogram::default();
    let per_call = |work: &mut dyn FnMut(u64)| {
        let begun_ns = clock.monotonic_ns();
        (0..TIMES).for_each(&mut *work);
        (clock.monotonic_ns() - begun_ns) as f64 / TIMES as f64
    };
    // Times from 100 ns to 100 us, of which none is foretold by the one before.
    let time = |n: u64| 100 + n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 100_000;
    let nothing = per_call(&mut |n| {
        std::hint::black_box(time(n));
    });
    let alone = per_call(&mut |n| histogram.record_alone(time(n)));
    let together = per_call(&mut |n| histogram.record(time(n)));
    let look = per_call(&mut |_| {
        std::hint::black_box(clock.monotonic_ns());
    });
    println!("recording, one writer       {:>8.2} ns", alone - nothing);
    println!("recording, several writers  {:>8.2} ns", together - nothing);
    println!("a look at the clock         {look:>8.2} ns");
}
