//! The way to ask other nodes: over HTTP, on a connection of its own for each request.

use std::io;
use std::time::Duration;

use ::node::doors::{PeerAnswer, PeerPost, Peers};
use base::env::Env;

use crate::http_client::{self, Answer, Ask};
use crate::tls::PeerTls;

/// Asks over HTTP, with TLS if the node is set to that.
pub struct HttpPeers(PeerTls);

impl HttpPeers {
    /// Asks so encrypted.
    pub(crate) fn new(tls: PeerTls) -> HttpPeers {
        HttpPeers(tls)
    }
}

impl Peers for HttpPeers {
    fn is_encrypted(&self) -> bool {
        self.0.for_http().is_some()
    }

    fn post(&self, env: &Env, post: PeerPost<'_>, at_most: Duration) -> io::Result<PeerAnswer> {
        let PeerPost { address, addr, path, body, most_bytes } = post;
        let tls = self.0.for_http();
        let ask = Ask {
            endpoint: address,
            addr,
            tls: tls.as_ref(),
            path,
            token: None,
            body: Some(body),
            most_bytes,
            no_word: "it ended the connection without a word",
        };
        let Answer { status, body } = http_client::ask(env, ask, at_most)?;
        Ok(PeerAnswer { status, body })
    }
}
