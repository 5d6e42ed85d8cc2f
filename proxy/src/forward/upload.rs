//! A request's body on this side: small ones are read whole before anything is sent, so that a client that stalls in
//! mid-body never reaches upstream at all.

use super::body::UpBody;
use crate::{
    refusal::{Problem, Refusal},
    server::{BodyError, ClientBody},
};
use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use std::mem;

pub(super) struct Upload {
    body: Option<ClientBody>,
    /// The first piece; most small bodies have no other.
    one: Bytes,
    more: Vec<Bytes>,
    read: usize,
    limit: usize,
}

impl Upload {
    pub(super) fn new(body: ClientBody, limit: usize) -> Self {
        Self {
            body: Some(body),
            one: Bytes::new(),
            more: Vec::new(),
            read: 0,
            limit,
        }
    }

    /// Whether there is nothing to read before it may be sent: it is empty, or known to be larger than what is read whole.
    pub(super) fn is_ready(&self) -> bool {
        self.body.as_ref().is_none_or(|body| {
            body.is_end_stream()
                || body
                    .size_hint()
                    .exact()
                    .is_some_and(|length| length > self.limit as u64)
        })
    }

    /// Reads it to its end, or until it is larger than what is read whole. May be dropped and called again.
    pub(super) async fn fill(&mut self) -> Result<(), Refusal> {
        let Some(body) = &mut self.body else {
            return Ok(());
        };
        while self.read <= self.limit {
            match body.frame().await {
                None => {
                    // From here on its length is known, so upstream is told that in place of chunks.
                    self.body = None;
                    return Ok(());
                }
                Some(Err(error)) => return Err(broken(&error)),
                Some(Ok(frame)) => {
                    // Trailers can carry anything, and nobody has judged them.
                    if let Ok(data) = frame.into_data() {
                        self.read += data.len();
                        if self.one.is_empty() {
                            self.one = data;
                        } else {
                            self.more.push(data);
                        }
                    }
                    if body.is_end_stream() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// The body as upstream gets it.
    pub(super) fn take(&mut self) -> UpBody {
        let (one, more) = (mem::take(&mut self.one), mem::take(&mut self.more));
        match self.body.take() {
            Some(body) if !body.is_end_stream() => UpBody::streamed(one, more, body),
            _ => UpBody::whole(joined(one, &more)),
        }
    }

    /// What was not read, if it was not taken.
    pub(super) fn into_unread(self) -> Option<ClientBody> {
        self.body.filter(|body| !body.is_end_stream())
    }
}

fn joined(one: Bytes, more: &[Bytes]) -> Bytes {
    if more.is_empty() {
        return one;
    }
    let length = one.len() + more.iter().map(Bytes::len).sum::<usize>();
    let mut whole = BytesMut::with_capacity(length);
    whole.extend_from_slice(&one);
    more.iter().for_each(|part| whole.extend_from_slice(part));
    whole.freeze()
}

/// Nothing was sent: the request is refused.
fn broken(error: &BodyError) -> Refusal {
    match error {
        BodyError::TooSlow => Problem::RequestTimeout.into(),
        BodyError::Cut | BodyError::Broken(_) => Refusal::with_detail(
            Problem::BadRequest,
            "The request's body ended before its end, or its framing is broken.",
        ),
    }
}
