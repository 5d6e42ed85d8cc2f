//! What the origin has seen and done.

use std::collections::HashMap;

/// Bodies up to this many bytes are kept whole.
const KEEP: usize = 64 * 1024;

/// A request whose head came.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// When, among arrivals and applications together.
    pub order: u64,
    /// On which connection, from 0.
    pub connection: usize,
    /// The head as it came, the empty line included.
    pub head: Vec<u8>,
    /// The first word of its first line.
    pub method: String,
    /// The second one, as it came.
    pub target: String,
    /// The fields in order, names as they came, values without surrounding blanks.
    pub fields: Vec<(String, String)>,
    /// The body as it was on the wire, chunk lines and trailers included; up to 64 KiB of it.
    pub wire: Vec<u8>,
    /// The body without chunk lines; up to 64 KiB of it.
    pub body: Vec<u8>,
    /// The body's whole length so far.
    pub length: u64,
    /// A hash (FNV-1a, 64 bits) of the body so far.
    pub hash: u64,
    /// The body came to the end that its framing says.
    pub complete: bool,
}

impl Arrival {
    /// The values of a field, by its name in any case.
    pub fn field(&self, name: &str) -> Vec<&str> {
        self.fields
            .iter()
            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect()
    }

    pub(super) fn add_body(&mut self, bytes: &[u8]) {
        let room = KEEP.saturating_sub(self.body.len()).min(bytes.len());
        self.body.extend_from_slice(&bytes[..room]);
        self.length += bytes.len() as u64;
        // FNV-1a: byte by byte, so that it does not depend on how the body was cut into pieces.
        self.hash = bytes.iter().fold(self.hash, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    }

    pub(super) fn add_wire(&mut self, bytes: &[u8]) {
        let room = KEEP.saturating_sub(self.wire.len()).min(bytes.len());
        self.wire.extend_from_slice(&bytes[..room]);
    }
}

/// A write that was applied.
#[derive(Clone, Debug)]
pub struct Applied {
    /// When, among arrivals and applications together.
    pub order: u64,
    /// Which arrival it was, as an index.
    pub arrival: usize,
    /// Its method.
    pub method: String,
    /// Its target.
    pub target: String,
    /// Its `X-Fence-Token`, if it had one.
    pub token: Option<String>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The client closed it between requests, with a FIN.
    Closed,
    /// The client closed it in the middle of a request, with a FIN.
    CutShort,
    /// The client reset it.
    Reset,
    /// The origin closed it.
    ByOrigin,
}

#[derive(Debug, Default)]
pub(super) struct Log {
    next: u64,
    pub(super) arrivals: Vec<Arrival>,
    pub(super) applied: Vec<Applied>,
    pub(super) values: HashMap<String, Vec<u8>>,
    pub(super) connections: Vec<Option<Ended>>,
}

impl Log {
    pub(super) fn connected(&mut self) -> usize {
        self.connections.push(None);
        self.connections.len() - 1
    }

    /// Only the first end of a connection counts.
    pub(super) fn ended(&mut self, connection: usize, how: Ended) {
        self.connections[connection].get_or_insert(how);
    }

    pub(super) fn arrived(&mut self, mut arrival: Arrival) -> usize {
        arrival.order = self.tick();
        self.arrivals.push(arrival);
        self.arrivals.len() - 1
    }

    pub(super) fn apply(&mut self, index: usize) {
        let order = self.tick();
        let arrival = &self.arrivals[index];
        let reads = ["GET", "HEAD", "OPTIONS", "PROPFIND", "REPORT", "SEARCH"];
        if reads.contains(&arrival.method.as_str()) {
            return;
        }
        if arrival.method == "DELETE" {
            self.values.remove(&arrival.target);
        } else {
            self.values
                .insert(arrival.target.clone(), arrival.body.clone());
        }
        self.applied.push(Applied {
            order,
            arrival: index,
            method: arrival.method.clone(),
            target: arrival.target.clone(),
            token: arrival
                .field("x-fence-token")
                .first()
                .map(|&t| t.to_owned()),
        });
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
