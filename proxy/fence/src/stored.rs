//! What is durable of a scope, and the two ways in which it may change. The state file does the same by SQL.

use crate::{
    Token,
    rules::{Rule, Rules},
};

/// A floor on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    /// The highest token that was ever closed to.
    pub floor: Token,
    /// Whether it was recorded that this floor had opened.
    pub opened: bool,
}

impl Stored {
    /// Closes to `floor`: as not opened, unless what is stored is not older.
    #[must_use]
    pub fn close(stored: Option<Self>, floor: Token) -> Self {
        match stored {
            Some(stored) if stored.floor >= floor => stored,
            _ => Self {
                floor,
                opened: false,
            },
        }
    }

    /// Records that `floor` has opened; only if the stored floor still is that one. A late record, after the scope was
    /// closed to a newer token, says nothing about the newer one.
    #[must_use]
    pub fn opened(self, floor: Token) -> Self {
        self.opened_under(Rules::default(), floor)
    }

    /// [`Stored::opened`] with a rule taken out.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn opened_without(self, without: Option<Rule>, floor: Token) -> Self {
        self.opened_under(Rules { without }, floor)
    }

    fn opened_under(self, rules: Rules, floor: Token) -> Self {
        let same = self.floor == floor || !rules.hold(Rule::LateOpenedIsConditional);
        Self {
            opened: self.opened || same,
            ..self
        }
    }
}
