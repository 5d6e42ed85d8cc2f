//! What operators and Prometheus ask: the admin address (read-only) and the control socket in the state folder (for
//! `palisade scopes`, `settle` and `new-epoch`).

mod client;
mod events;
mod facts;
mod holders;
mod page;
mod server;
mod view;

pub use client::{ControlError, ask, table};
pub use holders::{HoldersTask, Known};
pub use server::{AdminListener, serve};

use crate::{
    config::{MetricScopes, Upstream},
    gate::{Gate, ScopeView},
    refusal::Refusals,
    state::State,
};
use bytes::Bytes;
use holders::Held;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{Either, Full};
use metrics_exporter_prometheus::PrometheusHandle;
use palisade_fence::Time;
use serde::Serialize;
use std::{
    fmt::Write,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use view::View;

/// The name of the control socket in the state folder.
pub const CONTROL_SOCKET: &str = "control.sock";
/// How many scopes a search found on all its pages.
const FOUND: HeaderName = HeaderName::from_static("x-total-count");
/// How long readiness waits for a connection to upstream.
const PROBE: Duration = Duration::from_secs(1);

/// What the lease store says of itself, for readiness.
#[derive(Clone, Debug, Default)]
pub struct LeaseStoreHealth {
    /// Why it can't be asked, if so.
    pub away: Option<String>,
    /// Why it is not trusted any more, if so.
    pub changed: Option<String>,
    /// Why this replica has not joined its group, if so.
    pub not_joined: Option<String>,
}

/// Begins a new epoch, pushing the store's revision by at most so many; or says why not.
pub type NewEpochTask = Box<
    dyn Fn(
            u64,
        ) -> std::pin::Pin<
            Box<dyn Future<Output = Result<crate::authority::EpochBegun, String>> + Send>,
        > + Send
        + Sync,
>;

/// Asks the lease store how it is.
pub type LeaseStoreProbe = Box<dyn Fn() -> LeaseStoreHealth + Send + Sync>;

/// What the admin server shows.
pub struct Admin {
    /// The metrics.
    pub prometheus: PrometheusHandle,
    /// The scopes.
    pub gate: Arc<Gate>,
    /// What is durable.
    pub state: Arc<State>,
    /// Set when the end has begun.
    pub stopping: AtomicBool,
    /// The datastore.
    pub upstream: Upstream,
    /// Which scopes get series of their own.
    pub metric_scopes: MetricScopes,
    /// The lease store, if there is one.
    pub lease_store: Option<LeaseStoreProbe>,
    /// `palisade new-epoch`.
    pub new_epoch: NewEpochTask,
    /// Who holds what.
    pub holders: Known,
    /// Clients' connections.
    pub connections: Arc<crate::server::Counts>,
    /// When the certificate in front runs out.
    pub certificate: Option<Arc<crate::tls::ServerTls>>,
    /// The last refusals.
    pub refusals: Arc<Refusals>,
    /// When it started.
    pub started: Time,
    /// How many browsers show the status page now.
    pub watchers: Arc<AtomicUsize>,
}

/// Readiness, as JSON.
#[derive(Debug, Serialize)]
struct Ready {
    ready: bool,
    reasons: Vec<String>,
}

type Answer = Response<Either<Full<Bytes>, events::Events>>;

impl Admin {
    /// Answers one request. `control`: it came over the control socket, so it may change something.
    async fn answer(
        self: &Arc<Self>,
        method: &Method,
        path: &str,
        query: Option<&str>,
        control: bool,
    ) -> Answer {
        match (method, path) {
            (&Method::GET | &Method::HEAD, "/metrics") => self.metrics(),
            (&Method::GET | &Method::HEAD, "/livez" | "/healthz") => text(StatusCode::OK, "ok\n"),
            (&Method::GET | &Method::HEAD, "/readyz") => self.ready().await,
            (&Method::GET | &Method::HEAD, "/scopes") => self.found_scopes(query).await,
            (&Method::GET | &Method::HEAD, "/") => {
                let view = View::of(query);
                page::page(&view, &self.parts(&view).await)
            }
            (&Method::GET | &Method::HEAD, "/page.css") => page::style(),
            (&Method::GET | &Method::HEAD, "/page.js") => page::script(),
            (&Method::GET, "/events") => self.events(query),
            (&Method::POST, "/new-epoch") if control => {
                self.begin_epoch(query.unwrap_or_default()).await
            }
            (&Method::POST, "/settle") if control => self.settle(query.unwrap_or_default()).await,
            (
                _,
                "/metrics" | "/livez" | "/healthz" | "/readyz" | "/scopes" | "/" | "/page.css"
                | "/page.js" | "/events",
            ) => text(
                StatusCode::METHOD_NOT_ALLOWED,
                "this address is read-only: GET only\n",
            ),
            _ => text(
                StatusCode::NOT_FOUND,
                "not here; there are /metrics /livez /readyz /healthz /scopes and /\n",
            ),
        }
    }

    fn scopes(&self) -> Vec<ScopeView> {
        let mut scopes = self.gate.scopes();
        scopes.sort_by(|a, b| a.scope.cmp(&b.scope));
        scopes
    }

    /// The scopes, with who holds their leases.
    async fn held_scopes(&self) -> Vec<Held> {
        let holders = self.holders.get().await;
        let scopes = self.scopes().into_iter();
        scopes.map(|scope| Held::new(scope, &holders)).collect()
    }

    /// All scopes, or those that a query asks for.
    async fn found_scopes(&self, query: Option<&str>) -> Answer {
        let scopes = self.held_scopes().await;
        if query.is_none() {
            return json(StatusCode::OK, &scopes);
        }
        let found = View::of(query).of_all(&scopes);
        let mut answer = json(StatusCode::OK, &found.rows);
        let count = HeaderValue::from(found.found);
        answer.headers_mut().insert(FOUND, count);
        answer
    }

    /// The parts of the status page.
    async fn parts(&self, view: &View) -> Vec<(&'static str, String)> {
        let (scopes, facts) = tokio::join!(self.held_scopes(), self.facts());
        page::parts(
            view,
            &facts,
            &scopes,
            &self.refusals.last(),
            self.gate.now(),
        )
    }

    /// The same as they change.
    fn events(self: &Arc<Self>, query: Option<&str>) -> Answer {
        let Some(events) = events::watch(self, View::of(query)) else {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many watch this proxy already\n",
            );
        };
        let mut answer = Response::new(Either::Right(events));
        let fields = answer.headers_mut();
        let format = HeaderValue::from_static("text/event-stream");
        fields.insert(header::CONTENT_TYPE, format);
        fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }

    fn metrics(&self) -> Answer {
        let scopes = self.scopes();
        metrics::gauge!("palisade_waiting").set(self.gate.waiting() as f64);
        metrics::gauge!("palisade_scopes").set(self.gate.in_memory() as f64);
        metrics::gauge!("palisade_settling")
            .set(scopes.iter().map(|s| f64::from(s.settling)).sum::<f64>());
        metrics::gauge!("palisade_connections").set(self.connections.open.load(Relaxed) as f64);
        let expiry = self.certificate.as_ref().and_then(|tls| tls.expiry());
        metrics::gauge!("palisade_tls_certificate_expiry_seconds").set(expiry.unwrap_or(0) as f64);
        if let Some(place) = self.gate.place() {
            metrics::gauge!("palisade_replica_session_remaining_seconds")
                .set(place.remaining().as_secs_f64());
        }
        metrics_process::Collector::default().collect();
        let mut rendered = self.prometheus.render();
        self.scope_series(scopes, &mut rendered);
        bytes(
            StatusCode::OK,
            "text/plain; version=0.0.4; charset=utf-8",
            rendered,
        )
    }

    /// Series by scope, for a bounded number of scopes. Written here and not through the recorder, which would keep a
    /// series for ever once its scope had been busy.
    fn scope_series(&self, mut scopes: Vec<ScopeView>, to: &mut String) {
        match &self.metric_scopes {
            MetricScopes::Named(names) => {
                scopes.retain(|scope| names.iter().any(|name| **name == *scope.scope))
            }
            MetricScopes::Busiest(most) => {
                scopes.sort_by_key(|scope| std::cmp::Reverse(scope.requests));
                scopes.truncate(*most);
            }
        }
        let escaped = |name: &str| {
            name.replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n")
        };
        to.push_str("# HELP palisade_scope_floor The highest token accepted, of the scopes in `metrics.scopes`.\n");
        to.push_str("# TYPE palisade_scope_floor gauge\n");
        for scope in &scopes {
            let floor = scope.floor.unwrap_or(0);
            let _ = writeln!(
                to,
                "palisade_scope_floor{{scope=\"{}\"}} {floor}",
                escaped(&scope.scope)
            );
        }
        to.push_str("\n# HELP palisade_scope_refused_total Requests refused, of the scopes in `metrics.scopes`.\n");
        to.push_str("# TYPE palisade_scope_refused_total counter\n");
        for scope in &scopes {
            let _ = writeln!(
                to,
                "palisade_scope_refused_total{{scope=\"{}\"}} {}",
                escaped(&scope.scope),
                scope.refused
            );
        }
        to.push('\n');
    }

    async fn ready(&self) -> Answer {
        let reasons = self.reasons().await;
        let status = if reasons.is_empty() {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        json(
            status,
            &Ready {
                ready: reasons.is_empty(),
                reasons,
            },
        )
    }

    /// Why it is not ready.
    async fn reasons(&self) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.stopping.load(Relaxed) {
            reasons.push("stopping".to_owned());
        }
        let lease_store = self
            .lease_store
            .as_ref()
            .map(|probe| probe())
            .unwrap_or_default();
        match (lease_store.changed, self.gate.frozen()) {
            (Some(why), _) => reasons.push(format!("the lease store is not trusted: {why}")),
            (None, true) => reasons.push("the lease store is not trusted".to_owned()),
            (None, false) => {}
        }
        if let Some(why) = lease_store.away {
            reasons.push(format!("the lease store can't be asked: {why}"));
        }
        if let Some(why) = lease_store.not_joined {
            reasons.push(format!("this replica is not joined to its group: {why}"));
        }
        if let Err(why) = self.reach_upstream().await {
            reasons.push(format!(
                "upstream {} can't be reached: {why}",
                self.upstream
            ));
        }
        reasons
    }

    async fn reach_upstream(&self) -> std::io::Result<()> {
        let reach = async {
            match &self.upstream {
                Upstream::Unix(path) => tokio::net::UnixStream::connect(path).await.map(drop),
                Upstream::Tcp { host, port, .. } => {
                    tokio::net::TcpStream::connect((host.as_str(), *port))
                        .await
                        .map(drop)
                }
            }
        };
        tokio::time::timeout(PROBE, reach)
            .await
            .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
    }

    async fn begin_epoch(&self, query: &str) -> Answer {
        let advance = query.strip_prefix("advance=").map_or(Ok(0), str::parse);
        let Ok(advance) = advance else {
            return text(StatusCode::BAD_REQUEST, "advance must be a number\n");
        };
        match (self.new_epoch)(advance).await {
            Ok(begun) => {
                tracing::warn!(floor = %begun.floor, revision = begun.revision, pushed = begun.pushed, "an operator began a new epoch");
                let said = serde_json::json!({
                    "floor": begun.floor.get(), "revision": begun.revision, "pushed": begun.pushed
                });
                json(StatusCode::OK, &said)
            }
            Err(why) => text(StatusCode::CONFLICT, &format!("{why}\n")),
        }
    }

    /// `palisade settle`: makes it durable first, so that a crash right after does not ask again.
    async fn settle(&self, query: &str) -> Answer {
        let named = query
            .strip_prefix("scope=")
            .map(|name| percent_encoding::percent_decode_str(name).decode_utf8());
        let Some(Ok(name)) = named else {
            return text(
                StatusCode::BAD_REQUEST,
                "name a scope: POST /settle?scope=NAME\n",
            );
        };
        let name: Arc<str> = name.into();
        let (done, settled) = tokio::sync::oneshot::channel();
        match self.gate.settle(&name) {
            Ok(None) => text(
                StatusCode::NOT_FOUND,
                &format!("there is no scope {name}\n"),
            ),
            Err(_) => text(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("scope {name} can't be read\n"),
            ),
            Ok(Some(writes)) => {
                self.state
                    .settled(&name, Box::new(move |result| drop(done.send(result))));
                match settled.await {
                    Ok(Ok(())) => {
                        tracing::warn!(scope = %name, writes, "an operator settled the ambiguous writes");
                        json(
                            StatusCode::OK,
                            &serde_json::json!({ "scope": name, "settled": writes }),
                        )
                    }
                    Ok(Err(error)) => text(
                        StatusCode::SERVICE_UNAVAILABLE,
                        &format!("settled, but not recorded: {error}\n"),
                    ),
                    Err(_) => text(StatusCode::SERVICE_UNAVAILABLE, "the proxy is stopping\n"),
                }
            }
        }
    }
}

fn text(status: StatusCode, body: &str) -> Answer {
    bytes(status, "text/plain; charset=utf-8", body.to_owned())
}

fn json(status: StatusCode, body: &impl Serialize) -> Answer {
    // Strings, numbers and lists of them: serializing them can't fail.
    let mut rendered = serde_json::to_vec(body).unwrap_or_default();
    rendered.push(b'\n');
    bytes(status, "application/json", rendered)
}

fn bytes(status: StatusCode, format: &'static str, content: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Either::Left(Full::new(content.into())));
    *response.status_mut() = status;
    let format = HeaderValue::from_static(format);
    response.headers_mut().insert(header::CONTENT_TYPE, format);
    response
}
