//! A reply.

use std::fmt;

use crate::decode::{Decoder, Position};
use crate::exchange::Message;

/// The results of a call.
pub struct Response {
    /// Taken when it is dropped.
    message: Option<Box<Message>>,
}

impl Response {
    #[inline]
    pub(super) fn new(message: Box<Message>) -> Self {
        Self {
            message: Some(message),
        }
    }

    /// Its message, to be used again.
    #[inline]
    pub(super) fn into_message(mut self) -> Option<Box<Message>> {
        self.message.take()
    }

    /// Reads the results, from their start.
    #[inline]
    pub fn results(&mut self) -> Decoder<'_> {
        match &mut self.message {
            Some(message) => message.decoder(),
            None => Decoder::of_reply(&[], &mut []),
        }
    }

    /// Reads the results from where another reader of them came to ([`Decoder::position`]), for a program that cannot keep
    /// the reader.
    #[inline]
    pub fn results_from(&mut self, position: Position) -> Decoder<'_> {
        self.results().skip_to(position)
    }

    /// The results as a stream of XDR, without what came beside it.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.message
            .as_ref()
            .map_or(&[], |message| &message.results)
    }
}

impl Drop for Response {
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            message.recycle();
        }
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes().len();
        f.debug_struct("Response").field("bytes", &bytes).finish()
    }
}
