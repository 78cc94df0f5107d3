//! Decodes transport headers and shows them as text or JSON.
//!
//! [`explainer`] reads an input and writes its contents. [`input`] reads hex, [`explained`] reads captures.
//! [`conversation`] decodes messages one after another, because a reply can only be explained with its call.
//! [`message`] holds a decoded message, which [`text`] and JSON show. [`summary`] counts what an input holds.

mod captured;
mod captured_text;
mod conversation;
mod convert;
mod error;
mod explained;
mod explainer;
mod input;
mod lines;
mod message;
mod round_trips;
mod rtr;
mod rtr_text;
mod summary;
mod summary_text;
mod text;

#[cfg(test)]
mod tests;

pub use error::ExplainError;
pub use explainer::{Explainer, Form};
