//! Each rule of the design can be taken out, by a test alone, to see that the model then finds what goes wrong.
//!
//! Without the feature `sabotage` there is nothing to switch: every rule holds, and the compiler sees that.

/// A rule that a test can take out. Each names what is left when it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    not(feature = "sabotage"),
    allow(
        dead_code,
        unreachable_pub,
        reason = "only named, where the rule is applied"
    )
)]
pub enum Rule {
    /// A raise waits until older writes are settled.
    Drain,
    /// A write without a final answer is ambiguous, not settled.
    NoAnswerIsAmbiguous,
    /// After an unclean stop the writes that may have been in flight are waited for.
    CrashRemembersWrites,
    /// A floor that was closed but had not opened when the process died waits too.
    ClosedIsNotOpened,
    /// A floor opens only when it is durable.
    DurableBeforeOpen,
    /// A late answer of the lease store never lowers a floor.
    FloorOnlyRises,
    /// "Opened" is recorded only where the stored floor still is the one that opened.
    LateOpenedIsConditional,
    /// Only the lease's current grant raises a floor.
    HolderCheck,
    /// A read's "no" is not for requests that arrived after it was sent.
    SharedNoOnlyForEarlier,
    /// "Refused" is only said of a write of which nothing was sent.
    RefusedMeansNothingSent,
    /// A write that was admitted but has sent nothing is refused once a newer token closed the scope.
    StartLooksAgain,
    /// A floor opens only when each other replica has acked it.
    Acks,
    /// ... without this scope on its list of unsettled ones.
    UnsettledList,
    /// ... and this replica's own watch has come as far.
    OwnWatch,
    /// A member that has lost its session is known by its member key.
    MemberKeys,
    /// ... and is waited out.
    WaitAfterRemoval,
    /// At a join and after a gap in the watch a scope is closed up to the revision of the read.
    ClosedAtJoin,
}

/// Which rules hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Rules {
    #[cfg(feature = "sabotage")]
    pub(crate) without: Option<Rule>,
}

impl Rules {
    #[cfg(feature = "sabotage")]
    pub(crate) fn hold(self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    #[cfg(not(feature = "sabotage"))]
    #[inline(always)]
    pub(crate) const fn hold(self, _rule: Rule) -> bool {
        true
    }
}
