//! An error for a person.

use std::error::Error;

/// What failed and on what, why, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct ClientError {
    what: String,
    advice: Option<String>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl ClientError {
    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            advice: None,
            source: None,
        }
    }

    pub(crate) fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// What the user can do about it: one sentence, no full stop.
    #[must_use]
    pub fn what_to_do(&self) -> Option<&str> {
        self.advice.as_deref()
    }
}
