//! What each fault does to the stage, at its beginning and at its end.

use super::{Fault, link::Mode, plan::Planned, restore::wait, run::Stage};
use crate::history::What;
use nix::sys::signal::Signal;
use std::io;

/// Whom a fault hits, by their places in the stage's lists.
#[derive(Clone, Copy)]
struct Hit {
    worker: usize,
    node: usize,
    clock: usize,
}

impl Stage {
    /// A fault begins or ends, and is written down.
    pub(super) fn fault(&mut self, planned: Planned, begins: bool) -> io::Result<()> {
        let hit = Hit {
            worker: planned.pick as usize % self.workers.len(),
            node: planned.pick as usize % self.nodes.len(),
            clock: planned.pick as usize % self.clocks.len().max(1),
        };
        let told = What::Fault {
            name: planned.fault.to_string(),
            target: self.target(planned.fault, hit),
            begins,
        };
        if begins {
            self.recorder.record(told);
            self.begin(planned, hit)
        } else {
            self.end(planned, hit)?;
            self.recorder.record(told);
            if planned.fault.hits_etcd() && planned.pick.is_multiple_of(2) {
                let _ = self.leases.snapshot(&self.snapshot());
            }
            Ok(())
        }
    }

    /// In words, where there are several.
    fn target(&self, fault: Fault, hit: Hit) -> String {
        match fault {
            Fault::WorkerStop | Fault::WorkerKill => {
                format!("worker {}", self.workers[hit.worker].0.number)
            }
            Fault::ClockJump => match hit.clock {
                0 => "the workers".to_owned(),
                proxy => format!("proxy {proxy}"),
            },
            _ if fault.hits_a_proxy() && self.nodes.len() > 1 => format!("proxy {}", hit.node + 1),
            _ => String::new(),
        }
    }

    fn begin(&mut self, planned: Planned, hit: Hit) -> io::Result<()> {
        let bytes = (planned.pick % 3_000) as usize;
        let worker = &mut self.workers[hit.worker].1;
        let node = &mut self.nodes[hit.node];
        match planned.fault {
            Fault::WorkerStop => worker.signal(Signal::SIGSTOP),
            Fault::WorkerKill => worker.kill(),
            Fault::ProxyStop => node.target.freeze(true),
            Fault::ProxyKill => node.target.kill(),
            Fault::ProxyRestart => node.target.stop(),
            Fault::DiskFull => node.fill_disk()?,
            Fault::ClockJump => self.set_clock(hit, hours_off(planned.pick))?,
            Fault::EtcdStop => self.leases.freeze_one(planned.pick),
            Fault::EtcdKill => self.leases.kill_one(planned.pick),
            Fault::EtcdRestart => self.leases.stop_one(planned.pick),
            Fault::EtcdLeader => self.leases.move_leader(planned.pick),
            Fault::EtcdQuorum => self.leases.freeze_most(),
            Fault::EtcdCompact => self.leases.compact(),
            Fault::EtcdFull => self.leases.fill(&self.folder.path().join("much"))?,
            Fault::EtcdRestore => self.restore_etcd()?,
            Fault::EtcdRestoreAhead => self.restore_etcd_ahead()?,
            Fault::FrontCut => node.front.cut(),
            Fault::FrontHold => node.front.set(Mode::Hold),
            Fault::FrontHalfOpen => node.front.set(Mode::HalfOpen),
            Fault::FrontCutAfter => node.front.set(Mode::CutAfter(bytes)),
            Fault::FrontEat => node.front.set(Mode::Eat),
            Fault::BackCut => node.back.cut(),
            Fault::BackHold => node.back.set(Mode::Hold),
            Fault::BackHalfOpen => node.back.set(Mode::HalfOpen),
            Fault::BackCutAfter => node.back.set(Mode::CutAfter(bytes)),
            Fault::BackEat => node.back.set(Mode::Eat),
            Fault::LeasesCut => node.cut_leases(),
            Fault::LeasesHold => node.set_leases(Mode::Hold),
            Fault::LeasesHalfOpen => node.set_leases(Mode::HalfOpen),
            Fault::LeasesCutAfter => node.set_leases(Mode::CutAfter(bytes)),
            Fault::LeasesEat => node.set_leases(Mode::Eat),
            Fault::StoreSlow => self.store.slow(true),
            Fault::StoreAmbiguous => self.store.ambiguous(true),
        }
        Ok(())
    }

    fn end(&mut self, planned: Planned, hit: Hit) -> io::Result<()> {
        let node = &mut self.nodes[hit.node];
        match planned.fault {
            Fault::WorkerStop => self.workers[hit.worker].1.signal(Signal::SIGCONT),
            Fault::WorkerKill => {
                // With another number: its requests are others.
                self.workers[hit.worker].0.number += 1_000;
                self.workers[hit.worker].1 = self.start_worker(&self.workers[hit.worker].0)?;
            }
            Fault::ProxyStop => node.target.freeze(false),
            Fault::ProxyKill | Fault::ProxyRestart => node.start()?,
            Fault::DiskFull => node.make_room()?,
            Fault::ClockJump => self.set_clock(hit, 0)?,
            Fault::EtcdFull => wait("etcd to have room again", || self.leases.make_room())?,
            Fault::EtcdStop | Fault::EtcdQuorum => self.leases.thaw(),
            Fault::EtcdKill | Fault::EtcdRestart => self.leases.revive()?,
            Fault::EtcdRestore => self.new_epoch()?,
            Fault::EtcdRestoreAhead => self.snapshot_again()?,
            Fault::FrontHold | Fault::FrontHalfOpen | Fault::FrontCutAfter | Fault::FrontEat => {
                node.front.set(Mode::Pass);
            }
            Fault::BackHold | Fault::BackHalfOpen | Fault::BackCutAfter | Fault::BackEat => {
                node.back.set(Mode::Pass);
            }
            Fault::LeasesHold
            | Fault::LeasesHalfOpen
            | Fault::LeasesCutAfter
            | Fault::LeasesEat => node.set_leases(Mode::Pass),
            Fault::StoreSlow => self.store.slow(false),
            Fault::StoreAmbiguous => self.store.ambiguous(false),
            Fault::EtcdLeader
            | Fault::EtcdCompact
            | Fault::FrontCut
            | Fault::BackCut
            | Fault::LeasesCut => {}
        }
        Ok(())
    }

    fn set_clock(&self, hit: Hit, ahead: i64) -> io::Result<()> {
        let clock = self.clocks.get(hit.clock);
        clock.map_or(Ok(()), |clock| clock.set(ahead))
    }
}

/// Up to two hours of seconds ahead or behind, and never only a few.
fn hours_off(pick: u64) -> i64 {
    let seconds = 600 + (pick / 2 % 6_600) as i64;
    if pick.is_multiple_of(2) {
        seconds
    } else {
        -seconds
    }
}
