//! What a node says to another one before it asks for changes: who it is, and which bucket it is about.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;

use base::env::Env;
use base::limits::MAX_FRAME_BODY_BYTES;
use base::planted::{self, Bug};
use dcp::{Disconnect, Features as Agreed};
use protocol::feature::{Feature, Features};
use protocol::{ParsedResponse, RequestParts, Status, magic, opcode, parse_response, write_request};

use super::source::Password;
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
    /// The other node does not speak TLS, or one of the two is not known by its certificate; what to do about it.
    #[error("TLS: {0}")]
    Tls(String),
    /// The other node closed it.
    #[error("the source closed the connection")]
    Closed,
    /// What came holds most of the memory of connections, and nobody takes it.
    #[error(
        "memory for connections is short, and what the source sent takes most of it: raise connection-memory if that is ordinary"
    )]
    Memory,
    /// It took too long until there was a connection for changes.
    #[error("the source did not answer in time")]
    TimeOut,
    /// A name is too long to be sent.
    #[error("a name is too long")]
    TooLong,
    /// What was asked for is more than one may get at once.
    #[error("the answer has more than {} MiB: ask for less", .most_bytes >> 20)]
    AnswerTooLong {
        /// What one may get.
        most_bytes: usize,
    },
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
pub(crate) const WANTED: Features = Features::of(&[
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
#[derive(Clone)]
pub struct Login<'a> {
    /// The outside world.
    pub env: &'a Env,
    /// Who logs in.
    pub username: Cow<'a, str>,
    /// That user's password.
    pub password: Cow<'a, Password>,
    /// The bucket that it is about.
    pub bucket: &'a str,
    /// The vBuckets that it must have.
    pub vbuckets: u16,
    /// What is asked for.
    pub wanted: Features,
    /// Where the client is for whom it asks, which the other node records (record 223); `None` if it asks for itself.
    pub asks_for: Option<SocketAddr>,
}

/// The request whose answer is waited for.
enum Asked {
    Hello,
    Mechanisms,
    /// The first message of the exchange.
    First(Exchange),
    /// Its last one.
    Last(Exchange),
    Bucket,
    Map,
}

impl Asked {
    fn opcode(&self) -> u8 {
        match self {
            Asked::Hello => opcode::HELLO,
            Asked::Mechanisms => opcode::SASL_LIST_MECHS,
            Asked::First(_) => opcode::SASL_AUTH,
            Asked::Last(_) => opcode::SASL_STEP,
            Asked::Bucket => opcode::SELECT_BUCKET,
            Asked::Map => opcode::GET_CLUSTER_CONFIG,
        }
    }
}

/// A login under way: bytes in, bytes out. It says hello, logs in, selects the bucket and looks at its map.
pub struct LoggingIn<'a> {
    login: Login<'a>,
    asked: Asked,
    agreed: Agreed,
}

impl<'a> LoggingIn<'a> {
    /// Begins; the first request goes to `out`.
    ///
    /// # Errors
    ///
    /// A name that is too long.
    pub fn begin(login: Login<'a>, out: &mut Vec<u8>) -> Result<LoggingIn<'a>, LinkError> {
        let random = &login.env.random;
        let asks_for = login.asks_for.map_or_else(String::new, |client| format!(r#","for":"{client}""#));
        let agent = format!(
            r#"{{"a":"stave-replication/{SERVER_VERSION}","i":"{:016X}/{:016X}"{asks_for}}}"#,
            random.next_u64(),
            random.next_u64()
        );
        send(out, &Asked::Hello, agent.as_bytes(), &login.wanted.encode())?;
        let agreed = Agreed { collections: false, snappy: false, json: false };
        Ok(LoggingIn { login, asked: Asked::Hello, agreed })
    }

    /// Takes what came, and says what comes next. How many bytes are done with, and what was agreed on, once all is
    /// done. `known` is what was derived from the password the last time.
    ///
    /// # Errors
    ///
    /// Why there can be no link.
    pub fn receive(
        &mut self,
        received: &[u8],
        known: &mut Option<SaltedPassword>,
        out: &mut Vec<u8>,
    ) -> Result<(usize, Option<Agreed>), LinkError> {
        let mut consumed = 0;
        loop {
            match parse_response(&received[consumed..], MAX_FRAME_BODY_BYTES) {
                ParsedResponse::Bad(_) => return Err(LinkError::NotANode),
                ParsedResponse::Incomplete { .. } => return Ok((consumed, None)),
                ParsedResponse::Response { response, total_len } => {
                    consumed += total_len;
                    let is_ours = response.magic != magic::SERVER_REQUEST
                        && (response.opcode, response.opaque) == (self.asked.opcode(), 0);
                    if is_ours && self.answered(response.status_code, response.value, known, out)? {
                        return Ok((consumed, Some(self.agreed)));
                    }
                }
            }
        }
    }

    /// What was asked last is answered; whether all is done.
    fn answered(
        &mut self,
        status_code: u16,
        value: &[u8],
        known: &mut Option<SaltedPassword>,
        out: &mut Vec<u8>,
    ) -> Result<bool, LinkError> {
        let login = &self.login;
        // After an error nothing more is asked.
        self.asked = match std::mem::replace(&mut self.asked, Asked::Map) {
            Asked::Hello => {
                self.agreed = login.agreed(status_code, value)?;
                send(out, &Asked::Mechanisms, b"", b"")?;
                Asked::Mechanisms
            }
            Asked::Mechanisms => {
                if planted::is(Bug::PasswordInClear) && value == b"PLAIN" {
                    let message = format!("\0{}\0{}", login.username, login.password.reveal());
                    let (key, value) = (b"PLAIN", message.as_bytes());
                    let opcode = opcode::SASL_AUTH;
                    write_request(out, &RequestParts { opcode, key, value, ..RequestParts::default() });
                }
                let exchange = login.exchange(value)?;
                let first = exchange.first();
                let next = Asked::First(exchange);
                send(out, &next, MECHANISM.as_bytes(), first.as_bytes())?;
                next
            }
            Asked::First(mut exchange) => {
                login.expect(status_code, Status::AuthContinue)?;
                let challenge = String::from_utf8_lossy(value);
                let answer = exchange.answer(&challenge, login.password.reveal(), known);
                let answer = answer.map_err(|_| login.impostor())?;
                let next = Asked::Last(exchange);
                send(out, &next, MECHANISM.as_bytes(), answer.as_bytes())?;
                next
            }
            Asked::Last(exchange) => {
                login.expect(status_code, Status::Success)?;
                exchange.verify(&String::from_utf8_lossy(value)).map_err(|_| login.impostor())?;
                send(out, &Asked::Bucket, login.bucket.as_bytes(), b"")?;
                Asked::Bucket
            }
            Asked::Bucket => {
                login.selected(status_code)?;
                send(out, &Asked::Map, b"", b"")?;
                Asked::Map
            }
            Asked::Map => {
                login.compare_vbuckets(value)?;
                return Ok(true);
            }
        };
        Ok(false)
    }
}

impl Login<'_> {
    fn agreed(&self, status_code: u16, value: &[u8]) -> Result<Agreed, LinkError> {
        if status_code != Status::Success.code() {
            return Err(LinkError::Refused { what: "hello", status_code });
        }
        let granted = Features::decode(value).ok_or(LinkError::NotANode)?.and(self.wanted);
        Ok(Agreed {
            collections: granted.has(Feature::Collections),
            snappy: granted.has(Feature::Snappy),
            json: granted.has(Feature::Json),
        })
    }

    /// Begins to log in, if the mechanism is among those that are offered.
    fn exchange(&self, offered: &[u8]) -> Result<Exchange, LinkError> {
        let offered = String::from_utf8_lossy(offered);
        if !offered.split_ascii_whitespace().any(|name| name == MECHANISM) {
            return Err(LinkError::Mechanism);
        }
        let random = &self.env.random;
        let nonce = format!("{:016x}{:016x}", random.next_u64(), random.next_u64());
        Ok(Exchange::new(&self.username, &nonce))
    }

    fn impostor(&self) -> LinkError {
        LinkError::Impostor { username: self.username.clone().into_owned() }
    }

    fn expect(&self, status_code: u16, expected: Status) -> Result<(), LinkError> {
        match status_code {
            code if code == expected.code() => Ok(()),
            code if code == Status::AuthError.code() => {
                Err(LinkError::Login { username: self.username.clone().into_owned() })
            }
            status_code => Err(LinkError::Refused { what: "to log in", status_code }),
        }
    }

    fn selected(&self, status_code: u16) -> Result<(), LinkError> {
        match Status::from_code(status_code) {
            Some(Status::Success) => Ok(()),
            Some(Status::Eaccess | Status::KeyEnoent) => {
                let username = self.username.clone().into_owned();
                Err(LinkError::Bucket { bucket: self.bucket.to_owned(), username })
            }
            _ => Err(LinkError::Refused { what: "to select the bucket", status_code }),
        }
    }

    /// The number of vBuckets is the length of the cluster map; a source that has no map is believed.
    fn compare_vbuckets(&self, map: &[u8]) -> Result<(), LinkError> {
        let config = serde_json::from_slice::<serde_json::Value>(map).ok();
        let map = config.as_ref().and_then(|json| json.pointer("/vBucketServerMap/vBucketMap")?.as_array());
        match map.map(Vec::len) {
            Some(there) if there != usize::from(self.vbuckets) => {
                Err(LinkError::Vbuckets { there, here: self.vbuckets })
            }
            _ => Ok(()),
        }
    }
}

/// Writes a request.
fn send(out: &mut Vec<u8>, asked: &Asked, key: &[u8], value: &[u8]) -> Result<(), LinkError> {
    let parts = RequestParts { opcode: asked.opcode(), key, value, ..RequestParts::default() };
    if write_request(out, &parts) { Ok(()) } else { Err(LinkError::TooLong) }
}

#[cfg(test)]
pub(crate) mod tests {
    use protocol::Response;

    use super::*;

    #[test]
    pub(crate) fn a_node_that_wants_the_password_as_it_is_does_not_get_it() {
        let (env, _) = Env::sim(1);
        let password = Password::from("the password".to_owned());
        let login = Login {
            env: &env,
            username: "admin".into(),
            password: Cow::Borrowed(&password),
            bucket: "b",
            vbuckets: 4,
            wanted: WANTED,
            asks_for: None,
        };
        let mut sent = Vec::new();
        let mut logging_in = LoggingIn::begin(login, &mut sent).expect("a short name");
        let mut received = Vec::new();
        for (opcode, value) in [(opcode::HELLO, &b""[..]), (opcode::SASL_LIST_MECHS, b"PLAIN")] {
            Response { opcode, status: Status::Success, value, ..Response::default() }.write(&mut received);
        }
        let refused = logging_in.receive(&received, &mut None, &mut sent);
        assert!(matches!(refused, Err(LinkError::Mechanism)));
        assert!(!sent.windows(12).any(|bytes| bytes == b"the password"));
    }
}
