//! A proxy as one would write it in an afternoon: it refuses what is older than the newest token it has seen. It keeps that
//! over crashes, never sends anything twice and tells the truth; it only does not wait. The checker has to find it out.

use crate::{proxy::ToUpstreamPool, world::World};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use palisade::{
    forward::UpBody,
    server::{ClientBody, ClientInfo, Handler, Stream},
    upstream::{Connect, Sent},
};
use std::{
    rc::Rc,
    sync::{Arc, atomic::Ordering::SeqCst},
};

pub struct Naive<C: Connect> {
    world: Arc<World>,
    pool: ToUpstreamPool<C>,
}

impl<C: Connect> Naive<C> {
    pub fn new(world: Arc<World>, pool: ToUpstreamPool<C>) -> Self {
        Self { world, pool }
    }

    async fn answer(&self, request: Request<ClientBody>) -> Response<Full<Bytes>> {
        let (mut parts, body) = request.into_parts();
        let token = parts
            .headers
            .get("x-fence-token")
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .unwrap_or(u64::MAX);
        let Ok(body) = body.collect().await else {
            return told(StatusCode::BAD_REQUEST, "refused", Bytes::new());
        };
        if token != u64::MAX && self.world.seen.fetch_max(token, SeqCst) > token {
            return told(StatusCode::PRECONDITION_FAILED, "refused", Bytes::new());
        }
        parts.extensions.clear();
        let request = Request::from_parts(parts, UpBody::whole(body.to_bytes()));
        let Ok(conn) = self.pool.checkout().await else {
            return told(StatusCode::BAD_GATEWAY, "refused", Bytes::new());
        };
        let outcome = conn.send(request, None).await;
        match outcome.answer {
            Ok(answer) => {
                let (parts, body) = answer.into_parts();
                let body = body.collect().await.map(|body| body.to_bytes());
                told(parts.status, "answered", body.unwrap_or_default())
            }
            Err(_) if outcome.sent == Sent::Nothing => {
                told(StatusCode::BAD_GATEWAY, "refused", Bytes::new())
            }
            Err(_) => told(StatusCode::BAD_GATEWAY, "unknown", Bytes::new()),
        }
    }
}

fn told(status: StatusCode, outcome: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert("x-fence-outcome", http::HeaderValue::from_static(outcome));
    response
}

impl<C: Connect> Handler for Naive<C> {
    type Body = Full<Bytes>;
    type Tapped<S: Stream> = S;
    type Tap = ();

    fn tap<S: Stream>(&self, io: S) -> (S, ()) {
        (io, ())
    }

    async fn handle(
        self: Rc<Self>,
        request: Request<ClientBody>,
        _: Rc<ClientInfo>,
        _: Option<()>,
    ) -> Response<Full<Bytes>> {
        self.answer(request).await
    }
}
