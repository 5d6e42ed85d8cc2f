//! `--announce URL`: a read with the token, sent to the proxy right after the grant. When it is answered, the proxy has
//! closed every older token of the scope, and every older write that will ever be applied has been applied (design.md, G3).

use http::{Request, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use palisade_fence::Token;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use std::{io, sync::Arc, time::Duration};
use tokio::net::TcpStream;

/// How long to pause before the proxy is asked again.
const AGAIN: Duration = Duration::from_millis(200);
/// The system's trusted certificates, Debian's and Red Hat's places.
const ROOTS: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

/// What the proxy said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    /// Older tokens are closed.
    Closed,
    /// The proxy knows a newer grant.
    Outdated(String),
    /// It will not say yes: the URL is wrong, or what answers is no fencing proxy.
    Refused(String),
}

/// Asks until there is an answer that settles it. Never resolves while the proxy is away or a handover is pending: the
/// caller sets the limit.
pub(crate) async fn announce(url: &Uri, token: Token, last: &mut String) -> Announced {
    loop {
        match ask(url, token).await {
            Ok(Answer::Later(why)) => *last = why,
            Ok(Answer::Final(announced)) => return announced,
            Err(error) => *last = error.to_string(),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

enum Answer {
    Final(Announced),
    Later(String),
}

async fn ask(url: &Uri, token: Token) -> io::Result<Answer> {
    let (Some(authority), Some(scheme)) = (url.authority(), url.scheme_str()) else {
        return Ok(refused(format!("{url} is no http:// or https:// URL")));
    };
    let tls = match scheme {
        "http" => false,
        "https" => true,
        _ => return Ok(refused(format!("{url} is no http:// or https:// URL"))),
    };
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let stream = TcpStream::connect((authority.host().trim_matches(['[', ']']), port)).await?;
    let request = Request::get(url.path_and_query().map_or("/", |target| target.as_str()))
        .header(header::HOST, authority.as_str())
        .header(header::CONNECTION, "close")
        .header(palisade_lease::TOKEN_HEADER, token.get())
        .body(Empty::new())
        .map_err(io::Error::other)?;
    if tls {
        let name = ServerName::try_from(authority.host().to_owned()).map_err(io::Error::other)?;
        let stream = tokio_rustls::TlsConnector::from(Arc::new(tls_config()?))
            .connect(name, stream)
            .await?;
        exchange(stream, request, url).await
    } else {
        exchange(stream, request, url).await
    }
}

async fn exchange(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    request: Request<Empty<Bytes>>,
    url: &Uri,
) -> io::Result<Answer> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let driving = tokio::spawn(connection);
    let response = sender
        .send_request(request)
        .await
        .map_err(io::Error::other)?;
    let status = response.status();
    let outcome = response
        .headers()
        .get("x-fence-outcome")
        .map(|value| value.as_bytes().to_owned());
    let detail = match outcome.as_deref() {
        // Upstream's own answer may be of any length, and means nothing here.
        Some(b"answered") => String::new(),
        _ => response
            .into_body()
            .collect()
            .await
            .map_err(io::Error::other)
            .map(|body| detail(&body.to_bytes()))?,
    };
    driving.abort();
    Ok(match (outcome.as_deref(), status.as_u16()) {
        (Some(b"answered"), _) => Answer::Final(Announced::Closed),
        (Some(b"refused"), 412) => Answer::Final(Announced::Outdated(detail)),
        (Some(b"refused"), 502 | 503) | (Some(b"unknown"), _) => {
            Answer::Later(format!("{url}: {status} {detail}"))
        }
        (Some(_), _) => refused(format!("{url}: {status} {detail}")),
        (None, _) => refused(format!(
            "{url}: {status}, and not from a fencing proxy: no X-Fence-Outcome"
        )),
    })
}

fn refused(why: String) -> Answer {
    Answer::Final(Announced::Refused(why))
}

/// The `detail` of a problem document.
fn detail(body: &[u8]) -> String {
    let document: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    document
        .and_then(|d| d["detail"].as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn tls_config() -> io::Result<ClientConfig> {
    let place = std::env::var_os("SSL_CERT_FILE").map(std::path::PathBuf::from);
    let places = place.into_iter().chain(ROOTS.map(std::path::PathBuf::from));
    let file = places.into_iter().find(|place| place.is_file());
    let file = file.ok_or_else(|| io::Error::other("no trusted certificates on this system"))?;
    let mut roots = RootCertStore::empty();
    let found = CertificateDer::pem_file_iter(file).map_err(io::Error::other)?;
    roots.add_parsable_certificates(found.flatten());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth())
}
