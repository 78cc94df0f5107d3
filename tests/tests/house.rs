//! The rules of the house that no lint checks: what may depend on what, what may be depended on, where unsafe code may
//! be, how long files may be, that every test runs, and that documents and code say the same.
#![forbid(unsafe_code)]

#[path = "house/dependencies.rs"]
mod dependencies;
#[path = "house/documents.rs"]
mod documents;
#[path = "house/files.rs"]
mod files;
#[path = "house/sources.rs"]
mod sources;
#[path = "house/times.rs"]
mod times;
#[path = "house/waits.rs"]
mod waits;
#[path = "house/words.rs"]
mod words;
