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
    };
    Manifest::new(ManifestUid(uid), scopes, collections.iter().map(of)).expect("it keeps the rules")
}

#[test]
fn a_manifest_survives_being_printed() {
    let text = r#"{"uid":"a2","scopes":[{"name":"_default","uid":"0","collections":[{"name":"_default","uid":"0"},
        {"name":"brewery","uid":"1c","maxTTL":1}]},{"name":"empty","uid":"9","collections":[],"other":true}]}"#;
    let manifest = parse(text).expect("it is valid");
    assert_eq!(manifest.uid(), ManifestUid(0xa2));
    let brewery = manifest.collection_named(ScopeId(0), "brewery").expect("it is there");
    assert_eq!((brewery.id, brewery.max_ttl_s), (CollectionId(0x1c), Some(1)));
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
