//! Requests that a node makes of another one, or of itself, for a user whose password it has checked.
//!
//! It logs in as the user that nodes are to each other, and every request names the user who asks: the node that is
//! asked grants what that user may do, and audits it as that user's (framing extra Impersonate User).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use ::node::connection_memory::Charge;
use ::node::replication::{LinkError, Login, Wire as _};
use ::node::sasl::client::SaltedPassword;
use base::limits::MAX_FRAME_BODY_BYTES;
use base::{Cas, VbId};
use parking_lot::Mutex;
use protocol::feature::{Feature, Features};
use protocol::{
    FrameInfos, ParsedResponse, RequestParts, Status, magic, opcode, parse_response, write_request,
};
use tokio::net::TcpStream;

use super::wire::Wire;
use crate::inside::{self, OwnDoor};
use crate::tls::PeerTls;

/// How long connecting, logging in and all answers may take together.
pub(crate) const MOST_TIME: Duration = Duration::from_secs(10);
/// Bytes of answers that are kept. One that is on its way may be as long as a frame beside them.
const MOST_ANSWER_BYTES: usize = 8 << 20;

/// Nodes whose derived password is kept.
const MOST_DERIVED: usize = 64;

const WANTED: Features = Features::of(&[
    Feature::TcpNoDelay,
    Feature::Xattr,
    Feature::Xerror,
    Feature::SelectBucket,
    Feature::Json,
    Feature::AltRequestSupport,
    Feature::Collections,
    Feature::SubdocAllowsAccessOnMultipleXattrKeys,
]);

/// Who asks whom about what.
pub(crate) struct ActingFor<'a> {
    /// The node that asks.
    pub(crate) node: &'a ::node::Node,
    /// What connections to other nodes are encrypted with.
    pub(crate) tls: &'a PeerTls,
    /// The KV address of the node that is asked.
    pub(crate) address: &'a str,
    /// How it is reached if it is this node itself.
    pub(crate) door: Option<&'a OwnDoor>,
    /// The bucket.
    pub(crate) bucket: &'a str,
    /// The vBuckets that it must have.
    pub(crate) vbuckets: u16,
    /// The user.
    pub(crate) user: &'a str,
    /// Where that user's client is.
    pub(crate) client: Option<SocketAddr>,
    /// What was derived of the password.
    pub(crate) derived: &'a DerivedPasswords,
}

/// What was derived of the password that nodes log in with, by the address of the node whose salt it was: deriving takes
/// milliseconds.
#[derive(Default)]
pub(crate) struct DerivedPasswords(Mutex<BTreeMap<String, SaltedPassword>>);

impl DerivedPasswords {
    fn keep(&self, address: &str, derived: Option<SaltedPassword>) {
        let Some(derived) = derived else { return };
        let mut all = self.0.lock();
        if all.len() >= MOST_DERIVED {
            all.clear();
        }
        all.insert(address.to_owned(), derived);
    }
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct KvAnswer {
    /// How it went, as a number.
    pub(crate) status_code: u16,
    /// The document's CAS.
    pub(crate) cas: Cas,
    /// The key.
    pub(crate) key: Vec<u8>,
    /// The value.
    pub(crate) value: Vec<u8>,
}

impl KvAnswer {
    /// How it went; nothing if the number is unknown.
    pub(crate) fn status(&self) -> Option<Status> {
        Status::from_code(self.status_code)
    }
}

/// A request as its asker sees it.
#[derive(Clone, Debug, Default)]
pub(crate) struct KvRequest {
    /// The command.
    pub(crate) opcode: u8,
    /// The vBucket.
    pub(crate) vbucket: VbId,
    /// The document's CAS, if it must be that.
    pub(crate) cas: Cas,
    /// Whether the document's expiry time stays.
    pub(crate) preserve_ttl: bool,
    /// Fields of the command.
    pub(crate) extras: Vec<u8>,
    /// The key with its collection.
    pub(crate) key: Vec<u8>,
    /// The value.
    pub(crate) value: Vec<u8>,
}

/// A connection on which requests are made for one user.
pub(crate) struct Acting {
    wire: Wire,
    user: Vec<u8>,
    charge: Charge,
}

impl Acting {
    /// Connects and logs in.
    pub(crate) async fn connect(acting: ActingFor<'_>) -> Result<Acting, LinkError> {
        let ActingFor { node, tls, address, door, bucket, vbuckets, user, client, derived } = acting;
        if door.is_some() {
            node.accounts().has_own_secret(node);
        }
        let (username, password) = node.accounts().node_logins().at(address);
        let mut wire = match door {
            None => Wire::connect(node.env(), address, tls.for_documents()).await?,
            // What is sent to this node itself does not leave the machine.
            Some(OwnDoor::Port(_)) => Wire::connect(node.env(), address, None).await?,
            Some(OwnDoor::Inside(workers)) => {
                let stream = inside::open(node.env(), workers).map_err(LinkError::Connect)?;
                Wire::over(TcpStream::from_std(stream).map_err(LinkError::Connect)?)
            }
        };
        let (env, username, password) = (node.env(), username.into(), Cow::Owned(password));
        let login = Login { env, username, password, bucket, vbuckets, wanted: WANTED, asks_for: client };
        let mut known = derived.0.lock().get(address).cloned();
        wire.log_in(login, &mut known).await?;
        derived.keep(address, known);
        let charge = Charge::new(node.connection_memory().clone(), wire.peer()?);
        Ok(Acting { wire, user: user.as_bytes().to_vec(), charge })
    }

    /// Makes requests, and waits for the last answer to the last one. `keep` is shown each answer with the number of its
    /// request; Stat has several.
    pub(crate) async fn ask(
        &mut self,
        requests: &[KvRequest],
        keep: &mut (dyn FnMut(usize, KvAnswer) + Send),
    ) -> Result<(), LinkError> {
        for (number, request) in requests.iter().enumerate() {
            self.write(number, request)?;
        }
        let (mut left, mut bytes) = (requests.len(), 0_usize);
        while left > 0 {
            let (received, _) = self.wire.parts();
            let mut consumed = 0;
            loop {
                match parse_response(&received[consumed..], MAX_FRAME_BODY_BYTES) {
                    ParsedResponse::Bad(_) => return Err(LinkError::NotANode),
                    ParsedResponse::Incomplete { .. } => break,
                    ParsedResponse::Response { response, total_len } => {
                        consumed += total_len;
                        if response.magic == magic::SERVER_REQUEST {
                            continue;
                        }
                        let (key, value) = (response.key.to_vec(), response.value.to_vec());
                        bytes = bytes.saturating_add(total_len);
                        let number = response.opaque as usize;
                        let is_stat = requests.get(number).is_some_and(|one| one.opcode == opcode::STAT);
                        let goes_on = is_stat && response.status_code == 0 && !key.is_empty();
                        left -= usize::from(!goes_on);
                        let (status_code, cas) = (response.status_code, response.cas);
                        keep(number, KvAnswer { status_code, cas, key, value });
                        if left == 0 {
                            break;
                        }
                    }
                }
            }
            self.wire.consume(consumed);
            if bytes > MOST_ANSWER_BYTES {
                return Err(LinkError::AnswerTooLong { most_bytes: MOST_ANSWER_BYTES });
            }
            self.charge.set(self.wire.held_bytes() + bytes);
            if left > 0 {
                self.wire.send()?;
                self.wire.turn(true).await?;
            }
        }
        Ok(())
    }

    /// Makes one request that has one answer.
    pub(crate) async fn ask_one(&mut self, request: KvRequest) -> Result<KvAnswer, LinkError> {
        let mut answer = KvAnswer::default();
        self.ask(&[request], &mut |_, came| answer = came).await?;
        Ok(answer)
    }

    fn write(&mut self, number: usize, request: &KvRequest) -> Result<(), LinkError> {
        let KvRequest { opcode, vbucket, cas, preserve_ttl, extras, key, value } = request;
        let mut frame_infos = Vec::new();
        let infos = FrameInfos {
            impersonate: Some(&self.user),
            preserve_ttl: *preserve_ttl,
            ..FrameInfos::default()
        };
        infos.encode(&mut frame_infos);
        let parts = RequestParts {
            opcode: *opcode,
            vbucket: *vbucket,
            opaque: number as u32,
            cas: *cas,
            frame_infos: &frame_infos,
            extras,
            key,
            value,
            ..RequestParts::default()
        };
        if write_request(&mut self.wire.out, &parts) { Ok(()) } else { Err(LinkError::TooLong) }
    }
}
