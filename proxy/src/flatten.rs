//! Small messages in one plain write.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::AsyncWrite;

/// Heads and bodies up to this many bytes in all are copied together: one plain `send` is cheaper than a `writev` there.
pub(crate) const FLATTEN: usize = 2048;

/// A vectored write that copies what is small.
pub(crate) fn poll_write_vectored<W: AsyncWrite>(
    io: Pin<&mut W>,
    cx: &mut Context<'_>,
    bufs: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [only] = bufs {
        return io.poll_write(cx, only);
    }
    let total: usize = bufs.iter().map(|buf| buf.len()).sum();
    if total > FLATTEN {
        return io.poll_write_vectored(cx, bufs);
    }
    let mut flat = [0; FLATTEN];
    let mut end = 0;
    for buf in bufs {
        flat[end..end + buf.len()].copy_from_slice(buf);
        end += buf.len();
    }
    io.poll_write(cx, &flat[..end])
}
