//! How much the server reads at once, and what a head may have of that: over a stream that gives all that it has.
#![allow(clippy::unwrap_used, reason = "test code")]

mod server_support;

use palisade::server::{Accept, Counts, Listener, Peer, ServerConfig, Shutdown, serve};
use palisade_loadtest::{origin::Sign, servers::GIVE_UP};
use server_support::{LARGE, Seen, Test, patient};
use std::{
    cell::Cell,
    future::pending,
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};

/// Reads that gave something are counted.
struct Counted {
    io: DuplexStream,
    reads: Rc<Cell<usize>>,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        self.reads.set(self.reads.get() + 1);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// One client.
struct Only(Option<Counted>);

impl Listener for Only {
    type Stream = Counted;

    async fn accept(&mut self) -> io::Result<Accept<Counted>> {
        let Some(stream) = self.0.take() else {
            return pending().await;
        };
        Ok(Accept {
            stream,
            peer: Peer::Unix(None),
        })
    }
}

/// A client of a server in the same thread: what it sends is there as a whole before the server looks.
struct Client {
    io: DuplexStream,
    reads: Rc<Cell<usize>>,
}

impl Client {
    fn of(config: ServerConfig) -> Self {
        Self::with_room(config, 1 << 20)
    }

    /// One to whom so many bytes are on their way at most, and from whom.
    fn with_room(config: ServerConfig, room: usize) -> Self {
        let (io, server) = tokio::io::duplex(room);
        let reads = Rc::new(Cell::new(0));
        let counted = Counted {
            io: server,
            reads: reads.clone(),
        };
        tokio::task::spawn_local(async move {
            let shutdown = Shutdown::new(&config);
            let handler = Rc::new(Test {
                thread: 0,
                seen: Seen::default(),
                sign: Sign::new(),
                gate: Arc::new(tokio::sync::Semaphore::new(0)),
            });
            let counts = Arc::new(Counts::default());
            let listener = Only(Some(counted));
            serve(listener, handler, Rc::new(config), counts, shutdown.stage()).await;
        });
        Self { io, reads }
    }

    /// The answer's first line, and how many reads its request took.
    async fn ask(&mut self, request: &[u8]) -> (String, usize) {
        let before = self.reads.get();
        self.io.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
            assert_ne!(self.io.read_buf(&mut answer).await.unwrap(), 0);
        }
        let answer = String::from_utf8(answer).unwrap();
        let line = answer.lines().next().unwrap().to_owned();
        (line, self.reads.get() - before)
    }
}

/// Runs it in a thread with a server.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let local = tokio::task::LocalSet::new();
    let test = local.run_until(async { tokio::time::timeout(GIVE_UP, test).await.unwrap() });
    runtime.block_on(test);
}

/// Lets the server, in the same thread, come to where it waits for the client.
async fn as_far_as_it_can() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

/// hyper's buffer was as large as a head may be, 64 KiB: a body of 64 KiB and its head took two reads, and the two parts were put together
/// by a copy.
#[test]
fn a_body_of_64_kib_comes_with_its_head_in_one_read() {
    run(async {
        let mut client = Client::of(patient());
        let mut put = b"PUT /x HTTP/1.1\r\nHost: db\r\nContent-Length: 65536\r\n\r\n".to_vec();
        put.resize(put.len() + 65_536, b'x');
        // The reads of a connection grow to what its requests take.
        let mut last = 0;
        for _ in 0..8 {
            let (line, reads) = client.ask(&put).await;
            assert_eq!(line, "HTTP/1.1 200 OK");
            last = reads;
        }
        assert_eq!(last, 1);
    });
}

/// More than a head may have is read at once, and it may have no more for that: to the byte, in one piece or in many.
#[test]
fn a_head_has_its_limit_to_the_byte() {
    const LIMIT: usize = 64 * 1024;
    const OK: &str = "HTTP/1.1 200 OK";
    const FIELDS: &str = "HTTP/1.1 431 Request Header Fields Too Large";
    const LINE: &str = "HTTP/1.1 414 URI Too Long";
    let head = |length: usize| {
        let start = "GET /x HTTP/1.1\r\nHost: db\r\nX-Y: ";
        let value = "y".repeat(length - start.len() - 4);
        format!("{start}{value}\r\n\r\n")
    };
    let line = |length: usize| {
        let target = "y".repeat(length - "GET / HTTP/1.1\r\n".len());
        format!("GET /{target} HTTP/1.1\r\nHost: db\r\n\r\n")
    };
    let cases = [
        (head(LIMIT), OK),
        (head(LIMIT + 1), FIELDS),
        (head(LIMIT + 10_000), FIELDS),
        (line(LIMIT), FIELDS),
        (line(LIMIT + 1), LINE),
        (line(LIMIT + 10_000), LINE),
    ];
    run(async {
        for (request, expected) in cases {
            for grown in [false, true] {
                let mut client = Client::of(patient());
                let mut put =
                    b"PUT /x HTTP/1.1\r\nHost: db\r\nContent-Length: 400000\r\n\r\n".to_vec();
                put.resize(put.len() + 400_000, b'x');
                if grown {
                    assert_eq!(client.ask(&put).await.0, OK);
                }
                let (line, reads) = client.ask(request.as_bytes()).await;
                assert_eq!(line, expected, "{} bytes", request.len());
                assert_eq!(reads == 1, grown);
            }
        }
    });
}

/// What the server says by itself comes after the answers before it. Else it would be taken for a part of the one that is still on its way to a
/// client that is slow to read. hyper reads no further request before it has got rid of an answer, and so does not come to know of a fault in one.
#[test]
fn last_words_are_no_part_of_an_answer() {
    run(async {
        let config = patient();
        let limit = config.header_bytes;
        let client = Client::with_room(config, 4096);
        let (mut read, mut write) = tokio::io::split(client.io);
        let get = b"GET /large HTTP/1.1\r\nHost: db\r\n\r\n";
        write.write_all(get).await.unwrap();
        as_far_as_it_can().await;
        let line = vec![b'y'; limit];
        tokio::task::spawn_local(async move { write.write_all(&line).await.unwrap() });
        as_far_as_it_can().await;
        let mut answers = Vec::new();
        read.read_to_end(&mut answers).await.unwrap();
        let head = answers.windows(4).position(|end| end == b"\r\n\r\n");
        let (answer, words) = answers[head.unwrap() + 4..].split_at(LARGE);
        assert!(answer.iter().all(|&byte| byte == b'x'));
        assert_eq!(
            String::from_utf8_lossy(words).lines().next(),
            Some("HTTP/1.1 414 URI Too Long")
        );
    });
}
