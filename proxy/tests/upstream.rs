//! Connections to the datastore over real sockets: what was sent is told exactly, and nothing is sent twice.

mod upstream_support;

use http::StatusCode;
use http_body_util::BodyExt;
use palisade::upstream::{AnswerError, ConnectError, Cutter, Pool, Sent, SocketConnector, Target};
use palisade_loadtest::{
    origin::{Ended, Origin, Sign, Step},
    servers::{free_port, wait_for},
};
use std::time::Duration;
use upstream_support::{Body, config, get, local, pool, put, settle_idle, tcp, text};

#[test]
fn a_connection_is_used_again_and_content_length_stays() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        for number in 0..3 {
            let conn = pool.checkout().await.unwrap();
            assert_eq!(conn.is_reused(), number > 0);
            let outcome = conn.send(put("/a", Body::whole("abc")), None).await;
            assert_eq!(outcome.sent, Sent::Completely);
            assert!(outcome.last_write.is_some());
            assert_eq!(outcome.answer.unwrap().status(), StatusCode::NO_CONTENT);
            assert_eq!((pool.counts().idle, pool.counts().busy), (1, 0));
        }
        let arrivals = origin.arrivals();
        assert_eq!((arrivals.len(), origin.connections()), (3, 1));
        assert_eq!(arrivals[0].field("content-length"), ["3"]);
        assert!(arrivals[0].field("transfer-encoding").is_empty());
        assert_eq!(origin.applied().len(), 3);
    });
}

#[test]
fn the_same_over_a_unix_socket() {
    local(async {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("origin.sock");
        let origin = Origin::unix(&path).unwrap();
        let pool = Pool::new(
            SocketConnector {
                target: Target::Unix(path),
                user_timeout: Duration::from_secs(10),
            },
            config(),
        );
        for _ in 0..2 {
            let conn = pool.checkout().await.unwrap();
            let outcome = conn.send(put("/a", Body::whole("abc")), None).await;
            assert_eq!(outcome.sent, Sent::Completely);
        }
        let answer = text(pool.checkout().await.unwrap().send(get("/a"), None).await).await;
        assert_eq!(answer, "abc");
        assert_eq!(origin.connections(), 1);
    });
}

#[test]
fn a_refused_connection_means_nothing_was_sent() {
    local(async {
        let pool = Pool::<_, Body>::new(tcp(("127.0.0.1", free_port().unwrap())), config());
        assert!(matches!(
            pool.checkout().await,
            Err(ConnectError::Io(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused
        ));
        assert_eq!(pool.counts().busy, 0);
    });
}

#[test]
fn upstream_that_reads_all_and_closes_was_sent_to_once_and_completely() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        // Over a kept-alive connection too: that is where clients are tempted to send again.
        for target in ["/first", "/second"] {
            origin.once(target, vec![Step::ReadBody, Step::Close]);
            let conn = pool.checkout().await.unwrap();
            let outcome = conn.send(put(target, Body::whole("abc")), None).await;
            assert_eq!(outcome.sent, Sent::Completely);
            assert!(matches!(outcome.answer, Err(AnswerError::Closed(_))));
            assert_eq!(origin.arrivals_at(target).len(), 1);
            pool.checkout()
                .await
                .unwrap()
                .send(put("/warm", Body::whole("x")), None)
                .await
                .answer
                .unwrap();
        }
    });
}

#[test]
fn an_idle_connection_that_upstream_closed_is_not_used() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        for number in 0..3 {
            let sign = Sign::new();
            origin.once(
                "/a",
                vec![
                    Step::ReadBody,
                    Step::Apply,
                    Step::Answer(200, vec![]),
                    Step::Await(sign.clone()),
                    Step::Close,
                ],
            );
            let conn = pool.checkout().await.unwrap();
            assert!(!conn.is_reused());
            let outcome = conn.send(put("/a", Body::whole("abc")), None).await;
            outcome.answer.unwrap();
            assert_eq!(pool.counts().idle, 1);
            sign.give();
            wait_for("the close", || origin.ended(number));
            // Without giving the runtime a chance to hear of it: only a look at the socket can tell.
            settle_idle();
        }
        assert_eq!(origin.applied().len(), 3);
        assert_eq!(origin.connections(), 3);
    });
}

#[test]
fn a_read_on_a_connection_that_dies_under_it_may_be_retried_and_a_fresh_one_not() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        text(
            pool.checkout()
                .await
                .unwrap()
                .send(get("/warm"), None)
                .await,
        )
        .await;
        for reused in [true, false] {
            origin.once("/a", vec![Step::Close]);
            let conn = pool.checkout().await.unwrap();
            assert_eq!(conn.is_reused(), reused);
            let outcome = conn.send(get("/a"), None).await;
            assert_eq!(outcome.read_may_be_retried(), reused);
        }
    });
}

#[test]
fn upstreams_close_and_keep_alive_are_honoured() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        for field in ["Connection: close", "Keep-Alive: max=9, timeout=0"] {
            let steps = vec![
                Step::ReadBody,
                Step::AnswerWith(200, vec![field.to_owned()], b"x".into()),
            ];
            origin.once("/a", steps);
            let outcome = pool.checkout().await.unwrap().send(get("/a"), None).await;
            assert_eq!(text(outcome).await, "x");
            assert_eq!(pool.counts().idle, 0, "{field}");
        }
    });
}

#[test]
fn idle_connections_are_closed_before_upstream_would_and_with_a_fin() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let mut config = config();
        config.idle_timeout = Duration::from_millis(40);
        let pool = Pool::<_, Body>::new(tcp(origin.address()), config);
        text(pool.checkout().await.unwrap().send(get("/a"), None).await).await;
        while pool.counts().idle > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(wait_for("the end", || origin.ended(0)), Ended::Closed);
    });
}

#[test]
fn more_idle_connections_than_allowed_are_closed() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let mut config = config();
        config.max_idle = 2;
        let pool = Pool::<_, Body>::new(tcp(origin.address()), config);
        let mut open = Vec::new();
        for _ in 0..4 {
            open.push(pool.checkout().await.unwrap());
        }
        assert_eq!(pool.counts().busy, 4);
        for conn in open {
            text(conn.send(get("/a"), None).await).await;
        }
        assert_eq!((pool.counts().idle, pool.counts().busy), (2, 0));
    });
}

#[test]
fn no_answer_in_time_after_the_last_byte() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let sign = Sign::new();
        origin.always("/a", vec![Step::ReadBody, Step::Await(sign.clone())]);
        let mut config = config();
        config.response_timeout = Duration::from_millis(50);
        let pool = Pool::<_, Body>::new(tcp(origin.address()), config);
        let conn = pool.checkout().await.unwrap();
        let outcome = conn.send(put("/a", Body::whole("abc")), None).await;
        assert_eq!(outcome.sent, Sent::Completely);
        assert!(matches!(outcome.answer, Err(AnswerError::Timeout)));
        sign.give();
        assert_eq!(origin.arrivals().len(), 1);
    });
}

#[test]
fn upstream_that_takes_no_bytes_runs_into_the_same_timeout() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let sign = Sign::new();
        origin.always("/a", vec![Step::Await(sign.clone())]);
        let mut config = config();
        config.response_timeout = Duration::from_millis(200);
        let pool = Pool::<_, Body>::new(tcp(origin.address()), config);
        let conn = pool.checkout().await.unwrap();
        let body = Body::whole(vec![b'x'; 64 * 1024 * 1024]);
        let outcome = conn.send(put("/a", body), None).await;
        assert_eq!(outcome.sent, Sent::Partly);
        assert!(matches!(outcome.answer, Err(AnswerError::Timeout)));
        sign.give();
    });
}

#[test]
fn an_answer_before_the_body_was_sent_stops_the_sending_and_is_relayed() {
    local(async {
        let origin = Origin::tcp().unwrap();
        origin.once(
            "/a",
            vec![
                Step::ReadSome(5),
                Step::Answer(413, b"too much".into()),
                Step::ReadBody,
            ],
        );
        let pool = pool(&origin);
        let (body, feed) = Body::fed(Some(1000));
        feed.send(Ok("12345".into())).unwrap();
        let conn = pool.checkout().await.unwrap();
        let outcome = conn.send(put("/a", body), None).await;
        assert_eq!(outcome.sent, Sent::Partly);
        let answer = outcome.answer.unwrap();
        assert_eq!(answer.status(), 413);
        // What comes from the client now must not leave any more.
        let _ = feed.send(Ok(vec![b'6'; 995].into()));
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "too much");
        wait_for("the close", || origin.ended(0));
        assert_eq!(origin.arrivals()[0].body, b"12345");
        assert_eq!(pool.counts().idle, 0);
    });
}

#[test]
fn an_early_answer_is_readable_although_upstream_has_closed_or_reset() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        for end in [Step::Close, Step::Reset] {
            let answer = Step::Answer(413, b"no".into());
            origin.once("/a", vec![Step::ReadSome(1), answer, end]);
            let conn = pool.checkout().await.unwrap();
            // So much that the sending meets the close; whether all of it leaves before the answer is read is up to the kernel.
            let body = Body::whole(vec![b'x'; 32 * 1024 * 1024]);
            let outcome = conn.send(put("/a", body), None).await;
            assert_eq!(outcome.answer.as_ref().unwrap().status(), 413);
            assert_ne!(outcome.sent, Sent::Nothing);
            assert_eq!(text(outcome).await, "no");
        }
    });
}

#[test]
fn a_cut_before_the_first_byte_sends_nothing_ever() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        let sending = pool
            .checkout()
            .await
            .unwrap()
            .send(put("/a", Body::whole("abc")), None);
        assert_eq!(sending.cutter().cut(), Sent::Nothing);
        let outcome = sending.await;
        assert_eq!(outcome.sent, Sent::Nothing);
        assert!(matches!(outcome.answer, Err(AnswerError::Cut)));
        wait_for("the close", || origin.ended(0));
        assert!(origin.arrivals().is_empty());
    });
}

#[test]
fn a_cut_in_mid_body_from_another_thread_ends_it_with_a_reset() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        let (body, feed) = Body::fed(Some(1000));
        feed.send(Ok("12345".into())).unwrap();
        let sending = pool.checkout().await.unwrap().send(put("/a", body), None);
        let cutter = sending.cutter();
        let other = std::thread::spawn(move || {
            wait_for("the first bytes", || {
                (cutter.sent() == Sent::Partly).then_some(())
            });
            cutter.cut()
        });
        let outcome = sending.await;
        assert_eq!(other.join().unwrap(), Sent::Partly);
        assert_eq!(outcome.sent, Sent::Partly);
        assert!(matches!(outcome.answer, Err(AnswerError::Cut)));
        assert_eq!(wait_for("the end", || origin.ended(0)), Ended::Reset);
        assert!(!origin.arrivals()[0].complete);
    });
}

#[test]
fn a_cut_after_the_last_byte_changes_nothing() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let sign = Sign::new();
        origin.once(
            "/a",
            vec![
                Step::ReadBody,
                Step::Await(sign.clone()),
                Step::Apply,
                Step::Answer(201, vec![]),
            ],
        );
        let pool = pool(&origin);
        let sending = pool
            .checkout()
            .await
            .unwrap()
            .send(put("/a", Body::whole("abc")), None);
        let cutter: Cutter = sending.cutter();
        let other = std::thread::spawn(move || {
            sign.wait_reached();
            let met = cutter.cut();
            sign.give();
            met
        });
        let outcome = sending.await;
        assert_eq!(other.join().unwrap(), Sent::Completely);
        assert_eq!(outcome.answer.unwrap().status(), 201);
    });
}

#[test]
fn a_clients_error_in_mid_body_never_completes_it() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        for (target, length) in [("/length", Some(1000)), ("/chunks", None)] {
            let (body, feed) = Body::fed(length);
            feed.send(Ok("12345".into())).unwrap();
            let sending = pool.checkout().await.unwrap().send(put(target, body), None);
            let sending = tokio::task::spawn_local(sending);
            while origin
                .arrivals_at(target)
                .first()
                .is_none_or(|a| a.length < 5)
            {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            feed.send(Err("the client went away".into())).unwrap();
            let outcome = sending.await.unwrap();
            assert_eq!(outcome.sent, Sent::Partly, "{target}");
            assert!(matches!(outcome.answer, Err(AnswerError::RequestBody(_))));
            let arrival = origin.arrivals_at(target).remove(0);
            assert_eq!(
                wait_for("the end", || origin.ended(arrival.connection)),
                Ended::Reset
            );
            let arrival = origin.arrivals_at(target).remove(0);
            assert!(!arrival.complete);
            assert!(!arrival.wire.ends_with(b"0\r\n\r\n"));
        }
    });
}

#[test]
fn a_body_shorter_or_longer_than_its_length_is_never_complete() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        for (number, text) in ["12345", "123456789012345"].into_iter().enumerate() {
            let (body, feed) = Body::fed(Some(10));
            feed.send(Ok(text.into())).unwrap();
            drop(feed);
            let conn = pool.checkout().await.unwrap();
            let outcome = conn.send(put("/a", body), None).await;
            assert!(outcome.answer.is_err());
            assert_ne!(outcome.sent, Sent::Completely);
            wait_for("the end", || origin.ended(number));
        }
        assert!(origin.applied().is_empty());
    });
}

#[test]
fn a_connection_that_was_not_needed_goes_back() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let pool = pool(&origin);
        pool.checkout().await.unwrap().unused();
        assert_eq!((pool.counts().idle, pool.counts().busy), (1, 0));
        let conn = pool.checkout().await.unwrap();
        text(conn.send(get("/a"), None).await).await;
        assert_eq!(origin.connections(), 1);
    });
}

#[test]
fn a_sending_lives_on_in_another_task() {
    local(async {
        let origin = Origin::tcp().unwrap();
        let sign = Sign::new();
        origin.once(
            "/a",
            vec![
                Step::ReadBody,
                Step::Await(sign.clone()),
                Step::Apply,
                Step::Answer(201, vec![]),
            ],
        );
        let pool = pool(&origin);
        let mut sending = pool
            .checkout()
            .await
            .unwrap()
            .send(put("/a", Body::whole("abc")), None);
        // Polled here until it was sent, and then elsewhere, as a guard does whose request was dropped.
        while sending.sent() != Sent::Completely {
            let _ = tokio::time::timeout(Duration::from_millis(1), &mut sending).await;
        }
        let elsewhere = tokio::task::spawn_local(sending);
        sign.give();
        let outcome = elsewhere.await.unwrap();
        assert_eq!(outcome.answer.unwrap().status(), 201);
    });
}
