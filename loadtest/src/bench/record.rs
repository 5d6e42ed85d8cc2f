//! A bench as it is kept in a file: JSON, for the report and for whoever wants to compare.

use super::{Figures, Pace, Row};
use serde::{Deserialize, Serialize};

/// The quantiles that are kept of a row's latencies: dense where a curve bends.
const QUANTILES: [f64; 19] = [
    0.0, 0.1, 0.25, 0.5, 0.6, 0.75, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995, 0.9975, 0.999, 0.9995,
    0.99975, 0.9999, 0.99999, 1.0,
];

/// One call of `palisade-loadtest bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The day, `YYYY-MM-DD`.
    pub date: String,
    /// Kind and number of processors, and the kernel.
    pub machine: String,
    /// Processes that ran or wanted to, on average over the last minute, when it began: what else was going on.
    pub load_average: f64,
    /// The command.
    pub command: String,
    /// What was measured.
    pub rows: Vec<Measured>,
}

/// All rounds of one load against one proxy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// `get`, `put-1k`, ...
    pub work: String,
    /// How many connections.
    pub connections: usize,
    /// Requests a second that were due; `None`: as fast as they were answered.
    pub rate: Option<f64>,
    /// The proxy.
    pub proxy: String,
    /// One for each round, in order: only those of the same round can be compared.
    pub rounds: Vec<Figures>,
    /// System calls for a request.
    pub syscalls: Option<f64>,
    /// Quantile and microseconds, over all rounds.
    pub latency: Vec<(f64, f64)>,
}

impl Measured {
    /// From what the bench gave.
    pub fn new(row: &Row) -> Self {
        let micros = |quantile| row.latency.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            work: row.load.work.to_string(),
            connections: row.load.connections,
            rate: match row.load.pace {
                Pace::Closed => None,
                Pace::Open(rate) => Some(rate),
            },
            proxy: row.kind.to_string(),
            rounds: row.rounds.clone(),
            syscalls: row.syscalls.map(|calls| calls.all),
            latency: QUANTILES
                .map(|quantile| (quantile, micros(quantile)))
                .into(),
        }
    }

    /// The middle one of some figure over the rounds, the smallest and the largest.
    pub fn spread(&self, of: impl Fn(&Figures) -> f64) -> (f64, f64, f64) {
        spread(self.rounds.iter().map(of).collect())
    }

    /// The same of the ratio to another proxy, round by round.
    pub fn ratio(&self, other: &Self, of: impl Fn(&Figures) -> f64) -> (f64, f64, f64) {
        let pairs = self.rounds.iter().zip(&other.rounds);
        spread(pairs.map(|(one, other)| of(one) / of(other)).collect())
    }
}

fn spread(mut numbers: Vec<f64>) -> (f64, f64, f64) {
    numbers.sort_by(f64::total_cmp);
    let at = |index: usize| numbers.get(index).copied().unwrap_or(f64::NAN);
    let last = numbers.len().saturating_sub(1);
    (at(numbers.len() / 2), at(0), at(last))
}

/// What machine this is, as its kernel says.
pub fn machine() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("processor of unknown kind", |(_, model)| model);
    // Not what this process may use: it is bound to one while it measures.
    let is_core = |line: &&str| line.starts_with("processor");
    let cores = cpus.lines().filter(is_core).count();
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{cores} cores, {model}, Linux {}", kernel.trim())
}

/// The machine's load average of the last minute (proc(5)).
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next();
    first.and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Today in UTC.
pub fn today() -> String {
    let now = humantime::format_rfc3339_seconds(palisade_lease::clock::wall()).to_string();
    now.split('T').next().unwrap_or_default().to_owned()
}
