//! `status`, `list`, `watch`, `release`: text for people, `--json` for scripts.

use crate::outcome::{UNREACHABLE, USAGE, say};
use palisade_fence::Token;
use palisade_lease::{
    LeaseName, LeaseStore, StoreError,
    record::{Record, rfc3339},
    store::{Event, Status},
};
use serde_json::{Value, json};
use std::{process::ExitCode, sync::Arc, time::Duration};

/// How long a question may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long `watch` pauses after a failure.
const AGAIN: Duration = Duration::from_secs(1);

type Store = Arc<dyn LeaseStore>;

/// Exit 0 held, 1 free.
pub(crate) async fn status(store: Store, name: &LeaseName, json: bool) -> ExitCode {
    match ask(|| store.status(name)).await {
        Ok(status) => {
            out(&if json {
                to_json(&status).to_string()
            } else {
                to_text(&status)
            });
            ExitCode::from(u8::from(status.holder.is_none()))
        }
        Err(error) => failed(&error),
    }
}

pub(crate) async fn list(store: Store, prefix: &str, json: bool) -> ExitCode {
    match ask(|| store.list(prefix)).await {
        Ok(all) if json => {
            out(&Value::from(all.iter().map(to_json).collect::<Vec<_>>()).to_string());
            ExitCode::SUCCESS
        }
        Ok(all) => {
            all.iter().for_each(|status| out(&one_line(status)));
            ExitCode::SUCCESS
        }
        Err(error) => failed(&error),
    }
}

/// Frees the lease if its token is still this one.
pub(crate) async fn release(store: Store, name: &LeaseName, token: Token, json: bool) -> ExitCode {
    match ask(|| store.release(name, token)).await {
        Ok(released) => {
            let text = if released {
                format!("{name}: released, token {token}")
            } else {
                format!("{name}: nothing released: its token is not {token}")
            };
            out(&if json {
                json!({"lease": name.as_str(), "released": released}).to_string()
            } else {
                text
            });
            ExitCode::from(u8::from(!released))
        }
        Err(error) => failed(&error),
    }
}

/// A line for each grant, release and expiry, until it is killed.
pub(crate) async fn watch(store: Store, name: &LeaseName, json: bool) -> ExitCode {
    let mut after = None;
    let mut silent = false;
    loop {
        let next = match after {
            None => ask(|| store.look(name, palisade_lease::store::SessionId(0), None))
                .await
                .map(|view| {
                    if let Some(seen) = view.holder {
                        print_event(name, &Event::Granted(seen.token, view.record), json);
                    }
                    view.revision
                }),
            Some(revision) => store
                .next_event(name, revision)
                .await
                .map(|(event, revision)| {
                    print_event(name, &event, json);
                    revision
                }),
        };
        match next {
            Ok(revision) => {
                after = Some(revision);
                silent = false;
            }
            Err(StoreError::Unreachable(why)) => {
                if !silent {
                    say(&format!("{name}: {why}; trying again"));
                    silent = true;
                }
                tokio::time::sleep(AGAIN).await;
                // What has passed meanwhile may be gone from the history: begin with how it stands.
                after = None;
            }
            Err(error) => return failed(&error),
        }
    }
}

/// The command line itself was wrong.
pub(crate) fn usage(reason: &str) -> ExitCode {
    say(reason);
    ExitCode::from(USAGE)
}

/// A question, asked again on another endpoint if need be.
async fn ask<'a, T>(
    question: impl Fn() -> palisade_lease::store::Call<'a, T>,
) -> Result<T, StoreError> {
    let started = palisade_lease::clock::boot();
    loop {
        let answer = tokio::time::timeout(LIMIT / 3, question()).await;
        let error = match answer {
            Ok(Err(StoreError::Unreachable(why))) => StoreError::Unreachable(why),
            Ok(answer) => return answer,
            Err(_) => StoreError::Unreachable("no answer in time".to_owned()),
        };
        if palisade_lease::clock::boot().since(started) >= LIMIT {
            return Err(error);
        }
        tokio::time::sleep(LIMIT / 50).await;
    }
}

fn failed(error: &StoreError) -> ExitCode {
    say(&error.to_string());
    ExitCode::from(UNREACHABLE)
}

fn state(status: &Status) -> &'static str {
    match status.holder {
        None => "free",
        Some(seen) if seen.session.is_none() => "stuck",
        Some(_) => "held",
    }
}

fn to_text(status: &Status) -> String {
    let mut lines = vec![format!("{}: {}", status.name, state(status))];
    if let Some(seen) = status.holder {
        let by = status.record.clone().unwrap_or_default();
        lines.push(format!("  token      {}", seen.token));
        lines.push(format!(
            "  holder     {} (host {}, pid {})",
            by.holder, by.host, by.pid
        ));
        lines.push(format!("  since      {}{}", by.acquired_at, age(&by)));
        lines.push(match (status.remaining, seen.session) {
            (Some(left), Some(session)) => format!("  time left  {left:?} (session {session})"),
            _ => format!(
                "  never ends by itself: free it with `release {} --token {}`",
                status.name, seen.token
            ),
        });
    }
    lines.push(format!("  waiting    {}", status.waiters.len()));
    for (place, waiter) in status.waiters.iter().enumerate() {
        lines.push(format!(
            "    {}. {} since {}",
            place + 1,
            waiter.holder,
            waiter.acquired_at
        ));
    }
    lines.join("\n")
}

/// By the wall clock, and so only for people.
fn age(record: &Record) -> String {
    let since = humantime::parse_rfc3339(&record.acquired_at).ok();
    let age = since.and_then(|since| palisade_lease::clock::wall().duration_since(since).ok());
    age.map_or_else(String::new, |age| {
        format!(
            " ({} ago)",
            humantime::format_duration(Duration::from_secs(age.as_secs()))
        )
    })
}

fn one_line(status: &Status) -> String {
    let by = status.record.clone().unwrap_or_default();
    let token = status
        .holder
        .map_or_else(|| "-".to_owned(), |seen| seen.token.to_string());
    format!(
        "{}\t{}\t{token}\t{}\t{}",
        status.name,
        state(status),
        by.holder,
        by.acquired_at
    )
}

fn to_json(status: &Status) -> Value {
    json!({
        "lease": status.name.as_str(),
        "state": state(status),
        "token": status.holder.map(|seen| seen.token.get()),
        "session": status.holder.and_then(|seen| seen.session).map(|session| session.to_string()),
        "holder": status.record,
        "remaining_ms": status.remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        "waiters": status.waiters,
    })
}

fn print_event(name: &LeaseName, event: &Event, json: bool) {
    let at = rfc3339(palisade_lease::clock::wall());
    out(&match (event, json) {
        (Event::Granted(token, record), false) => {
            let by = record.as_ref().map_or("unknown", |by| &by.holder);
            format!("{at} {name} granted token {token} to {by}")
        }
        (Event::Freed(revision), false) => format!("{at} {name} free, at revision {revision}"),
        (Event::Granted(token, record), true) => {
            json!({"at": at, "lease": name.as_str(), "event": "granted", "token": token.get(), "holder": record}).to_string()
        }
        (Event::Freed(revision), true) => {
            json!({"at": at, "lease": name.as_str(), "event": "freed", "revision": revision}).to_string()
        }
    });
}

#[expect(clippy::print_stdout, reason = "the program's output")]
fn out(text: &str) {
    println!("{text}");
}
