//! A gigabyte each way.

use crate::{client::Call, stage::NEVER};
use palisade_loadtest::proxy::Palisade;
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
};

const GIB: u64 = 1 << 30;
/// For a debug build, whose code alone is some of it.
const MOST: u64 = 64 << 20;

/// An upstream that takes a body of any size and gives one, and keeps neither. Ends after two connections.
fn upstream() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || serve(stream));
        }
    });
    url
}

fn serve(stream: TcpStream) {
    let mut to = stream.try_clone().unwrap();
    let mut from = BufReader::with_capacity(1 << 20, stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if from.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let piece = vec![b'g'; 1 << 20];
    if head.starts_with("PUT") {
        let mut left = GIB;
        let mut bytes = vec![0; 1 << 20];
        while left > 0 {
            let read = from.read(&mut bytes).unwrap_or(0);
            assert!(read > 0, "the upload was cut");
            left -= read as u64;
        }
        to.write_all(b"HTTP/1.1 204 X\r\nConnection: close\r\n\r\n")
            .unwrap();
    } else {
        let head = format!("HTTP/1.1 200 X\r\nConnection: close\r\nContent-Length: {GIB}\r\n\r\n");
        to.write_all(head.as_bytes()).unwrap();
        for _ in 0..GIB >> 20 {
            to.write_all(&piece).unwrap();
        }
    }
}

/// The proxy adds no buffering: a gigabyte passes either way, and the process never needs more than 64 MiB.
#[test]
fn a_gigabyte_passes_through_little_memory() {
    let mut proxy = Palisade::new(&upstream())
        .unwrap()
        .set("fence.settle", NEVER);
    proxy.start().unwrap();
    let mut up = Call::new("PUT", "/x")
        .token(33)
        .field(&format!("Content-Length: {GIB}"))
        .begin(&proxy);
    let piece = vec![b'g'; 1 << 20];
    for _ in 0..GIB >> 20 {
        assert!(up.more(&piece));
    }
    up.answer().is(204);
    let after_put = proxy.peak_memory().unwrap();

    let mut down = Call::new("GET", "/x").begin(&proxy);
    let read = down.count();
    let after_get = proxy.peak_memory().unwrap();
    println!(
        "at most {} KiB, then {} KiB",
        after_put >> 10,
        after_get >> 10
    );
    assert!(read > GIB, "{read} bytes with their head");
    assert!(after_get < MOST, "{after_get} bytes");
}
