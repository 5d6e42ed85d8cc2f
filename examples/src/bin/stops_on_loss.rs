//! `cargo run -p palisade-examples --bin stops_on_loss -- LEASES NAME HOST:PORT PATH`
//!
//! A worker with the library and hyper: takes a lease, and PUTs a count once every 100 ms until the lease is lost. Each request
//! carries the token ([`Lease::stamp`]), and one that is under way when the lease is lost is not waited for.
//!
//! Exit codes: 76 the lease is lost or another's, 69 still refused for now when patience ran out, 1 somebody must look.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use palisade_lease::{Lease, LeaseOptions, LeaseUrl};
use std::{error::Error, process::ExitCode, time::Duration};
use tokio::net::TcpStream;

/// How many seconds a write may wait in all, while it is refused for now.
const PATIENCE: u64 = 60;

/// What one try came to.
enum Outcome {
    Written(StatusCode),
    /// Nothing was sent, and after this many seconds it may go through.
    Later(u64),
    /// With the exit code for it.
    Ended(StatusCode, u8),
}

async fn write(
    lease: &Lease,
    to: &str,
    path: &str,
    body: String,
) -> Result<Outcome, Box<dyn Error>> {
    let mut request = Request::put(path)
        .header(header::HOST, to)
        .body(Full::new(Bytes::from(body)))?;
    // An error if the lease is not ours any more: then nothing is sent.
    lease.stamp(request.headers_mut())?;
    let stream = TcpStream::connect(to).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let answer = sender.send_request(request).await?;
    let field = |name: &str| answer.headers().get(name)?.to_str().ok();
    let refused = field("x-fence-outcome") == Some("refused");
    let later = field("retry-after").and_then(|text| text.parse().ok());
    Ok(match (answer.status(), later) {
        (status, _) if status.is_success() => Outcome::Written(status),
        (StatusCode::SERVICE_UNAVAILABLE, Some(later)) if refused => Outcome::Later(later),
        // Somebody else has it. The deadline would have told us, too, a little later.
        (status @ StatusCode::PRECONDITION_FAILED, _) if refused => Outcome::Ended(status, 76),
        (status, _) => Outcome::Ended(status, 1),
    })
}

/// Writes `count`, again and again while it is refused for now; an exit code if that ends the work.
async fn one(
    lease: &Lease,
    to: &str,
    path: &str,
    count: u64,
    patience: u64,
) -> Result<Option<u8>, Box<dyn Error>> {
    let mut waited = 0;
    loop {
        match write(lease, to, path, count.to_string()).await? {
            Outcome::Written(status) => {
                println!("{count}: {status}");
                return Ok(None);
            }
            Outcome::Later(later) if waited + later <= patience => {
                waited += later;
                tokio::time::sleep(Duration::from_secs(later)).await;
            }
            Outcome::Later(_) => return Ok(Some(69)),
            Outcome::Ended(status, code) => {
                println!("{count}: {status}");
                return Ok(Some(code));
            }
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [leases, name, to, path] = &arguments[..] else {
        println!("usage: stops_on_loss LEASES NAME HOST:PORT PATH");
        return Ok(ExitCode::from(64));
    };
    let store = palisade_lease::open(&leases.parse::<LeaseUrl>()?)?;
    let lease = store.acquire(name, LeaseOptions::default()).await?;
    println!("token {}", lease.token());
    let patience = std::env::var("FENCE_PATIENCE").ok();
    let patience = patience.map_or(Ok(PATIENCE), |text| text.parse())?;
    let mut end = None;
    for count in 0_u64.. {
        let working = async {
            let code = one(&lease, to, path, count, patience).await?;
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, Box<dyn Error>>(code)
        };
        tokio::select! {
            biased;
            loss = lease.lost() => {
                println!("lost: {loss}");
                return Ok(ExitCode::from(76));
            }
            code = working => end = code?,
        }
        if end.is_some() {
            break;
        }
    }
    lease.release().await;
    Ok(end.map_or(ExitCode::SUCCESS, ExitCode::from))
}
