//! make demo
//!
//! A worker stalls, loses its lease, wakes up and writes: once with Palisade in front of the datastore, once without.
//! Real etcd, a real datastore, real processes that are really stopped. Exit code 0 only if the story came out.

mod keep;
mod say;
mod story;

use clap::{Parser, ValueEnum};
use palisade_examples::stage::{Kind, Stage};
use std::{io, process::ExitCode};
use story::Target;
use tokio::signal::unix::{SignalKind, signal};

/// A stalled worker's late write, with Palisade in front of the datastore and without.
#[derive(Parser)]
struct Arguments {
    /// Leave everything running at the end, and say what to try.
    #[arg(long)]
    keep: bool,
    /// Where leases are kept: in etcd, or in a file (then no server is needed).
    #[arg(long, value_enum, default_value_t = Where::Etcd)]
    leases: Where,
    /// End what earlier runs with --keep left running, and remove their files.
    #[arg(long, conflicts_with = "keep")]
    clean: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Where {
    Etcd,
    Sqlite,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = if arguments.clean {
        keep::clean()
    } else {
        // Whichever ends first: dropping the other one ends all its processes and removes its files.
        tokio::select! {
            result = demo(arguments.keep, arguments.leases) => result,
            result = interrupted() => result,
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::ending(&format!("The demo did not come out: {error}"), false);
            ExitCode::FAILURE
        }
    }
}

async fn interrupted() -> io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Err(io::Error::other(
        "interrupted; all that it started is ended",
    ))
}

async fn demo(keep: bool, leases: Where) -> io::Result<()> {
    say::heading("Palisade: a worker stalls, loses its lease, wakes up and writes");
    let kind = match leases {
        Where::Etcd => Kind::Etcd,
        Where::Sqlite => Kind::Sqlite,
    };
    let stage = Stage::set(story::LEASE, kind).await?;
    say::fact(stage.leases.name(), &stage.leases.url(), "keeps the leases");
    say::fact(
        "datastore",
        "WebDAV on a folder, over a unix socket",
        "reached only through Palisade",
    );
    say::fact(
        "palisade",
        &format!("http://{}", stage.proxy.front),
        "the fence in front of it",
    );

    say::heading("1. With Palisade in front of the datastore");
    let fenced = story::play(
        &stage,
        &Target {
            lease: story::LEASE,
            url: stage.proxy.url("report.txt"),
            report: &|| stage.fenced.read("report.txt"),
        },
    )
    .await?;
    fenced.tell(true, fenced.is_fenced())?;

    say::heading("2. The same story against a bare datastore");
    say::fact(
        "datastore",
        &format!("http://{}", stage.bare.address),
        "the same program, nothing in front of it",
    );
    say::plain("");
    let bare = story::play(
        &stage,
        &Target {
            lease: story::BARE_LEASE,
            url: format!("http://{}/report.txt", stage.bare.address),
            report: &|| stage.bare.read("report.txt"),
        },
    )
    .await?;
    bare.tell(false, bare.is_destroyed())?;

    if keep {
        keep::keep(stage, &fenced)?;
    }
    Ok(())
}
