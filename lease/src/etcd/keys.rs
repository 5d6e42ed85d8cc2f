//! Where things stand in etcd.

use crate::{LeaseName, store::SessionId};

/// The prefix of all keys.
pub const DEFAULT_PREFIX: &str = "/palisade/";

/// Makes the keys below one prefix.
#[derive(Clone, Debug)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// The keys below a prefix; one that does not end in a slash gets one.
    pub fn new(prefix: &str) -> Self {
        let slash = if prefix.ends_with('/') { "" } else { "/" };
        Self {
            prefix: format!("{prefix}{slash}"),
        }
    }

    /// The prefix itself, ending in a slash.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// `leases/<name>`: the lease's key; its `mod_revision` is the token.
    pub fn lease(&self, name: &LeaseName) -> String {
        format!("{}leases/{name}", self.prefix)
    }

    /// Below which all leases stand whose names begin with `prefix`.
    pub fn leases(&self, prefix: &str) -> String {
        format!("{}leases/{prefix}", self.prefix)
    }

    /// The name of the lease that has this key, if it is one's key.
    pub fn name_of(&self, key: &[u8]) -> Option<LeaseName> {
        let name = key.strip_prefix(self.leases("").as_bytes())?;
        LeaseName::from_bytes(name).ok()
    }

    /// `waiters/<name>//`: the queue. The empty segment keeps `a` apart from `a/b`.
    pub fn queue(&self, name: &LeaseName) -> String {
        format!("{}waiters/{name}//", self.prefix)
    }

    /// A place in the queue.
    pub fn waiter(&self, name: &LeaseName, session: SessionId) -> String {
        format!("{}{session}", self.queue(name))
    }

    /// Whose place in the queue has this key.
    pub fn waiter_of(&self, name: &LeaseName, key: &[u8]) -> Option<SessionId> {
        let hex = std::str::from_utf8(key.strip_prefix(self.queue(name).as_bytes())?).ok()?;
        i64::from_str_radix(hex, 16).ok().map(SessionId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let keys = Keys::new(DEFAULT_PREFIX);
        let name = LeaseName::parse("a/b").unwrap();
        assert_eq!(keys.lease(&name), "/palisade/leases/a/b");
        assert_eq!(
            keys.waiter(&name, SessionId(0x7fe1)),
            "/palisade/waiters/a/b//7fe1"
        );
        assert_eq!(keys.name_of(b"/palisade/leases/a/b"), Some(name.clone()));
        assert_eq!(keys.name_of(b"/palisade/leases/a//b"), None);
        assert_eq!(keys.name_of(b"/palisade/epoch"), None);
        assert_eq!(
            keys.waiter_of(&name, b"/palisade/waiters/a/b//7fe1"),
            Some(SessionId(0x7fe1))
        );
        assert_eq!(keys.waiter_of(&name, b"/palisade/waiters/a/b//x"), None);
        assert_eq!(Keys::new("/x").prefix(), "/x/");
    }
}
