//! The datastore of a measurement: reads a request to its end and answers 100 bytes. As cheap as it can be made.

use std::{io, net::Ipv4Addr, net::SocketAddr, path::PathBuf};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UnixListener},
    task::JoinHandle,
};

const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n";

/// Where it can be reached. It serves until this is dropped.
#[derive(Debug)]
pub struct Sink {
    /// By TCP.
    pub tcp: SocketAddr,
    /// By a unix socket.
    pub unix: PathBuf,
    serving: [JoinHandle<()>; 2],
    _folder: TempDir,
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.serving.iter().for_each(JoinHandle::abort);
    }
}

/// Serves on the current runtime.
///
/// # Errors
/// If there is no port or no folder for it.
pub async fn start() -> io::Result<Sink> {
    let folder = TempDir::with_prefix("palisade-sink-")?;
    let unix = folder.path().join("sink.sock");
    let by_unix = UnixListener::bind(&unix)?;
    let by_tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let tcp = by_tcp.local_addr()?;
    // A connection that ends is a client that has gone.
    let serving_tcp = tokio::spawn(async move {
        while let Ok((stream, _)) = by_tcp.accept().await {
            tokio::spawn(async move {
                stream.set_nodelay(true)?;
                serve(stream).await
            });
        }
    });
    let serving_unix = tokio::spawn(async move {
        while let Ok((stream, _)) = by_unix.accept().await {
            tokio::spawn(serve(stream));
        }
    });
    Ok(Sink {
        tcp,
        unix,
        serving: [serving_tcp, serving_unix],
        _folder: folder,
    })
}

async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let mut answer = HEAD.as_bytes().to_vec();
    answer.resize(answer.len() + 100, b'x');
    let mut incoming = Incoming::default();
    while incoming.message(&mut stream).await?.is_some() {
        stream.write_all(&answer).await?;
    }
    Ok(())
}

/// Reads messages that have a `Content-Length` or no body.
#[derive(Debug)]
pub(super) struct Incoming {
    buffer: Vec<u8>,
    filled: usize,
}

impl Default for Incoming {
    fn default() -> Self {
        Self {
            buffer: vec![0; 256 * 1024],
            filled: 0,
        }
    }
}

impl Incoming {
    /// Reads one message; gives the number in its first line. `None` at the end of the connection.
    pub(super) async fn message(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<Option<u16>> {
        let head = loop {
            if let Some(end) = find(&self.buffer[..self.filled], b"\r\n\r\n") {
                break end + 4;
            }
            let count = stream.read(&mut self.buffer[self.filled..]).await?;
            if count == 0 {
                return Ok(None);
            }
            self.filled += count;
        };
        let (status, length) = parse(&self.buffer[..head]);
        let whole = head + length;
        let mut read = self.filled.min(whole);
        self.buffer.copy_within(read..self.filled, 0);
        self.filled -= read;
        while read < whole {
            let room = self.buffer.len().min(whole - read);
            let count = stream.read(&mut self.buffer[..room]).await?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            read += count;
        }
        Ok(Some(status))
    }
}

fn find(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

/// The second word as a number, if it is one, and the length of the body.
fn parse(head: &[u8]) -> (u16, usize) {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first.split(' ').nth(1).and_then(|word| word.parse().ok());
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse().ok())?
    });
    (status.unwrap_or(0), length.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_status_and_length() {
        assert_eq!(parse(b"HTTP/1.1 204 No\r\nX: y\r\n\r\n"), (204, 0));
        assert_eq!(
            parse(b"PUT /v HTTP/1.1\r\ncontent-length:  12\r\n\r\n"),
            (0, 12)
        );
    }
}
