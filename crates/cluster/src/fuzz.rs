//! Bodies for fuzzers: what must hold for any bytes.

use crate::keys;
use crate::state::State;
use crate::store::{Entry, Snapshot, Version};
use crate::view::View;

/// Any bytes as what is in the coordination store: keys and values in turn, each ended by a zero byte.
pub fn fuzz_view(bytes: &[u8]) {
    let mut snapshot = Snapshot { version: Version(2), ..Snapshot::default() };
    let mut parts = bytes.split(|byte| *byte == 0);
    while let (Some(key), Some(value)) = (parts.next(), parts.next()) {
        let Ok(key) = std::str::from_utf8(key) else { continue };
        snapshot.entries.insert(key.to_owned(), Entry { value: value.to_vec(), version: Version(1) });
    }
    let Ok(Some(view)) = View::of(&snapshot) else { return };
    for id in view.state.nodes.keys() {
        let _ = (view.alive(*id), view.report(*id), view.limits(*id));
    }
    let written = serde_json::to_vec(&view.state.as_single()).expect("a state is JSON");
    let read: State = serde_json::from_slice(&written).expect("what was written is read");
    assert_eq!(read, view.state.as_single());
    let _ = view.state.next();
}

/// Seeds of [`fuzz_view`].
pub fn view_seeds() -> Vec<Vec<u8>> {
    let state = serde_json::to_vec(&State::empty()).expect("a state is JSON");
    let rest = b"\0members/a\0{\"incarnation\":1}\0reports/a\0{\"incarnation\":1}\0";
    vec![[keys::STATE.as_bytes(), b"\0", &state, rest].concat()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_states_never_panic() {
        base::fuzz::replay(1, 20_000, &view_seeds(), fuzz_view);
    }
}
