//! Addresses of names, looked up in the background: a name server that hangs does not delay a thread that has an address.
//!
//! # Thread safety
//!
//! At most one thread looks each name up at a time; a caller waits for it only while no address is known.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use base::env::Env;
use parking_lot::{Condvar, Mutex};

/// How old an address becomes before its name is looked up again.
const FRESH_FOR: Duration = Duration::from_secs(10);
/// How soon a name is looked up again that failed, or whose address does not answer.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a caller waits that knows no address.
const WAITED_FOR: Duration = Duration::from_secs(1);

type Lookup = dyn Fn(&str) -> io::Result<SocketAddr> + Send + Sync;

#[derive(Default)]
struct Known {
    addr: Option<SocketAddr>,
    /// Why the last look-up failed; `None` if it did not.
    failed: Option<String>,
    /// When the last look-up began.
    looked: Option<Duration>,
    is_looking: bool,
    is_doubted: bool,
}

#[derive(Default)]
struct Names {
    known: Mutex<BTreeMap<String, Known>>,
    looked: Condvar,
}

/// Finds the addresses of `HOST:PORT`s.
#[derive(Clone)]
pub struct Resolver {
    env: Env,
    names: Arc<Names>,
    lookup: Arc<Lookup>,
}

impl Resolver {
    /// One that asks the system.
    pub fn new(env: Env) -> Resolver {
        Resolver::with(env, Arc::new(look_up))
    }

    fn with(env: Env, lookup: Arc<Lookup>) -> Resolver {
        Resolver { env, names: Arc::default(), lookup }
    }

    /// Where a name is: the last good address, if there was one.
    pub fn addr(&self, name: &str) -> io::Result<SocketAddr> {
        if let Ok(addr) = name.parse() {
            return Ok(addr);
        }
        let now = self.env.clock.monotonic();
        let mut known = self.names.known.lock();
        let of = known.entry(name.to_owned()).or_default();
        let age = of.looked.map(|looked| now.saturating_sub(looked));
        let again = if of.is_doubted || of.addr.is_none() { LOOK_AGAIN } else { FRESH_FOR };
        if !of.is_looking && age.is_none_or(|age| age >= again) {
            (of.is_looking, of.is_doubted, of.looked) = (true, false, Some(now));
            self.begin(name, of)?;
        }
        if let Some(addr) = of.addr {
            return Ok(addr);
        }
        self.wait(&mut known, name, now + WAITED_FOR)
    }

    /// An address was of no use: its name is looked up again soon. It stays the last good one until there is another.
    pub fn doubt(&self, name: &str) {
        if let Some(of) = self.names.known.lock().get_mut(name) {
            of.is_doubted = true;
        }
    }

    fn begin(&self, name: &str, of: &mut Known) -> io::Result<()> {
        let (names, lookup, owned) = (Arc::clone(&self.names), Arc::clone(&self.lookup), name.to_owned());
        let job = move || {
            let found = lookup(&owned);
            if let Some(of) = names.known.lock().get_mut(&owned) {
                of.is_looking = false;
                match found {
                    Ok(addr) => (of.addr, of.failed) = (Some(addr), None),
                    Err(error) => of.failed = Some(error.to_string()),
                }
            }
            names.looked.notify_all();
        };
        let begun = self.env.spawn.spawn("names", Box::new(job));
        begun.map(drop).inspect_err(|_| of.is_looking = false)
    }

    fn wait(
        &self,
        known: &mut parking_lot::MutexGuard<'_, BTreeMap<String, Known>>,
        name: &str,
        end: Duration,
    ) -> io::Result<SocketAddr> {
        loop {
            let Some(of) = known.get(name) else { return Err(io::ErrorKind::NotFound.into()) };
            if let Some(addr) = of.addr {
                return Ok(addr);
            }
            if !of.is_looking {
                let why = of.failed.clone().unwrap_or_else(|| "it was not looked up".to_owned());
                return Err(io::Error::other(why));
            }
            let left = end.saturating_sub(self.env.clock.monotonic());
            if left.is_zero() {
                let why = format!("the name server has not answered within {WAITED_FOR:?}");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            let _ = self.names.looked.wait_for(known, left);
        }
    }
}

fn look_up(name: &str) -> io::Result<SocketAddr> {
    let addr = name.to_socket_addrs()?.next();
    addr.ok_or_else(|| io::Error::other("the name has no address"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_name_server_that_hangs_does_not_delay_a_caller_with_an_address() {
        let env = Env::real();
        let (answer, answers) = mpsc::channel::<io::Result<SocketAddr>>();
        let answers = Mutex::new(answers);
        let lookup = move |_: &str| answers.lock().recv().expect("an answer");
        let resolver = Resolver::with(env, Arc::new(lookup));
        let addr = |text: &str| text.parse::<SocketAddr>().expect("an address");
        assert_eq!(resolver.addr("127.0.0.1:5").expect("no name"), addr("127.0.0.1:5"));
        answer.send(Ok(addr("10.0.0.1:1"))).expect("it is asked");
        assert_eq!(resolver.addr("a:1").expect("found"), addr("10.0.0.1:1"));
        // From here on the name server hangs.
        let make_old = || {
            let mut known = resolver.names.known.lock();
            known.get_mut("a:1").expect("it is known").looked = Some(Duration::ZERO);
        };
        make_old();
        resolver.doubt("a:1");
        assert_eq!(resolver.addr("a:1").expect("the last good one"), addr("10.0.0.1:1"));
        assert_eq!(resolver.addr("a:1").expect("the last good one"), addr("10.0.0.1:1"));
        answer.send(Err(io::Error::other("no such name"))).expect("one look-up");
        answer.send(Ok(addr("10.0.0.2:1"))).expect("it is asked again");
        let deadline = resolver.env.clock.monotonic() + Duration::from_secs(30);
        while resolver.addr("a:1").expect("a good one") != addr("10.0.0.2:1") {
            make_old();
            assert!(resolver.env.clock.monotonic() < deadline);
        }
        drop(answer);
    }

    #[test]
    fn what_is_not_known_is_waited_for_and_its_failure_told() {
        let lookup = |_: &str| Err(io::Error::other("no such name"));
        let resolver = Resolver::with(Env::real(), Arc::new(lookup));
        assert_eq!(resolver.addr("a:1").expect_err("unknown").to_string(), "no such name");
    }
}
