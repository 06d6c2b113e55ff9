//! Answers that are made as their clients take them.
//!
//! *Guarantee:* a connection holds a few pieces of such an answer, however long it is and however slowly its client reads.
//! One that is no longer than a piece is sent with its length.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body::Frame;
use serde_json::json;

use super::answers::json_bytes;

/// A piece has about this many bytes: it ends behind the part with which it reaches them.
pub(super) const PIECE_BYTES: usize = 32 << 10;

/// What makes an answer, piece by piece.
pub(super) trait Source: Send + 'static {
    /// Adds text to a piece until it has [`PIECE_BYTES`] or all is told; whether all is told.
    fn fill(&mut self, piece: &mut Vec<u8>) -> impl Future<Output = io::Result<bool>> + Send;
}

/// JSON that a source makes.
pub(super) async fn json_of(mut source: impl Source) -> Response {
    let mut first = Vec::new();
    match source.fill(&mut first).await {
        Ok(true) => json_bytes(first),
        Ok(false) => {
            first.shrink_to_fit();
            let body = Body::new(Pieces { first: Some(first.into()), next: Some(next(source)) });
            ([(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
        Err(error) => {
            let errors = json!({ "errors": { "_": error.to_string() } });
            (StatusCode::SERVICE_UNAVAILABLE, Json(errors)).into_response()
        }
    }
}

/// A piece, and the source if there are more.
type Next<S> = Pin<Box<dyn Future<Output = (io::Result<Bytes>, Option<S>)> + Send>>;

fn next<S: Source>(mut source: S) -> Next<S> {
    Box::pin(async move {
        let mut piece = Vec::new();
        let filled = source.fill(&mut piece).await;
        piece.shrink_to_fit();
        let piece = Bytes::from(piece);
        match filled {
            Ok(is_all) => (Ok(piece), (!is_all).then_some(source)),
            Err(error) => (Err(error), None),
        }
    })
}

/// The body of such an answer. If its source fails, the connection ends before the body does.
struct Pieces<S> {
    first: Option<Bytes>,
    next: Option<Next<S>>,
}

impl<S: Source> http_body::Body for Pieces<S> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(making) = &mut self.next else { return Poll::Ready(None) };
        let (piece, source) = ready!(making.as_mut().poll(cx));
        self.next = source.map(next);
        Poll::Ready(Some(piece.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells the numbers below `end`, and may fail at one.
    struct Numbers {
        at: usize,
        end: usize,
        fails_at: Option<usize>,
    }

    impl Source for Numbers {
        async fn fill(&mut self, piece: &mut Vec<u8>) -> io::Result<bool> {
            while piece.len() < PIECE_BYTES {
                if self.fails_at == Some(self.at) {
                    return Err(io::Error::other("it fails"));
                }
                let separator = if self.at == 0 { '[' } else { ',' };
                piece.extend_from_slice(format!("{separator}{}", self.at).as_bytes());
                self.at += 1;
                if self.at == self.end {
                    piece.push(b']');
                    return Ok(true);
                }
            }
            Ok(false)
        }
    }

    /// The answer's status, whether its length is told, and its body.
    fn told(end: usize, fails_at: Option<usize>) -> (StatusCode, bool, Option<Vec<usize>>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let response = json_of(Numbers { at: 0, end, fails_at }).await;
            let (status, hint) = (response.status(), http_body::Body::size_hint(response.body()));
            let whole = axum::body::to_bytes(response.into_body(), usize::MAX).await.ok();
            let numbers = whole.and_then(|whole| serde_json::from_slice(&whole).ok());
            (status, hint.exact().is_some(), numbers)
        })
    }

    #[test]
    fn short_answers_tell_their_length_and_long_ones_come_in_pieces() {
        assert_eq!(told(3, None), (StatusCode::OK, true, Some(vec![0, 1, 2])));
        let many = 4 * PIECE_BYTES;
        assert_eq!(told(many, None), (StatusCode::OK, false, Some((0..many).collect())));
    }

    #[test]
    fn an_answer_that_fails_is_refused_or_broken_off() {
        assert_eq!(told(3, Some(1)), (StatusCode::SERVICE_UNAVAILABLE, true, None));
        assert_eq!(told(4 * PIECE_BYTES, Some(2 * PIECE_BYTES)), (StatusCode::OK, false, None));
    }
}
