//! A reply.

use std::fmt;

use rpcrdma_protocol::rpc::Auth;

use crate::auth::Signed;
use crate::decode::{Decoder, Position};
use crate::exchange::Message;

/// The results of a call.
pub struct Response {
    /// Taken when it is dropped.
    message: Option<Box<Message>>,
    position: Position,
}

impl Response {
    #[inline]
    pub(super) fn new(message: Box<Message>) -> Self {
        Self {
            message: Some(message),
            position: Position::default(),
        }
    }

    /// Its message, to be used again.
    #[inline]
    pub(super) fn into_message(mut self) -> Option<Box<Message>> {
        self.message.take()
    }

    /// Reads the results, from where the last reader of them came to: `answer.results().u32()?` takes the next word, as
    /// [`Incoming::args`](crate::Incoming::args) does of arguments.
    #[inline]
    pub fn results(&mut self) -> Decoder<'_> {
        let position = &mut self.position;
        match &mut self.message {
            Some(message) => message.decoder(position),
            None => Decoder::of_reply(&[], &mut [], position),
        }
    }

    /// Reads the results from their start again. Data that [`Bulk::take`](crate::Bulk::take) took is not there any more: it is
    /// [`Malformed`](crate::Malformed) to read it again.
    #[inline]
    pub fn results_from_start(&mut self) -> Decoder<'_> {
        self.position.rewind();
        self.results()
    }

    /// The verifier of the reply to a call that was signed ([`Request::sign`](crate::Request::sign)); AUTH_NONE otherwise.
    #[must_use]
    pub fn verifier(&self) -> Auth {
        self.signed().map_or(Auth::NONE, |signed| signed.reply)
    }

    /// The credential with which such a call was sent the last time: that of the number which the verifier is of.
    #[must_use]
    pub fn credential(&self) -> Auth {
        self.signed().map_or(Auth::NONE, |signed| signed.credential)
    }

    fn signed(&self) -> Option<&Signed> {
        let message = self.message.as_ref().filter(|it| it.has_extras)?;
        message.extras().caller.signed.as_deref()
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
