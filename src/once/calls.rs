//! The calls of a core's services that must not run twice.

use std::cell::Cell;
use std::sync::Arc;

use rpcrdma_engine::{BulkArguments, BulkItem, Outcome, Request, StreamPiece};

use rpcrdma_protocol::rpc::Auth;

use super::callers::Callers;
use super::clients::{Clients, Session, Waits};
use super::window::{Begun, KEPT_BYTES_MAX, Ticket};
use crate::exchange::{CoreShared, Token};

/// Who sent a call again that runs: a call on this core that is answered later.
#[derive(Debug)]
pub(crate) struct Waiter {
    core: Arc<CoreShared>,
    token: Token,
}

impl Waits for Waiter {
    fn answer(self, outcome: Outcome, results: &[u8]) {
        let mut answer = self.core.new_answer();
        answer.token = Some(self.token);
        answer.outcome = Some(outcome);
        answer.results.extend_from_slice(results);
        self.core.answer(answer);
    }

    fn displaced(self) {
        match self.token {
            // A reply on the same connection: its client would take it for that of the call.
            Token::Tcp(call) => call.give_up(),
            // A message of RPC-over-RDMA is not sent twice, and each call has a reply, which returns its credit.
            Token::Core(_) => self.answer(Outcome::SystemError, &[]),
        }
    }
}

/// What a core knows of the callers of its connections, and results on their way.
pub(crate) struct Calls {
    pub(crate) callers: Callers<Waiter>,
    pub(crate) kept: Kept,
}

/// What is to be done with a call.
pub(crate) enum Verdict {
    /// Run it.
    Run(Running),
    /// Answer so. The results of a success are in [`Calls::kept`].
    Answer(Outcome),
}

/// A call that runs. It must come to [`Running::finish`], or nobody gets an answer who sends it again.
#[derive(Debug)]
pub(crate) struct Running {
    session: Arc<Session<Waiter>>,
    ticket: Ticket,
}

impl Running {
    /// The call ended so. `results` are `None` where they are too long to keep.
    pub(crate) fn finish(self, outcome: Outcome, results: Option<&[u8]>) {
        self.session.finish(self.ticket, outcome, results);
    }

    /// As [`Running::finish`], with items, each behind so many bytes of `results`.
    pub(crate) fn finish_with(self, outcome: Outcome, results: &[u8], items: &[(usize, BulkItem)]) {
        if items.is_empty() {
            return self.finish(outcome, Some(results));
        }
        let mut kept = Kept::default();
        let mut before = 0;
        for (at, item) in items {
            kept.push(results.get(before..*at).unwrap_or(&[]));
            kept.push_item(item);
            before = *at;
        }
        kept.push(results.get(before..).unwrap_or(&[]));
        self.finish(outcome, kept.whole());
    }
}

/// Results as they are kept: all in one stream, as far as they are short enough.
#[derive(Debug)]
pub(crate) struct Kept {
    bytes: Vec<u8>,
    is_whole: bool,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            bytes: Vec::with_capacity(KEPT_BYTES_MAX),
            is_whole: true,
        }
    }
}

impl Kept {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.is_whole = true;
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.is_whole &= self.bytes.len() + bytes.len() <= KEPT_BYTES_MAX;
        if self.is_whole {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Results did not fit into the reply: the call was answered with SYSTEM_ERR, and is when it comes again.
    #[cold]
    pub(crate) fn give_up(&mut self) {
        self.is_whole = false;
    }

    /// Appends an item with its padding.
    pub(crate) fn push_item(&mut self, item: &BulkItem) {
        let padding_bytes = item.len().next_multiple_of(4) - item.len();
        for part in item.parts() {
            self.push(part);
        }
        self.push(&[0; 3][..padding_bytes]);
    }

    /// All of the results, if they are short enough.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        self.is_whole.then_some(&*self.bytes)
    }
}

impl Calls {
    pub(crate) fn new(clients: &Arc<Clients<Waiter>>) -> Self {
        Self {
            callers: Callers::new(clients),
            kept: Kept::default(),
        }
    }

    /// Looks whether a call ran before.
    pub(crate) fn begin(
        &mut self,
        core: &Arc<CoreShared>,
        request: &Request<'_>,
        verifier: &Cell<Option<Auth>>,
        items: Option<&BulkArguments<'_>>,
    ) -> Verdict {
        let session = self.callers.session(request.connection).cloned();
        let Some(session) = session else {
            return Verdict::Answer(Outcome::SystemError);
        };
        let clients = self.callers.clients();
        let named = [request.program, request.version, request.procedure];
        let mut key = clients.key(request.xid, named, &request.credential, &[]);
        let args = request.args;
        match items {
            None => key.add_arguments(args.len(), std::iter::once(StreamPiece::Stream(args))),
            Some(items) => {
                let of_items = (0..items.len()).filter_map(|index| items.bytes(index));
                let of_items: usize = of_items.map(|bytes| bytes.next_multiple_of(4)).sum();
                key.add_arguments(args.len() + of_items, items.stream(args));
            }
        }
        let wait = || {
            let token = core.defer(request, verifier)?;
            let core = Arc::clone(core);
            Some(Waiter { core, token })
        };
        let arrival = self.callers.arrival(request.connection);
        let results = &mut self.kept.bytes;
        let begun = clients.begin(&session, arrival, &key.finish(), results, wait);
        Verdict::Answer(match begun {
            Begun::Run(ticket) => {
                self.kept.clear();
                return Verdict::Run(Running { session, ticket });
            }
            Begun::Finished(outcome) => outcome,
            Begun::Waits(_) => Outcome::Deferred,
            // As for one that is displaced: the call has its own answer.
            Begun::CannotWait if core.retransmits(request.connection) => Outcome::Discarded,
            // Nothing of it ran, or nobody can wait for it. A client that has lost the connection does not get the answer.
            Begun::Full | Begun::CannotWait | Begun::Superseded => Outcome::SystemError,
        })
    }

    /// The results of a call that came again.
    pub(crate) fn results(&self) -> &[u8] {
        &self.kept.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_that_do_not_fit_are_not_kept() {
        let mut kept = Kept::default();
        kept.push(&[1; KEPT_BYTES_MAX - 4]);
        assert_eq!(kept.whole().map(<[u8]>::len), Some(KEPT_BYTES_MAX - 4));
        kept.push(&[1; 5]);
        kept.push(&[]);
        assert_eq!(kept.whole(), None, "too long to keep");
        kept.clear();
        kept.give_up();
        kept.push(&[1; 4]);
        assert_eq!(kept.whole(), None, "too long to send");
        kept.clear();
        assert_eq!(kept.whole(), Some(&[][..]));
    }
}
