//! Workers: they take the lease, write and read under its token, stall past its end, and some lie.

use crate::{
    check::Event,
    proxy::{PORT, THREADS},
    wire::Reader,
    world::{World, between, ms, one_in},
};
use fastrand::Rng;
use std::{io, sync::Arc, time::Duration};
use tokio::{
    io::AsyncWriteExt,
    task::spawn_local,
    time::{sleep, timeout},
};
use turmoil::net::TcpStream;

/// One worker, until the faults are over.
pub async fn run(world: Arc<World>) -> turmoil::Result {
    let mut rng = world.rng();
    let mut last = None;
    while !world.is_over() {
        sleep(between(&mut rng, 1, 80)).await;
        let ttl = between(&mut rng, 60, 500);
        if let Some(token) = world.acquire(ttl, &mut rng) {
            // It learns of that when it learns of it.
            sleep(between(&mut rng, 0, 40)).await;
            session(&world, token, ttl, &mut rng).await;
            last = Some(token);
        } else if one_in(&mut rng, 6) {
            // A worker that missed that its lease is gone, or one that makes a number up.
            let token = match last {
                Some(token) if rng.bool() => token,
                _ => rng.u64(1..1_000_000),
            };
            let request = Request::draw(&world, Some(token), &mut rng);
            request.run(&world, &mut rng.fork()).await;
        }
    }
    Ok(())
}

async fn session(world: &Arc<World>, token: u64, ttl: Duration, rng: &mut Rng) {
    for _ in 0..rng.u32(2..9) {
        if world.is_over() {
            return;
        }
        match rng.u32(0..10) {
            // A pause: of the machine, or of a garbage collector.
            0 => sleep(between(rng, 100, 700)).await,
            1 | 2 => world.renew(token, ttl),
            _ => sleep(between(rng, 0, 30)).await,
        }
        let fenced = (!one_in(rng, 20)).then_some(token);
        let request = Request::draw(world, fenced, rng);
        if rng.bool() {
            request.run(world, rng).await;
        } else {
            let (world, mut rng) = (Arc::clone(world), rng.fork());
            spawn_local(async move { request.run(&world, &mut rng).await });
        }
    }
    if rng.bool() {
        world.release(token);
    }
}

/// One request, on a connection of its own.
struct Request {
    id: u32,
    token: Option<u64>,
    /// `None`: a read.
    body: Option<usize>,
    /// The worker's own patience.
    patience: Duration,
}

/// What a worker was told.
struct Told {
    outcome: String,
    status: u16,
}

impl Request {
    fn draw(world: &World, token: Option<u64>, rng: &mut Rng) -> Self {
        let body = match rng.u32(0..10) {
            0..3 => None,
            3..8 => Some(rng.usize(0..200)),
            _ => Some(rng.usize(257..3000)),
        };
        Self {
            id: world.id(),
            token,
            // A write without a token is refused before anything else: that needs no simulation.
            body: body.filter(|_| token.is_some()),
            patience: if one_in(rng, 5) {
                between(rng, 5, 120)
            } else {
                ms(2_500)
            },
        }
    }

    /// Runs it and notes what the worker learns. A worker without patience goes away, in mid-body too.
    async fn run(&self, world: &World, rng: &mut Rng) -> Option<u16> {
        let (id, token) = (self.id, self.token);
        let write = self.body.is_some();
        world.log(Event::Began { id, write, token });
        let told = timeout(self.patience, self.talk(world, rng)).await.ok()?;
        let told = told.ok().flatten()?;
        (told.outcome == "answered").then_some(told.status)
    }

    async fn talk(&self, world: &World, rng: &mut Rng) -> io::Result<Option<Told>> {
        let port = PORT + rng.u16(0..THREADS);
        let mut stream = TcpStream::connect(("proxy", port)).await?;
        let head = self.head();
        stream.write_all(head.as_bytes()).await?;
        self.send_body(&mut stream, rng, world.is_over()).await?;
        let mut reader = Reader::default();
        let Some(head) = reader.head(&mut stream).await? else {
            return Ok(None);
        };
        let status = head.word(1).parse().unwrap();
        let outcome = head.field("x-fence-outcome").unwrap_or("none").to_owned();
        // A body may be cut short: what was said of the write stands.
        let body = reader.body(&mut stream, head.length()).await;
        let problem = body
            .ok()
            .flatten()
            .and_then(|body| problem_of(&body).map(str::to_owned));
        world.log(Event::Told {
            id: self.id,
            outcome: outcome.clone(),
            status,
            problem,
        });
        Ok(Some(Told { outcome, status }))
    }

    fn head(&self) -> String {
        let method = self.body.map_or("GET", |_| "PUT");
        let mut head = format!("{method} /{} HTTP/1.1\r\nHost: db\r\n", self.id);
        if let Some(token) = self.token {
            head += &format!("X-Fence-Token: {token}\r\n");
        }
        if let Some(length) = self.body {
            head += &format!("Content-Length: {length}\r\n");
        }
        head + "\r\n"
    }

    /// In pieces, with a stall in between at times.
    async fn send_body(&self, stream: &mut TcpStream, rng: &mut Rng, over: bool) -> io::Result<()> {
        let mut left = self.body.unwrap_or(0);
        while left > 0 {
            let piece = rng.usize(1..=left);
            if !over {
                let pause = if one_in(rng, 12) {
                    between(rng, 50, 600)
                } else {
                    between(rng, 0, 4)
                };
                sleep(pause).await;
            }
            stream.write_all(&vec![b'x'; piece]).await?;
            left -= piece;
        }
        Ok(())
    }
}

fn problem_of(body: &str) -> Option<&str> {
    let (_, rest) = body.split_once("urn:palisade:problem:")?;
    rest.split('"').next()
}

/// After the faults: takes the lease and does not give up before a write and a read of its were answered.
pub async fn last_holder(world: Arc<World>) -> turmoil::Result {
    let mut rng = world.rng();
    while !world.is_over() {
        sleep(ms(5)).await;
    }
    let token = loop {
        if let Some(token) = world.acquire(ms(60_000), &mut rng) {
            break token;
        }
        sleep(ms(1)).await;
    };
    for body in [Some(20), None] {
        loop {
            let request = Request {
                id: world.id(),
                token: Some(token),
                body,
                patience: ms(2_000),
            };
            if request.run(&world, &mut rng).await == Some(200) {
                break;
            }
            sleep(ms(20)).await;
        }
    }
    world.log(Event::Through);
    Ok(())
}
