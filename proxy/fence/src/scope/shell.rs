//! What a scope and the shell round it say to each other: what is to be carried out, and what the lease store said.

use crate::Token;

/// The number of a read of the lease key: 1 for the scope's first.
pub type ReadId = u64;

/// What a linearizable read of the scope's lease key said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reading {
    /// The current grant, if the lease is held.
    pub grant: Option<Token>,
    /// The store's revision at the read. Every later grant's token is above it.
    pub revision: u64,
}

/// Why a read said nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unreadable {
    /// The store can't be asked now.
    Unavailable,
    /// It is another store than before, or its revisions went back.
    Changed,
}

/// What the shell has to carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read the lease key, by a linearizable read sent after this moment; then [`Scope::read`](crate::Scope::read).
    Read(ReadId),
    /// Make this floor durable, as closed and not opened; then [`Scope::durable`](crate::Scope::durable) or [`Scope::not_durable`](crate::Scope::not_durable).
    Close(Token),
    /// Record that this floor has opened, at leisure, only if the stored floor still is this one.
    RecordOpened(Token),
}
