//! The command reference: the table, as Markdown.

use std::fmt::Write;

use crate::command::{ROWS, Row};
use crate::command_rules::{Access, CasRule, Extras, Key, ValueRule};

/// One line per command.
pub fn markdown() -> String {
    let mut out = String::from(
        "| opcode | command | what it does | extras | key | value | CAS | needs |\n|---|---|---|---|---|---|---|---|\n",
    );
    let mut rows: Vec<&Row> = ROWS.iter().collect();
    rows.sort_by_key(|row| row.opcode);
    for row in rows {
        let _ = writeln!(
            out,
            "| 0x{:02x} | {} | {}{}{} | {} | {} | {} | {} | {} |",
            row.opcode,
            row.name,
            row.doc,
            row.refused.map(|why| format!("; refused as *not supported*: {why}")).unwrap_or_default(),
            row.not_in_cluster
                .map(|why| format!("; *not supported* in a cluster: {why}"))
                .unwrap_or_default(),
            extras(row.extras),
            key(row.key),
            value(row.value),
            cas(row.cas),
            needs(row)
        );
    }
    out
}

fn extras(extras: Extras) -> String {
    match extras {
        Extras::None => "-".to_owned(),
        Extras::Exactly(len) => len.to_string(),
        Extras::OneOf(lens) => lens.iter().map(u8::to_string).collect::<Vec<_>>().join(", "),
        Extras::Any => "any".to_owned(),
    }
}

fn key(key: Key) -> &'static str {
    match key {
        Key::Forbidden => "-",
        Key::Optional => "optional",
        Key::Required => "yes",
        Key::Document => "document",
    }
}

fn value(value: ValueRule) -> String {
    match value {
        ValueRule::Forbidden => "-".to_owned(),
        ValueRule::Optional => "optional".to_owned(),
        ValueRule::Required => "yes".to_owned(),
        ValueRule::Exactly(len) => format!("{len} bytes"),
        ValueRule::InsteadOfKey => "instead of a key".to_owned(),
    }
}

fn cas(cas: CasRule) -> &'static str {
    match cas {
        CasRule::Forbidden => "-",
        CasRule::Optional => "optional",
        CasRule::Required => "yes",
    }
}

fn needs(row: &Row) -> String {
    let access = match row.access {
        Access::Anybody => "nothing",
        Access::User => "login",
        Access::Bucket(_) => "bucket",
    };
    let mut needs = access.to_owned();
    for privilege in row.privileges.iter() {
        let _ = write!(needs, ", {}", privilege.name());
    }
    needs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_every_command_once() {
        let text = markdown();
        assert_eq!(text.lines().count(), ROWS.len() + 2);
        assert!(text.contains(
            "| 0x01 | Set | Store a document | 8 | document | optional | optional | bucket, Upsert |"
        ));
    }
}
