//! Every operation on random JSON beside the same operation on a tree.

use super::{Operation, PathError, count, edit, exists, get};
use crate::path::Path;
use proptest::prelude::*;
use serde_json::{Map, Value};

/// Random JSON whose keys collide often enough for paths to hit.
pub(crate) fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-20i64..20).prop_map(Value::from),
        "[a-c\"\\\\\n. ä日]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            proptest::collection::vec(("[a-c]|a b|x\\.y|q\"|ä", inner), 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

#[derive(Clone, Debug)]
enum Step {
    Key(String),
    Index(usize),
    Last,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => "[a-c]|a b|x\\.y|q\"|ä".prop_map(Step::Key),
        2 => (0usize..4).prop_map(Step::Index),
        1 => Just(Step::Last),
    ]
}

fn spell(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            Step::Key(key) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(&format!("`{}`", key.replace('"', "\\\"")));
            }
            Step::Index(index) => text.push_str(&format!("[{index}]")),
            Step::Last => text.push_str("[-1]"),
        }
    }
    text
}

/// Down one step in a tree.
fn child<'v>(value: &'v mut Value, step: &Step) -> Result<Option<&'v mut Value>, PathError> {
    match (value, step) {
        (Value::Object(members), Step::Key(key)) => Ok(members.get_mut(key)),
        (Value::Array(elements), Step::Index(index)) => Ok(elements.get_mut(*index)),
        (Value::Array(elements), Step::Last) => Ok(elements.last_mut()),
        _ => Err(PathError::Mismatch),
    }
}

/// Follows all steps; the number of steps found is the error where one is missing.
fn walk<'v>(mut value: &'v mut Value, steps: &[Step]) -> Result<Result<&'v mut Value, usize>, PathError> {
    for (found, step) in steps.iter().enumerate() {
        value = match child(value, step)? {
            Some(next) => next,
            None => return Ok(Err(found)),
        };
    }
    Ok(Ok(value))
}

/// Where `[-1]` does not lead to an element that more of the path can go into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    /// Below a string, which is no document.
    Text,
    /// The empty value that `[-1]` of another scalar is.
    Empty,
    /// Below that.
    BelowEmpty,
}

fn odd(mut value: &Value, steps: &[Step]) -> Option<Odd> {
    let mut is_document = true;
    for (at, step) in steps.iter().enumerate() {
        let is_container = value.is_array() || value.is_object();
        match (is_document, is_container, step) {
            (true, false, _) if value.is_string() => return Some(Odd::Text),
            (true, false, Step::Last) if at + 1 == steps.len() => return Some(Odd::Empty),
            (true, false, Step::Last) => return Some(Odd::BelowEmpty),
            _ => {}
        }
        value = match (value, step) {
            (Value::Object(members), Step::Key(key)) => members.get(key)?,
            (Value::Array(elements), Step::Index(index)) => elements.get(*index)?,
            (Value::Array(elements), Step::Last) => elements.last()?,
            _ => return None,
        };
        is_document = matches!(step, Step::Last);
    }
    None
}

/// The operation on the tree: the rules of the documentation, written for trees.
fn model(
    root: &mut Value,
    steps: &[Step],
    operation: Operation,
    new: &Value,
    parents: bool,
) -> Result<(), PathError> {
    use Operation::*;
    let is_push = matches!(operation, ArrayPushLast | ArrayPushFirst | ArrayAddUnique);
    if steps.is_empty() && !is_push {
        return Err(PathError::InvalidArguments);
    }
    if steps.is_empty() && operation == ArrayPushLast && !root.is_object() && !root.is_array() {
        return Err(PathError::NotJson);
    }
    if operation == ArrayInsert {
        return model_insert(root, steps, new);
    }
    if root.is_string() {
        return Err(PathError::NotJson);
    }
    let is_dict = matches!(operation, DictAdd | DictUpsert);
    let ends_in_key = matches!(steps.last(), Some(Step::Key(_)));
    match odd(root, steps) {
        None => {}
        Some(Odd::Text) => return Err(PathError::NotJson),
        Some(_) if is_dict && !ends_in_key => return Err(PathError::InvalidPath),
        Some(Odd::Empty) if operation != ArrayPushFirst => return Err(PathError::Mismatch),
        Some(_) => return Err(PathError::NotFound),
    }
    let found = match walk(root, steps)? {
        Ok(_) => steps.len(),
        Err(found) => found,
    };
    if is_dict && !ends_in_key {
        return Err(PathError::InvalidPath);
    }
    if found < steps.len() {
        let missing = &steps[found..];
        let only_keys = missing.iter().all(|step| matches!(step, Step::Key(_)));
        let allowed = if is_push {
            parents
        } else {
            (is_dict || operation == Counter) && (missing.len() == 1 || parents)
        };
        if operation == Counter && parents && matches!(missing[0], Step::Key(_)) && !ends_in_key {
            return Err(PathError::InvalidPath);
        }
        if !only_keys || !allowed {
            return Err(PathError::NotFound);
        }
        let mut value = if is_push { Value::from(vec![new.clone()]) } else { new.clone() };
        for step in missing[1..].iter().rev() {
            let Step::Key(key) = step else { unreachable!("only keys") };
            value = Value::Object([(key.clone(), value)].into_iter().collect());
        }
        let Step::Key(key) = &missing[0] else { unreachable!("only keys") };
        let parent = walk(root, &steps[..found])?.expect("found");
        parent.as_object_mut().expect("an object").insert(key.clone(), value);
        return Ok(());
    }
    match operation {
        DictAdd => return Err(PathError::Exists),
        Delete => {
            let (last, front) = steps.split_last().expect("not empty");
            match (walk(root, front)?.expect("found"), last) {
                (Value::Object(members), Step::Key(key)) => drop(members.remove(key)),
                (Value::Array(elements), Step::Index(index)) => drop(elements.remove(*index)),
                (Value::Array(elements), _) => drop(elements.pop()),
                _ => return Err(PathError::Mismatch),
            }
            return Ok(());
        }
        _ => {}
    }
    let target = walk(root, steps)?.expect("found");
    if operation == ArrayPushFirst && matches!(steps.last(), Some(Step::Last)) && target.is_string() {
        return Err(PathError::NotJson);
    }
    match operation {
        DictUpsert | Replace => *target = new.clone(),
        Counter => {
            let current = target.as_i64().ok_or(PathError::Mismatch)?;
            let sum = current.checked_add(new.as_i64().expect("a delta")).ok_or(PathError::CannotInsert)?;
            *target = Value::from(sum);
        }
        _ => {
            let elements = target.as_array_mut().ok_or(PathError::Mismatch)?;
            if operation == ArrayAddUnique {
                for element in elements.iter() {
                    if element.is_object() || element.is_array() {
                        return Err(PathError::Mismatch);
                    }
                    if element == new {
                        return Err(PathError::Exists);
                    }
                }
            }
            let at = if operation == ArrayPushFirst { 0 } else { elements.len() };
            elements.insert(at, new.clone());
        }
    }
    Ok(())
}

fn model_insert(root: &mut Value, steps: &[Step], new: &Value) -> Result<(), PathError> {
    let Some((Step::Index(index), front)) = steps.split_last() else {
        return Err(PathError::InvalidPath);
    };
    match odd(root, steps) {
        None => {}
        Some(Odd::Text) => return Err(PathError::NotJson),
        Some(_) => return Err(PathError::NotFound),
    }
    let Ok(parent) = walk(root, front)? else { return Err(PathError::NotFound) };
    let elements = parent.as_array_mut().ok_or(PathError::Mismatch)?;
    if *index > elements.len() {
        return Err(PathError::NotFound);
    }
    elements.insert(*index, new.clone());
    Ok(())
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    prop::sample::select(vec![
        DictAdd,
        DictUpsert,
        Delete,
        Replace,
        ArrayPushLast,
        ArrayPushFirst,
        ArrayInsert,
        ArrayAddUnique,
        Counter,
    ])
}

/// The text with whitespace sprinkled between its tokens.
fn print(value: &Value, spaced: bool) -> String {
    if spaced { serde_json::to_string_pretty(value).expect("prints") } else { value.to_string() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn mutations_agree_with_a_tree(
        mut tree in json(),
        steps in proptest::collection::vec(step(), 0..4),
        operation in operation(),
        new in json(),
        delta in (1i64..100).prop_union(-100i64..0),
        parents: bool,
        spaced: bool,
    ) {
        let text = print(&tree, spaced);
        let path = spell(&steps);
        let new = match operation {
            Operation::Counter => Value::from(delta),
            Operation::ArrayAddUnique if new.is_object() || new.is_array() => Value::from(7),
            _ => new,
        };
        let value = if operation == Operation::Delete { String::new() } else { new.to_string() };
        let parsed = Path::parse(path.as_bytes()).expect("a good path");
        let edited = edit(text.as_bytes(), &parsed, operation, value.as_bytes(), parents);
        let expected = model(&mut tree, &steps, operation, &new, parents);
        prop_assert_eq!(edited.as_ref().err(), expected.as_ref().err(), "{} {} {:?}", text, path, operation);
        if let Ok(edit) = edited {
            let (bytes, at) = edit.apply(text.as_bytes());
            prop_assert_eq!(bytes.capacity(), bytes.len());
            prop_assert!(bytes[at..].starts_with(edit.value()));
            let result: Value = serde_json::from_slice(&bytes).expect("still JSON");
            prop_assert_eq!(result, tree, "{} {} {:?}", text, path, operation);
        }
    }

    #[test]
    fn lookups_agree_with_a_tree(
        mut tree in json(),
        steps in proptest::collection::vec(step(), 0..4),
        spaced: bool,
    ) {
        let text = print(&tree, spaced);
        let path = spell(&steps);
        let parsed = Path::parse(path.as_bytes()).expect("a good path");
        let found = get(text.as_bytes(), &parsed);
        prop_assert_eq!(exists(text.as_bytes(), &parsed).err(), found.as_ref().err().copied());
 if tree.is_string() {
            prop_assert_eq!(found, Err(PathError::NotJson));
            return Ok(());
        }
        let told = match odd(&tree, &steps) {
            None => None,
            Some(Odd::Text) => Some(Err(PathError::NotJson)),
            Some(Odd::Empty) => Some(Ok(0..0)),
            Some(Odd::BelowEmpty) => Some(Err(PathError::NotFound)),
        };
        if let Some(told) = told {
            prop_assert_eq!(found, told);
            return Ok(());
        }
        match walk(&mut tree, &steps) {
            Err(error) => prop_assert_eq!(found, Err(error)),
            Ok(Err(_)) => prop_assert_eq!(found, Err(PathError::NotFound)),
            Ok(Ok(value)) => {
                let range = found.expect("is there");
                prop_assert_eq!(&serde_json::from_slice::<Value>(&text.as_bytes()[range]).expect("JSON"), &*value);
                let expected = match value {
                    Value::Array(elements) => Ok(elements.len() as u64),
                    Value::Object(members) => Ok(members.len() as u64),
                    _ => Err(PathError::Mismatch),
                };
                prop_assert_eq!(count(text.as_bytes(), &parsed), expected);
            }
        }
    }
}
