//! What the example programs and their tests share: a WebDAV server on a folder, and workers that a test can freeze.

pub mod tree;
pub mod webdav;
pub mod worker;
