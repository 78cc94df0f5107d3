//! The rules of the house, checked over the repository as it lies on disk: what may depend on what,
//! what may be depended on, where unsafe code may stand, how long files may be, that public
//! types have examples, and that the documents point at things that exist.
#![forbid(unsafe_code)]

#[path = "house/dependencies.rs"]
mod dependencies;
#[path = "house/documents.rs"]
mod documents;
#[path = "house/examples.rs"]
mod examples;
#[path = "house/files.rs"]
mod files;
#[path = "house/licences.rs"]
mod licences;
#[path = "house/sources.rs"]
mod sources;
#[path = "house/stages.rs"]
mod stages;
