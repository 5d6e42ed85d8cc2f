//! One proxy of a run, with the links around it.

use super::{
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
}

impl Node {
    /// Starts it again.
    pub(super) fn start(&mut self) -> io::Result<()> {
        self.front.lead_to(self.target.start()?);
        self.scraper.at(self.target.admin());
        Ok(())
    }

    pub(super) fn set_leases(&self, mode: Mode) {
        self.leases.iter().for_each(|link| link.set(mode));
    }

    pub(super) fn cut_leases(&self) {
        self.leases.iter().for_each(Link::cut);
    }
}
