//! The run itself: starts everything, carries out the plan, waits for the calm.

use super::{
    Fault, Recorder,
    clock::{self, WallClock},
    disk::{Disk, may_mount},
    leases::Leases,
    link::Link,
    node::Node,
    plan::plan,
    scrape::Scraper,
    store::Store,
    target::{Kind, Place, Target},
    worker::Worker,
};
use crate::{
    history::{Event, REQUESTS, What},
    servers::{Process, can_bump, newer_etcd, program},
};
use palisade_lease::clock::boot;
use std::{
    io::{self, BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// What to run.
#[derive(Clone, Debug)]
pub struct Chaos {
    /// Of the plan, and of the datastore's whims.
    pub seed: u64,
    /// How long there are faults.
    pub time: Duration,
    /// Which.
    pub faults: Vec<Fault>,
    /// What is attacked.
    pub proxy: Kind,
    /// How many proxies: replicas of one group, if there are several.
    pub proxies: usize,
    /// How many members etcd has: 1 or 3.
    pub members: usize,
    /// How many workers for each scope.
    pub workers: u64,
    /// How many scopes. The baselines that know only one get one.
    pub scopes: u64,
    /// A6, for Palisade and for the datastore.
    pub settle: Duration,
    /// How soon after the faults each scope's holder must succeed.
    pub recovers_within: Duration,
}

impl Default for Chaos {
    fn default() -> Self {
        Self {
            seed: 1,
            time: Duration::from_secs(600),
            faults: Fault::ALL.to_vec(),
            proxy: Kind::Palisade,
            proxies: 1,
            members: 1,
            workers: 3,
            scopes: 3,
            settle: Duration::from_millis(1_500),
            recovers_within: Duration::from_secs(30),
        }
    }
}

impl Chaos {
    /// The command that runs the same plan again.
    pub fn command(&self) -> String {
        let all = self.faults.len() == Fault::ALL.len();
        let names: Vec<String> = self.faults.iter().map(Fault::to_string).collect();
        let faults = match names.len() {
            0 => "none".to_owned(),
            _ if all => "all".to_owned(),
            _ => names.join(","),
        };
        format!(
            "palisade-loadtest chaos --seed {} --time {:?} --faults {faults} --proxy {} --proxies {} --members {} --scopes {} --workers {} --settle {:?} --recovers-within {:?}",
            self.seed,
            self.time,
            self.proxy,
            self.proxies,
            self.members,
            self.scopes,
            self.workers,
            self.settle,
            self.recovers_within,
        )
    }

    /// The faults that can be played, and those that can't, with why.
    pub fn applicable(&self) -> (Vec<Fault>, Vec<(Fault, &'static str)>) {
        let (mut played, mut left_out) = (Vec::new(), Vec::new());
        for &fault in &self.faults {
            match self.hinders(fault) {
                None => played.push(fault),
                Some(why) => left_out.push((fault, why)),
            }
        }
        (played, left_out)
    }

    /// The folder of etcd's programs, if not the usual one: several replicas need a newer etcd than that may be.
    fn programs(&self) -> Result<Option<PathBuf>, String> {
        let newer = self.proxies > 1 && self.proxy == Kind::Palisade;
        newer.then(newer_etcd).transpose()
    }

    fn hinders(&self, fault: Fault) -> Option<&'static str> {
        let palisade = matches!(self.proxy, Kind::Palisade | Kind::NoBarrier);
        match fault {
            Fault::EtcdLeader if self.members == 1 => Some("etcd has one member"),
            Fault::DiskFull if !palisade => Some("it keeps no state that would need room"),
            Fault::DiskFull if !may_mount() => Some("mounting a file system is not permitted here"),
            Fault::ClockJump if clock::library().is_none() => {
                Some("libfaketime is not installed (apt-get install faketime)")
            }
            Fault::EtcdRestoreAhead
                if !self
                    .programs()
                    .is_ok_and(|folder| can_bump(folder.as_deref())) =>
            {
                Some(
                    "this etcd can't push its revision ahead: PALISADE_ETCD_BIN says where a 3.5 is",
                )
            }
            Fault::EtcdRestore if !palisade => {
                Some("only Palisade knows what to do about numbers that come again")
            }
            _ => None,
        }
    }
}

/// Runs it and gives the history. `progress` is told how far it is, between 0 and 1, and what happens.
///
/// # Errors
/// If something can't be started, at first or again.
pub fn run(chaos: &Chaos, progress: impl FnMut(f64, &str)) -> io::Result<Vec<Event>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut stage = Stage::set(chaos, &runtime)?;
    stage.disturb(chaos, progress)?;
    stage.calm(chaos.recovers_within);
    let recorder = stage.recorder.clone();
    drop(stage);
    runtime.shutdown_background();
    let events = recorder.events().clone();
    Ok(events)
}

/// Everything that runs.
pub(super) struct Stage {
    pub(super) recorder: Arc<Recorder>,
    pub(super) workers: Vec<(Worker, Process)>,
    pub(super) nodes: Vec<Node>,
    pub(super) leases: Leases,
    pub(super) store: Store,
    /// The workers' wall clock and each proxy's, if they are to jump.
    pub(super) clocks: Vec<WallClock>,
    /// A6.
    pub(super) settle: Duration,
    /// For what the run itself needs to keep.
    pub(super) folder: TempDir,
}

impl Stage {
    fn set(chaos: &Chaos, runtime: &tokio::runtime::Runtime) -> io::Result<Self> {
        let recorder = Arc::new(Recorder::new());
        let programs = chaos.programs().map_err(io::Error::other)?;
        let played = chaos.applicable().0;
        let has = |fault| played.contains(&fault);
        let small = has(Fault::EtcdFull);
        let leases = Leases::start(chaos.members, programs.as_deref(), small)?;
        let folder = TempDir::with_prefix("palisade-chaos-")?;
        let mut clocks = Vec::new();
        if has(Fault::ClockJump) {
            for number in 0..=chaos.proxies {
                let file = folder.path().join(format!("clock{number}"));
                clocks.extend(WallClock::new(&file)?);
            }
        }
        let store = runtime.block_on(Store::start(
            recorder.clone(),
            chaos.settle,
            chaos.seed,
            chaos.proxies,
        ))?;
        let mut nodes = Vec::new();
        for number in 0..chaos.proxies {
            let back = runtime.block_on(Link::to(store.addresses()[number]))?;
            let mut links = Vec::new();
            for member in leases.endpoints() {
                links.push(runtime.block_on(Link::to(member))?);
            }
            let endpoints: Vec<_> = links.iter().map(Link::address).collect();
            let place = Place {
                number,
                of: chaos.proxies,
            };
            let disk = has(Fault::DiskFull).then(Disk::mount).transpose()?;
            let mut target =
                Target::new(chaos.proxy, back.address(), &endpoints, chaos.settle, place)?
                    .keeps_state_at(disk.as_ref().map(Disk::state))
                    .goes_by(clocks.get(number + 1).cloned());
            let front = runtime.block_on(Link::to(target.start()?))?;
            let scraper = Scraper::start(recorder.clone(), number as u64 + 1);
            scraper.at(target.admin());
            nodes.push(Node {
                target,
                scraper,
                front,
                back,
                leases: links,
                disk,
                full: false,
                down: false,
            });
        }
        let one_scope = matches!(chaos.proxy, Kind::Peer(_));
        let scopes = if one_scope { 1 } else { chaos.scopes };
        let mut stage = Self {
            recorder,
            workers: Vec::new(),
            nodes,
            leases,
            store,
            settle: chaos.settle,
            folder,
            clocks,
        };
        stage.leases.snapshot(&stage.snapshot())?;
        stage.recorder.record(What::Start {
            seed: chaos.seed,
            proxy: chaos.proxy.to_string(),
            recovers_within_ms: chaos.recovers_within.as_millis() as u64,
            scopes: (0..scopes).map(scope).collect(),
            command: Some(chaos.command()),
        });
        for number in 0..scopes * chaos.workers {
            let worker = stage.worker(number, scope(number % scopes));
            let process = stage.start_worker(&worker)?;
            stage.workers.push((worker, process));
        }
        Ok(stage)
    }

    fn worker(&self, number: u64, scope: String) -> Worker {
        Worker {
            // Not by the link: a proxy that can't reach etcd while the workers can is the harder case.
            leases: palisade_lease::LeaseUrl::Etcd {
                endpoints: (self.leases.endpoints().iter())
                    .map(ToString::to_string)
                    .collect(),
                tls: false,
            },
            to: self.nodes.iter().map(|node| node.front.address()).collect(),
            scope,
            number: number + 1,
            epoch: self.recorder.epoch().as_nanos(),
        }
    }

    pub(super) fn start_worker(&self, worker: &Worker) -> io::Result<Process> {
        let mut command = Command::new(program("palisade-loadtest"));
        command
            .args(worker.arguments())
            .envs(
                self.clocks
                    .first()
                    .into_iter()
                    .flat_map(WallClock::environment),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Process::start("worker", &mut command)?;
        let clock = self.clocks.first().into_iter();
        clock.for_each(|clock| clock.used_by(process.pid()));
        let output = process.child().stdout.take();
        let recorder = self.recorder.clone();
        thread::spawn(move || {
            let lines = output
                .into_iter()
                .flat_map(|output| BufReader::new(output).lines());
            // The last line of a killed worker may be half a line.
            let events = lines
                .map_while(Result::ok)
                .filter_map(|line| serde_json::from_str(&line).ok());
            events.for_each(|event| recorder.add(event));
        });
        Ok(process)
    }

    /// Carries out the plan.
    fn disturb(&mut self, chaos: &Chaos, mut progress: impl FnMut(f64, &str)) -> io::Result<()> {
        let planned = plan(chaos.seed, chaos.time, &chaos.applicable().0);
        let begins = planned.iter().map(|p| (p.at, true, *p));
        let ends = planned.iter().map(|p| (p.until, false, *p));
        let mut timeline: Vec<_> = begins.chain(ends).collect();
        timeline.sort_by_key(|(at, begins, _)| (*at, *begins));
        let start = boot();
        for (at, begins, planned) in timeline {
            thread::sleep(at.saturating_sub(boot().since(start)));
            let does = if begins { "" } else { " ends" };
            let done = at.as_secs_f64() / chaos.time.as_secs_f64();
            progress(done, &format!("{}{does}", planned.fault));
            self.fault(planned, begins)?;
        }
        thread::sleep(chaos.time.saturating_sub(boot().since(start)));
        Ok(())
    }

    /// Everything runs again; waits until each scope's holder has succeeded, or the time for it is over.
    fn calm(&self, within: Duration) {
        let from = self.recorder.events().len();
        self.recorder.record(What::Calm);
        let start = boot();
        while boot().since(start) < within && !self.all_succeed(from) {
            thread::sleep(Duration::from_millis(50));
        }
        self.recorder.record(What::End);
    }

    /// Whether a request of each scope was invoked and answered with success since then.
    fn all_succeed(&self, from: usize) -> bool {
        let events = self.recorder.events();
        let succeeded: Vec<u64> = events[from..]
            .iter()
            .filter_map(|event| match &event.what {
                What::Answered {
                    id,
                    status: 200 | 204,
                    ..
                } => Some(id / REQUESTS),
                _ => None,
            })
            .collect();
        self.workers.iter().all(|(worker, _)| {
            let same_scope = |other: &&(Worker, Process)| other.0.scope == worker.scope;
            let of_scope = self.workers.iter().filter(same_scope);
            of_scope
                .into_iter()
                .any(|(other, _)| succeeded.contains(&other.number))
        })
    }
}

fn scope(number: u64) -> String {
    format!("s{number}")
}
