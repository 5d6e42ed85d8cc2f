//! Names of leases, and the only check of one.

use std::{fmt, str::FromStr, sync::Arc};

/// The longest name, in bytes.
pub const MAX_BYTES: usize = 512;

/// The name of a lease, e.g. `nightly/billing`: 1 to 512 bytes of UTF-8 without control characters, and no empty, `.`
/// or `..` segment between slashes. A scope of the proxy has the name of its lease.
///
/// ```
/// use palisade_lease::LeaseName;
/// assert!("nightly/billing".parse::<LeaseName>().is_ok());
/// assert!("nightly//billing".parse::<LeaseName>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName(Arc<str>);

/// Why some text is no name of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// Nothing there.
    #[error("a lease name may not be empty")]
    Empty,
    /// More than [`MAX_BYTES`].
    #[error("a lease name has at most 512 bytes")]
    TooLong,
    /// A control character, a line feed for example.
    #[error("a lease name has no control characters")]
    Control,
    /// Two slashes in a row, or one at an end. In etcd, `a//` is where the waiters of `a` stand.
    #[error("a lease name has no empty segment: no slash at an end, no two in a row")]
    EmptySegment,
    /// A segment `.` or `..`, which a path may lose on its way.
    #[error("a lease name has no segment \".\" or \"..\"")]
    DotSegment,
    /// Bytes that are no UTF-8.
    #[error("a lease name is UTF-8")]
    NotUtf8,
}

impl LeaseName {
    /// Checks a name.
    pub fn parse(text: &str) -> Result<Self, BadName> {
        check(text)?;
        Ok(Self(text.into()))
    }

    /// Checks a name that is bytes, e.g. from a key in etcd.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, BadName> {
        Self::parse(std::str::from_utf8(bytes).map_err(|_| BadName::NotUtf8)?)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether some text is the name of a lease, without keeping it.
pub fn check(text: &str) -> Result<(), BadName> {
    if text.is_empty() {
        return Err(BadName::Empty);
    }
    if text.len() > MAX_BYTES {
        return Err(BadName::TooLong);
    }
    if text.chars().any(char::is_control) {
        return Err(BadName::Control);
    }
    for segment in text.split('/') {
        match segment {
            "" => return Err(BadName::EmptySegment),
            "." | ".." => return Err(BadName::DotSegment),
            _ => {}
        }
    }
    Ok(())
}

impl FromStr for LeaseName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        Self::parse(text)
    }
}

impl AsRef<str> for LeaseName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<LeaseName> for Arc<str> {
    fn from(name: LeaseName) -> Self {
        name.0
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::{BadName::*, *};

    #[test]
    fn names() {
        let long = "x".repeat(MAX_BYTES);
        for good in ["a", "nightly/billing", "a b", "ünï", "...", "a/.b", &long] {
            assert_eq!(LeaseName::parse(good).unwrap().as_str(), good);
        }
        let longer = "x".repeat(MAX_BYTES + 1);
        for (bad, why) in [
            ("", Empty),
            ("/", EmptySegment),
            ("/a", EmptySegment),
            ("a/", EmptySegment),
            ("a//b", EmptySegment),
            ("a/./b", DotSegment),
            ("..", DotSegment),
            ("a\nb", Control),
            ("a\u{85}b", Control),
            ("a\0", Control),
            (longer.as_str(), TooLong),
        ] {
            assert_eq!(LeaseName::parse(bad), Err(why), "{bad:?}");
        }
        assert_eq!(LeaseName::from_bytes(b"a\xff"), Err(NotUtf8));
    }
}
