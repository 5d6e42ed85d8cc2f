//! `cargo run -p palisade-examples --bin stops_on_loss -- LEASES NAME HOST:PORT PATH`
//!
//! A worker with the library and hyper: takes a lease, and PUTs a count once every 100 ms until the lease is lost. Each request
//! carries the token ([`Lease::stamp`]), and one that is under way when the lease is lost is not waited for.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use palisade_lease::{Lease, LeaseOptions, LeaseUrl};
use std::{error::Error, process::ExitCode, time::Duration};
use tokio::net::TcpStream;

async fn write(
    lease: &Lease,
    to: &str,
    path: &str,
    body: String,
) -> Result<StatusCode, Box<dyn Error>> {
    let mut request = Request::put(path)
        .header(header::HOST, to)
        .body(Full::new(Bytes::from(body)))?;
    // An error if the lease is not ours any more: then nothing is sent.
    lease.stamp(request.headers_mut())?;
    let stream = TcpStream::connect(to).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?.status())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [leases, name, to, path] = &arguments[..] else {
        println!("usage: stops_on_loss LEASES NAME HOST:PORT PATH");
        return Ok(ExitCode::from(64));
    };
    let store = palisade_lease::open(&leases.parse::<LeaseUrl>()?)?;
    let options = LeaseOptions::with_ttl(Duration::from_secs(5));
    let lease = store.acquire(name, options).await?;
    println!("token {}", lease.token());
    for count in 0_u64.. {
        let working = async {
            let status = write(&lease, to, path, count.to_string()).await?;
            println!("{count}: {status}");
            tokio::time::sleep(Duration::from_millis(100)).await;
            Ok::<_, Box<dyn Error>>(status)
        };
        tokio::select! {
            biased;
            loss = lease.lost() => {
                println!("lost: {loss}");
                return Ok(ExitCode::from(76));
            }
            status = working => {
                if status? == StatusCode::PRECONDITION_FAILED {
                    // Somebody else has it. The deadline would have told us, too, a little later.
                    return Ok(ExitCode::from(76));
                }
            }
        }
    }
    lease.release().await;
    Ok(ExitCode::SUCCESS)
}
