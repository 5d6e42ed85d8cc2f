//! One shell for a page's commands, in a fresh folder, with what the pages take for granted: etcd and a datastore.

use crate::markdown::Block;
use nix::unistd::Pid;
use palisade_examples::{stage::Store, tree};
use palisade_loadtest::servers::{Etcd, free_port, get, program, wait_for};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// How long a command may take before the page's test gives up. Not a measure of anything.
const GIVE_UP: Duration = Duration::from_secs(120);
/// Printed after each command with its status.
const END: &str = "--end of command--";

/// The shell, with ports and folders of its own in the place of those on the page.
pub(crate) struct Shell {
    process: Child,
    input: ChildStdin,
    output: Receiver<String>,
    swaps: Vec<(String, String)>,
    folder: TempDir,
    _etcd: Etcd,
    _store: Store,
}

impl Shell {
    pub(crate) async fn start() -> Self {
        let folder = TempDir::with_prefix("palisade-docs-").expect("a folder");
        let etcd = Etcd::start().expect("etcd");
        let port = free_port().expect("a port");
        let store = Store::start(folder.path(), "store", format!("127.0.0.1:{port}"))
            .await
            .expect("a store");
        fs::create_dir(folder.path().join("store/reports")).expect("a folder");
        let swaps = swaps(&folder, etcd.address().port(), port);

        let programs = program("palisade");
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", programs.parent().expect("a folder").display());
        let mut command = Command::new("bash");
        command
            .args(["--noprofile", "--norc"])
            .current_dir(folder.path())
            .env("PATH", path)
            .env("no_proxy", "127.0.0.1")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().expect("bash");
        let output = lines_of(&mut process);
        Self {
            input: process.stdin.take().expect("a pipe"),
            output,
            process,
            swaps,
            folder,
            _etcd: etcd,
            _store: store,
        }
    }

    /// Puts a block into a file.
    pub(crate) fn file(&self, name: &str, block: &Block) {
        fs::write(self.folder.path().join(name), self.swap(&block.text)).expect("written");
    }

    /// Runs a block's commands and compares what they print with what the page shows.
    pub(crate) fn run(&mut self, place: &str, block: &Block) {
        for (command, shown) in commands(&block.text) {
            let (status, printed) = self.one(&command);
            assert_eq!(status, "0", "{place}: `{command}` failed:\n{printed}");
            if !shown.is_empty() {
                assert!(
                    is_like(&printed, &shown),
                    "{place}: `{command}` prints:\n{printed}\nThe page shows:\n{shown}"
                );
            }
        }
    }

    /// Starts a block's one command and waits until an address answers.
    pub(crate) fn run_in_background(&mut self, place: &str, block: &Block, until: &str) {
        let commands = commands(&block.text);
        let [(command, _)] = commands.as_slice() else {
            panic!(
                "{place}: one command goes into the background, not {}",
                commands.len()
            );
        };
        let (status, printed) = self.one(&format!("{command} >background.log 2>&1 &"));
        assert_eq!(status, "0", "{place}: {printed}");
        let until = self.swap(until);
        let (address, path) = until.split_once('/').expect("HOST:PORT/PATH");
        let address = address.parse().expect("an address");
        let log = self.folder.path().join("background.log");
        wait_for(place, || {
            let (_, running) = self.one("jobs -r");
            assert!(
                !running.is_empty(),
                "{place}: it ended: {}",
                fs::read_to_string(&log).unwrap_or_default()
            );
            let answer = get(address, &format!("/{path}")).ok()?;
            answer.starts_with("HTTP/1.1 200").then_some(())
        });
    }

    /// Runs one command; its status, and what it printed on both outputs.
    fn one(&mut self, command: &str) -> (String, String) {
        let command = self.swap(command);
        writeln!(
            self.input,
            "{{ {command}\n}} 2>&1 </dev/null; echo \"\n{END} $?\""
        )
        .expect("the shell reads");
        let mut printed = String::new();
        loop {
            let line = self
                .output
                .recv_timeout(GIVE_UP)
                .unwrap_or_else(|error| panic!("`{command}`: {error}\n{printed}"));
            if let Some(status) = line.strip_prefix(END) {
                return (status.trim().to_owned(), printed.trim_end().to_owned());
            }
            printed.push_str(&line);
            printed.push('\n');
        }
    }

    fn swap(&self, text: &str) -> String {
        swap(&self.swaps, text)
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        tree::fell(Pid::from_raw(self.process.id() as i32));
        let _ = self.process.wait();
    }
}

/// What stands on the pages, and what it is in a test: free ports, fresh folders.
pub(crate) fn swaps(folder: &TempDir, etcd: u16, store: u16) -> Vec<(String, String)> {
    let state = folder.path().join("state").display().to_string();
    let mut swaps = vec![
        (":2379".to_owned(), format!(":{etcd}")),
        (":9000".to_owned(), format!(":{store}")),
        ("/var/lib/palisade".to_owned(), state),
    ];
    for port in [":8080", ":8081"] {
        let free = free_port().expect("a port");
        swaps.push((port.to_owned(), format!(":{free}")));
    }
    swaps
}

pub(crate) fn swap(swaps: &[(String, String)], text: &str) -> String {
    swaps
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

fn lines_of(process: &mut Child) -> Receiver<String> {
    let (send, receive) = channel();
    let output = BufReader::new(process.stdout.take().expect("a pipe"));
    thread::spawn(move || {
        for line in output.lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    receive
}

/// Each `$ ` command with its `> ` lines, and the lines after it: what the page shows as its output.
fn commands(text: &str) -> Vec<(String, String)> {
    let mut commands: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push((command.to_owned(), String::new()));
        } else {
            let (command, shown) = commands.last_mut().expect("starts with `$ `");
            match line.strip_prefix("> ").or((line == ">").then_some("")) {
                Some(more) if shown.is_empty() => *command = format!("{command}\n{more}"),
                _ => *shown = format!("{shown}{line}\n"),
            }
        }
    }
    commands
}

/// Whether each line is as shown, where `[..]` stands for anything.
fn is_like(printed: &str, shown: &str) -> bool {
    let (printed, shown) = (printed.trim_end().lines(), shown.trim_end().lines());
    let same_length = printed.clone().count() == shown.clone().count();
    same_length
        && printed.zip(shown).all(|(printed, shown)| {
            let Some((before, after)) = shown.split_once("[..]") else {
                return printed == shown;
            };
            let rest = printed.strip_prefix(before);
            rest.is_some_and(|rest| rest.ends_with(after))
        })
}

#[test]
fn output_is_compared_line_by_line() {
    assert!(is_like("a\nheld by x, 5\n", "a\nheld by [..], 5"));
    assert!(!is_like("a\nheld by x, 6", "a\nheld by [..], 5"));
    assert!(!is_like("a\nb", "a"));
    assert!(!is_like("a", "a\nb"));
}

#[test]
fn a_block_is_split_into_commands() {
    let split = commands("$ a \\\n>   b\none\ntwo\n$ c\n");
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(split, [pair("a \\\n  b", "one\ntwo\n"), pair("c", "")]);
}
