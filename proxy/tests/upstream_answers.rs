//! Answers that a proxy must not relay, must not complete, or must not mistake; and the ways to upstream other than plain TCP.
#![allow(clippy::unwrap_used, reason = "test code")]

mod upstream_support;

use http::StatusCode;
use http_body_util::BodyExt;
use palisade::upstream::{
    AnswerError, Connect, Deadline, Pool, Sent, Socket, SocketConnector, TlsTarget,
};
use palisade_fence::Time;
use palisade_lease::clock;
use palisade_loadtest::{
    origin::{Ended, Origin, Step},
    servers::wait_for,
};
use std::{
    cell::Cell,
    io,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use upstream_support::{Body, config, get, local, pool, put, tcp, text};

/// What becomes of a GET that is answered with these bytes and a close.
async fn answered(bytes: &[u8]) -> Result<Result<(StatusCode, String), String>, AnswerError> {
    let origin = Origin::tcp().unwrap();
    origin.otherwise(vec![Step::Raw(bytes.into()), Step::Close]);
    let conn = pool(&origin).checkout().await.unwrap();
    let outcome = conn.send(get("/a"), None).await;
    assert_eq!(outcome.sent, Sent::Completely);
    let (head, body) = outcome.answer?.into_parts();
    Ok(match body.collect().await {
        Ok(body) => Ok((
            head.status,
            String::from_utf8(body.to_bytes().to_vec()).unwrap(),
        )),
        Err(error) => Err(error.to_string()),
    })
}

#[test]
fn answers_that_must_not_be_relayed() {
    local(async {
        let bad: &[&[u8]] = &[
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            b"HTTP/1.1 banana\r\n\r\n",
            b"SSH-2.0-x\r\n",
        ];
        for bytes in bad {
            let text = String::from_utf8_lossy(bytes);
            match answered(bytes).await {
                Err(AnswerError::Invalid(_) | AnswerError::NoHttp(_)) => {}
                other => panic!("{text}: {other:?}"),
            }
        }
        assert!(matches!(answered(b"").await, Err(AnswerError::Closed(_))));
        assert!(matches!(
            answered(b"HTTP/1.1 200 OK\r\nContent-Le").await,
            Err(AnswerError::Closed(_))
        ));
    });
}

#[test]
fn a_truncated_answer_is_an_error_and_never_complete() {
    local(async {
        let cut: &[&[u8]] = &[
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
        ];
        for bytes in cut {
            let text = String::from_utf8_lossy(bytes);
            let answer = answered(bytes).await.unwrap();
            assert!(answer.is_err(), "{text}: {answer:?}");
        }
    });
}

#[test]
fn interim_answers_are_passed_over() {
    local(async {
        let bytes = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 1\r\n\r\nx";
        let (status, body) = answered(bytes).await.unwrap().unwrap();
        assert_eq!((status, body.as_str()), (StatusCode::CREATED, "x"));
    });
}

#[test]
fn a_connection_with_extra_bytes_is_not_used_again() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let twice = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
        origin.once("/a", vec![Step::Raw(twice.into())]);
        let pool = pool(&origin);
        let outcome = pool.checkout().await.unwrap().send(get("/a"), None).await;
        assert_eq!(text(outcome).await, "abc");
        assert_eq!(pool.counts().idle, 0);
        let conn = pool.checkout().await.unwrap();
        assert!(!conn.is_reused());
        let outcome = conn.send(get("/b"), None).await;
        assert_eq!(outcome.answer.unwrap().status(), 404);
    });
}

#[test]
fn an_answer_dropped_half_read_closes_its_connection() {
    local(async {
        let origin = Origin::tcp().unwrap();
        origin.once(
            "/a",
            vec![Step::Raw(
                b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".into(),
            )],
        );
        let pool = pool(&origin);
        let outcome = pool.checkout().await.unwrap().send(get("/a"), None).await;
        drop(outcome);
        assert_eq!((pool.counts().idle, pool.counts().busy), (0, 0));
        wait_for("the end", || origin.ended(0));
    });
}

#[test]
fn after_its_deadline_not_a_byte_is_written() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        let passed = Arc::new(Deadline::new(clock::boot()));
        let conn = pool.checkout().await.unwrap();
        let outcome = conn.send(put("/a", Body::whole("abc")), Some(passed)).await;
        assert_eq!(outcome.sent, Sent::Nothing);
        assert!(matches!(outcome.answer, Err(AnswerError::Cut)));
        wait_for("the end", || origin.ended(0));
        assert!(origin.arrivals().is_empty());

        // In mid-body: the deadline is looked at before each write, not once.
        let deadline = Arc::new(Deadline::new(Time::NEVER));
        let (body, feed) = Body::fed(Some(10));
        feed.send(Ok("12345".into())).unwrap();
        let conn = pool.checkout().await.unwrap();
        let sending = tokio::task::spawn_local(conn.send(put("/b", body), Some(deadline.clone())));
        while origin
            .arrivals_at("/b")
            .first()
            .is_none_or(|a| a.length < 5)
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        deadline.set(Time::ZERO);
        feed.send(Ok("67890".into())).unwrap();
        let outcome = sending.await.unwrap();
        assert_eq!(outcome.sent, Sent::Partly);
        assert!(matches!(outcome.answer, Err(AnswerError::Cut)));
        assert_eq!(wait_for("the end", || origin.ended(1)), Ended::Reset);
        assert_eq!(origin.arrivals_at("/b")[0].length, 5);
    });
}

/// Counts the writes to the socket, and says of no connection that it is gone.
struct Counting(SocketConnector, Rc<Cell<usize>>);
struct CountedSocket(Socket, Rc<Cell<usize>>);

impl Connect for Counting {
    type Stream = CountedSocket;

    async fn connect(&self) -> io::Result<CountedSocket> {
        Ok(CountedSocket(self.0.connect().await?, self.1.clone()))
    }
}

impl AsyncRead for CountedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for CountedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.1.set(self.1.get() + 1);
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.1.set(self.1.get() + 1);
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[test]
fn a_whole_body_goes_out_with_its_head_in_one_write() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let writes = Rc::new(Cell::new(0));
        let pool = Pool::new(Counting(tcp(origin.address()), writes.clone()), config());
        for length in [1, 1024, 60 * 1024] {
            writes.set(0);
            let body = Body::whole(vec![b'x'; length]);
            let outcome = pool
                .checkout()
                .await
                .unwrap()
                .send(put("/a", body), None)
                .await;
            outcome.answer.unwrap();
            assert_eq!(writes.get(), 1, "{length} bytes");
        }
    });
}

#[test]
fn over_tls_the_bytes_are_counted_below_it() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let (address, roots) = tls_in_front_of(&origin).await;
        let client = rustls::ClientConfig::builder_with_provider(Arc::new(
            rustls::crypto::ring::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
        let mut config = config();
        config.tls = Some(TlsTarget {
            config: Arc::new(client),
            server_name: "localhost".try_into().unwrap(),
        });
        let pool = Pool::<_, Body>::new(tcp(address), config);
        for number in 0..3 {
            let conn = pool.checkout().await.unwrap();
            assert_eq!(conn.is_reused(), number > 0);
            let body = Body::whole(vec![b'x'; 200_000]);
            let outcome = conn.send(put("/a", body), None).await;
            assert_eq!(outcome.sent, Sent::Completely);
            assert_eq!(outcome.answer.unwrap().status(), 204);
        }
        // The handshake's bytes belong to no request.
        let sending = pool
            .fresh()
            .await
            .unwrap()
            .send(put("/b", Body::whole("x")), None);
        assert_eq!(sending.cutter().cut(), Sent::Nothing);
        assert_eq!(sending.await.sent, Sent::Nothing);
        assert_eq!(origin.arrivals().len(), 3);

        let (body, feed) = Body::fed(Some(10));
        feed.send(Ok("12345".into())).unwrap();
        let sending = pool.checkout().await.unwrap().send(put("/c", body), None);
        let cutter = sending.cutter();
        let sending = tokio::task::spawn_local(sending);
        while origin
            .arrivals_at("/c")
            .first()
            .is_none_or(|a| a.length < 5)
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(cutter.cut(), Sent::Partly);
        assert_eq!(sending.await.unwrap().sent, Sent::Partly);
    });
}

/// A TLS server that passes everything on.
async fn tls_in_front_of(origin: &Origin) -> (std::net::SocketAddr, rustls::RootCertStore) {
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(signed.cert.der().clone()).unwrap();
    let key =
        rustls_pki_types::PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
    let server = rustls::ServerConfig::builder_with_provider(Arc::new(
        rustls::crypto::ring::default_provider(),
    ))
    .with_safe_default_protocol_versions()
    .unwrap()
    .with_no_client_auth()
    .with_single_cert(vec![signed.cert.der().clone()], key)
    .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let to = origin.address();
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::task::spawn_local(async move {
                let mut stream = acceptor.accept(stream).await?;
                let mut onward = tokio::net::TcpStream::connect(to).await?;
                tokio::io::copy_bidirectional(&mut stream, &mut onward).await
            });
        }
    });
    (address, roots)
}
