//! The proxy itself, as users run it: the program `palisade` in a process of its own, on ports that the system chose, with a
//! state folder that outlives its processes.

use crate::servers::{Process, get, program, wait_for};
use nix::sys::signal::Signal;
use serde::Deserialize;
use std::{
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader},
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Output, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};
use tempfile::TempDir;

/// A proxy: its settings, its state folder, and its process while it runs. Killed when dropped.
///
/// Each start takes new ports, unless `listen` was set.
#[derive(Debug)]
pub struct Palisade {
    settings: Vec<(String, String)>,
    environment: Vec<(OsString, OsString)>,
    folder: TempDir,
    state: PathBuf,
    running: Option<Running>,
    /// Of all its processes so far, in order.
    log: Arc<Mutex<Vec<Line>>>,
}

#[derive(Debug)]
struct Running {
    process: Process,
    address: SocketAddr,
    admin: SocketAddr,
    /// Reads its log until it ends.
    reader: Option<thread::JoinHandle<()>>,
}

/// A line of its log; fields by name. What was no JSON is in the field `message`.
pub type Line = serde_json::Map<String, serde_json::Value>;

/// A scope as the admin address shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct ScopeState {
    /// Its name.
    pub scope: String,
    /// The highest token accepted.
    pub floor: Option<u64>,
    /// Whether the floor has opened.
    pub open: bool,
    /// Writes on their way.
    pub in_flight: u32,
    /// Ambiguous writes that may still be applied.
    pub settling: u32,
    /// Requests that wait for the raise.
    pub waiting: usize,
    /// Requests that passed.
    pub requests: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Seconds until the raise can finish by time alone.
    pub opens_in: Option<f64>,
}

impl Palisade {
    /// One in front of this upstream that does not run yet; otherwise with default settings, and with two threads.
    ///
    /// # Errors
    /// If no temporary folder can be made.
    pub fn new(upstream: &str) -> io::Result<Self> {
        let folder = TempDir::with_prefix("palisade-proxy-")?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let proxy = Self {
            state: folder.path().join("state"),
            settings: Vec::new(),
            environment: Vec::new(),
            folder,
            running: None,
            log: Arc::default(),
        };
        Ok(proxy
            .set("upstream", upstream)
            .set("listen", any)
            .set("admin", any)
            .set("threads", 2)
            .set("log_format", "json"))
    }

    /// With a setting by its name in the file, such as `fence.settle`.
    #[must_use]
    pub fn set(mut self, setting: &str, value: impl ToString) -> Self {
        self.change(setting, value);
        self
    }

    /// Changes a setting; counts from the next start on.
    pub fn change(&mut self, setting: &str, value: impl ToString) {
        self.settings.retain(|(known, _)| known != setting);
        self.settings.push((setting.to_owned(), value.to_string()));
    }

    /// With a variable in its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// With its state there, e.g. on a small disk.
    #[must_use]
    pub fn state_at(mut self, folder: &Path) -> Self {
        self.state = folder.to_owned();
        self
    }

    /// With these routes, as TOML.
    ///
    /// # Errors
    /// If they can't be written to a file.
    pub fn routes(self, toml: &str) -> io::Result<Self> {
        let path = self.folder.path().join("routes.toml");
        fs::write(&path, toml)?;
        Ok(self.set("routes_file", path.display()))
    }

    /// Starts it and waits until it serves.
    ///
    /// # Errors
    /// If it ends instead; with the last lines of its log.
    pub fn start(&mut self) -> io::Result<()> {
        self.start_or_end()?.map_or(Ok(()), |status| {
            let tail: Vec<String> = self.log().iter().rev().take(5).map(text).collect();
            Err(io::Error::other(format!(
                "palisade ended at once, {status}: {}",
                tail.join("\n")
            )))
        })
    }

    /// Starts it and waits until it serves, or has ended: then with its exit status.
    ///
    /// # Errors
    /// If the program can't be started at all.
    pub fn start_or_end(&mut self) -> io::Result<Option<ExitStatus>> {
        self.running = None;
        let mut command = self.command("run");
        command
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        for (setting, value) in &self.settings {
            let flag = format!("--{}", setting.replace(['.', '_'], "-"));
            command.args([&flag, value]);
        }
        let mut process = Process::start("palisade", &mut command)?;
        let begin = self.log().len();
        let reader = process.child().stderr.take().map(|stderr| {
            let log = Arc::clone(&self.log);
            thread::spawn(move || read_log(BufReader::new(stderr), &log))
        });
        let up = wait_for("palisade to serve", || {
            let addresses = addresses(&self.log()[begin..]);
            addresses.map(Ok).or_else(|| process.ended().map(Err))
        });
        match up {
            Ok((address, admin)) => {
                self.running = Some(Running {
                    process,
                    address,
                    admin,
                    reader,
                });
                Ok(None)
            }
            Err(status) => {
                // Its last words are in the log by then.
                reader.map(thread::JoinHandle::join);
                Ok(Some(status))
            }
        }
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(program("palisade"));
        command.arg(name).arg("--state").arg(&self.state);
        command
    }

    /// Another command of the program, about this proxy: `&["scopes", "--json"]`.
    ///
    /// # Errors
    /// If the program can't be started.
    ///
    /// # Panics
    /// Without a word.
    pub fn ask(&self, arguments: &[&str]) -> io::Result<Output> {
        let (name, rest) = arguments.split_first().expect("a command");
        self.command(name).args(rest).output()
    }

    /// Whether it was started and not ended here.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    fn running(&self) -> &Running {
        self.running.as_ref().expect("the proxy does not run")
    }

    /// The process id.
    ///
    /// # Panics
    /// If it does not run; so do all that ask a running proxy.
    pub fn pid(&self) -> nix::unistd::Pid {
        self.running().process.pid()
    }

    /// Where clients connect.
    ///
    /// # Panics
    /// If it does not run; so do all that ask a running proxy.
    pub fn address(&self) -> SocketAddr {
        self.running().address
    }

    /// Where metrics and health are served.
    pub fn admin(&self) -> SocketAddr {
        self.running().admin
    }

    /// The state folder.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) {
        self.running().process.signal(signal);
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait();
    }

    /// SIGTERM, and waits for its end.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        let mut running = self.running.take().expect("the proxy does not run");
        let status = running.process.wait();
        running.reader.take().map(thread::JoinHandle::join);
        status
    }

    /// Everything that it has logged, over all its processes.
    pub fn log(&self) -> MutexGuard<'_, Vec<Line>> {
        locked(&self.log)
    }

    /// Whether a message with this text in it was logged.
    pub fn has_logged(&self, part: &str) -> bool {
        self.log().iter().any(|line| text(line).contains(part))
    }

    /// Something of the admin address, without its head.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn admin_get(&self, path: &str) -> String {
        let answer = get(self.admin(), path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
        body.unwrap_or_default().to_owned()
    }

    /// All scopes in its memory.
    ///
    /// # Panics
    /// If they can't be read.
    pub fn scopes(&self) -> Vec<ScopeState> {
        let scopes = self.admin_get("/scopes");
        serde_json::from_str(&scopes).unwrap_or_else(|error| panic!("{error} in {scopes}"))
    }

    /// One of them.
    pub fn scope(&self, name: &str) -> Option<ScopeState> {
        self.scopes().into_iter().find(|scope| scope.scope == name)
    }

    /// Waits until a scope is as wanted.
    ///
    /// # Panics
    /// If it does not come to that; with `what`.
    pub fn wait_scope(
        &self,
        name: &str,
        what: &str,
        wanted: impl Fn(&ScopeState) -> bool,
    ) -> ScopeState {
        let mut last = None;
        wait_for(&format!("scope {name}: {what}"), || {
            last = self.scope(name);
            last.clone().filter(&wanted)
        })
    }

    /// The sum of all series of a metric.
    pub fn metric(&self, name: &str) -> f64 {
        let metrics = self.admin_get("/metrics");
        let series = metrics.lines().filter(|line| {
            line.strip_prefix(name)
                .is_some_and(|rest| rest.starts_with([' ', '{']))
        });
        series
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum()
    }

    /// The most memory that it had at once, in bytes (`VmHWM`, proc(5)).
    ///
    /// # Errors
    /// If `/proc` does not say.
    pub fn peak_memory(&self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.running().process.pid()))?;
        let kib = status
            .lines()
            .find_map(|line| line.strip_prefix("VmHWM:"))
            .and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        kib.map(|kib| kib * 1024)
            .ok_or_else(|| io::Error::other("no VmHWM"))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_log(stderr: impl BufRead, log: &Mutex<Vec<Line>>) {
    for line in stderr.lines().map_while(Result::ok) {
        let parsed = serde_json::from_str(&line).unwrap_or_else(|_| {
            let message = ("message".to_owned(), line.into());
            Line::from_iter([message])
        });
        locked(log).push(parsed);
    }
}

fn text(line: &Line) -> String {
    line.get("message")
        .and_then(|message| message.as_str())
        .unwrap_or_default()
        .to_owned()
}

/// Where it listens and where its admin address is, once it has said that it runs.
fn addresses(log: &[Line]) -> Option<(SocketAddr, SocketAddr)> {
    let field = |name: &str| log.iter().find_map(|line| line.get(name)?.as_str());
    let running = log.iter().any(|line| text(line).ends_with(" is running"));
    let first = field("listen")?.split(' ').next()?;
    running.then_some((first.parse().ok()?, field("admin")?.parse().ok()?))
}
