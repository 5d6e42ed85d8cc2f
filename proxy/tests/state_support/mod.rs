//! What the tests of the state share.

use palisade::state::{Durable, Floors, Options, State, StateError};
use palisade_fence::Token;
use std::{
    path::Path,
    process::Command,
    sync::{Arc, mpsc},
};

/// The token with this number.
pub(crate) fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// Opens a state; a failed sync there fails the test.
pub(crate) fn open(folder: &Path) -> State {
    State::open(
        folder,
        Options {
            fatal: |why| panic!("{why}"),
        },
    )
    .unwrap()
}

/// Waits for the outcome of one durable write.
pub(crate) fn wait(write: impl FnOnce(Durable)) -> Result<(), StateError> {
    let (send, receive) = mpsc::channel();
    write(Box::new(move |result| send.send(result).unwrap()));
    receive.recv().unwrap()
}

/// Closes a scope and waits until that is durable.
pub(crate) fn close(state: &State, scope: &str, floor: u64) -> Result<(), StateError> {
    wait(|done| state.close(&Arc::from(scope), token(floor), done))
}

/// A second process: this test program again, running one of its tests with `folder` in its environment.
#[allow(
    dead_code,
    reason = "not every test program that shares this has a child"
)]
pub(crate) fn child(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, folder);
    command
}

/// Set for a child: the folder that it works on.
#[allow(
    dead_code,
    reason = "not every test program that shares this has a child"
)]
pub(crate) const CHILD: &str = "PALISADE_TEST_STATE_CHILD";

/// The folder, in a child.
#[allow(
    dead_code,
    reason = "not every test program that shares this has a child"
)]
pub(crate) fn child_folder() -> Option<std::path::PathBuf> {
    std::env::var_os(CHILD).map(Into::into)
}
