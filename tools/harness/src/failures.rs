//! Which tests failed: said once more behind everything else, where a reader of a shortened log finds it.

use std::sync::Mutex;

/// More lines than this are counted, not printed.
const MOST_LINES: usize = 100;
/// Longer lines are cut, in characters.
const LONGEST_LINE: usize = 300;

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps a line of a test runner if it names a test, or a suite, that failed.
pub fn note_line(line: &str) {
    if names_a_failure(line) {
        note(line.trim());
    }
}

/// Keeps what failed.
pub fn note(what: &str) {
    let line: String = what.chars().take(LONGEST_LINE).collect();
    let mut lines = LINES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if !lines.contains(&line) {
        lines.push(line);
    }
}

/// What was kept, a line each; the rest is counted.
pub fn told() -> Vec<String> {
    let lines = LINES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut told: Vec<String> = lines.iter().take(MOST_LINES).cloned().collect();
    if lines.len() > MOST_LINES {
        told.push(format!("and {} more", lines.len() - MOST_LINES));
    }
    told
}

/// How cargo, Go, pytest, unittest, Maven, the test runner of Node.js, and our own steps and tables say that something failed.
fn names_a_failure(line: &str) -> bool {
    let line = line.trim();
    let starts =
        ["--- FAIL: ", "FAILED ", "ERROR ", "FAIL: ", "ERROR: ", "[ERROR]   ", "✖ ", "not ok ", "FAIL "];
    (line.starts_with("test ") && line.ends_with("... FAILED"))
        || starts.iter().any(|start| line.starts_with(start))
        || line.split_ascii_whitespace().last() == Some("FAILED") && line.split_ascii_whitespace().count() > 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_runner_s_way_to_say_it_is_known() {
        let failures = [
            "test http::tests::a_page ... FAILED",
            "    --- FAIL: TestGet/missing (0.01s)",
            "FAILED tests/test_kv.py::test_get - AssertionError",
            "FAIL: test_login (__main__.Console.test_login)",
            "[ERROR]   DcpTest.follows:32 expected: <1> but was: <2>",
            "✖ scans a collection (12.3ms)",
            "not ok 3 - scans a collection",
            "FAIL kill -9: a document is missing",
            "python             347       1   19 / 0                             FAILED",
        ];
        for line in failures {
            assert!(names_a_failure(line), "{line}");
        }
        let others = [
            "test http::tests::a_page ... ok",
            "    --- PASS: TestGet (0.01s)",
            "python             348       0   19 / 0                             passed",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored",
            "thread 'x' panicked at crates/server/src/http/access.rs:262:17:",
        ];
        for line in others {
            assert!(!names_a_failure(line), "{line}");
        }
    }

    #[test]
    fn a_failure_is_told_once_and_cut_short() {
        let long = format!("test {} ... FAILED", "x".repeat(2 * LONGEST_LINE));
        note_line(&long);
        note_line(&long);
        let told = told();
        assert_eq!(told.iter().filter(|line| long.starts_with(line.as_str())).count(), 1);
        assert!(told.iter().all(|line| line.chars().count() <= LONGEST_LINE));
    }
}
