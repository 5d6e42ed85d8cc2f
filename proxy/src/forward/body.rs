//! Bodies on their way: to upstream, and back to the client.

use super::access::Exchange;
use crate::{
    server::{ClientBody, DrainLimits, drain_rest},
    upstream::{AnswerBody, BoxError, Connect},
};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// A request's body on its way to upstream, without trailers.
pub struct UpBody {
    /// The first piece, and most often the only one: that costs no allocation.
    one: Bytes,
    more: VecDeque<Bytes>,
    rest: Option<ClientBody>,
}

impl UpBody {
    /// None.
    pub fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    /// One that was read whole.
    pub fn whole(body: Bytes) -> Self {
        Self {
            one: body,
            more: VecDeque::new(),
            rest: None,
        }
    }

    pub(super) fn streamed(one: Bytes, more: Vec<Bytes>, rest: ClientBody) -> Self {
        Self {
            one,
            more: more.into(),
            rest: Some(rest),
        }
    }

    /// Whether it is known to be empty.
    pub fn is_empty(&self) -> bool {
        self.length() == Some(0)
    }

    /// Its length, where that is known.
    pub fn length(&self) -> Option<u64> {
        self.size_hint().exact()
    }
}

impl Body for UpBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.one.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.one)))));
        }
        if let Some(next) = self.more.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(next))));
        }
        loop {
            let Some(rest) = &mut self.rest else {
                return Poll::Ready(None);
            };
            match ready!(Pin::new(rest).poll_frame(cx)) {
                Some(Ok(frame)) if frame.is_data() => return Poll::Ready(Some(Ok(frame))),
                // A trailer section: nobody has judged it.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                None => {
                    self.rest = None;
                    return Poll::Ready(None);
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.one.is_empty()
            && self.more.is_empty()
            && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self
            .rest
            .as_ref()
            .map_or_else(|| SizeHint::with_exact(0), Body::size_hint);
        let more: u64 = self.more.iter().map(|part| part.len() as u64).sum();
        let here = self.one.len() as u64 + more;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper + here);
        }
        hint.set_lower(hint.lower() + here);
        hint
    }
}

impl Drop for UpBody {
    /// What upstream did not want is read on for a while, so that its sender gets to read the answer.
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take().filter(|rest| !rest.is_end_stream()) {
            drain_rest(rest, DrainLimits::default());
        }
    }
}

/// A response's body on its way to the client. What was counted and logged of its request ends with it.
pub struct OutBody<C: Connect> {
    content: Content<C>,
    /// It was cut short, and that is told next time.
    cut: Option<BoxError>,
    exchange: Option<Exchange>,
}

enum Content<C: Connect> {
    Relayed(AnswerBody<C, UpBody>),
    Read { body: Option<Bytes>, whole: bool },
}

impl<C: Connect> OutBody<C> {
    pub(super) fn relayed(body: AnswerBody<C, UpBody>) -> Self {
        Self {
            content: Content::Relayed(body),
            cut: None,
            exchange: None,
        }
    }

    /// One that is in memory; not `whole`: it was cut short, and must not look complete.
    pub(super) fn read(body: Bytes, whole: bool) -> Self {
        Self {
            content: Content::Read {
                body: Some(body).filter(|body| !body.is_empty()),
                whole,
            },
            cut: None,
            exchange: None,
        }
    }

    /// Nothing of it, and what was counted and logged all the same.
    pub(super) fn emptied(self) -> Self {
        Self {
            content: Content::Read {
                body: None,
                whole: true,
            },
            ..self
        }
    }

    pub(super) fn with(self, exchange: Exchange) -> Self {
        Self {
            exchange: Some(exchange),
            ..self
        }
    }
}

impl<C: Connect> Body for OutBody<C> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(error) = self.cut.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let polled = match &mut self.content {
            Content::Read { body, whole } => match body.take() {
                Some(body) => Poll::Ready(Some(Ok(Frame::data(body)))),
                None if *whole => Poll::Ready(None),
                None => Poll::Ready(Some(Err("upstream's answer was cut short".into()))),
            },
            Content::Relayed(body) => loop {
                match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                    Some(Ok(frame)) if !frame.is_data() => {}
                    Some(Ok(frame)) => break Poll::Ready(Some(Ok(frame))),
                    Some(Err(error)) => break Poll::Ready(Some(Err(error.into()))),
                    None => break Poll::Ready(None),
                }
            },
        };
        match polled {
            // hyper drops what it has not sent yet at an error, the head included. It sends it while it has to wait.
            Poll::Ready(Some(Err(error))) => {
                self.cut = Some(error);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(exchange) = &mut self.exchange {
                    exchange.relayed(frame.data_ref().map_or(0, Bytes::len));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            polled => polled,
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            _ if self.cut.is_some() => false,
            Content::Relayed(body) => body.is_end_stream(),
            Content::Read { body, whole } => body.is_none() && *whole,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Relayed(body) => body.size_hint(),
            Content::Read { body, whole: true } => {
                SizeHint::with_exact(body.as_ref().map_or(0, Bytes::len) as u64)
            }
            Content::Read { whole: false, .. } => SizeHint::new(),
        }
    }
}
