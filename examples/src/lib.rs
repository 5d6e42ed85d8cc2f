//! What the example programs and their tests share: a WebDAV server on a folder, Palisade in front
//! of it, and workers that can be frozen.

pub mod brought;
pub mod stage;
pub mod tree;
pub mod webdav;
pub mod worker;
