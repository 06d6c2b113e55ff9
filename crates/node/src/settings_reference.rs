//! The reference of settings: the engine's table, as Markdown.

use std::fmt::Write;

use engine::settings::SETTINGS;

/// One line for each setting.
pub fn markdown() -> String {
    let mut out = String::from("| setting | default | takes | meaning |\n|---|---|---|---|\n");
    for setting in SETTINGS {
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} |",
            setting.name,
            setting.kind.pretty(setting.default),
            setting.kind,
            setting.doc
        );
    }
    out
}
