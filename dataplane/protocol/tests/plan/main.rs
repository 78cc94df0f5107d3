//! Plans for bulk data: where a sender lays it, which way it goes, and what a responder checks before it moves any.

mod buffer_structure;
mod call;
mod chunks;
mod ends;
mod layout;
mod reply;
#[path = "../support/mod.rs"]
mod support;
