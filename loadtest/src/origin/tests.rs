//! The origin is a measuring instrument: what it says must be so.

use super::*;
use crate::servers::exchange;

#[test]
fn records_what_came_and_what_was_applied() {
    let origin = Origin::tcp().unwrap();
    let put = b"PUT /a%2Fb HTTP/1.1\r\nHost: x\r\nX-Fence-Token: 7\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
    origin.once(
        "/a%2Fb",
        vec![
            Step::ReadBody,
            Step::Apply,
            Step::Answer(201, b"made".into()),
            Step::Close,
        ],
    );
    let answer = exchange(origin.address(), put).unwrap();
    assert_eq!(answer, "HTTP/1.1 201 X\r\nContent-Length: 4\r\n\r\nmade");
    let [arrival] = &origin.arrivals()[..] else {
        panic!("one arrival")
    };
    assert!(arrival.complete);
    assert_eq!(
        (arrival.target.as_str(), &arrival.body[..]),
        ("/a%2Fb", &b"abc"[..])
    );
    assert_eq!(arrival.head, put[..put.len() - 3]);
    let [applied] = &origin.applied()[..] else {
        panic!("one application")
    };
    assert_eq!(applied.token.as_deref(), Some("7"));
    assert!(applied.order > arrival.order);
    assert_eq!(origin.value("/a%2Fb").as_deref(), Some(&b"abc"[..]));
    assert_eq!(wait_for("the end", || origin.ended(0)), Ended::ByOrigin);
}

#[test]
fn a_body_cut_short_is_not_complete_and_not_applied() {
    let origin = Origin::tcp().unwrap();
    for (target, body) in [
        ("/length", "Content-Length: 9\r\n\r\nabc"),
        ("/chunks", "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"),
    ] {
        let mut stream = TcpStream::connect(origin.address()).unwrap();
        io::Write::write_all(
            &mut stream,
            format!("PUT {target} HTTP/1.1\r\n{body}").as_bytes(),
        )
        .unwrap();
        drop(stream);
        let arrival = origin.wait_arrivals(target, 1).remove(0);
        wait_for("its end", || origin.ended(arrival.connection));
        let arrival = origin.arrivals_at(target).remove(0);
        assert_eq!((arrival.complete, &arrival.body[..]), (false, &b"abc"[..]));
    }
    assert_eq!(origin.ended(0), Some(Ended::CutShort));
    assert!(origin.applied().is_empty());
}

#[test]
fn chunks_and_requests_in_a_row_are_told_apart() {
    let origin = Origin::tcp().unwrap();
    let both = b"POST /1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: v\r\n\r\nGET /1 HTTP/1.1\r\n\r\n";
    origin.once("/1", naturally());
    origin.once("/1", vec![Step::AnswerNaturally, Step::Close]);
    let answer = exchange(origin.address(), both).unwrap();
    assert_eq!(
        answer,
        "HTTP/1.1 204 X\r\n\r\nHTTP/1.1 200 X\r\nContent-Length: 5\r\n\r\nabcde"
    );
    let arrivals = origin.arrivals();
    assert_eq!(arrivals.len(), 2);
    assert_eq!(arrivals[0].body, b"abcde");
    assert!(arrivals[0].wire.ends_with(b"0\r\nT: v\r\n\r\n"));
}

#[test]
fn a_write_may_be_applied_after_its_connection_is_gone() {
    let origin = Origin::tcp().unwrap();
    let sign = Sign::new();
    origin.once(
        "/late",
        vec![
            Step::ReadBody,
            Step::Close,
            Step::Await(sign.clone()),
            Step::Apply,
        ],
    );
    let answer = exchange(
        origin.address(),
        b"PUT /late HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
    )
    .unwrap();
    assert_eq!(answer, "");
    sign.wait_reached();
    assert!(origin.applied().is_empty());
    sign.give();
    wait_for("the application", || {
        (origin.applied().len() == 1).then_some(())
    });
}
