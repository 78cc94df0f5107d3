//! What transport headers say, for people or for scripts.
//!
//! [`explainer`] reads an input and writes what is in it. [`input`] reads hex, [`captured`] what a capture holds.
//! [`conversation`] decodes messages one after another (a reply is explained by the call that was seen before it),
//! [`message`] is what they say, [`text`] and JSON are how it is shown.

mod captured;
mod captured_text;
mod conversation;
mod convert;
mod error;
mod explainer;
mod input;
mod lines;
mod message;
mod round_trips;
mod rtr;
mod rtr_text;
mod text;

#[cfg(test)]
mod tests;

pub use error::ExplainError;
pub use explainer::{Explainer, Form};
