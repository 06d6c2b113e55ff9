//! The way to ask other nodes: over HTTP, on a connection of its own for each request.

use std::io;
use std::time::Duration;

use ::node::doors::{PeerAnswer, PeerPost, Peers};
use base::env::Env;

use crate::etcd::http;

/// Asks over HTTP, without TLS.
pub struct HttpPeers;

impl Peers for HttpPeers {
    fn post(&self, env: &Env, post: PeerPost<'_>, at_most: Duration) -> io::Result<PeerAnswer> {
        let PeerPost { address, addr, path, body, most_bytes } = post;
        let post = http::Post {
            endpoint: address,
            addr,
            tls: None,
            path,
            token: None,
            body,
            most_bytes,
            no_word: "it ended the connection without a word",
        };
        let http::Answer { status, body } = http::post(env, post, at_most)?;
        Ok(PeerAnswer { status, body })
    }
}
