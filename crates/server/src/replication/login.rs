//! What a node says to another one before it asks for changes: who it is, and which bucket it is about.

use std::io;

use base::env::Env;
use dcp::{Disconnect, Features as Agreed};
use protocol::feature::{Feature, Features};
use protocol::{RequestParts, Status, opcode};

use super::source::Password;
use super::wire::{Answer, Wire};
use crate::sasl::client::{Exchange, MECHANISM, SaltedPassword};
use crate::version::SERVER_VERSION;

/// Why a link does not work just now. No text has a password in it.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// There is no connection.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// It broke.
    #[error("the connection broke: {0}")]
    Io(io::Error),
    /// The other node closed it.
    #[error("the source closed the connection")]
    Closed,
    /// It took too long until there was a connection for changes.
    #[error("the source did not answer in time")]
    TimeOut,
    /// A name is too long to be sent.
    #[error("a name is too long")]
    TooLong,
    /// What came is no answer.
    #[error("what the source sends is not the protocol of a node")]
    NotANode,
    /// Name or password are wrong.
    #[error("the source does not know {username}, or the password is another one")]
    Login {
        /// Who was to be let in.
        username: String,
    },
    /// It offers no mechanism that keeps the password secret.
    #[error("the source does not offer {MECHANISM}")]
    Mechanism,
    /// It does not know the password itself.
    #[error("the source does not know the password of {username}: it may be somebody else")]
    Impostor {
        /// Who was to be let in.
        username: String,
    },
    /// The bucket is not there, or not for this user.
    #[error("the source has no bucket {bucket} for {username}")]
    Bucket {
        /// The bucket.
        bucket: String,
        /// Who asked.
        username: String,
    },
    /// The bucket there has another number of vBuckets: keys belong elsewhere.
    #[error("the source's bucket has {there} vBuckets, this one {here}")]
    Vbuckets {
        /// There.
        there: usize,
        /// Here.
        here: u16,
    },
    /// It sends nothing, not even signs of life.
    #[error("the source has sent nothing for {0} s")]
    Silent(u64),
    /// A request before the first change is refused.
    #[error("the source refuses {what} with status 0x{status_code:02x}")]
    Refused {
        /// Which.
        what: &'static str,
        /// The status.
        status_code: u16,
    },
    /// The consumer gave up.
    #[error(transparent)]
    Consumer(#[from] Disconnect),
    /// No thread can be started for what has to be rolled back.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

impl LinkError {
    /// Whether the other node broke the protocol.
    pub fn is_violation(&self) -> bool {
        matches!(self, LinkError::Consumer(broken) if broken.is_violation())
    }
}

/// What a node that replicates asks for.
pub(super) const WANTED: Features = Features::of(&[
    Feature::TcpNoDelay,
    Feature::Xattr,
    Feature::Xerror,
    Feature::SelectBucket,
    Feature::Snappy,
    Feature::Json,
    Feature::AltRequestSupport,
    Feature::SyncReplication,
    Feature::Collections,
]);

/// Who logs in where.
pub(super) struct Login<'a> {
    pub(super) env: &'a Env,
    pub(super) username: &'a str,
    pub(super) password: &'a Password,
    pub(super) bucket: &'a str,
    pub(super) vbuckets: u16,
    /// What is asked for.
    pub(super) wanted: Features,
}

impl Login<'_> {
    /// Says hello, logs in and selects the bucket; what was agreed on. `known` is what was derived from the password
    /// the last time.
    pub(super) async fn run(
        &self,
        wire: &mut Wire,
        known: &mut Option<SaltedPassword>,
    ) -> Result<Agreed, LinkError> {
        let agreed = self.hello(wire).await?;
        self.log_in(wire, known).await?;
        self.select(wire).await?;
        self.compare_vbuckets(wire).await?;
        Ok(agreed)
    }

    async fn hello(&self, wire: &mut Wire) -> Result<Agreed, LinkError> {
        let random = &self.env.random;
        let agent = format!(
            r#"{{"a":"stave-replication/{SERVER_VERSION}","i":"{:016X}/{:016X}"}}"#,
            random.next_u64(),
            random.next_u64()
        );
        let value = self.wanted.encode();
        let parts = RequestParts {
            opcode: opcode::HELLO,
            key: agent.as_bytes(),
            value: &value,
            ..RequestParts::default()
        };
        let answer = expect(wire.request(&parts).await?, "hello")?;
        let granted = Features::decode(&answer.value).ok_or(LinkError::NotANode)?.and(self.wanted);
        Ok(Agreed {
            collections: granted.has(Feature::Collections),
            snappy: granted.has(Feature::Snappy),
            json: granted.has(Feature::Json),
        })
    }

    async fn log_in(&self, wire: &mut Wire, known: &mut Option<SaltedPassword>) -> Result<(), LinkError> {
        let parts = RequestParts { opcode: opcode::SASL_LIST_MECHS, ..RequestParts::default() };
        let offered = wire.request(&parts).await?.value;
        let offered = String::from_utf8_lossy(&offered);
        if !offered.split_ascii_whitespace().any(|name| name == MECHANISM) {
            return Err(LinkError::Mechanism);
        }
        let random = &self.env.random;
        let nonce = format!("{:016x}{:016x}", random.next_u64(), random.next_u64());
        let mut exchange = Exchange::new(self.username, &nonce);
        let challenge = sasl(wire, opcode::SASL_AUTH, &exchange.first()).await?;
        self.expect_login(&challenge, Status::AuthContinue)?;
        let impostor = |_| LinkError::Impostor { username: self.username.to_owned() };
        let challenge = String::from_utf8_lossy(&challenge.value);
        let answer = exchange.answer(&challenge, self.password.reveal(), known).map_err(impostor)?;
        let last = sasl(wire, opcode::SASL_STEP, &answer).await?;
        self.expect_login(&last, Status::Success)?;
        exchange.verify(&String::from_utf8_lossy(&last.value)).map_err(impostor)
    }

    fn expect_login(&self, answer: &Answer, expected: Status) -> Result<(), LinkError> {
        match answer.status_code {
            code if code == expected.code() => Ok(()),
            code if code == Status::AuthError.code() => {
                Err(LinkError::Login { username: self.username.to_owned() })
            }
            status_code => Err(LinkError::Refused { what: "to log in", status_code }),
        }
    }

    async fn select(&self, wire: &mut Wire) -> Result<(), LinkError> {
        let key = self.bucket.as_bytes();
        let parts = RequestParts { opcode: opcode::SELECT_BUCKET, key, ..RequestParts::default() };
        let answer = wire.request(&parts).await?;
        match Status::from_code(answer.status_code) {
            Some(Status::Success) => Ok(()),
            Some(Status::Eaccess | Status::KeyEnoent) => {
                Err(LinkError::Bucket { bucket: self.bucket.to_owned(), username: self.username.to_owned() })
            }
            _ => Err(LinkError::Refused { what: "to select the bucket", status_code: answer.status_code }),
        }
    }

    /// The number of vBuckets is the length of the cluster map; a source that has no map is believed.
    async fn compare_vbuckets(&self, wire: &mut Wire) -> Result<(), LinkError> {
        let parts = RequestParts { opcode: opcode::GET_CLUSTER_CONFIG, ..RequestParts::default() };
        let answer = wire.request(&parts).await?;
        let config = serde_json::from_slice::<serde_json::Value>(&answer.value).ok();
        let map = config.as_ref().and_then(|json| json.pointer("/vBucketServerMap/vBucketMap")?.as_array());
        match map.map(Vec::len) {
            Some(there) if there != usize::from(self.vbuckets) => {
                Err(LinkError::Vbuckets { there, here: self.vbuckets })
            }
            _ => Ok(()),
        }
    }
}

async fn sasl(wire: &mut Wire, opcode: u8, payload: &str) -> Result<Answer, LinkError> {
    let parts = RequestParts {
        opcode,
        key: MECHANISM.as_bytes(),
        value: payload.as_bytes(),
        ..RequestParts::default()
    };
    wire.request(&parts).await
}

fn expect(answer: Answer, what: &'static str) -> Result<Answer, LinkError> {
    match answer.status_code {
        code if code == Status::Success.code() => Ok(answer),
        status_code => Err(LinkError::Refused { what, status_code }),
    }
}
