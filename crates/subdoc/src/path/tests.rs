//! Paths: what parses, what does not, and which keys of a document a key names.

use super::{Component, Key, Path};
use crate::ops::PathError;

/// The components in a short spelling: keys as they go into JSON, `#n` for an index, `#-` for the last.
fn parsed(text: &str) -> Result<Vec<String>, PathError> {
    let path = Path::parse(text.as_bytes())?;
    let spell = |component: &Component<'_>| match component {
        Component::Key(key) => written(*key),
        Component::Index(index) => format!("#{index}"),
        Component::Last => "#-".to_string(),
    };
    Ok(path.components().iter().map(spell).collect())
}

fn written(key: Key<'_>) -> String {
    let mut out = Vec::new();
    key.write_json(&mut out);
    assert_eq!(out.len(), key.json_len());
    String::from_utf8(out).expect("UTF-8")
}

#[track_caller]
fn assert_parses(text: &str, components: &[&str]) {
    assert_eq!(parsed(text), Ok(components.iter().map(ToString::to_string).collect()), "{text}");
}

#[test]
fn parses_keys_and_indexes() {
    assert_parses("", &[]);
    assert_parses("a", &["a"]);
    assert_parses("a.b.c", &["a", "b", "c"]);
    assert_parses("a[0]", &["a", "#0"]);
    assert_parses("a[3][12].b", &["a", "#3", "#12", "b"]);
    assert_parses("[-1]", &["#-"]);
    assert_parses("[0][-1].x", &["#0", "#-", "x"]);
    assert_parses("sp ace", &["sp ace"]);
    assert_parses("ä", &["ä"]);
}

#[test]
fn backticks_quote_and_double_to_one() {
    assert_parses("`a.b`.c", &["a.b", "c"]);
    assert_parses("`[0]`", &["[0]"]);
    assert_parses("a`.`b", &["a.b"]);
    assert_parses("t``k", &["t`k"]);
    assert_parses("`back``tick``field`", &["back`tick`field"]);
    assert_parses("`field.with.\\\"quotes\\\"`", &["field.with.\\\"quotes\\\""]);
}

#[test]
fn tolerates_what_was_recorded() {
    assert_parses("obj.", &["obj"]);
    assert_parses("[]", &["#0"]);
    assert_parses("a.[0].[1].b", &["a", "#0", "#1", "b"]);
}

#[test]
fn refuses_what_is_no_path() {
    for text in [
        ".",
        ".a",
        "a..b",
        "list[",
        "list[a]",
        "[-2]",
        "[-]",
        "[+1]",
        "[ 1]",
        "a]",
        "a[0]b",
        ".[0]",
        "a..[0]",
        "`a",
        "a\"b",
        "a\u{1}b",
        "\\u0041",
        "a\\",
        "\\x",
        "[99999999999999999999]",
        "``",
        "a.``[0]",
    ] {
        assert_eq!(parsed(text), Err(PathError::InvalidPath), "{text}");
    }
    // It leads to nothing, and makes nothing.
    assert!(Path::parse(b"\xff").is_ok());
}

#[test]
fn limits_length_and_components() {
    let keys = |count: usize| vec!["a"; count].join(".");
    assert_eq!(parsed(&keys(31)).map(|all| all.len()), Ok(31));
    assert_eq!(parsed(&keys(32)), Err(PathError::PathTooBig));
    let behind_key =
        |count| Path::parse_behind_key(keys(count).as_bytes()).map(|path| path.components().len());
    assert_eq!(behind_key(30), Ok(30));
    assert_eq!(behind_key(31), Err(PathError::PathTooBig));
    assert!(parsed(&"a".repeat(1024)).is_ok());
    assert_eq!(parsed(&"a".repeat(1025)), Err(PathError::PathTooBig));
}

#[test]
fn keys_match_what_they_spell() {
    let names = |path: &str, json: &str| match Path::parse(path.as_bytes()).expect("parses").components() {
        [Component::Key(key)] => key.names(json.as_bytes()),
        other => panic!("{other:?}"),
    };
    assert!(names("a", "a"));
    assert!(!names("a", "ab"));
    assert!(!names("ab", "a"));
    assert!(names("A", "\\u0041"));
    assert!(names("ä", "\\u00e4"));
    assert!(names("日", "\\u65e5"));
    assert!(names("😀", "\\ud83d\\ude00"));
    assert!(!names("😀", "\\ud83d"));
    assert!(names("t``k", "t`k"));
    assert!(names("a\\\"b", "a\\\"b"));
    assert!(names("a\\\"b", "a\\u0022b"));
    assert!(names("a\\nb", "a\\u000ab"));
    assert!(names("a\\/b", "a/b"));
}

#[test]
fn keys_of_attributes_are_components() {
    let parsed = |key: &str| Path::parse_attribute(key.as_bytes(), b"x[0]").map(drop);
    for key in ["a", "a b", "a@", "\u{e9}", "a`b`", "a\\n"] {
        assert_eq!(parsed(key), Ok(()), "{key:?}");
    }
    for key in ["a\"b", "a`", "a]", "a\u{1}", "a\\x"] {
        assert_eq!(parsed(key), Err(PathError::InvalidPath), "{key:?}");
    }
}
