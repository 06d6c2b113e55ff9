//! The files that say how a node shows etcd who it is: read again while the node runs.
//!
//! *Guarantee:* what cannot be used changes nothing: the node goes on with what it had, and the log says why. What changed
//! in a file counts within seconds, without a signal, as it does for `tls-ca` (record 0220).

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::env::Env;
use server::etcd::EtcdStore;

use super::super::etcd_flags::{EtcdNames, EtcdTexts};

/// Between two looks at the files, as at those of the node's own certificate.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What a node goes by, and what follows it.
pub(super) struct EtcdFiles {
    shared: Arc<Shared>,
    /// The thread ends when this is dropped. A disk that does not answer it keeps nothing else waiting.
    _ends_thread: mpsc::Sender<()>,
}

struct Shared {
    env: Env,
    store: Arc<EtcdStore>,
    known: Mutex<Known>,
}

struct Known {
    names: EtcdNames,
    texts: EtcdTexts,
    /// What was last told to be wrong, so that each is told once.
    told: String,
}

impl EtcdFiles {
    /// Follows what was read at the start, on a thread of its own.
    pub(super) fn follow(
        env: &Env,
        store: Arc<EtcdStore>,
        names: EtcdNames,
        texts: EtcdTexts,
    ) -> std::io::Result<EtcdFiles> {
        let known = Mutex::new(Known { names, texts, told: String::new() });
        let shared = Arc::new(Shared { env: env.clone(), store, known });
        let (ends_thread, ended) = mpsc::channel::<()>();
        let follower = Arc::clone(&shared);
        let looks = move || {
            while ended.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                follower.look();
            }
        };
        // Not joined: it may be with a disk that does not answer, and holds nothing that has to be written.
        env.spawn.spawn("etcd-files", Box::new(looks))?;
        Ok(EtcdFiles { shared, _ends_thread: ends_thread })
    }

    /// Goes by what a configuration that was read again says. Whether that is something else than before.
    pub(super) fn change(&self, names: EtcdNames, texts: EtcdTexts) -> anyhow::Result<bool> {
        self.shared.take(names, texts, false)
    }
}

impl Shared {
    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `is_looked_at`: the names are those that the node went by when it began to read, and by now the configuration may name
    /// others, of which these texts are not.
    fn take(&self, names: EtcdNames, texts: EtcdTexts, is_looked_at: bool) -> anyhow::Result<bool> {
        let access = texts.access()?;
        let mut known = self.known();
        if is_looked_at && known.names != names {
            return Ok(false);
        }
        let is_other = known.texts != texts;
        if is_other {
            self.store.change_access(access);
        }
        *known = Known { names, texts, told: String::new() };
        Ok(is_other)
    }

    /// Looks at the files once.
    fn look(&self) {
        let names = self.known().names.clone();
        if !names.has_files() {
            return;
        }
        // Without the lock: a disk may not answer.
        let read = names.read(&self.env);
        match read.and_then(|texts| self.take(names.clone(), texts, true)) {
            Ok(true) => tracing::info!(
                event = "etcd_files_changed",
                "the files of etcd-ca, etcd-cert, etcd-key or etcd-password-file have changed: requests to the coordination \
                 store are made with them"
            ),
            Ok(false) => {}
            Err(error) => self.tell(&names, format!("{error:#}")),
        }
    }

    fn tell(&self, names: &EtcdNames, error: String) {
        let mut known = self.known();
        if known.names == *names && known.told != error {
            tracing::error!(
                event = "etcd_files_unusable",
                error,
                "the files of etcd-ca, etcd-cert, etcd-key or etcd-password-file cannot be used: what they held before is kept"
            );
            known.told = error;
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the test writes files that the node reads")]
mod tests {
    use node::Settings;
    use server::etcd::{EtcdAccess, EtcdAddress};

    use super::*;

    #[test]
    fn a_file_that_changes_counts_and_one_that_cannot_be_used_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| folder.path().join(name);
        std::fs::write(file("password"), "first\n").expect("written");
        let named = |ca: Option<&str>| Settings {
            join: Some("etcd://127.0.0.1:1/c".to_owned()),
            etcd_user: Some("stave".to_owned()),
            etcd_password_file: Some(file("password")),
            etcd_ca: ca.map(&file),
            ..Settings::default()
        };
        let env = Env::real();
        let address = EtcdAddress::parse("etcd://127.0.0.1:1/c").expect("an address");
        let store = Arc::new(EtcdStore::new(env.clone(), &address, EtcdAccess::default()));
        let names = EtcdNames::of(&named(None)).expect("they go together");
        let texts = names.read(&env).expect("it is there");
        let known = Mutex::new(Known { names: names.clone(), texts: texts.clone(), told: String::new() });
        let shared = Shared { env: env.clone(), store, known };
        let is_known = |password: &str| {
            let access = shared.known().texts.access().expect("it was looked at");
            access.user.is_some_and(|user| user.password == password)
        };
        shared.look();
        assert!(is_known("first") && shared.known().told.is_empty());
        std::fs::write(file("password"), "second\n").expect("written");
        shared.look();
        assert!(is_known("second"));
        for wrong in [Some("\n"), None] {
            match wrong {
                Some(text) => std::fs::write(file("password"), text).expect("written"),
                None => std::fs::remove_file(file("password")).expect("removed"),
            }
            shared.look();
            assert!(is_known("second") && !shared.known().told.is_empty());
        }
        // A configuration that was read again may name others, which are looked at as a whole.
        std::fs::write(file("password"), "third\n").expect("written");
        std::fs::write(file("ca.pem"), "no certificate").expect("written");
        let names = EtcdNames::of(&named(Some("ca.pem"))).expect("they go together");
        let texts = names.read(&env).expect("they are there");
        assert!(shared.take(names.clone(), texts.clone(), false).is_err() && is_known("second"));
        shared.look();
        assert!(is_known("third") && shared.known().told.is_empty());
        // A look at files that the configuration names no more changes nothing.
        let before = EtcdNames::of(&named(None)).expect("they go together");
        std::fs::write(file("password"), "fourth\n").expect("written");
        let texts = before.read(&env).expect("it is there");
        let mut others = named(None);
        others.etcd_user = Some("another".to_owned());
        let others = EtcdNames::of(&others).expect("they go together");
        let of_others = others.read(&env).expect("it is there");
        assert!(shared.take(others, of_others, false).expect("they are sound"));
        std::fs::write(file("password"), "fifth\n").expect("written");
        assert!(!shared.take(before, texts, true).expect("they are sound") && is_known("fourth"));
    }
}
