//! A row of CSV as a JSON document.

use serde_json::{Map, Number, Value};

/// The document of a row: its columns by their names. With `infers`, what is written like a number, `true` or `false` is
/// one; an empty field is left out, else it is an empty text.
pub(crate) fn row_as_json<'a>(
    names: impl Iterator<Item = &'a str>,
    fields: impl Iterator<Item = &'a str>,
    infers: bool,
) -> Value {
    let mut document = Map::new();
    for (name, field) in names.zip(fields) {
        let value = if infers { inferred(field) } else { Some(field.into()) };
        if let Some(value) = value {
            document.insert(name.to_owned(), value);
        }
    }
    Value::Object(document)
}

fn inferred(field: &str) -> Option<Value> {
    match field {
        "" => None,
        "true" => Some(true.into()),
        "false" => Some(false.into()),
        _ => Some(number(field).map_or_else(|| field.into(), Value::Number)),
    }
}

/// More digits than this are not kept by a number with a point.
const KEPT_DIGITS: usize = 15;

/// A number as JSON writes it, and in no other way, that keeps all its digits: 007 and +1 are no numbers, but numbers of
/// houses and telephones.
fn number(field: &str) -> Option<Number> {
    let number: Number = serde_json::from_str(field).ok()?;
    let mantissa = field.split(['e', 'E']).next().unwrap_or_default();
    let digits = mantissa.bytes().filter(u8::is_ascii_digit).count();
    (number.is_i64() || number.is_u64() || digits <= KEPT_DIGITS).then_some(number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_text_unless_their_types_are_to_be_found_out() {
        let row = |infers| {
            let names = ["id", "name", "zip", "price", "is_new", "note"];
            let fields = ["7", "ann", "007", "-1.5e3", "true", ""];
            row_as_json(names.into_iter(), fields.into_iter(), infers)
        };
        assert_eq!(row(true), json!({"id": 7, "name": "ann", "zip": "007", "price": -1.5e3, "is_new": true}));
        let long = |field: &str| row_as_json(["n"].into_iter(), [field].into_iter(), true)["n"].is_number();
        assert!(long("18446744073709551615") && long("0.25"));
        assert!(!long("184467440737095516150") && !long("0.12345678901234567"));
        assert_eq!(
            row(false),
            json!({"id": "7", "name": "ann", "zip": "007", "price": "-1.5e3", "is_new": "true", "note": ""})
        );
    }
}
