//! How a document gets its key from what it holds: `user::%id%`, as `cbimport` has it.

use serde_json::Value;

/// A pattern for keys: text, members of the document between percent signs, and generators between number signs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyTemplate(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// A member, or one inside of it.
    Member(Vec<String>),
    /// One more than the last one, from a number on.
    Counter(u64),
    Uuid,
}

impl std::str::FromStr for KeyTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<KeyTemplate, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['%', '#']) {
            let (before, from) = rest.split_at(at);
            literal.push_str(before);
            let sign = &from[..1];
            let Some((name, after)) = from[1..].split_once(sign) else {
                return Err(format!("`{sign}` is not closed; write {sign}{sign} for one that is text"));
            };
            rest = after;
            if name.is_empty() {
                literal.push_str(sign);
                continue;
            }
            if !literal.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut literal)));
            }
            parts.push(if sign == "%" {
                Part::Member(name.split('.').map(str::to_owned).collect())
            } else {
                generator(name)?
            });
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(Part::Text(literal));
        }
        if !parts.iter().any(|part| !matches!(part, Part::Text(_))) {
            return Err(
                "every document would get the same key: name a member, like %id%, or #UUID#".to_owned()
            );
        }
        Ok(KeyTemplate(parts))
    }
}

fn generator(name: &str) -> Result<Part, String> {
    let wrong = || format!("there is no generator #{name}#: write #UUID#, #MONO_INCR# or #MONO_INCR[100]#");
    match name {
        "UUID" => Ok(Part::Uuid),
        "MONO_INCR" => Ok(Part::Counter(1)),
        _ => {
            let from =
                name.strip_prefix("MONO_INCR[").and_then(|rest| rest.strip_suffix(']')).ok_or_else(wrong)?;
            from.parse().map(Part::Counter).map_err(|_| wrong())
        }
    }
}

impl KeyTemplate {
    /// The members of documents that keys are made of; of those inside of others the outermost.
    pub(crate) fn members(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|part| match part {
            Part::Member(path) => path.first().map(String::as_str),
            Part::Text(_) | Part::Counter(_) | Part::Uuid => None,
        })
    }

    /// The key of a document, the `number`th from 0 on; `random` gives the bits of a UUID.
    pub(crate) fn key(
        &self,
        document: &Value,
        number: u64,
        random: &mut dyn FnMut() -> u64,
    ) -> Result<String, String> {
        let mut key = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => key.push_str(text),
                Part::Counter(from) => key.push_str(&from.saturating_add(number).to_string()),
                Part::Uuid => key.push_str(&uuid(random(), random())),
                Part::Member(path) => {
                    let found = path.iter().try_fold(document, |value, name| value.get(name));
                    match found {
                        Some(Value::String(text)) => key.push_str(text),
                        Some(Value::Bool(value)) => key.push_str(&value.to_string()),
                        // Others are not kept as they are written, so that two would get one key.
                        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => {
                            key.push_str(&number.to_string());
                        }
                        Some(Value::Number(_)) => {
                            return Err(format!(
                                "`{}` is no whole number of 64 bits: write it as text to make keys of it",
                                path.join(".")
                            ));
                        }
                        Some(_) => return Err(format!("`{}` is no text and no number", path.join("."))),
                        None => {
                            return Err(format!("it has no `{}`, which the key is made of", path.join(".")));
                        }
                    }
                }
            }
        }
        Ok(key)
    }
}

/// A random UUID (RFC 9562, version 4).
fn uuid(high: u64, low: u64) -> String {
    let high = high & !0xf000 | 0x4000;
    let low = low & !(0b11 << 62) | 0b10 << 62;
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn key(template: &str, document: &Value, number: u64) -> Result<String, String> {
        template.parse::<KeyTemplate>()?.key(document, number, &mut || u64::MAX)
    }

    #[test]
    fn members_and_counters_make_keys() {
        let document = json!({"id": 7, "name": "ann", "at": {"city": "Bern"}, "tags": [1], "none": null});
        for (template, made) in [
            ("user::%id%", "user::7"),
            ("%name%-%at.city%", "ann-Bern"),
            ("100%%%id%", "100%7"),
            ("##%id%", "#7"),
            ("#MONO_INCR#", "4"),
            ("k#MONO_INCR[100]#", "k103"),
            ("#UUID#", "ffffffff-ffff-4fff-bfff-ffffffffffff"),
        ] {
            assert_eq!(key(template, &document, 3).as_deref(), Ok(made), "{template}");
        }
    }

    #[test]
    fn what_cannot_be_a_key_is_told() {
        let document: Value = serde_json::from_str(
            r#"{"id": 7, "tags": [1], "none": null, "big": 18446744073709551616, "price": 1.10}"#,
        )
        .expect("JSON");
        for (template, why) in [
            ("user", "the same key"),
            ("50%", "is not closed"),
            ("#COUNT#", "there is no generator"),
            ("#MONO_INCR[x]#", "there is no generator"),
            ("%name%", "it has no `name`"),
            ("%tags%", "is no text"),
            ("%none%", "is no text"),
            ("%big%", "write it as text"),
            ("%price%", "write it as text"),
        ] {
            let told = key(template, &document, 0).expect_err(template);
            assert!(told.contains(why), "{template}: {told}");
        }
    }
}
