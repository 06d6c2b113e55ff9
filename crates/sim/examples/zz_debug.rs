//! debug
fn main() {
    for seed in [3] {
        let t = sim::kv::crash_states(&sim::kv::subjects::journaled(), &sim::kv::Depth::default(), seed);
        println!("{t}");
    }
}
