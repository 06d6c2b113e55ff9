//! Requests of the key-value protocol that go out together, and their answers as they come.

use std::io::{self, ErrorKind, Read, Write};

use base::Cas;
use protocol::extras::MutationToken;
use protocol::{FrameError, ParsedResponse, RequestParts, Status, magic, parse_response, write_request};

/// Bytes that one read asks for.
const READ_BYTES: usize = 64 << 10;

/// An answer, whatever its status, or a request of the server's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// What its first byte says: of which kind it is.
    pub magic: u8,
    /// The number that its request had.
    pub opaque: u32,
    /// The status on the wire.
    pub status_code: u16,
    /// Bits that describe the value.
    pub datatype: u8,
    /// The document's CAS.
    pub cas: Cas,
    /// Fields of the command.
    pub extras: Vec<u8>,
    /// The key, if the command answers with one.
    pub key: Vec<u8>,
    /// The value, or what is to be said about an error.
    pub value: Vec<u8>,
}

impl Answer {
    /// Whether it has this status.
    pub fn is(&self, status: Status) -> bool {
        self.status_code == status.code()
    }

    /// Whether it succeeded.
    pub fn is_ok(&self) -> bool {
        self.is(Status::Success)
    }

    /// Whether it answers the request with this number.
    pub fn is_to(&self, opaque: u32) -> bool {
        self.magic != magic::SERVER_REQUEST && self.opaque == opaque
    }

    /// The seqno of a change, if the answer carries a mutation token.
    pub fn token(&self) -> Option<MutationToken> {
        MutationToken::decode(&self.extras)
    }
}

/// A stream on which requests are queued and answers come in pieces.
#[derive(Debug)]
pub struct Pipeline<S> {
    stream: S,
    queued: Vec<u8>,
    received: Vec<u8>,
    consumed: usize,
}

impl<S> Pipeline<S> {
    /// Nothing was sent and nothing received on this stream so far.
    pub fn new(stream: S) -> Pipeline<S> {
        Pipeline { stream, queued: Vec::new(), received: Vec::new(), consumed: 0 }
    }

    /// The stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Gives up the stream, and what was received on it and is no part of an answer that was taken.
    pub fn into_parts(self) -> (S, Vec<u8>) {
        (self.stream, self.received[self.consumed..].to_vec())
    }

    /// Queues a request; `false` if a part of it is too long for its field.
    #[must_use]
    pub fn queue(&mut self, parts: &RequestParts<'_>) -> bool {
        write_request(&mut self.queued, parts)
    }

    /// The next answer among what was received; `None` if more has to be read first.
    pub fn next_answer(&mut self, most_body_bytes: usize) -> Result<Option<Answer>, FrameError> {
        match parse_response(&self.received[self.consumed..], most_body_bytes) {
            ParsedResponse::Bad(fault) => Err(fault),
            ParsedResponse::Incomplete { .. } => Ok(None),
            ParsedResponse::Response { response, total_len } => {
                let answer = Answer {
                    magic: response.magic,
                    opaque: response.opaque,
                    status_code: response.status_code,
                    datatype: response.datatype,
                    cas: response.cas,
                    extras: response.extras.to_vec(),
                    key: response.key.to_vec(),
                    value: response.value.to_vec(),
                };
                self.consumed += total_len;
                Ok(Some(answer))
            }
        }
    }
}

impl<S: Write> Pipeline<S> {
    /// Sends what is queued; what fails to be sent is not sent later.
    pub fn flush(&mut self) -> io::Result<()> {
        let sent = self.stream.write_all(&self.queued).and_then(|()| self.stream.flush());
        self.queued.clear();
        sent
    }
}

impl<S: Read> Pipeline<S> {
    /// Reads once; `false` at the end of the stream.
    pub fn read_more(&mut self) -> io::Result<bool> {
        self.received.drain(..self.consumed);
        self.consumed = 0;
        let have = self.received.len();
        self.received.resize(have + READ_BYTES, 0);
        let outcome = loop {
            match self.stream.read(&mut self.received[have..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                outcome => break outcome,
            }
        };
        self.received.truncate(have + *outcome.as_ref().unwrap_or(&0));
        outcome.map(|read| read > 0)
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Response, opcode};

    use super::*;

    /// What a server says, in pieces of one byte.
    struct Slow(Vec<u8>);

    impl Read for Slow {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let Some(byte) = (!self.0.is_empty()).then(|| self.0.remove(0)) else { return Ok(0) };
            into[0] = byte;
            Ok(1)
        }
    }

    #[test]
    fn answers_are_whole_however_they_come() {
        let mut said = Vec::new();
        for (opaque, value) in [(1, &b"first"[..]), (2, b"")] {
            Response { opcode: opcode::GET, opaque, value, ..Response::default() }.write(&mut said);
        }
        let mut pipeline = Pipeline::new(Slow(said));
        let mut answers = Vec::new();
        loop {
            match pipeline.next_answer(100).unwrap() {
                Some(answer) => answers.push(answer),
                None if pipeline.read_more().unwrap() => {}
                None => break,
            }
        }
        assert!(answers[0].is_to(1) && answers[0].is_ok() && answers[0].value == b"first");
        assert!(answers[1].is_to(2) && answers.len() == 2);
        assert_eq!(pipeline.into_parts().1, b"");
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        let mut pipeline = Pipeline::new(Slow(vec![0; 24]));
        let fault = loop {
            match pipeline.next_answer(100) {
                Ok(None) => assert!(pipeline.read_more().unwrap(), "24 bytes are a header"),
                Ok(Some(answer)) => panic!("{answer:?}"),
                Err(fault) => break fault,
            }
        };
        assert!(!fault.to_string().is_empty());
    }
}
