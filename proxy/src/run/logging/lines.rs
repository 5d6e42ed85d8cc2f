//! Log lines on their way out: by a thread of their own, so that a request neither pays for a system call of its line nor waits for whoever reads them.

use crate::forward::ACCESS_LOG;
use std::{
    io::{self, ErrorKind, Write},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};
use tracing::Metadata;
use tracing_subscriber::fmt::MakeWriter;

/// How late a line of the access log may be.
const LATE: Duration = Duration::from_millis(100);
/// So many bytes are written at once, however late they are.
const ENOUGH: usize = 64 << 10;
/// What goes into a pipe in one piece, whoever else writes to it (pipe(7), "PIPE_BUF").
const PIECE: usize = 4096;
/// The most that waits for a reader who stands still, in bytes. What comes then is lost, and counted.
const MOST: usize = 4 << 20;
/// How long a stop waits for the reader.
const PATIENCE: Duration = Duration::from_secs(1);
/// Until a descriptor that does not block is tried again.
const AGAIN: Duration = Duration::from_millis(10);

/// The lines that wait, for all who write them.
#[derive(Clone, Debug)]
pub(super) struct Lines(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    pending: Mutex<Pending>,
    /// There is something to write, or something was written.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Pending {
    lines: Vec<u8>,
    /// To be written now.
    now: bool,
    /// What was taken from `lines` is being written.
    writing: bool,
    /// Lines that found no room, since it was last told.
    lost: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lines {
    /// Starts the thread that writes them to `out`.
    ///
    /// # Errors
    /// If there can be no further thread.
    pub(super) fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        let lines = Self(Arc::default());
        let shared = Arc::clone(&lines.0);
        thread::Builder::new()
            .name("log".into())
            .spawn(move || write_out(&shared, out))?;
        Ok(lines)
    }

    fn add(&self, line: &[u8], now: bool) {
        let mut pending = self.0.lock();
        if pending.lines.len() + line.len() > MOST {
            pending.lost += 1;
            drop(pending);
            metrics::counter!("palisade_log_lines_lost_total").increment(1);
            return;
        }
        let was_empty = pending.lines.is_empty();
        pending.lines.extend_from_slice(line);
        let wake = was_empty || (!pending.now && (now || pending.lines.len() >= ENOUGH));
        pending.now |= now || pending.lines.len() >= ENOUGH;
        drop(pending);
        if wake {
            self.0.changed.notify_all();
        }
    }

    /// Waits until all lines so far are written, for as long as a stop may wait for their reader.
    pub(super) fn flush(&self) {
        let mut pending = self.0.lock();
        pending.now = true;
        self.0.changed.notify_all();
        let done = |pending: &mut Pending| pending.writing || !pending.lines.is_empty();
        drop(
            self.0
                .changed
                .wait_timeout_while(pending, PATIENCE, done)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

fn write_out(shared: &Shared, mut out: impl Write) {
    let mut taken = Vec::new();
    loop {
        let mut pending = wait(shared);
        std::mem::swap(&mut pending.lines, &mut taken);
        (pending.now, pending.writing) = (false, true);
        drop(pending);

        let failed = match write_lines(&mut out, &taken) {
            Ok(()) => 0,
            Err(_) => taken.iter().filter(|byte| **byte == b'\n').count() as u64,
        };
        taken.clear();
        taken.shrink_to(2 * ENOUGH);

        let mut pending = shared.lock();
        pending.writing = false;
        pending.lost += failed;
        let lost = match failed {
            0 => std::mem::take(&mut pending.lost),
            _ => 0,
        };
        drop(pending);
        shared.changed.notify_all();
        if failed > 0 {
            metrics::counter!("palisade_log_lines_lost_total").increment(failed);
        }
        if lost > 0 {
            tracing::warn!(lost, "log lines were lost: nobody read them in time");
        }
    }
}

/// Until there is something to be written, and it is full or late enough.
fn wait(shared: &Shared) -> MutexGuard<'_, Pending> {
    let pending = shared.lock();
    let pending = shared
        .changed
        .wait_while(pending, |pending| pending.lines.is_empty())
        .unwrap_or_else(PoisonError::into_inner);
    let (pending, _) = shared
        .changed
        .wait_timeout_while(pending, LATE, |pending| !pending.now)
        .unwrap_or_else(PoisonError::into_inner);
    pending
}

/// In pieces that stay whole in a pipe: others may write their lines to it as well.
fn write_lines(out: &mut impl Write, mut lines: &[u8]) -> io::Result<()> {
    while !lines.is_empty() {
        let (piece, rest) = lines.split_at(piece(lines));
        write_all(out, piece)?;
        lines = rest;
    }
    Ok(())
}

/// The length of the whole lines at the beginning that are a piece, or of the first line if that is longer.
fn piece(lines: &[u8]) -> usize {
    if lines.len() <= PIECE {
        return lines.len();
    }
    memchr::memrchr(b'\n', &lines[..PIECE])
        .or_else(|| memchr::memchr(b'\n', lines))
        .map_or(lines.len(), |end| end + 1)
}

/// Also to a pipe or terminal that somebody else has set not to block.
fn write_all(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(AGAIN),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes one line.
#[derive(Debug)]
pub(super) struct Line<'a> {
    lines: &'a Lines,
    now: bool,
}

impl Write for Line<'_> {
    /// tracing-subscriber gives each line as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.add(line, self.now);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line {
            lines: self,
            now: true,
        }
    }

    fn make_writer_for(&'a self, event: &Metadata<'_>) -> Line<'a> {
        Line {
            lines: self,
            now: event.target() != ACCESS_LOG,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "test code")]
mod tests {
    use super::*;
    use std::{
        io::{Read, pipe},
        os::unix::net::UnixStream,
    };

    #[test]
    fn lines_come_out_whole_and_in_their_order() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        reader.set_nonblocking(true).unwrap();
        let lines = Lines::start(writer).unwrap();
        let mut wanted = String::new();
        for number in 0..1000 {
            let line = format!("{number}\n");
            lines.add(line.as_bytes(), false);
            wanted += &line;
        }
        lines.flush();
        // All of it is there by then.
        let mut read = vec![0; 2 * wanted.len()];
        let length = reader.read(&mut read).unwrap();
        read.truncate(length);
        assert_eq!(String::from_utf8(read).unwrap(), wanted);
    }

    /// What may be late comes with what may not, and before it.
    #[test]
    fn one_that_must_not_be_late_takes_the_others_along() {
        let (mut reader, writer) = pipe().unwrap();
        let lines = Lines::start(writer).unwrap();
        lines.add(b"a request\n", false);
        lines.add(b"an error\n", true);
        let mut read = [0; 19];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"a request\nan error\n");
    }

    #[test]
    fn pieces_are_whole_lines() {
        assert_eq!(piece(b"a\nb\n"), 4);
        let long = [b"a\n".as_slice(), &[b'b'; PIECE], b"\nc\n"].concat();
        assert_eq!(piece(&long), 2);
        assert_eq!(piece(&long[2..]), PIECE + 1);
        let full = [vec![b'a'; PIECE - 1], b"\nb\n".to_vec()].concat();
        assert_eq!(piece(&full), PIECE);
    }

    #[test]
    fn one_comes_by_itself_in_the_end() {
        let (mut reader, writer) = pipe().unwrap();
        let lines = Lines::start(writer).unwrap();
        lines.add(b"a request\n", false);
        let mut read = [0; 10];
        reader.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"a request\n");
    }

    #[test]
    fn with_a_reader_that_stands_still_there_is_a_limit() {
        let (reader, writer) = pipe().unwrap();
        let lines = Lines::start(writer).unwrap();
        let mut line = vec![b'x'; ENOUGH];
        line.push(b'\n');
        // What waits, and as much that the thread may have taken before it stood still.
        let most = 2 * MOST / line.len() + 2;
        for _ in 0..most + 10 {
            lines.add(&line, false);
        }
        let pending = lines.0.lock();
        assert!(pending.lines.len() <= MOST);
        assert!(pending.lost >= 10, "{}", pending.lost);
        drop(pending);
        lines.flush();
        drop(reader);
        // Nor does one who has gone away end the thread.
        wait_until(|| lines.0.lock().lines.is_empty());
        lines.add(&line, true);
        wait_until(|| lines.0.lock().lines.is_empty());
    }

    fn wait_until(condition: impl Fn() -> bool) {
        palisade_loadtest::servers::wait_for("the writing thread", || condition().then_some(()));
    }
}
