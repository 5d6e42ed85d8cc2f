//! The other end of the control socket: what `palisade scopes` and its like ask a running proxy.

use super::CONTROL_SOCKET;
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Why a running proxy could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody listens there.
    #[error(
        "no proxy answers at {path}: {source}. Is `palisade run` running with this state folder, and may you read it?"
    )]
    Away {
        /// The control socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The conversation broke.
    #[error("the proxy's answer can't be read: {0}")]
    Broken(#[from] hyper::Error),
    /// It said no.
    #[error("{0}")]
    Refused(String),
}

/// Asks the proxy of a state folder; gives the body of its answer.
pub fn ask(state: &Path, method: Method, target: &str) -> Result<String, ControlError> {
    let path = state.join(CONTROL_SOCKET);
    let away = |source| ControlError::Away {
        path: path.clone(),
        source,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(away)?;
    runtime.block_on(async {
        let stream = tokio::net::UnixStream::connect(&path).await.map_err(away)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(connection);
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = method;
        *request.uri_mut() = target
            .parse()
            .map_err(|error| ControlError::Refused(format!("{target}: {error}")))?;
        request.headers_mut().insert(
            http::header::HOST,
            http::HeaderValue::from_static("palisade"),
        );
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        driver.abort();
        let body = String::from_utf8_lossy(&body).into_owned();
        if status == StatusCode::OK {
            Ok(body)
        } else {
            Err(ControlError::Refused(body.trim().to_owned()))
        }
    })
}
