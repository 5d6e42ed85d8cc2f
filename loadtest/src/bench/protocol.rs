//! What clients speak: HTTP/1.1 from a fixed buffer, as cheap as can be, plain or over TLS; or HTTP/2 by hyper, over TLS.

use super::sink::Incoming;
use crate::certificate::Certificate;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::{fmt, io, net::SocketAddr, str::FromStr, sync::Arc};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// How many requests share a connection of HTTP/2.
const STREAMS: usize = 16;

/// What clients speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/1.1 over TLS.
    Tls,
    /// HTTP/2 over TLS, 16 requests at a time on each connection.
    Http2,
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "http1" => Ok(Self::Http1),
            "tls" => Ok(Self::Tls),
            "h2" => Ok(Self::Http2),
            _ => Err("there are: http1, tls (HTTP/1.1 over TLS), h2 (HTTP/2 over TLS)".to_owned()),
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http1 => "http1",
            Self::Tls => "tls",
            Self::Http2 => "h2",
        })
    }
}

/// Makes connections.
#[derive(Debug)]
pub struct Client {
    protocol: Protocol,
    tls: Option<(Certificate, Arc<ClientConfig>, TempDir)>,
}

impl Client {
    /// One that speaks this, with a certificate of its own for the server.
    ///
    /// # Errors
    /// If that can't be made.
    pub fn new(protocol: Protocol) -> io::Result<Self> {
        let alpn = match protocol {
            Protocol::Http1 => None,
            Protocol::Tls => Some("http/1.1"),
            Protocol::Http2 => Some("h2"),
        };
        let tls = alpn.map(|alpn| {
            let folder = TempDir::with_prefix("palisade-bench-tls-")?;
            let certificate = Certificate::make(folder.path())?;
            let config = certificate.client(alpn)?;
            io::Result::Ok((certificate, config, folder))
        });
        Ok(Self {
            protocol,
            tls: tls.transpose()?,
        })
    }

    /// What the server has to show.
    pub fn certificate(&self) -> Option<&Certificate> {
        self.tls.as_ref().map(|(certificate, ..)| certificate)
    }

    /// Makes so many lines; each carries one request at a time.
    pub(super) async fn lines(&self, to: SocketAddr, count: usize) -> io::Result<Vec<Line>> {
        let mut lines = Vec::new();
        while lines.len() < count {
            let stream = TcpStream::connect(to).await?;
            stream.set_nodelay(true)?;
            let Some((_, config, _)) = &self.tls else {
                lines.push(Line::Plain(Bare::new(stream)));
                continue;
            };
            let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
            let connector = TlsConnector::from(config.clone());
            let stream = connector.connect(name, stream).await?;
            if self.protocol == Protocol::Tls {
                lines.push(Line::Tls(Box::new(Bare::new(stream))));
                continue;
            }
            let (sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                    .await
                    .map_err(io::Error::other)?;
            // It ends with the last sender.
            tokio::task::spawn_local(connection);
            for _ in 0..STREAMS.min(count - lines.len()) {
                lines.push(Line::Http2(sender.clone()));
            }
        }
        Ok(lines)
    }
}

/// What carries one request at a time.
pub(super) enum Line {
    Plain(Bare<TcpStream>),
    Tls(Box<Bare<TlsStream<TcpStream>>>),
    Http2(SendRequest<Full<Bytes>>),
}

/// Sends a request and gives the answer's status once it has been read to its end.
pub(super) trait Exchange {
    /// A request as it is kept to be sent many times.
    type Prepared;

    fn prepare(request: &Request<Bytes>) -> Self::Prepared;

    async fn exchange(&mut self, request: &Self::Prepared) -> io::Result<u16>;
}

/// A connection of HTTP/1.1.
pub(super) struct Bare<S> {
    stream: S,
    incoming: Incoming,
}

impl<S> Bare<S> {
    fn new(stream: S) -> Self {
        let incoming = Incoming::default();
        Self { stream, incoming }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Exchange for Bare<S> {
    type Prepared = Vec<u8>;

    fn prepare(request: &Request<Bytes>) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\n", request.method(), request.uri().path());
        head.push_str("Host: store\r\n");
        for (name, value) in request.headers() {
            head.push_str(&format!("{name}: {}\r\n", value.to_str().unwrap_or("")));
        }
        if !request.body().is_empty() {
            head.push_str(&format!("Content-Length: {}\r\n", request.body().len()));
        }
        head.push_str("\r\n");
        [head.as_bytes(), request.body()].concat()
    }

    async fn exchange(&mut self, request: &Vec<u8>) -> io::Result<u16> {
        self.stream.write_all(request).await?;
        self.stream.flush().await?;
        let status = self.incoming.message(&mut self.stream).await?;
        status.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl Exchange for SendRequest<Full<Bytes>> {
    type Prepared = Request<Bytes>;

    fn prepare(request: &Request<Bytes>) -> Request<Bytes> {
        request.clone()
    }

    async fn exchange(&mut self, request: &Request<Bytes>) -> io::Result<u16> {
        self.ready().await.map_err(io::Error::other)?;
        let request = request.clone().map(Full::new);
        let answer = self.send_request(request).await.map_err(io::Error::other)?;
        let status = answer.status().as_u16();
        let mut body = answer.into_body();
        while let Some(frame) = body.frame().await {
            frame.map_err(io::Error::other)?;
        }
        Ok(status)
    }
}
