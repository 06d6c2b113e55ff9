//! What stands behind the question mark of an order.

use std::collections::BTreeMap;
use std::time::Duration;

use ::node::injections::Injection;

use super::super::orders::{From, Order};

/// How long an order waits, in seconds, for what comes of it, and the most that it may be told to.
const WAIT_S: u64 = 30;
const MOST_WAIT_S: u64 = 3_600;
/// The longest delay of a request, in milliseconds.
const MOST_DELAY_MS: u64 = 60_000;
/// How requests are refused if nothing else is said.
const TEMPORARY_FAILURE: &str = "temporary-failure";

/// The options of a request; those that nobody has taken are wrong.
pub(super) struct Options {
    of: &'static str,
    asked: BTreeMap<String, String>,
    known: Vec<&'static str>,
}

impl Options {
    pub(super) fn new(of: &'static str, asked: BTreeMap<String, String>) -> Options {
        Options { of, asked, known: Vec::new() }
    }

    fn take(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        self.asked.remove(name)
    }

    fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&str, T)],
        default: T,
    ) -> Result<T, String> {
        let Some(text) = self.take(name) else { return Ok(default) };
        let found = choices.iter().find(|(word, _)| *word == text);
        let words = || choices.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        found.map(|(_, choice)| *choice).ok_or_else(|| format!("{name}={text}: give {}", words()))
    }

    /// True or false.
    pub(super) fn flag(&mut self, name: &'static str, default: bool) -> Result<bool, String> {
        self.choice(name, &[("true", true), ("false", false)], default)
    }

    /// A whole number, if it is given.
    pub(super) fn number<T: std::str::FromStr>(&mut self, name: &'static str) -> Result<Option<T>, String> {
        let Some(text) = self.take(name) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| format!("{name}={text}: give a whole number"))
    }

    /// How long to wait for what comes of the order.
    pub(super) fn wait(&mut self) -> Result<Duration, String> {
        let seconds: u64 = self.number("wait_s")?.unwrap_or(WAIT_S);
        if seconds > MOST_WAIT_S {
            return Err(format!("wait_s={seconds}: give a number from 0 to {MOST_WAIT_S}"));
        }
        Ok(Duration::from_secs(seconds))
    }

    /// Refuses what is left.
    pub(super) fn end(self) -> Result<(), String> {
        let Some(name) = self.asked.keys().next() else { return Ok(()) };
        match self.known.as_slice() {
            [] => Err(format!("{name}: {} takes no options", self.of)),
            known => Err(format!("{name}: {} takes {}", self.of, known.join(", "))),
        }
    }
}

/// An order by its name with its options; nothing if there is none of that name.
pub(super) fn order(name: &str, asked: BTreeMap<String, String>) -> Option<Result<Order, String>> {
    type Read = fn(&mut Options) -> Result<Order, String>;
    let (of, read): (&'static str, Read) = match name {
        "stop" => ("stop", |_| Ok(Order::Stop)),
        "start" => ("start", |options| Ok(Order::Start { wait: options.wait()? })),
        "restart" => ("restart", |options| Ok(Order::Restart { wait: options.wait()? })),
        "kill" => ("kill", |_| Ok(Order::Kill)),
        "freeze" => ("freeze", |_| Ok(Order::Freeze)),
        "thaw" => ("thaw", |options| Ok(Order::Thaw { wait: options.wait()? })),
        "cut" => ("cut", |options| Ok(Order::Cut { from: from(options)? })),
        "join" => ("join", |options| Ok(Order::Join { from: from(options)?, wait: options.wait()? })),
        "failover" => ("failover", |options| {
            let graceful = options.choice("mode", &[("hard", false), ("graceful", true)], false)?;
            Ok(Order::FailOver { graceful, force: options.flag("force", false)?, wait: options.wait()? })
        }),
        "recover" => ("recover", |options| {
            let delta = options.choice("type", &[("delta", true), ("full", false)], true)?;
            let rebalance = options.flag("rebalance", true)?;
            Ok(Order::Recover { delta, rebalance, wait: options.wait()? })
        }),
        "delay" => ("delay", |options| Ok(Order::Inject(delay(options)?))),
        "fail" => ("fail", |options| Ok(Order::Inject(refusal(options)?))),
        "heal" => ("heal", |_| Ok(Order::Heal)),
        "remove" => ("remove", |options| {
            Ok(Order::Remove { rebalance: options.flag("rebalance", true)?, wait: options.wait()? })
        }),
        _ => return None,
    };
    let mut options = Options::new(of, asked);
    let order = read(&mut options);
    Some(order.and_then(|order| options.end().map(|()| order)))
}

/// Requests wait.
pub(super) fn delay(options: &mut Options) -> Result<Injection, String> {
    let ms = options.number("ms")?;
    let (opcode, times) = (options.take("opcode"), options.number("times")?);
    match ms {
        None => Err("give ms=MILLISECONDS".to_owned()),
        Some(ms @ 1..=MOST_DELAY_MS) => Injection::delay(opcode.as_deref(), Duration::from_millis(ms), times),
        Some(ms) => Err(format!("ms={ms}: give a number from 1 to {MOST_DELAY_MS}")),
    }
}

/// Requests are refused.
pub(super) fn refusal(options: &mut Options) -> Result<Injection, String> {
    let status = options.take("status");
    let (opcode, times) = (options.take("opcode"), options.number("times")?);
    Injection::refuse(opcode.as_deref(), status.as_deref().unwrap_or(TEMPORARY_FAILURE), times)
}

fn from(options: &mut Options) -> Result<From, String> {
    options.choice("from", &[("nodes", From::Nodes), ("store", From::Store), ("all", From::All)], From::All)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, query: &[(&str, &str)]) -> Result<Order, String> {
        let asked = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        order(name, asked).expect("there is such an order")
    }

    #[test]
    fn orders_are_read_with_their_options() {
        let wait = Duration::from_secs(WAIT_S);
        assert_eq!(read("kill", &[]), Ok(Order::Kill));
        assert_eq!(read("cut", &[]), Ok(Order::Cut { from: From::All }));
        assert_eq!(read("cut", &[("from", "store")]), Ok(Order::Cut { from: From::Store }));
        assert_eq!(
            read("failover", &[("mode", "graceful"), ("wait_s", "0")]),
            Ok(Order::FailOver { graceful: true, force: false, wait: Duration::ZERO })
        );
        assert_eq!(
            read("recover", &[("type", "full"), ("rebalance", "false")]),
            Ok(Order::Recover { delta: false, rebalance: false, wait })
        );
        assert!(order("explode", BTreeMap::new()).is_none());
    }

    #[test]
    fn what_is_wrong_says_what_is_right() {
        for (name, option, value, message) in [
            ("kill", "from", "all", "from: kill takes no options"),
            ("delay", "opcode", "get", "give ms=MILLISECONDS"),
            ("delay", "ms", "0", "ms=0: give a number from 1 to 60000"),
            ("fail", "time", "3", "time: fail takes status, opcode, times"),
            ("heal", "opcode", "get", "opcode: heal takes no options"),
            ("cut", "form", "all", "form: cut takes from"),
            ("cut", "from", "me", "from=me: give nodes or store or all"),
            ("failover", "force", "yes", "force=yes: give true or false"),
            ("start", "wait_s", "-1", "wait_s=-1: give a whole number"),
            ("start", "wait_s", "4000", "wait_s=4000: give a number from 0 to 3600"),
        ] {
            assert_eq!(read(name, &[(option, value)]).err().as_deref(), Some(message));
        }
    }
}
