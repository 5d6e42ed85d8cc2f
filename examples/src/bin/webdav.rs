//! cargo run -p palisade-examples --bin webdav -- 127.0.0.1:9000 ./store
//!
//! A WebDAV server on a folder: a datastore to put Palisade in front of.

use clap::Parser;
use palisade_examples::webdav::{Address, serve};
use std::{io, path::PathBuf};

/// Serves a folder by WebDAV. No locks, no accounts: for demos and tests.
#[derive(Parser)]
struct Arguments {
    /// Where to listen: `127.0.0.1:9000`, or `unix:/run/store.sock`.
    listen: String,
    /// The folder to serve; created if it is missing.
    folder: PathBuf,
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let arguments = Arguments::parse();
    std::fs::create_dir_all(&arguments.folder)?;
    serve(&Address::from(arguments.listen.as_str()), &arguments.folder).await
}
