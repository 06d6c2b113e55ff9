//! Bodies for fuzzers: what must hold for any bytes.

use crate::collections::{Manifest, SystemEvent};

/// Any bytes as a manifest: what is read is read again when it is written.
pub fn fuzz_manifest(bytes: &[u8]) {
    let Ok(manifest) = Manifest::parse(bytes) else { return };
    let written = manifest.to_json();
    let again = Manifest::from_json(&written).expect("what was written is read");
    assert_eq!(again.to_json(), written);
}

/// Any bytes as a system event: the first says how long the key is, and whether it is a tombstone.
pub fn fuzz_system_event(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else { return };
    let Some((key, value)) = rest.split_at_checked(usize::from(first / 2)) else { return };
    let _ = SystemEvent::parse(key, first % 2 == 1, value);
}

/// Seeds of [`fuzz_manifest`].
pub fn manifest_seeds() -> Vec<Vec<u8>> {
    let scopes = r#"{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"}]},
        {"name":"s","uid":"8","collections":[{"name":"c","uid":"8","maxTTL":7}]}"#;
    vec![format!(r#"{{"uid":"3","scopes":[{scopes}]}}"#).into_bytes()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_manifests_never_panic() {
        base::fuzz::replay(1, 20_000, &manifest_seeds(), fuzz_manifest);
    }

    #[test]
    fn damaged_events_never_panic() {
        let seed =
            [&[4][..], &[0, 8], &[12, 0, 0, 0, 8, 0, 8, 0, 4, 0, 8, 0, 8, 0, 0, 0, 1, 2, 3, 4]].concat();
        base::fuzz::replay(2, 20_000, &[seed], fuzz_system_event);
    }
}
