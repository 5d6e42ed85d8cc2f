//! The same server and the same upstream connections over simulated sockets.
#![allow(clippy::unwrap_used, reason = "test code")]

mod server_support;
mod upstream_support;

use http_body_util::BodyExt;
use palisade::{
    server::{Accept, Counts, Listener, Peer, Shutdown, serve},
    upstream::{AnswerError, Connect, Pool, Sent},
};
use palisade_loadtest::origin::Sign;
use server_support::{Seen, Test, patient};
use std::{io, rc::Rc, sync::Arc, time::Duration};
use turmoil::net::{TcpListener, TcpStream};
use upstream_support::{Body, config, put};

struct Simulated(TcpListener);

impl Listener for Simulated {
    type Stream = TcpStream;

    async fn accept(&mut self) -> io::Result<Accept<TcpStream>> {
        let (stream, peer) = self.0.accept().await?;
        Ok(Accept {
            stream,
            peer: Peer::Tcp(peer),
        })
    }
}

struct To(&'static str);

impl Connect for To {
    type Stream = TcpStream;

    async fn connect(&self) -> io::Result<TcpStream> {
        TcpStream::connect((self.0, 80)).await
    }
}

async fn server(seen: Seen) -> turmoil::Result {
    let listener = Simulated(TcpListener::bind("0.0.0.0:80").await?);
    let config = patient();
    let shutdown = Shutdown::new(&config);
    let handler = Rc::new(Test {
        thread: 0,
        seen,
        sign: Sign::new(),
        gate: Arc::new(tokio::sync::Semaphore::new(0)),
    });
    let counts = Arc::new(Counts::default());
    serve(listener, handler, Rc::new(config), counts, shutdown.stage()).await;
    Ok(())
}

/// What happens to three writes: an ordinary one, one whose answer is held back, one that finds no connection.
fn story(seed: u64) -> Vec<String> {
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .simulation_duration(Duration::from_secs(300))
        .build();
    let seen = Seen::default();
    let at_server = seen.clone();
    sim.host("db", move || server(at_server.clone()));
    let told = Seen::default();
    let by_client = told.clone();
    sim.client("proxy", async move {
        let mut config = config();
        config.response_timeout = Duration::from_secs(5);
        config.connect_timeout = Duration::from_secs(5);
        let pool = Pool::new(To("db"), config);
        let conn = pool.checkout().await.unwrap();
        let outcome = conn.send(put("/x", Body::whole("abc")), None).await;
        assert_eq!(outcome.sent, Sent::Completely);
        let body = outcome.answer?.into_body().collect().await?.to_bytes();
        assert_eq!(body, "done");
        by_client.add("answered".into());

        let conn = pool.checkout().await.unwrap();
        assert!(conn.is_reused());
        turmoil::hold("proxy", "db");
        let outcome = conn.send(put("/x", Body::whole("abcd")), None).await;
        assert_eq!(outcome.sent, Sent::Completely);
        assert!(matches!(outcome.answer, Err(AnswerError::Timeout)));
        by_client.add(format!("after {:?}", turmoil::sim_elapsed().unwrap()));
        turmoil::release("proxy", "db");

        turmoil::partition("proxy", "db");
        assert!(pool.checkout().await.is_err());
        by_client.add("no connection".into());
        Ok(())
    });
    sim.run().unwrap();
    let mut story = told.all();
    story.extend(seen.all());
    story
}

#[test]
fn answers_timeouts_and_partitions_over_simulated_sockets() {
    let story = story(7);
    assert_eq!(story[0], "answered");
    assert_eq!(story[2], "no connection");
    assert!(story.contains(&"whole 3".to_owned()), "{story:?}");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    assert_eq!(story(1), story(1));
}
