//! What one decision of the pure core costs: a request whose token is the floor, which is nearly every request.
//!
//! `cargo bench -p palisade-fence --bench scope`
#![allow(missing_docs, reason = "criterion's macros make public functions")]

use criterion::{Criterion, criterion_group, criterion_main};
use palisade_fence::{Action, Decision, Scope, Time, Token};
use std::hint::black_box;

/// A scope whose floor has opened.
fn open(floor: Token) -> Scope {
    let mut scope = Scope::new(false);
    let mut arrival = scope.arrive(floor);
    assert_eq!(scope.decide(&mut arrival, Time::ZERO), Decision::Wait);
    assert_eq!(scope.poll_action(), Some(Action::Close(floor)));
    scope.durable(floor);
    assert_eq!(scope.decide(&mut arrival, Time::ZERO), Decision::Admit);
    assert_eq!(scope.poll_action(), Some(Action::RecordOpened(floor)));
    scope
}

fn decisions(criterion: &mut Criterion) {
    let floor = Token::MIN;
    let mut scope = open(floor);
    criterion.bench_function("scope/read", |bencher| {
        bencher.iter(|| {
            let mut arrival = black_box(&scope).arrive(black_box(floor));
            scope.decide(&mut arrival, Time::ZERO)
        });
    });
    criterion.bench_function("scope/write", |bencher| {
        bencher.iter(|| {
            let mut arrival = black_box(&scope).arrive(black_box(floor));
            let decision = scope.decide(&mut arrival, Time::ZERO);
            scope.start(floor).map(|()| scope.settled(floor)).ok();
            decision
        });
    });
}

criterion_group!(benches, decisions);
criterion_main!(benches);
