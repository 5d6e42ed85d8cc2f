//! What a history must keep to.

use std::fmt;

/// The properties, by number as in the book.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Property {
    /// Within a scope, the tokens of applied writes never go back (G2).
    Order = 1,
    /// Every applied write carries a token that was granted for its scope (G1).
    Granted,
    /// What was refused is never applied (G4).
    RefusedNeverApplied,
    /// What was answered was applied at most once (G4).
    AppliedOnce,
    /// What is unknown was applied at most once (G4).
    UnknownAtMostOnce,
    /// A fenced read sees everything with a smaller token that is ever applied (G3).
    ReadSeesAll,
    /// The floor of a scope never falls once it has opened, and is not below what was applied (G1).
    FloorNeverFalls,
    /// After the faults have stopped, the holder succeeds.
    Recovers,
    /// A write that was answered with success was applied by then (G4).
    AnsweredIsApplied,
    /// What is sent once a proxy has frozen, with a token from before the new epoch, is not applied through it (G1).
    EpochKept,
}

impl Property {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Order,
        Self::Granted,
        Self::RefusedNeverApplied,
        Self::AppliedOnce,
        Self::UnknownAtMostOnce,
        Self::ReadSeesAll,
        Self::FloorNeverFalls,
        Self::Recovers,
        Self::AnsweredIsApplied,
        Self::EpochKept,
    ];

    /// Its number.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// It in words.
    pub fn rule(self) -> &'static str {
        match self {
            Self::Order => "applied tokens never go back within a scope",
            Self::Granted => "every applied token was granted for its scope",
            Self::RefusedNeverApplied => "what was refused is never applied",
            Self::AppliedOnce => "nothing is applied twice",
            Self::UnknownAtMostOnce => "what is unknown is applied at most once",
            Self::ReadSeesAll => "a fenced read sees all that older tokens ever apply",
            Self::FloorNeverFalls => {
                "an opened floor never falls and is not below what was applied"
            }
            Self::Recovers => "once the faults have stopped the holder succeeds",
            Self::AnsweredIsApplied => "what was answered with success was applied by then",
            Self::EpochKept => "a frozen proxy, and a new epoch, let nothing older in",
        }
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "P{} ({})", self.number(), self.rule())
    }
}

/// Something that broke a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The property.
    pub property: Property,
    /// Which event broke what, in words.
    pub says: String,
    /// The numbers of the lines that matter, in order.
    pub lines: Vec<u64>,
}
