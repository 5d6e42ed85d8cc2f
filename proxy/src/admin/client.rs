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

/// What `/scopes` says, as a table for a person.
pub fn table(scopes: &str) -> String {
    let scopes: Vec<serde_json::Value> = serde_json::from_str(scopes).unwrap_or_default();
    let mut rows = vec![
        [
            "SCOPE",
            "FLOOR",
            "STATE",
            "SINCE",
            "IN FLIGHT",
            "SETTLING",
            "WAITING",
            "HOLDER",
            "HOST",
        ]
        .map(str::to_owned),
    ];
    rows.extend(scopes.iter().map(|scope| {
        let number = |key: &str| {
            scope[key]
                .as_u64()
                .map_or_else(|| "-".to_owned(), |n| n.to_string())
        };
        // What a holder calls itself may be anything: no line break, no escape sequence gets to the terminal.
        let text = |key: &str| {
            let text: String = scope[key].as_str().unwrap_or("-").to_owned();
            text.replace(char::is_control, "?")
        };
        let since = scope["since"]
            .as_f64()
            .map_or_else(|| "-".to_owned(), |s| format!("{s:.0}s"));
        let state = if scope["open"].as_bool() == Some(true) {
            "open"
        } else {
            "closed"
        };
        let name = scope["scope"].as_str().unwrap_or_default().to_owned();
        [
            name,
            number("floor"),
            state.to_owned(),
            since,
            number("in_flight"),
            number("settling"),
            number("waiting"),
            text("holder"),
            text("host"),
        ]
    }));
    let mut widths = [0; 9];
    for row in &rows {
        widths
            .iter_mut()
            .zip(row)
            .for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
    }
    let line = |row: &[String; 9]| {
        let cells: Vec<String> = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
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
