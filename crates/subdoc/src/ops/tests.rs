//! The operations on texts by hand: statuses, places and bytes.

use super::{Operation, PathError, count, edit, get};
use crate::path::Path;
use Operation::*;

fn change(
    text: &str,
    operation: Operation,
    path: &str,
    value: &str,
    parents: bool,
) -> Result<String, PathError> {
    let path = Path::parse(path.as_bytes())?;
    let edit = edit(text.as_bytes(), &path, operation, value.as_bytes(), parents)?;
    Ok(String::from_utf8(edit.apply(text.as_bytes()).0).expect("UTF-8"))
}

#[track_caller]
fn gives(text: &str, operation: Operation, path: &str, value: &str, result: &str) {
    assert_eq!(change(text, operation, path, value, false).as_deref(), Ok(result));
}

#[track_caller]
fn fails(text: &str, operation: Operation, path: &str, value: &str, error: PathError) {
    assert_eq!(change(text, operation, path, value, false), Err(error), "{text} {path}");
}

fn find(text: &str, path: &str) -> Result<String, PathError> {
    let range = get(text.as_bytes(), &Path::parse(path.as_bytes())?)?;
    Ok(text[range].to_string())
}

#[test]
fn gets_values_with_their_whitespace() {
    let text = "{ \"a\" : [ 1 , 2 ] ,\n \"b\" : { \"c\" : 1 } }";
    assert_eq!(find(text, "a").as_deref(), Ok("[ 1 , 2 ]"));
    assert_eq!(find(text, "a[-1]").as_deref(), Ok("2"));
    assert_eq!(find(text, "b.c").as_deref(), Ok("1"));
    assert_eq!(find(text, "").as_deref(), Ok(text));
    assert_eq!(find("12", "[-1]").as_deref(), Ok(""));
    assert_eq!(find("12", "[0]"), Err(PathError::Mismatch));
    assert_eq!(find("[]", "[-1]"), Err(PathError::NotFound));
    assert_eq!(find("{\"a\":1,\"a\":2}", "a").as_deref(), Ok("1"));
    assert_eq!(count(b" [1, 2,3 ] ", &Path::parse(b"").expect("root")), Ok(3));
}

#[test]
fn untouched_bytes_stay() {
    let text = "{ \"a\" : [ 1 , 2 ] ,\n \"b\" : { \"c\" : 1 } }";
    gives(text, DictUpsert, "d", "1", "{ \"a\" : [ 1 , 2 ] ,\n \"b\" : { \"c\" : 1 } ,\"d\":1}");
    gives(text, Delete, "a", "", "{ \n \"b\" : { \"c\" : 1 } }");
    gives(text, Delete, "b", "", "{ \"a\" : [ 1 , 2 ]  }");
    gives(text, Delete, "a[1]", "", "{ \"a\" : [ 1  ] ,\n \"b\" : { \"c\" : 1 } }");
    gives(text, ArrayPushFirst, "a", "0", "{ \"a\" : [ 0,1 , 2 ] ,\n \"b\" : { \"c\" : 1 } }");
    gives(text, ArrayPushLast, "a", "0", "{ \"a\" : [ 1 , 2 ,0] ,\n \"b\" : { \"c\" : 1 } }");
    gives(" [ 1 ] ", ArrayAddUnique, "", " 1 ", " [ 1 , 1 ] ");
}

#[test]
fn the_first_element_takes_the_place_of_whitespace() {
    for operation in [ArrayPushLast, ArrayPushFirst, ArrayAddUnique] {
        gives("{\"a\": [ ] }", operation, "a", "7", "{\"a\": [7] }");
    }
    gives("{\"a\": [ ] }", ArrayInsert, "a[0]", "7", "{\"a\": [7] }");
    gives(" [ ] ", ArrayPushFirst, "", "7", " [7] ");
    // Only this one drops what is behind the last element of a body.
    gives(" [ ] ", ArrayPushLast, "", "7", " [7]");
    gives(" [ 1 ] ", ArrayPushLast, "", "7", " [ 1,7]");
}

#[test]
fn the_last_element_is_a_document_of_its_own() {
    for (text, path, error) in [
        ("5", "[-1].a", PathError::NotFound),
        ("[5]", "[-1][-1].a", PathError::NotFound),
        ("[\"s\"]", "[-1].a", PathError::NotJson),
        ("[\"s\"]", "[0].a", PathError::Mismatch),
        ("[5]", "[-1].a", PathError::Mismatch),
    ] {
        assert_eq!(find(text, path), Err(error), "{text} {path}");
    }
    assert_eq!(find("[5]", "[-1][-1]").as_deref(), Ok(""));
    fails("5", ArrayPushFirst, "[-1]", "1", PathError::NotFound);
    fails("5", ArrayPushLast, "[-1]", "1", PathError::Mismatch);
    fails("5", Replace, "[-1]", "1", PathError::Mismatch);
    fails("5", DictAdd, "[-1]", "1", PathError::InvalidPath);
    fails("5", DictAdd, "[-1].a", "1", PathError::NotFound);
    fails("5", ArrayInsert, "[-1][0]", "1", PathError::NotFound);
    fails("[\"s\"]", ArrayPushFirst, "[-1]", "1", PathError::NotJson);
}

#[test]
fn parents_are_made_on_demand() {
    let make = |operation, path| change("{\"a\":1}", operation, path, "2", true);
    assert_eq!(make(DictAdd, "p.q.r").as_deref(), Ok("{\"a\":1,\"p\":{\"q\":{\"r\":2}}}"));
    assert_eq!(make(ArrayPushLast, "p.`q.r`").as_deref(), Ok("{\"a\":1,\"p\":{\"q.r\":[2]}}"));
    assert_eq!(make(Counter, "p.q").as_deref(), Ok("{\"a\":1,\"p\":{\"q\":2}}"));
    assert_eq!(make(DictAdd, "p[0].q"), Err(PathError::NotFound));
    assert_eq!(make(Counter, "p[0]"), Err(PathError::InvalidPath));
    assert_eq!(change("[]", Counter, "[0][1]", "2", true), Err(PathError::NotFound));
    assert_eq!(make(DictAdd, "a.q"), Err(PathError::Mismatch));
    assert_eq!(change("{}", Replace, "p.q", "2", true), Err(PathError::NotFound));
}

#[test]
fn a_path_that_is_no_text_makes_no_key() {
    let path = Path::parse(b"\xff").expect("parses");
    assert_eq!(get(b"{}", &path), Err(PathError::NotFound));
    for operation in [DictUpsert, Counter] {
        assert_eq!(edit(b"{}", &path, operation, b"1", false).err(), Some(PathError::InvalidPath));
    }
    assert_eq!(edit(b"[]", &path, DictUpsert, b"1", false).err(), Some(PathError::Mismatch));
    assert_eq!(edit(b"{}", &path, Delete, b"", false).err(), Some(PathError::NotFound));
}

#[test]
fn root_rules() {
    fails("12", ArrayPushLast, "", "7", PathError::NotJson);
    fails("12", ArrayAddUnique, "", "7", PathError::Mismatch);
    fails("12", ArrayPushFirst, "", "7", PathError::Mismatch);
    fails("{}", ArrayPushFirst, "", "7", PathError::Mismatch);
    fails("{}", DictUpsert, "", "7", PathError::InvalidArguments);
    fails("12", DictUpsert, "a", "7", PathError::Mismatch);
    fails("", DictUpsert, "a", "7", PathError::NotJson);
}

#[test]
fn values_must_fit_their_place() {
    gives("{\"n\":1}", DictUpsert, "n", "1,\"x\":2", "{\"n\":1,\"x\":2}");
    fails("{\"n\":1}", DictUpsert, "n", "1,2", PathError::CannotInsert);
    gives("{\"n\":1}", Replace, "n", "1,\"x\":2", "{\"n\":1,\"x\":2}");
    fails("[1]", Replace, "[0]", "1,\"x\":2", PathError::CannotInsert);
    fails("[1]", Replace, "n", "1,\"x\":2", PathError::Mismatch);
    gives("[]", ArrayPushLast, "", "1 , 2", "[1 , 2]");
    fails("[]", ArrayAddUnique, "", "3,4", PathError::CannotInsert);
    fails("[]", ArrayAddUnique, "", "{}", PathError::CannotInsert);
    let path = Path::parse(b"n").expect("parses");
    assert!(edit(b"{}", &path, DictUpsert, b"\"\xff\"", false).is_ok());
}

#[test]
fn unique_compares_text() {
    fails("[1,\"a\"]", ArrayAddUnique, "", "1", PathError::Exists);
    gives("[1]", ArrayAddUnique, "", "1.0", "[1,1.0]");
    fails("[{\"o\":1}]", ArrayAddUnique, "", "1", PathError::Mismatch);
    fails("[7,[1]]", ArrayAddUnique, "", "7", PathError::Exists);
}

#[test]
fn counters_wrap_the_delta_but_not_the_sum() {
    gives("{\"n\":10}", Counter, "n", "9223372036854775808", "{\"n\":-9223372036854775798}");
    fails("{\"n\":10}", Counter, "n", "9223372036854775807", PathError::CannotInsert);
    gives("{\"n\":-9223372036854775808}", Counter, "n", "1", "{\"n\":-9223372036854775807}");
    fails("{\"n\":9223372036854775808}", Counter, "n", "1", PathError::NumberOutOfRange);
    fails("{\"n\":99999999999999999999}", Counter, "n", "1", PathError::NumberOutOfRange);
    fails("{\"n\":1e3}", Counter, "n", "1", PathError::Mismatch);
    for delta in ["", "0", "-0", "+5", "005", " 5", "5 ", "abc", "1.5", "18446744073709551616", "-", "\"5\""]
    {
        fails("{\"n\":10}", Counter, "n", delta, PathError::BadDelta);
    }
}

#[test]
fn depth_is_limited() {
    let nested = |levels: usize| "{\"a\":".repeat(levels) + "1" + &"}".repeat(levels);
    let path = |keys: usize| vec!["a"; keys].join(".");
    assert_eq!(find(&nested(31), &path(31)).as_deref(), Ok("1"));
    assert_eq!(find(&nested(32), &path(1)), Err(PathError::DocumentTooDeep));
    let aside = nested(40);
    let aside = format!("{{\"z\":1,\"deep\":{aside}}}");
    assert_eq!(find(&aside, "z").as_deref(), Ok("1"), "what lies behind is not looked at");
    assert_eq!(find(&aside, "y"), Err(PathError::DocumentTooDeep));
    let brackets = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
    assert!(change("{}", DictUpsert, "a", &brackets(31), false).is_ok());
    fails("{}", DictUpsert, "a", &brackets(32), PathError::ValueTooDeep);
    fails(&nested(30), DictUpsert, &path(30), "[[[[1]]]]", PathError::ValueTooDeep);
    assert_eq!(change("{}", ArrayPushLast, &path(31), "1", true), Err(PathError::ValueTooDeep));
}

#[test]
fn statuses_are_those_of_the_wire() {
    assert_eq!(PathError::NotFound.status(), 0xc0);
    assert_eq!(PathError::ValueTooDeep.status(), 0xca);
    assert_eq!(PathError::InvalidArguments.status(), 0x04);
}

#[test]
fn the_value_is_looked_at_before_the_path_leads_anywhere() {
    let refused = |text: &str, path: &str, operation, value: &str| {
        let path = Path::parse(path.as_bytes()).expect("parses");
        edit(text.as_bytes(), &path, operation, value.as_bytes(), false).err()
    };
    for text in ["[]", "[null]", "{}", "12"] {
        assert_eq!(
            refused(text, "key", Operation::DictUpsert, "blah"),
            Some(PathError::CannotInsert),
            "{text}"
        );
        assert_eq!(
            refused(text, "no.way", Operation::Replace, "blah"),
            Some(PathError::CannotInsert),
            "{text}"
        );
        assert_eq!(refused(text, "no.way", Operation::ArrayAddUnique, "[]"), Some(PathError::CannotInsert));
        assert_eq!(refused(text, "[0]", Operation::ArrayInsert, "blah"), Some(PathError::CannotInsert));
    }
    let deepest = ["a"; 31].join(".");
    assert_eq!(refused("{}", &deepest, Operation::ArrayPushLast, "1"), Some(PathError::ValueTooDeep));
    assert_eq!(refused("{}", &deepest, Operation::Replace, "1"), Some(PathError::NotFound));
    assert_eq!(refused("{}", &deepest, Operation::Replace, "[1]"), Some(PathError::ValueTooDeep));
}

#[test]
fn a_string_is_no_document() {
    let path = |text: &'static str| Path::parse(text.as_bytes()).expect("parses");
    for text in ["a", "[0]", "[-1]", "[2][0]", ""] {
        assert_eq!(get(b"\"text\"", &path(text)), Err(PathError::NotJson), "{text}");
        assert_eq!(count(b" \"text\"", &path(text)), Err(PathError::NotJson), "{text}");
    }
    assert_eq!(get(b"12", &path("a")), Err(PathError::Mismatch));
    assert_eq!(get(b"12", &path("[-1]")), Ok(0..0));
    let key = path("a");
    assert_eq!(edit(b"\"text\"", &key, Operation::DictAdd, b"1", false).err(), Some(PathError::NotJson));
}
