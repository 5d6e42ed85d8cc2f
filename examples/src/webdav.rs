//! A datastore as people have one: a WebDAV server on a folder. It knows nothing of tokens, and the last write wins.

use dav_server::{DavHandler, fakels::FakeLs, localfs::LocalFs};
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    io,
    path::{Path, PathBuf},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
};

/// Where a server listens: `127.0.0.1:9000`, or `unix:/run/store.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP address.
    Tcp(String),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl From<&str> for Address {
    fn from(text: &str) -> Self {
        text.strip_prefix("unix:").map_or_else(
            || Self::Tcp(text.to_owned()),
            |path| Self::Unix(path.into()),
        )
    }
}

/// Serves `folder` until the process ends.
///
/// # Errors
/// If the address can't be bound, or no connection can be accepted any more.
pub async fn serve(address: &Address, folder: &Path) -> io::Result<()> {
    let store = DavHandler::builder()
        .filesystem(LocalFs::new(folder, false, false, false))
        .locksystem(FakeLs::new())
        .build_handler();
    match address {
        Address::Tcp(address) => {
            let listener = TcpListener::bind(address).await?;
            loop {
                tokio::spawn(converse(listener.accept().await?.0, store.clone()));
            }
        }
        Address::Unix(path) => {
            let listener = UnixListener::bind(path)?;
            loop {
                tokio::spawn(converse(listener.accept().await?.0, store.clone()));
            }
        }
    }
}

/// One connection, to its end. A client that breaks off is its own affair.
async fn converse(connection: impl AsyncRead + AsyncWrite + Unpin + 'static, store: DavHandler) {
    let answer = |request: Request<Incoming>| {
        let store = store.clone();
        async move { Ok::<_, Infallible>(store.handle(request).await) }
    };
    let _ = http1::Builder::new()
        .serve_connection(TokioIo::new(connection), service_fn(answer))
        .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        assert_eq!(
            Address::from("127.0.0.1:9000"),
            Address::Tcp("127.0.0.1:9000".to_owned())
        );
        assert_eq!(
            Address::from("unix:/run/store.sock"),
            Address::Unix("/run/store.sock".into())
        );
    }
}
