//! A small HTTP server for few clients, on the control thread.

use super::Admin;
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
};

/// For a request's head: nobody may hold a connection for ever.
const HEAD: Duration = Duration::from_secs(10);
/// After a failed accept (too many open files): the next one would fail at once.
const PAUSE: Duration = Duration::from_millis(100);

/// What the server listens on.
pub enum AdminListener {
    /// The admin address.
    Tcp(TcpListener),
    /// The admin address, as a unix socket.
    Unix(UnixListener),
    /// The control socket in the state folder.
    Control(UnixListener),
}

/// Serves until it is dropped.
pub async fn serve(listener: AdminListener, admin: Arc<Admin>) {
    loop {
        let accepted = match &listener {
            AdminListener::Tcp(tcp) => tcp
                .accept()
                .await
                .map(|(stream, _)| spawn(stream, &admin, false)),
            AdminListener::Unix(unix) => unix
                .accept()
                .await
                .map(|(stream, _)| spawn(stream, &admin, false)),
            AdminListener::Control(unix) => unix
                .accept()
                .await
                .map(|(stream, _)| spawn(stream, &admin, true)),
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "admin: no connection accepted");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn spawn<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    admin: &Arc<Admin>,
    control: bool,
) {
    let admin = Arc::clone(admin);
    let service = service_fn(move |request: Request<Incoming>| {
        let admin = Arc::clone(&admin);
        async move {
            let uri = request.uri();
            Ok::<_, Infallible>(
                admin
                    .answer(request.method(), uri.path(), uri.query(), control)
                    .await,
            )
        }
    });
    tokio::spawn(async move {
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .serve_connection(TokioIo::new(stream), service)
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "admin: a connection ended early");
        }
    });
}
