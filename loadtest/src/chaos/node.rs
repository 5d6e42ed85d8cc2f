//! One proxy of a run, with the links around it.

use super::{
    disk::Disk,
    link::{Link, Mode},
    scrape::Scraper,
    target::Target,
};
use std::io;

/// A proxy, and what it is reached by and reaches others by.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) target: Target,
    /// Looks at its floors: each replica has its own.
    pub(super) scraper: Scraper,
    /// Between workers and proxy.
    pub(super) front: Link,
    /// Between proxy and datastore.
    pub(super) back: Link,
    /// Between proxy and each member of the lease store.
    pub(super) leases: Vec<Link>,
    /// Where it keeps its state, if that is to be full at times.
    pub(super) disk: Option<Disk>,
    /// Whether it is full.
    pub(super) full: bool,
    /// Whether it could not start for that.
    pub(super) down: bool,
}

impl Node {
    /// Starts it again; once there is room, if it can't without: it could not even write down that it runs.
    pub(super) fn start(&mut self) -> io::Result<()> {
        match self.target.start() {
            Ok(address) => {
                self.down = false;
                self.front.lead_to(address);
            }
            Err(_) if self.full => self.down = true,
            Err(error) => return Err(error),
        }
        self.scraper.at(self.target.admin());
        Ok(())
    }

    /// Takes all the room that its state folder has.
    pub(super) fn fill_disk(&mut self) -> io::Result<()> {
        self.full = true;
        self.disk.as_ref().map_or(Ok(()), Disk::fill)
    }

    /// Gives it back; a proxy that could not start for want of it is started.
    pub(super) fn make_room(&mut self) -> io::Result<()> {
        self.full = false;
        self.disk.as_ref().map_or(Ok(()), Disk::make_room)?;
        if self.down && !self.target.runs() {
            self.start()?;
        }
        Ok(())
    }

    pub(super) fn set_leases(&self, mode: Mode) {
        self.leases.iter().for_each(|link| link.set(mode));
    }

    pub(super) fn cut_leases(&self) {
        self.leases.iter().for_each(Link::cut);
    }
}
