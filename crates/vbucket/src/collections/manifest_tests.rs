//! Manifests: rules, JSON, differences.

use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<Manifest, InvalidManifest> {
    Manifest::parse(text.as_bytes())
}

/// A manifest of named collections in the scope `s` (8), ids from 8 on, as `(id, name, max TTL)`.
fn with(uid: u64, collections: &[(u32, &str, Option<u32>)]) -> Manifest {
    let scopes = [(0, DEFAULT_NAME), (8, "s")];
    let scopes = scopes.map(|(id, name)| Scope { id: ScopeId(id), name: name.into() });
    let of = |&(id, name, max_ttl_s): &(u32, &str, Option<u32>)| Collection {
        id: CollectionId(id),
        scope: ScopeId(8),
        name: name.into(),
        max_ttl_s,
        history: None,
    };
    Manifest::new(ManifestUid(uid), scopes, collections.iter().map(of)).expect("it keeps the rules")
}

#[test]
fn a_manifest_survives_being_printed() {
    let text = r#"{"uid":"a2","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"},
        {"name":"brewery","uid":"1c","maxTTL":1,"history":false},{"name":"wine","uid":"1d","history":true}]},{"name":"empty","uid":"9","collections":[],"other":true}]}"#;
    let manifest = parse(text).expect("it is valid");
    assert_eq!(manifest.uid(), ManifestUid(0xa2));
    let brewery = manifest.collection_named(ScopeId(0), "brewery").expect("it is there");
    assert_eq!((brewery.id, brewery.max_ttl_s), (CollectionId(0x1c), Some(1)));
    let history: Vec<Option<bool>> = manifest.collections().map(|one| one.history).collect();
    assert_eq!(history, [None, Some(false), Some(true)]);
    assert_eq!(manifest.to_text(), manifest.to_json().to_string());
    assert_eq!(parse(&manifest.to_json().to_string()), Ok(manifest));
}

#[test]
fn the_default_manifest_is_valid() {
    let manifest = Manifest::default();
    assert_eq!(parse(&manifest.to_json().to_string()), Ok(manifest));
}

#[test]
fn a_scope_may_have_no_list_of_collections() {
    let manifest = parse(r#"{"uid":"1","scopes":[{"name":"_default","uid":"0"}]}"#).expect("it is valid");
    assert_eq!(manifest.collection(CollectionId::DEFAULT), None);
}

#[test]
fn what_breaks_a_rule_is_refused() {
    let scope = |collections: &str| {
        format!(r#"{{"uid":"f","scopes":[{{"name":"_default","uid":"0",{collections}}}]}}"#)
    };
    let one = |collection: &str| scope(&format!(r#""collections":[{collection}]"#));
    let long = "x".repeat(252);
    for text in [
        "notjson".into(),
        "{}".into(),
        r#"{"uid":"0","scopes":[]}"#.into(),
        r#"{"uid":1,"scopes":[{"name":"_default","uid":"0","collections":[]}]}"#.into(),
        r#"{"uid":"zz","scopes":[{"name":"_default","uid":"0","collections":[]}]}"#.into(),
        r#"{"uid":"0x1","scopes":[{"name":"_default","uid":"0","collections":[]}]}"#.into(),
        r#"{"uid":"1","scopes":[{"name":"x","uid":"8","collections":[]}]}"#.into(),
        r#"{"uid":"1","scopes":[{"name":"_default","uid":"0"},{"name":"a","uid":"8"},{"name":"a","uid":"9"}]}"#.into(),
        r#"{"uid":"1","scopes":[{"name":"_default","uid":"0"},{"name":"a","uid":"8"},{"name":"b","uid":"8"}]}"#.into(),
        scope(r#""collections":{}"#),
        one(r#"{"name":"a","uid":"2"}"#),
        one(r#"{"name":"a","uid":"100000000"}"#),
        one(r#"{"name":"a","uid":"0"}"#),
        one(r#"{"name":"_default","uid":"8"}"#),
        one(r#"{"name":"$a","uid":"8"}"#),
        one(r#"{"name":"a$","uid":"8"}"#),
        one(r#"{"name":"a b","uid":"8"}"#),
        one(r#"{"name":"","uid":"8"}"#),
        one(&format!(r#"{{"name":"{long}","uid":"8"}}"#)),
        one(r#"{"uid":"8"}"#),
        one(r#"{"name":"a","uid":"8"},{"name":"a","uid":"9"}"#),
        one(r#"{"name":"a","uid":"8"},{"name":"b","uid":"8"}"#),
        one(r#"{"name":"a","uid":"8","maxTTL":"1"}"#),
        one(r#"{"name":"a","uid":"8","maxTTL":2147483648}"#),
        one(r#"{"name":"a","uid":"8","history":1}"#),
    ] {
        assert!(parse(&text).is_err(), "{text}");
    }
    assert!(parse(&one(r#"{"name":"_a$-%","uid":"8","maxTTL":2147483647}"#)).is_ok());
}

#[test]
fn names_of_clients_begin_with_letter_digit_or_hyphen() {
    for (name, expected) in [("a_%-9", true), ("-", true), ("_a", false), ("%a", false), ("a$", false)] {
        assert_eq!(is_user_name(name), expected, "{name}");
    }
}

#[test]
fn a_successor_has_a_higher_uid_and_keeps_what_ids_mean() {
    let old = with(5, &[(8, "a", None)]);
    assert_eq!(old.check_successor(&with(6, &[(8, "a", Some(1))])), Ok(()));
    assert_eq!(old.check_successor(&with(5, &[(8, "a", None)])), Ok(()));
    assert_eq!(old.check_successor(&with(5, &[])), Err(SuccessorRefusal::UidOutOfRange));
    assert_eq!(old.check_successor(&with(4, &[(8, "a", None)])), Err(SuccessorRefusal::UidOutOfRange));
    assert_eq!(old.check_successor(&with(6, &[(8, "b", None)])), Err(SuccessorRefusal::IdReused));
}

#[test]
fn a_difference_drops_before_it_makes_and_completes_the_manifest_last() {
    let old = with(5, &[(8, "a", None), (9, "b", None)]);
    let new = with(7, &[(9, "b", Some(10)), (10, "a", None)]);
    let found = difference(&old, &new);
    let manifest = ManifestUid(5);
    let of = |id| new.collection(CollectionId(id)).cloned().expect("it is there");
    let expected = [
        SystemEvent::CollectionEnd { manifest, scope: ScopeId(8), id: CollectionId(8) },
        SystemEvent::CollectionChanged { manifest, collection: of(9) },
        SystemEvent::CollectionBegin { manifest: ManifestUid(7), collection: of(10) },
    ];
    assert_eq!(found, expected);
    assert_eq!(difference(&new, &new), []);
}

#[test]
fn a_scope_comes_before_its_collections_and_goes_after_them() {
    let (none, some) = (Manifest::default(), with(1, &[(8, "a", None)]));
    let come: Vec<bool> = difference(&none, &some).iter().map(|event| event.collection().is_some()).collect();
    // The default collection is dropped first.
    assert_eq!(come, [true, false, true]);
    let gone: Vec<bool> = difference(&some, &none).iter().map(|event| event.collection().is_some()).collect();
    assert_eq!(gone, [true, false, true]);
}

#[test]
fn a_manifest_is_printed_as_its_json_is() {
    let all = [(8, "a", None), (9, "b-%_", Some(0)), (0x1f, "c", Some(u32::MAX)), (0x20, "d", None)];
    for manifest in [Manifest::default(), with(0xabc, &[]), with(u64::MAX, &all)] {
        assert_eq!(manifest.to_text(), manifest.to_json().to_string());
    }
}

/// What is done to a manifest.
#[derive(Clone, Debug)]
enum Edit {
    AddScope(u32, u8),
    RemoveScope(u32),
    AddCollection(u32, u32, u8),
    RemoveCollection(u32),
    MaxTtl(u32, u32),
    History(u32, Option<bool>),
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let scope = || prop_oneof![Just(0_u32), 7..12_u32];
    let id = || prop_oneof![Just(0_u32), 7..20_u32];
    let edit = prop_oneof![
        (scope(), 0..6_u8).prop_map(|(id, name)| Edit::AddScope(id, name)),
        scope().prop_map(Edit::RemoveScope),
        (id(), scope(), 0..6_u8).prop_map(|(id, scope, name)| Edit::AddCollection(id, scope, name)),
        (id(), scope(), 0..6_u8).prop_map(|(id, scope, name)| Edit::AddCollection(id, scope, name)),
        id().prop_map(Edit::RemoveCollection),
        (id(), 0..3_u32).prop_map(|(id, ttl)| Edit::MaxTtl(id, ttl)),
        (id(), any::<Option<bool>>()).prop_map(|(id, history)| Edit::History(id, history)),
    ];
    proptest::collection::vec(edit, 0..40)
}

fn name(of: u8) -> String {
    if of == 0 { DEFAULT_NAME.to_owned() } else { format!("n{of}") }
}

/// Does it, and to plain lists as well; a change is refused exactly if the lists would not make a manifest.
fn edit(manifest: &mut Manifest, edit: &Edit, scopes: &mut Vec<Scope>, collections: &mut Vec<Collection>) {
    let is_valid = |scopes: &[Scope], collections: &[Collection]| {
        let of = Manifest::new(ManifestUid(1), scopes.to_vec(), collections.to_vec());
        of.is_ok_and(|of| {
            let json = of.to_json().to_string();
            json == of.to_text()
        })
    };
    match *edit {
        Edit::AddScope(id, of) => {
            scopes.push(Scope { id: ScopeId(id), name: name(of) });
            let added = manifest.add_scope(Scope { id: ScopeId(id), name: name(of) });
            assert_eq!(added.is_ok(), is_valid(scopes, collections), "{added:?}");
            if added.is_err() {
                scopes.pop();
            }
        }
        Edit::RemoveScope(id) => {
            manifest.remove_scope(ScopeId(id));
            if id != 0 {
                scopes.retain(|scope| scope.id.0 != id);
                collections.retain(|one| one.scope.0 != id);
            }
        }
        Edit::AddCollection(id, scope, of) => {
            let (id, scope) = (CollectionId(id), ScopeId(scope));
            let one = Collection { id, scope, name: name(of), max_ttl_s: None, history: None };
            collections.push(one.clone());
            let added = manifest.add_collection(one);
            assert_eq!(added.is_ok(), is_valid(scopes, collections), "{added:?}");
            if added.is_err() {
                collections.pop();
            }
        }
        Edit::RemoveCollection(id) => {
            manifest.remove_collection(CollectionId(id));
            collections.retain(|one| one.id.0 != id);
        }
        Edit::MaxTtl(id, ttl) => {
            manifest.set_max_ttl(CollectionId(id), Some(ttl));
            let of = collections.iter_mut().filter(|one| one.id.0 == id);
            of.for_each(|one| one.max_ttl_s = Some(ttl));
        }
        Edit::History(id, history) => {
            manifest.set_history(CollectionId(id), history);
            let of = collections.iter_mut().filter(|one| one.id.0 == id);
            of.for_each(|one| one.history = history);
        }
    }
}

/// The differences as each id by itself tells them, in their order.
fn plain_difference(old: &Manifest, new: &Manifest) -> Vec<SystemEvent> {
    let manifest = old.uid();
    let mut events = Vec::new();
    for one in old.collections().filter(|one| new.collection(one.id).is_none()) {
        events.push(SystemEvent::CollectionEnd { manifest, scope: one.scope, id: one.id });
    }
    for scope in old.scopes().filter(|scope| new.scope(scope.id).is_none()) {
        events.push(SystemEvent::ScopeEnd { manifest, id: scope.id });
    }
    for scope in new.scopes().filter(|scope| old.scope(scope.id).is_none()) {
        events.push(SystemEvent::ScopeBegin { manifest, scope: scope.clone() });
    }
    for one in new.collections() {
        let collection = one.clone();
        match old.collection(one.id) {
            None => events.push(SystemEvent::CollectionBegin { manifest, collection }),
            Some(there) if (there.max_ttl_s, there.history) == (one.max_ttl_s, one.history) => {}
            Some(_) => events.push(SystemEvent::CollectionChanged { manifest, collection }),
        }
    }
    events.iter_mut().next_back().into_iter().for_each(|last| last.set_manifest(new.uid()));
    events
}

proptest! {
    /// A manifest that is changed step by step is the one that is made of the same lists at once, and the one before
    /// stays as it was, whatever the two share.
    #[test]
    fn edits_make_what_lists_make(steps in edits(), from in 0..40_usize) {
        let mut manifest = Manifest::default();
        let mut scopes: Vec<Scope> = manifest.scopes().cloned().collect();
        let mut collections: Vec<Collection> = manifest.collections().cloned().collect();
        let mut before = (manifest.clone(), manifest.to_text());
        for (at, step) in steps.iter().enumerate() {
            if at == from {
                before = (manifest.clone(), manifest.to_text());
                manifest = manifest.successor();
            }
            edit(&mut manifest, step, &mut scopes, &mut collections);
        }
        let made = Manifest::new(manifest.uid(), scopes, collections).expect("valid");
        prop_assert_eq!(&made, &manifest);
        prop_assert_eq!(made.to_text(), manifest.to_text());
        prop_assert_eq!(difference(&before.0, &manifest), plain_difference(&before.0, &manifest));
        prop_assert_eq!(before.0.to_text(), before.1);
    }
}
