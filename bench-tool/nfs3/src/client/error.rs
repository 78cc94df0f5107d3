//! The error of a client, with advice for the user.

use std::error::Error;

/// The operation that failed, its cause, and advice.
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

    /// The advice for the user: one sentence without a full stop.
    #[must_use]
    pub fn what_to_do(&self) -> Option<&str> {
        self.advice.as_deref()
    }
}
