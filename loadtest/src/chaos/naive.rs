//! What people write first: a proxy that compares the token with the highest it has seen, and forwards at once. It fences
//! every write that comes late to it, and none that is late behind it. The checker must catch it.

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::{body::Incoming, client, server, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::net::{TcpListener, TcpStream};

/// The marks that it keeps.
#[derive(Debug)]
struct Marks {
    highest: Mutex<HashMap<String, u64>>,
    /// Where they are written to before anything is forwarded; only in memory without.
    file: Option<PathBuf>,
    upstream: SocketAddr,
}

/// Serves until the process ends.
///
/// # Errors
/// If it can't listen there or can't read its file.
pub async fn serve(
    listen: SocketAddr,
    upstream: SocketAddr,
    file: Option<PathBuf>,
) -> io::Result<()> {
    let known = match &file {
        Some(file) if file.exists() => serde_json::from_slice(&fs::read(file)?)?,
        _ => HashMap::new(),
    };
    let marks = Arc::new(Marks {
        highest: Mutex::new(known),
        file,
        upstream,
    });
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let marks = marks.clone();
        let service = service_fn(move |request| handle(marks.clone(), request));
        let connection =
            server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move { connection.await.ok() });
    }
}

async fn handle(
    marks: Arc<Marks>,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    let scope = parts.uri.path().split('/').nth(1).unwrap_or_default();
    let fenced = parts.method != Method::GET || parts.headers.contains_key("x-fence-token");
    if fenced && !marks.admit(scope, &parts.headers)? {
        return Ok(told(StatusCode::PRECONDITION_FAILED, "refused"));
    }
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let request = Request::from_parts(parts, Full::new(body));
    Ok(match forward(marks.upstream, request).await {
        Ok(mut response) => {
            let answered = http::HeaderValue::from_static("answered");
            response.headers_mut().insert("x-fence-outcome", answered);
            response
        }
        Err(_) => told(StatusCode::BAD_GATEWAY, "unknown"),
    })
}

async fn forward(
    upstream: SocketAddr,
    request: Request<Full<Bytes>>,
) -> Result<Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(upstream).await?;
    let (mut sender, connection) = client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let (parts, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    connection.abort();
    Ok(Response::from_parts(parts, Full::new(body)))
}

fn told(status: StatusCode, outcome: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    let outcome = http::HeaderValue::from_static(outcome);
    response.headers_mut().insert("x-fence-outcome", outcome);
    response
}

impl Marks {
    fn admit(&self, scope: &str, headers: &HeaderMap) -> io::Result<bool> {
        let token = headers
            .get("x-fence-token")
            .and_then(|token| token.to_str().ok()?.parse().ok());
        let Some(token) = token else { return Ok(false) };
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let mark = highest.entry(scope.to_owned()).or_default();
        if token < *mark {
            return Ok(false);
        }
        if token > *mark {
            *mark = token;
            if let Some(file) = &self.file {
                let new = file.with_extension("new");
                let mut out = File::create(&new)?;
                out.write_all(&serde_json::to_vec(&*highest)?)?;
                out.sync_all()?;
                fs::rename(new, file)?;
            }
        }
        Ok(true)
    }
}
