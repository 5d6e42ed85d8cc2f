//! The real program in a process of its own, and a raw client that reads what is on the wire.

use nix::sys::signal::Signal;
use palisade_loadtest::{
    origin::{Origin, Step},
    servers::{GIVE_UP, Process, get, wait_for},
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
};
use tempfile::TempDir;

/// A running proxy with a state folder of its own.
pub(crate) struct Palisade {
    process: Process,
    lines: Arc<Mutex<Vec<String>>>,
    folder: TempDir,
}

impl Palisade {
    /// In front of this upstream, with more lines of settings: first those at the top of the file, then whole tables.
    pub(crate) fn start(upstream: &str, settings: &str) -> Self {
        Self::start_with(upstream, settings, |_| {})
    }

    /// The same, with a last word on how the process is started.
    pub(crate) fn start_with(
        upstream: &str,
        settings: &str,
        adjust: impl FnOnce(&mut Command),
    ) -> Self {
        let folder = TempDir::with_prefix("palisade-wire-").unwrap();
        write_config(folder.path(), upstream, settings);
        let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
        command
            .arg("run")
            .arg("--config")
            .arg(folder.path().join("palisade.toml"))
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        adjust(&mut command);
        let mut process = Process::start("palisade", &mut command).unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (stderr, into) = (process.child().stderr.take().unwrap(), Arc::clone(&lines));
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines() {
                let Ok(line) = line else { return };
                into.lock().unwrap().push(line);
            }
        });
        let mut proxy = Self {
            process,
            lines,
            folder,
        };
        wait_for("palisade to run", || {
            let running = proxy.line("is running").is_some();
            assert!(
                running || proxy.process.ended().is_none(),
                "palisade has ended: {:?}",
                proxy.lines()
            );
            running.then_some(())
        });
        proxy
    }

    /// Where clients connect.
    pub(crate) fn address(&self) -> SocketAddr {
        self.logged("listen")
    }

    /// Where metrics and health are.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.logged("admin")
    }

    /// An address as it was configured, where the log is no JSON to read it from.
    pub(crate) fn configured(&self, key: &str) -> SocketAddr {
        let text = std::fs::read_to_string(self.folder().join("palisade.toml")).unwrap();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap();
        line.split('"').nth(1).unwrap().parse().unwrap()
    }

    fn logged(&self, field: &str) -> SocketAddr {
        let found = self.lines().iter().find_map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            line[field].as_str()?.split(' ').next()?.parse().ok()
        });
        found.unwrap_or_else(|| panic!("{field} was not logged: {:?}", self.lines()))
    }

    /// Its own folder, with `palisade.toml` in it.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes other settings. They hold after a SIGHUP.
    pub(crate) fn configure(&self, upstream: &str, settings: &str) {
        write_config(self.folder.path(), upstream, settings);
    }

    /// What it has logged so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// The first line with this text in it.
    pub(crate) fn line(&self, text: &str) -> Option<String> {
        self.lines().into_iter().find(|line| line.contains(text))
    }

    /// Waits for a line with this text in it.
    pub(crate) fn wait_line(&self, text: &str) -> String {
        wait_for(&format!("the line {text:?}"), || self.line(text))
    }

    /// Waits for that many such lines.
    pub(crate) fn wait_lines(&self, text: &str, count: usize) {
        wait_for(&format!("{count} lines {text:?}"), || {
            let found = self.lines().iter().filter(|l| l.contains(text)).count();
            (found >= count).then_some(())
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    pub(crate) fn pid(&self) -> i32 {
        self.process.pid().as_raw()
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.process.wait()
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.process.ended()
    }

    /// The page with the metrics.
    pub(crate) fn metrics(&self) -> String {
        let page = get(self.admin(), "/metrics").unwrap();
        page.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    /// One series' value.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        self.metrics()
            .lines()
            .find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
            .unwrap_or_else(|| panic!("no series {series}"))
    }

    /// How many descriptors it has open.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .count()
    }

    /// The most memory that it ever had, in KiB.
    pub(crate) fn peak(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

fn write_config(folder: &Path, upstream: &str, settings: &str) {
    let given = |key: &str| {
        settings
            .lines()
            .any(|line| line.starts_with(&format!("{key} ")))
    };
    let mut text = format!(
        "upstream = \"{upstream}\"\nstate = \"{}\"\n",
        folder.join("state").display()
    );
    for (key, value) in [
        ("listen", "[\"127.0.0.1:0\"]"),
        ("admin", "\"127.0.0.1:0\""),
        ("log_format", "\"json\""),
        ("threads", "2"),
    ] {
        if !given(key) {
            text.push_str(&format!("{key} = {value}\n"));
        }
    }
    text.push_str(settings);
    std::fs::write(folder.join("palisade.toml"), text).unwrap();
}

/// An upstream that answers everything with 200 and `ok`.
pub(crate) fn upstream() -> Origin {
    let origin = Origin::tcp().unwrap();
    origin.otherwise(vec![
        Step::ReadBody,
        Step::Apply,
        Step::Answer(200, b"ok".into()),
    ]);
    origin
}

/// A response as it was on the wire.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) fields: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    /// The body came to the end that its framing says.
    pub(crate) whole: bool,
}

impl Answer {
    /// The values of a field, by its name in any case.
    pub(crate) fn all(&self, name: &str) -> Vec<&str> {
        self.fields
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// The only value of a field, or `None`.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let values = self.all(name);
        assert!(values.len() < 2, "{name} stands twice: {}", self.head);
        values.first().copied()
    }

    /// The name of the problem in it, if there is one.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.field("content-type") != Some("application/problem+json") {
            return None;
        }
        let body: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(body["status"], self.status, "RFC 9457, section 3.1.2");
        let kind = body["type"].as_str().unwrap();
        Some(
            kind.strip_prefix("urn:palisade:problem:")
                .unwrap()
                .to_owned(),
        )
    }

    /// The outcome. A bare answer to bytes that were no request has none, and no body; everything else must have one.
    pub(crate) fn outcome(&self) -> Option<&str> {
        let outcome = self.field("x-fence-outcome");
        let bare = [400, 414, 431].contains(&self.status) && self.body.is_empty();
        assert!(outcome.is_some() || bare, "no outcome: {}", self.head);
        outcome
    }
}

/// All responses in some bytes; `head_only`: those to HEAD, which have no body whatever they say.
pub(crate) fn answers(mut bytes: &[u8], head_only: bool) -> Vec<Answer> {
    let mut answers = Vec::new();
    while let Some(end) = find(bytes, b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&bytes[..end + 2]).into_owned();
        bytes = &bytes[end + 4..];
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .unwrap_or(0);
        let fields: Vec<(String, String)> = head
            .split("\r\n")
            .skip(1)
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        let mut answer = Answer {
            status,
            head,
            fields,
            body: Vec::new(),
            whole: true,
        };
        if !head_only && status >= 200 && status != 204 && status != 304 {
            bytes = read_body(bytes, &mut answer);
        }
        answers.push(answer);
    }
    assert!(
        bytes.is_empty(),
        "no response: {:?}",
        String::from_utf8_lossy(bytes)
    );
    answers
}

fn read_body<'a>(bytes: &'a [u8], answer: &mut Answer) -> &'a [u8] {
    if answer.field("transfer-encoding").is_some() {
        return read_chunks(bytes, answer);
    }
    let length = answer.field("content-length").map(|l| l.parse().unwrap());
    let length: usize = length.unwrap_or(bytes.len());
    answer.whole = length <= bytes.len();
    let (body, rest) = bytes.split_at(length.min(bytes.len()));
    answer.body = body.to_vec();
    rest
}

fn read_chunks<'a>(mut bytes: &'a [u8], answer: &mut Answer) -> &'a [u8] {
    answer.whole = false;
    while let Some(end) = find(bytes, b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..end]).unwrap(), 16).unwrap();
        let data = &bytes[end + 2..];
        if data.len() < size + 2 {
            answer.body.extend_from_slice(&data[..size.min(data.len())]);
            return &[];
        }
        answer.body.extend_from_slice(&data[..size]);
        bytes = &data[size + 2..];
        if size == 0 {
            answer.whole = true;
            return bytes;
        }
    }
    &[]
}

pub(crate) fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

/// Connects to an address.
pub(crate) fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(GIVE_UP)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Sends bytes on a new connection, half-closes, and reads to the end. A reset after an answer is no error here.
pub(crate) fn send(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    let _ = stream.write_all(request);
    let _ = stream.shutdown(Shutdown::Write);
    read_to_end(&mut stream)
}

/// Reads to the end.
///
/// # Panics
/// If that does not come.
pub(crate) fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let (mut answer, mut part) = (Vec::new(), [0; 16 * 1024]);
    loop {
        match stream.read(&mut part) {
            Ok(0) => return answer,
            Ok(length) => answer.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                panic!("no end: {:?}", String::from_utf8_lossy(&answer))
            }
            Err(_) => return answer,
        }
    }
}

/// Reads up to the end of one response that has a `Content-Length`, or none and no body.
pub(crate) fn read_answer(stream: &mut TcpStream) -> Answer {
    let (mut bytes, mut part) = (Vec::new(), [0; 16 * 1024]);
    loop {
        if let Some(end) = find(&bytes, b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length: usize = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length:"))
                .map_or(0, |length| length.trim().parse().unwrap());
            if bytes.len() >= end + 4 + length {
                return answers(&bytes[..end + 4 + length], false).remove(0);
            }
        }
        let length = stream.read(&mut part).unwrap();
        assert!(length > 0, "closed: {:?}", String::from_utf8_lossy(&bytes));
        bytes.extend_from_slice(&part[..length]);
    }
}

/// Sends one request on a connection that stays open, and reads its response.
pub(crate) fn ask(stream: &mut TcpStream, request: &str) -> Answer {
    stream.write_all(request.as_bytes()).unwrap();
    read_answer(stream)
}

/// A write on a connection of its own.
pub(crate) fn put(address: SocketAddr, target: &str, token: u64) -> Answer {
    let request = format!(
        "PUT {target} HTTP/1.1\r\nHost: db\r\nX-Fence-Token: {token}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi"
    );
    answers(&send(address, request.as_bytes()), false).remove(0)
}
