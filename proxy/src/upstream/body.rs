//! An answer's body, which drives its connection.

use super::{RequestBody, connect::Connect, http1::BrokenAnswer, pool::Conn};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::{
    pin::Pin,
    task::{Context, Poll},
};

/// Upstream's answer as it comes in. A body that was cut short ends in an error, never as if it were whole. When its end was
/// reached the connection goes back to the pool; dropped before that, the connection is closed.
///
/// A body that upstream ends by closing (no length, no chunks) can't be told from a cut one (RFC 9112, section 6.3, rule 8).
pub struct AnswerBody<C: Connect, B: RequestBody> {
    /// `None` once the body has ended.
    conn: Option<Conn<C, B>>,
}

impl<C, B> AnswerBody<C, B>
where
    C: Connect,
    B: RequestBody,
{
    pub(super) fn new(conn: Conn<C, B>) -> Self {
        let mut body = Self { conn: Some(conn) };
        body.give_back_if_done();
        body
    }

    fn give_back_if_done(&mut self) {
        if let Some(conn) = self.conn.take_if(|conn| conn.http().is_ended()) {
            conn.give_back();
        }
    }
}

impl<C, B> Body for AnswerBody<C, B>
where
    C: Connect,
    B: RequestBody,
{
    type Data = Bytes;
    type Error = BrokenAnswer;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenAnswer>>> {
        let Some(conn) = &mut self.conn else {
            return Poll::Ready(None);
        };
        let polled = conn.http_mut().poll_data(cx);
        match &polled {
            Poll::Ready(Some(Err(_))) => self.conn = None,
            Poll::Ready(_) => self.give_back_if_done(),
            Poll::Pending => {}
        }
        polled.map_ok(Frame::data)
    }

    fn is_end_stream(&self) -> bool {
        self.conn.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        self.conn
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), |conn| conn.http().size_hint())
    }
}
