//! The datastore: one log of what it applied, and every way of misbehaving that A5 and A6 leave it.
//!
//! What it has not answered it applies at some time while the connection is open or within `settle` after its end, or
//! never; preferably at the last moment. After an answer that settles it does nothing more.

use crate::{
    check::Event,
    wire::{Head, Reader},
    world::{Line, SETTLE, World, between, ms, one_in},
};
use fastrand::Rng;
use std::{io, sync::Arc, time::Duration};
use tokio::{
    io::AsyncWriteExt,
    task::spawn_local,
    time::{sleep, timeout},
};
use turmoil::net::{TcpListener, TcpStream};

/// When a write is applied that is not answered first.
#[derive(Clone, Copy, Debug)]
enum When {
    Never,
    /// So long after its arrival, if that is not too late.
    After(Duration),
    /// So long before the last moment at which it may be.
    BeforeSettled(Duration),
}

/// What becomes of a write.
#[derive(Clone, Copy, Debug)]
enum Plan {
    /// Applied, then answered.
    Proper { apply: Duration, answer: Duration },
    /// Answered without being applied.
    Rejected { answer: Duration, status: u16 },
    /// Answered before it is known what becomes of it.
    Undecided {
        answer: Duration,
        status: u16,
        when: When,
    },
    /// Read whole and never answered.
    Silent { close: Option<Duration>, when: When },
    /// The connection is closed after this many bytes of the body.
    Abrupt { body: usize, when: When },
    /// Answered after this many bytes of the body.
    Early { body: usize, when: When },
    /// Applied, then answered with a body that is cut short.
    CutAnswer,
}

impl When {
    fn draw(rng: &mut Rng) -> Self {
        match rng.u32(0..4) {
            0 => Self::Never,
            1 => Self::After(between(rng, 0, 500)),
            _ => Self::BeforeSettled(between(rng, 1, 40)),
        }
    }
}

impl Plan {
    fn draw(rng: &mut Rng, length: usize, over: bool) -> Self {
        let proper = |rng: &mut Rng| Self::Proper {
            apply: between(rng, 0, 25),
            answer: between(rng, 0, 15),
        };
        if over {
            return proper(rng);
        }
        let when = When::draw(rng);
        let answer = between(rng, 0, 30);
        match rng.u32(0..20) {
            0..9 => proper(rng),
            9 | 10 => Self::Proper {
                apply: between(rng, 0, 700),
                answer: between(rng, 0, 200),
            },
            11 => Self::Rejected {
                answer,
                status: *rng.choice(&[412, 500, 503]).unwrap(),
            },
            12 | 13 => Self::Undecided {
                answer,
                status: *rng.choice(&[202, 502, 504]).unwrap(),
                when,
            },
            14..17 => Self::Silent {
                close: rng.bool().then(|| between(rng, 0, 150)),
                when,
            },
            17 => Self::Abrupt {
                body: rng.usize(0..=length),
                when,
            },
            18 => Self::Early {
                body: rng.usize(0..=length),
                when,
            },
            _ => Self::CutAnswer,
        }
    }
}

/// The datastore's host.
pub async fn run(world: Arc<World>) -> turmoil::Result {
    let listener = TcpListener::bind("0.0.0.0:80").await?;
    loop {
        let (stream, from) = listener.accept().await?;
        let rng = world.rng();
        let world = Arc::clone(&world);
        spawn_local(async move {
            let mut connection = Connection {
                world,
                stream,
                from,
                reader: Reader::default(),
                rng,
            };
            // A connection that breaks is the end of it.
            let _ = connection.serve().await;
        });
    }
}

struct Connection {
    world: Arc<World>,
    stream: TcpStream,
    from: std::net::SocketAddr,
    reader: Reader,
    rng: Rng,
}

/// A write whose head has come.
struct Write {
    world: Arc<World>,
    id: u32,
    token: u64,
    line: Arc<Line>,
    /// How many bytes its connection has carried when it was sent completely.
    complete_at: u64,
}

impl Connection {
    async fn serve(&mut self) -> io::Result<()> {
        loop {
            let patience = if one_in(&mut self.rng, 3) && !self.world.is_over() {
                between(&mut self.rng, 5, 120)
            } else {
                ms(10_000)
            };
            let next = timeout(patience, self.reader.head(&mut self.stream)).await;
            let Ok(Some(head)) = next.unwrap_or(Ok(None)) else {
                return Ok(());
            };
            let id = id_of(&head);
            self.world.log(Event::Arrived { id });
            let go_on = match (head.word(0), head.token()) {
                ("PUT", Some(token)) => self.write(id, token, head.length()).await?,
                _ => self.read(id, head.token()).await?,
            };
            if !go_on {
                return Ok(());
            }
        }
    }

    async fn read(&mut self, id: u32, token: Option<u64>) -> io::Result<bool> {
        let over = self.world.is_over();
        sleep(between(&mut self.rng, 0, 30)).await;
        if let Some(token) = token {
            self.world.log(Event::Read { id, token });
        }
        sleep(between(&mut self.rng, 0, 30)).await;
        if one_in(&mut self.rng, 10) && !over {
            return Ok(false);
        }
        self.answer(id, 200, 2).await?;
        Ok(true)
    }

    async fn write(&mut self, id: u32, token: u64, length: usize) -> io::Result<bool> {
        // The proxy has noted the connection before it wrote to it.
        let line = self.world.line(self.from).expect("it was noted");
        let world = Arc::clone(&self.world);
        let write = Write {
            world,
            id,
            token,
            line,
            complete_at: (self.reader.used() + length) as u64,
        };
        let plan = Plan::draw(&mut self.rng, length, self.world.is_over());
        let (body, when) = match plan {
            Plan::Abrupt { body, when } | Plan::Early { body, when } => (body, when),
            _ => (length, When::BeforeSettled(ms(1))),
        };
        let whole = self.reader.body(&mut self.stream, body).await;
        if !matches!(whole, Ok(Some(_))) {
            // Cut in mid-body: this store acts on the part that it has.
            let luck = When::draw(&mut self.rng);
            write.apply_unanswered(luck);
            return Ok(false);
        }
        match plan {
            Plan::Proper { apply, answer } => {
                sleep(apply).await;
                // Its connection may have ended long ago.
                if write.may_be_applied() {
                    write.apply();
                    sleep(answer).await;
                    self.answer(id, 200, 2).await?;
                    return Ok(!one_in(&mut self.rng, 8));
                }
                Ok(false)
            }
            Plan::Rejected { answer, status } => {
                sleep(answer).await;
                self.answer(id, status, 2).await?;
                Ok(true)
            }
            Plan::Undecided {
                answer,
                status,
                when,
            } => {
                sleep(answer).await;
                self.answer(id, status, 2).await?;
                write.apply_answered(when);
                Ok(self.rng.bool())
            }
            Plan::Silent { close, when } => {
                write.apply_unanswered(when);
                sleep(close.unwrap_or(ms(2_000))).await;
                Ok(false)
            }
            Plan::Abrupt { .. } => {
                write.apply_unanswered(when);
                Ok(false)
            }
            Plan::Early { .. } => {
                if body == length {
                    // Not early after all: it is an answer, and settles.
                    self.answer(id, 413, 2).await?;
                    return Ok(false);
                }
                let status = *self.rng.choice(&[200, 413]).unwrap();
                self.answer(id, status, 2).await?;
                write.apply_early_answered(when);
                Ok(false)
            }
            Plan::CutAnswer => {
                if write.may_be_applied() {
                    write.apply();
                    self.answer(id, 200, 40).await?;
                }
                Ok(false)
            }
        }
    }

    /// `promised`: how many bytes of a body its head speaks of; there are two.
    async fn answer(&mut self, id: u32, status: u16, promised: usize) -> io::Result<()> {
        self.world.log(Event::Answered { id, status });
        let answer = format!("HTTP/1.1 {status} So\r\nContent-Length: {promised}\r\n\r\nok");
        self.stream.write_all(answer.as_bytes()).await
    }
}

impl Write {
    fn apply(&self) {
        let (id, token) = (self.id, self.token);
        self.world.log(Event::Applied { id, token });
    }

    /// A6.
    fn may_be_applied(&self) -> bool {
        self.line
            .settled_at()
            .is_none_or(|until| self.world.now() < until)
    }

    /// The same, if the proxy never sent it completely. If it did, what upstream answered is an answer and settles (A5),
    /// whether upstream has read it all or not.
    fn apply_early_answered(self, when: When) {
        self.apply_later(when, |write| write.line.bytes() < write.complete_at);
    }

    /// Some time while its connection is open, or until it is settled after that.
    fn apply_unanswered(self, when: When) {
        self.apply_later(when, |_| true);
    }

    fn apply_later(self, when: When, may: impl FnOnce(&Self) -> bool + 'static) {
        spawn_local(async move {
            match when {
                When::Never => return,
                When::After(delay) => sleep(delay).await,
                When::BeforeSettled(margin) => loop {
                    let Some(until) = self.line.settled_at() else {
                        sleep(ms(2)).await;
                        continue;
                    };
                    let now = self.world.now();
                    if now.after(margin) >= until {
                        break;
                    }
                    sleep(until.before(margin).since(now).max(ms(1))).await;
                },
            }
            if self.may_be_applied() && may(&self) {
                self.apply();
            }
        });
    }

    /// Until it is settled, counted from the answer that leaves it open.
    fn apply_answered(self, when: When) {
        if self.line.settled_at().is_some() {
            // Nobody has heard the answer.
            return self.apply_unanswered(when);
        }
        let until = self.world.now().after(SETTLE);
        spawn_local(async move {
            let delay = match when {
                When::Never => return,
                When::After(delay) => delay,
                When::BeforeSettled(margin) => SETTLE.saturating_sub(margin),
            };
            sleep(delay).await;
            if self.world.now() < until {
                self.apply();
            }
        });
    }
}

fn id_of(head: &Head) -> u32 {
    let target = head.word(1);
    target
        .trim_start_matches('/')
        .parse()
        .unwrap_or_else(|_| panic!("a target that nobody sent: {target}"))
}
