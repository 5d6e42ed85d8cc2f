//! `--metrics ADDR`: the library's metrics over HTTP while the program runs.

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use palisade_lease::{LeaseName, Standing, clock, metrics};
use std::{convert::Infallible, io, net::SocketAddr, sync::Arc};
use tokio::{net::TcpListener, sync::watch};

/// Prometheus' text format, as its exposition format page has it.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves metrics; told of the lease once there is one.
pub(crate) struct Metrics {
    standing: watch::Sender<Option<watch::Receiver<Standing>>>,
}

impl Metrics {
    /// Binds at once, so that a wrong address is told at once, and serves from then on.
    pub(crate) async fn serve(address: SocketAddr, name: LeaseName) -> io::Result<Self> {
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(
                Matcher::Full(metrics::ACQUIRE_DURATION.to_owned()),
                &metrics::ACQUIRE_BUCKETS,
            )
            .map_err(io::Error::other)?
            .install_recorder()
            .map_err(io::Error::other)?;
        metrics::describe(&name);
        let listener = TcpListener::bind(address).await?;
        let (standing, known) = watch::channel(None);
        tokio::spawn(accept(
            listener,
            Arc::new(Page {
                handle,
                name,
                known,
            }),
        ));
        Ok(Self { standing })
    }

    /// From now on the time left is shown.
    pub(crate) fn granted(&self, standing: watch::Receiver<Standing>) {
        self.standing.send_replace(Some(standing));
    }
}

struct Page {
    handle: PrometheusHandle,
    name: LeaseName,
    known: watch::Receiver<Option<watch::Receiver<Standing>>>,
}

impl Page {
    fn render(&self) -> String {
        if let Some(standing) = &*self.known.borrow() {
            let now = *standing.borrow();
            let left = if now.loss.is_some() {
                Default::default()
            } else {
                now.deadline.since(clock::boot())
            };
            metrics::remaining(&self.name, left);
        }
        self.handle.run_upkeep();
        self.handle.render()
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let found = request.method() == Method::GET && request.uri().path() == "/metrics";
        let mut response = Response::new(Full::from(if found {
            self.render()
        } else {
            String::new()
        }));
        if found {
            response
                .headers_mut()
                .insert(header::CONTENT_TYPE, header::HeaderValue::from_static(TEXT));
        } else {
            *response.status_mut() = StatusCode::NOT_FOUND;
        }
        response
    }
}

async fn accept(listener: TcpListener, page: Arc<Page>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors, for example; that may pass.
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        let page = page.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let response = page.answer(&request);
                async move { Ok::<_, Infallible>(response) }
            });
            // A scraper that goes away half-way is its own affair.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
