//! What `scripts/need.sh` brings for the tests.

use std::path::PathBuf;

/// Something in a folder beside the build, such as `venv/bin/python`. A test that gets none is passed over, with a word.
#[allow(
    clippy::print_stdout,
    reason = "what was skipped is for whoever runs the tests"
)]
pub fn brought(name: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let found = own
        .ancestors()
        .map(|folder| folder.join(name))
        .find(|path| path.exists());
    if found.is_none() {
        println!("skipped: there is no {name} (scripts/need.sh test)");
    }
    found
}
