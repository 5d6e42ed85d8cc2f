//! One write on its way to upstream: sent once, cut when a newer token needs it, and its end reported to the gate.

use super::{
    Forwarder, Live, OutBody, UpBody, access::Exchange, no_answer, superseded, survive::Survive,
    unreachable,
};
use crate::{
    gate::{Pass, Ticket},
    refusal::{Problem, Refusal},
    route::Kind,
    upstream::{AnswerBody, AnswerError, Connect, Sending},
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::BodyExt;
use palisade_fence::{Sent, Superseded, Time, conclude};
use std::{pin::pin, time::Duration};

/// How much of an answer that came early is kept, and for how long it is read. Its connection is to be closed soon: the
/// settle time counts from there.
const EARLY_ANSWER: usize = 1 << 20;
const EARLY_ANSWER_TIME: Duration = Duration::from_secs(5);

/// How a write ended, for its client.
type Ended<C> = Result<Response<OutBody<C>>, Refusal>;

/// The same, and when that was.
type EndedAt<C> = Result<(Response<OutBody<C>>, Time), Refusal>;

impl<C: Connect> Forwarder<C> {
    pub(super) async fn write(
        &self,
        live: &Live,
        request: Request<UpBody>,
        pass: Pass,
        exchange: &mut Exchange,
    ) -> Ended<C> {
        // The connection first: what takes long here holds up no handover.
        let conn = match self.pool.take_idle() {
            Some(conn) => conn,
            None => tokio::select! {
                biased;
                conn = self.pool.fresh() => conn.map_err(|error| unreachable(&error))?,
                Superseded { highest } = pass.superseded() => return Err(superseded(highest)),
            },
        };
        let ticket = pass
            .start()
            .map_err(|Superseded { highest }| superseded(highest))?;
        exchange.started();
        let started = self.shared.gate.now();
        let ended = Survive::new(
            send(conn.send(request, ticket.deadline()), ticket, live.settle),
            &self.survivors,
        );
        let (response, at) = match live.request_timeout {
            None => ended.await?,
            // Nobody waits for it any more; it goes on, since its answer still settles it.
            Some(limit) => tokio::time::timeout(limit, ended)
                .await
                .unwrap_or_else(|_| Err(Refusal::timed_out()))?,
        };
        self.shared.metrics.upstream(Kind::Write, at.since(started));
        Ok(self.relay(live, response))
    }
}

/// Sends it and reports its end. Goes on when the client has gone.
async fn send<C: Connect>(
    sending: Sending<C, UpBody>,
    ticket: Ticket,
    settle: Option<Duration>,
) -> EndedAt<C> {
    let outcome = {
        let cutter = sending.cutter();
        let mut sending = pin!(sending);
        let mut due = pin!(async {
            let newer = async {
                let at = ticket.cut_at().await;
                // In a box: it is rare, and each write would carry the room for it.
                Box::pin(tokio::time::sleep(at.since(ticket.now()))).await;
            };
            tokio::select! {
                () = newer => {}
                () = ticket.session_over() => {}
            }
        });
        tokio::select! {
            biased;
            outcome = &mut sending => outcome,
            () = &mut due => {
                // Too late for what was sent completely: that is waited for.
                cutter.cut();
                sending.await
            }
        }
    };
    let sent = outcome.sent;
    match outcome.answer {
        Ok(response) if sent == Sent::Completely => {
            let now = ticket.now();
            warn_if_late(&ticket, now, outcome.last_write, settle);
            ticket.end(conclude(sent, Some(response.status().as_u16())));
            Ok((response.map(OutBody::relayed), now))
        }
        // Sending has been stopped. The connection is closed before the ticket goes: the settle time counts from there.
        Ok(response) => {
            let response = Box::pin(early(response)).await;
            let now = ticket.now();
            drop(ticket);
            Ok((response, now))
        }
        Err(error) => {
            let refusal = match (&error, sent) {
                (AnswerError::Cut, Sent::Nothing) if ticket.session_is_over() => {
                    Problem::SessionExpired.into()
                }
                (AnswerError::Cut, Sent::Nothing) => superseded(ticket.highest()),
                _ => no_answer(sent, &error),
            };
            ticket.end(conclude(sent, None));
            Err(refusal)
        }
    }
}

/// Reads an answer that came before its request was sent, within bounds, and closes the connection.
async fn early<C: Connect>(response: Response<AnswerBody<C, UpBody>>) -> Response<OutBody<C>> {
    let (parts, mut body) = response.into_parts();
    let (mut read, mut whole) = (Vec::new(), false);
    let reading = async {
        while read.len() < EARLY_ANSWER {
            match body.frame().await {
                Some(Ok(frame)) => frame
                    .data_ref()
                    .into_iter()
                    .for_each(|data| read.extend_from_slice(data)),
                Some(Err(_)) => return,
                None => {
                    whole = true;
                    return;
                }
            }
        }
    };
    // Cut short or not, what was read is relayed as what it is.
    let _ = tokio::time::timeout(EARLY_ANSWER_TIME, reading).await;
    drop(body);
    Response::from_parts(parts, OutBody::read(Bytes::from(read), whole))
}

/// A6 is the operator's word; an answer that comes later than that disproves it.
fn warn_if_late(ticket: &Ticket, now: Time, last_write: Option<Time>, settle: Option<Duration>) {
    let (Some(last_write), Some(settle)) = (last_write, settle) else {
        return;
    };
    let took = now.since(last_write);
    if took > settle {
        metrics::counter!("palisade_late_answers_total").increment(1);
        tracing::warn!(
            scope = ticket.scope(),
            took = took.as_secs_f64(),
            settle = settle.as_secs_f64(),
            "upstream answered a write later than `settle`: raise `settle` above the longest that upstream may take"
        );
    }
}
