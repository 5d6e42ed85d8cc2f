//! What may be said of a write at its end, and whether it is settled (design: G4, and section 1, "settled").

#[cfg(feature = "sabotage")]
use crate::rules::{Rule, Rules};

/// How much of a request was written to upstream's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sent {
    /// Not a byte.
    Nothing,
    /// Some of it, or perhaps all: its end was not seen to be written.
    Partly,
    /// All of it.
    Completely,
}

/// What a response tells its client about the request (`X-Fence-Outcome`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Never forwarded, and never will be.
    Refused,
    /// What the client sees is upstream's own answer.
    Answered,
    /// It may or may not have been applied, or may still be.
    Unknown,
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct End {
    /// What its client is told.
    pub outcome: Outcome,
    /// Whether upstream will do nothing more for it (A5). If not, it is ambiguous and its settle time runs.
    pub settled: bool,
}

/// Judges the end of a write from how much of it was sent and the status of the final response head, if one came.
///
/// An answer settles only a write that was completely sent: one that comes earlier may be a refusal of the rest or not,
/// and what was sent may still be acted on. 202 says that the work goes on (RFC 9110, section 15.3.3); 502 and 504 are a
/// gateway's word that it does not know what the server behind it did (sections 15.6.3 and 15.6.5).
pub const fn conclude(sent: Sent, answer: Option<u16>) -> End {
    let settled = match (sent, answer) {
        (Sent::Nothing, _) => true,
        (Sent::Completely, Some(status)) => !matches!(status, 202 | 502 | 504),
        _ => false,
    };
    let outcome = match (sent, answer) {
        // An "answer" to a request of which nothing was sent is no answer to it.
        (Sent::Nothing, _) => Outcome::Refused,
        (_, Some(_)) => Outcome::Answered,
        (_, None) => Outcome::Unknown,
    };
    End { outcome, settled }
}

/// [`conclude`] with a rule taken out.
#[cfg(feature = "sabotage")]
pub fn conclude_without(without: Option<Rule>, sent: Sent, answer: Option<u16>) -> End {
    let rules = Rules { without };
    let mut end = conclude(sent, answer);
    if !rules.hold(Rule::NoAnswerIsAmbiguous) && answer.is_none() {
        end.settled = true;
    }
    if !rules.hold(Rule::RefusedMeansNothingSent) && answer.is_none() {
        end.outcome = Outcome::Refused;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::{Outcome::*, Sent::*, *};

    #[test]
    fn every_end() {
        for (sent, answer, outcome, settled) in [
            (Nothing, None, Refused, true),
            (Nothing, Some(200), Refused, true),
            (Partly, None, Unknown, false),
            (Partly, Some(413), Answered, false),
            (Completely, None, Unknown, false),
            (Completely, Some(200), Answered, true),
            (Completely, Some(412), Answered, true),
            (Completely, Some(500), Answered, true),
            (Completely, Some(503), Answered, true),
            (Completely, Some(202), Answered, false),
            (Completely, Some(502), Answered, false),
            (Completely, Some(504), Answered, false),
        ] {
            assert_eq!(
                conclude(sent, answer),
                End { outcome, settled },
                "{sent:?} {answer:?}"
            );
        }
    }
}
