//! Just enough HTTP/1.1 for both ends: heads, and bodies of a told length.

use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

/// A message's head.
pub struct Head {
    lines: Vec<String>,
}

impl Head {
    /// The first line's words.
    pub fn word(&self, n: usize) -> &str {
        self.lines[0].split(' ').nth(n).unwrap_or_default()
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.lines[1..].iter().find_map(|line| {
            let (field, value) = line.split_once(':')?;
            field.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub fn length(&self) -> usize {
        self.field("content-length")
            .map_or(0, |length| length.parse().unwrap())
    }

    pub fn token(&self) -> Option<u64> {
        self.field("x-fence-token")
            .map(|token| token.parse().unwrap())
    }
}

/// What has been read and not been used yet.
#[derive(Default)]
pub struct Reader {
    read: Vec<u8>,
    used: usize,
}

impl Reader {
    /// The next head; `None` if the connection ends before it.
    pub async fn head(&mut self, io: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = self.read.windows(4).position(|part| part == b"\r\n\r\n") {
                self.used += end + 4;
                let head: Vec<_> = self.read.drain(..end + 4).collect();
                let head = String::from_utf8_lossy(&head[..end]);
                let lines = head.split("\r\n").map(str::to_owned).collect();
                return Ok(Some(Head { lines }));
            }
            if !self.more(io).await? {
                return Ok(None);
            }
        }
    }

    /// This many bytes of a body; false if the connection ends before.
    pub async fn body(
        &mut self,
        io: &mut (impl AsyncRead + Unpin),
        length: usize,
    ) -> io::Result<Option<String>> {
        while self.read.len() < length {
            if !self.more(io).await? {
                return Ok(None);
            }
        }
        self.used += length;
        let body: Vec<_> = self.read.drain(..length).collect();
        Ok(Some(String::from_utf8_lossy(&body).into_owned()))
    }

    /// How many bytes have been used so far.
    pub fn used(&self) -> usize {
        self.used
    }

    async fn more(&mut self, io: &mut (impl AsyncRead + Unpin)) -> io::Result<bool> {
        Ok(io.read_buf(&mut self.read).await? > 0)
    }
}
