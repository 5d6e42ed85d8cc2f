//! Long random walks, and the rules one by one.

use super::{world::*, *};
use crate::store::Claim;

fn terms(ttl: u64) -> Terms {
    Terms {
        ttl: Duration::from_secs(ttl),
        margin: None,
        wait: true,
        give_up: Time::NEVER,
        patience: Duration::from_secs(10),
        steal: false,
    }
}

/// Walks for a while with faults, then lets everything go well until everybody has had the lease and given it back.
fn walk(seed: u64) -> World {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = random.usize(2..=4);
    let all: Vec<Terms> = (0..count)
        .map(|_| Terms {
            margin: Some(TICK),
            steal: random.u8(..) < 16,
            ..terms(3)
        })
        .collect();
    let mut world = World::new(&all, random.u8(0..20), Planted::Nothing);
    for _ in 0..random.usize(50..400) {
        let steps = world.steps(Time::NEVER);
        // Time passes seldom, or nobody would ever be answered in time.
        let step = match random.choice(&steps) {
            Some(Step::Tick) if random.u8(..) > 60 => continue,
            Some(step) => *step,
            None => break,
        };
        world.take(step);
        assert!(world.is_safe(), "seed {seed}: after {step:?}: {world:#?}");
    }
    world.faults = 0;
    for _ in 0..20_000 {
        if world.holders.iter().all(Holder::is_over) && world.store.sessions.is_empty() {
            return world;
        }
        let steps = world.steps(Time::NEVER);
        let quick = steps
            .iter()
            .find(|step| !matches!(step, Step::Tick | Step::Expire(_) | Step::GiveBack(_)));
        let step = quick
            .or(random.choice(&steps))
            .copied()
            .unwrap_or(Step::Tick);
        world.take(step);
        assert!(world.is_safe(), "seed {seed}: after {step:?}: {world:#?}");
    }
    panic!("seed {seed}: somebody never got it, or something is left over: {world:#?}");
}

#[test]
fn whatever_happens_one_holds_and_everybody_gets_it_in_the_end() {
    let seeds = std::env::var("PALISADE_SEEDS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(2000);
    let mut granted = 0;
    for seed in 0..seeds {
        let world = walk(seed);
        assert!(
            world.store.key.is_none() && world.store.queue.is_empty(),
            "seed {seed}"
        );
        granted += world.granted.len();
    }
    assert!(granted as u64 >= seeds, "the walks reach grants: {granted}");
}

#[test]
fn the_same_seed_walks_the_same_way() {
    assert_eq!(walk(7), walk(7));
}

/// Runs a single holder up to its grant.
fn held(terms: Terms) -> World {
    let mut world = World::new(&[terms], 0, Planted::Nothing);
    world.run_alone(0);
    assert!(world.holders[0].held().is_some());
    world
}

/// L18, and the sending counts, not the answer.
#[test]
fn the_deadline_counts_from_the_sending_and_from_the_smaller_ttl() {
    // The store grants 3 s.
    let holder = &held(terms(2)).holders[0];
    assert_eq!(holder.ttl(), Some(Duration::from_secs(2)));
    assert_eq!(holder.deadline(), Time::from_nanos(1_500_000_000));
    let mut world = held(terms(60));
    assert_eq!(world.holders[0].deadline(), Time::from_nanos(2_500_000_000));
    world.take(Step::Tick);
    world.take(Step::Wake(0));
    let request = world.holders[0].beating().unwrap();
    world.holders[0].answer(request, Answer::KeptAlive, Time::from_nanos(2_000_000_000));
    // Sent at 1 s, answered at 2 s.
    assert_eq!(world.holders[0].deadline(), Time::from_nanos(3_500_000_000));
}

/// L7, L8: whatever is under way, the clock decides, and first of all.
#[test]
fn a_clock_that_jumps_ends_it_before_anything_else() {
    let mut world = held(terms(3));
    world.take(Step::Tick);
    world.take(Step::Wake(0));
    let request = world.holders[0].beating().unwrap();
    // The answer is there, but the holder slept too long.
    let late = Time::from_nanos(100_000_000_000);
    world.holders[0].answer(request, Answer::KeptAlive, late);
    assert_eq!(world.holders[0].held(), None);
    let news: Vec<News> = std::iter::from_fn(|| world.holders[0].poll_news()).collect();
    assert_eq!(news, [News::Lost(Loss::Expired)]);
    assert_eq!(
        world.holders[0].poll_request(late),
        None,
        "nothing is tried on a lost lease"
    );
}

#[test]
fn answers_to_old_requests_are_ignored() {
    let mut world = held(terms(3));
    let before = world.holders[0].clone();
    for id in 0..before.next_id {
        if before.watching() != Some(id) {
            let answer = Answer::Claimed(Claim::Won(Token::new(99).unwrap()));
            world.holders[0].answer(id, answer, Time::ZERO);
        }
    }
    assert_eq!(world.holders[0].held(), before.held());
    assert_eq!(world.holders[0].deadline(), before.deadline());
}

#[test]
fn giving_back_twice_is_harmless() {
    let mut world = held(terms(3));
    for _ in 0..2 {
        world.holders[0].give_back();
        world.take(Step::Wake(0));
    }
    world.run_alone(0);
    assert!(world.holders[0].is_over());
    assert!(world.store.key.is_none() && world.store.sessions.is_empty());
}

#[test]
fn a_store_that_never_answers_ends_the_patience() {
    let mut holder = Holder::new(terms(3), 1, Time::ZERO);
    let mut now = Time::ZERO;
    let refusal = loop {
        while let Some(request) = holder.poll_request(now) {
            let why = StoreError::Unreachable("nobody".to_owned());
            holder.answer(request.id, Answer::Failed(why), now);
        }
        match holder.poll_news() {
            Some(News::Refused(refusal)) => break refusal,
            Some(news) => panic!("{news:?}"),
            None => now = now.after(Duration::from_millis(100)),
        }
        assert!(now < Time::from_nanos(60_000_000_000));
    };
    assert_eq!(
        refusal,
        Refusal::Store(StoreError::Unreachable("nobody".to_owned()))
    );
    assert!(now >= Time::from_nanos(10_000_000_000));
}

#[test]
fn a_denied_claim_is_no_wait() {
    let mut holder = Holder::new(terms(3), 1, Time::ZERO);
    let request = holder.poll_request(Time::ZERO).unwrap();
    holder.answer(
        request.id,
        Answer::Failed(StoreError::Denied("no".to_owned())),
        Time::ZERO,
    );
    assert_eq!(
        holder.poll_news(),
        Some(News::Refused(Refusal::Store(StoreError::Denied(
            "no".to_owned()
        ))))
    );
}

#[test]
fn margins() {
    assert_eq!(
        default_margin(Duration::from_secs(2)),
        Duration::from_millis(500)
    );
    assert_eq!(
        default_margin(Duration::from_secs(60)),
        Duration::from_secs(6)
    );
}
