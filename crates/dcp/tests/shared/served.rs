//! The producer's end of a connection: what a server does around it, without sockets.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::sync::Arc;

use base::{Seqno, VbId};
use dcp::{Agreement, Disconnect, Features, Producer, StreamRequestRefusal};
use engine::Bucket;
use protocol::dcp::{OpenFlags, StreamRequest};
use protocol::{Request, Response, Status, opcode};

pub const FEATURES: Features = Features { collections: true, snappy: true, json: true };

/// Stands between the two ends, and may change what is asked for and answered.
pub trait Between {
    fn asked(&mut self, _vb: VbId, _request: &mut StreamRequest) {}

    fn log(&mut self, _vb: VbId, log: Vec<u8>) -> Vec<u8> {
        log
    }
}

/// Changes nothing.
impl Between for () {}

/// What a consumer asked for, and what it was answered.
pub struct Asked {
    pub vb: VbId,
    pub request: StreamRequest,
    /// Accepted, or to where to roll back.
    pub answer: Result<(), Seqno>,
}

pub struct Served {
    bucket: Arc<Bucket>,
    name: String,
    agreed: Option<Agreement>,
    /// There is one as soon as something is asked for.
    pub producer: Option<Producer>,
}

impl Served {
    pub fn new(bucket: &Arc<Bucket>, name: String) -> Served {
        Served { bucket: Arc::clone(bucket), name, agreed: None, producer: None }
    }

    /// Works on a request and writes the answer. Says whether it was one for a stream that was accepted or sent back.
    pub fn on_request(
        &mut self,
        request: &Request<'_>,
        between: &mut impl Between,
        out: &mut Vec<u8>,
    ) -> Result<Option<Asked>, Disconnect> {
        let (mut status, mut value, mut asked) = (Status::Success, Vec::new(), None);
        match request.opcode {
            opcode::DCP_OPEN => {
                let flags = OpenFlags::decode(request.extras).expect("extras");
                self.agreed = Some(Agreement::open(flags, request.key, true).expect("valid flags"));
            }
            opcode::DCP_CONTROL => {
                let agreed = self.agreed.as_mut().expect("it was opened");
                status = agreed.control(request.key, request.value);
            }
            opcode::DCP_BUFFER_ACK => {
                let bytes = u32::from_be_bytes(request.extras.try_into().expect("four bytes"));
                self.producer.as_mut().expect("it is open").acknowledge(bytes);
                return Ok(None);
            }
            opcode::DCP_STREAM_REQ => (status, value, asked) = self.on_stream_request(request, between),
            opcode::DCP_CLOSE_STREAM => {
                if let Some(producer) = &mut self.producer {
                    status = producer.close_stream(request.vbucket, None, out);
                }
            }
            opcode::GET_ALL_VB_SEQNOS => status = Status::NotSupported,
            other => return Err(Disconnect::Unreadable(other)),
        }
        let (opcode, opaque) = (request.opcode, request.opaque);
        Response { opcode, opaque, status, value: &value, ..Response::default() }.write(out);
        Ok(asked)
    }

    fn on_stream_request(
        &mut self,
        request: &Request<'_>,
        between: &mut impl Between,
    ) -> (Status, Vec<u8>, Option<Asked>) {
        let agreed = self.agreed.clone().expect("it was opened");
        let (bucket, name) = (Arc::clone(&self.bucket), self.name.clone());
        let make = || Producer::new(bucket, name, agreed, FEATURES, || {});
        let producer = self.producer.get_or_insert_with(make);
        let (vb, mut asked) = (request.vbucket, StreamRequest::decode(request.extras).expect("extras"));
        between.asked(vb, &mut asked);
        let (status, value, answer) = match producer.request(vb, request.opaque, &asked, request.value) {
            Ok(log) => (Status::Success, between.log(vb, log), Ok(())),
            Err(StreamRequestRefusal::RollBack(to)) => {
                (Status::Rollback, to.0.to_be_bytes().to_vec(), Err(to))
            }
            Err(StreamRequestRefusal::Status(refused) | StreamRequestRefusal::Unknown(refused, _)) => {
                return (refused, Vec::new(), None);
            }
        };
        (status, value, Some(Asked { vb, request: asked, answer }))
    }
}
