//! Which fields a head has, found in one pass: most checks are about fields that most requests don't have, and to look each of
//! them up costs more than all the rest of the proxy's own work on a head.

use super::{METHOD_OVERRIDES, folds_to};
use http::{HeaderMap, HeaderName, header};

/// What a head's names tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Lines of `Host`.
    pub(super) hosts: u32,
    /// Lines of `Content-Length`.
    pub(super) lengths: u32,
    /// Whether there is a `Transfer-Encoding`.
    pub(super) coded: bool,
    /// Whether there is an `Expect`.
    pub(super) expects: bool,
    /// Whether there is an `X-Fence-Token`.
    pub(super) token: bool,
    /// Whether there is an `X-Fence-Scope`.
    pub(super) scope: bool,
    /// Whether there is a field that turns into one of ours once `_` is read as `-`.
    pub(super) turns_into_ours: bool,
    /// Whether a field asks for another method. CGI-like upstreams read `_` as `-`, so both count.
    pub(super) overrides_method: bool,
}

impl Seen {
    /// Looks at every line's name once.
    pub fn of(fields: &HeaderMap) -> Self {
        let mut seen = Self::default();
        // Each line by itself: a name that stands twice comes twice.
        for (name, _) in fields {
            seen.take(name);
        }
        seen
    }

    /// Whether a field asks for another method.
    pub fn overrides_method(&self) -> bool {
        self.overrides_method
    }

    /// Whether there is an `X-Fence-Token`.
    pub fn has_token(&self) -> bool {
        self.token
    }

    /// Whether there is an `X-Fence-Scope`.
    pub fn has_scope(&self) -> bool {
        self.scope
    }

    fn take(&mut self, name: &HeaderName) {
        let bytes = name.as_str().as_bytes();
        match bytes.len() {
            4 => self.hosts += u32::from(name == header::HOST),
            6 => self.expects |= name == header::EXPECT,
            14 => self.lengths += u32::from(name == header::CONTENT_LENGTH),
            17 => self.coded |= name == header::TRANSFER_ENCODING,
            _ => {}
        }
        // All that follow begin with it.
        if bytes.first() == Some(&b'x') {
            self.token |= name == super::TOKEN;
            self.scope |= name == super::SCOPE;
            self.overrides_method |= METHOD_OVERRIDES
                .iter()
                .any(|ours| folds_to(bytes, ours.as_str().as_bytes()));
            self.turns_into_ours |= super::is_ours(name) && bytes.contains(&b'_');
        }
    }
}

/// Whether a field concerns one connection only (RFC 9110, section 7.6.1), or is a credential between a client and a proxy.
pub(super) fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "te" | "trailer"
            | "upgrade"
            | "connection"
            | "keep-alive"
            | "http2-settings"
            | "proxy-connection"
            | "transfer-encoding"
            | "proxy-authenticate"
            | "proxy-authorization"
    )
}
