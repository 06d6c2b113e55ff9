//! Plays the scenario files in this folder: lines with `>` are commands, what follows each is what must come of it.
//!
//! `UPDATE_EXPECT=1 cargo test -p vbucket --test scenarios` writes what comes into the files; look at the difference.

mod checkpoints;
mod failover;

use expect_test::expect_file;

/// Something that answers a command, given as words, with text.
trait Player {
    fn play(&mut self, words: &[&str]) -> String;
}

/// The file as it ought to be: comments, empty lines and commands as they are, answers as they come.
fn replay(script: &str, player: &mut dyn Player) -> String {
    let mut out = String::new();
    for line in script.lines() {
        let command = line.strip_prefix("> ");
        if command.is_some() || line.is_empty() || line.starts_with('#') {
            out.push_str(line);
            out.push('\n');
        }
        if let Some(command) = command {
            let words: Vec<&str> = command.split_whitespace().collect();
            for answer in player.play(&words).lines() {
                out.push_str("  ");
                out.push_str(answer);
                out.push('\n');
            }
        }
    }
    out
}

/// The number in `name=number` among the words, if it is there.
fn number(words: &[&str], name: &str) -> Option<u64> {
    let text = words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))?;
    Some(text.parse().expect("a number"))
}

macro_rules! scenario {
    ($name:ident, $player:expr) => {
        #[test]
        fn $name() {
            let script = include_str!(concat!(stringify!($name), ".txt"));
            let actual = replay(script, &mut $player);
            expect_file![concat!(stringify!($name), ".txt")].assert_eq(&actual);
        }
    };
}

scenario!(deduplication, checkpoints::Checkpoints::new());
scenario!(cursors, checkpoints::Checkpoints::new());
scenario!(removal, checkpoints::Checkpoints::new());
scenario!(replica, checkpoints::Checkpoints::new());
scenario!(failover_table, failover::Failover::new());
scenario!(rollback, failover::Failover::new());
