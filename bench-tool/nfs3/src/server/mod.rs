//! An NFS version 3 server (RFC 1813) with a file system in memory.
//!
//! | module | contents |
//! |---|---|
//! | [`store`](crate::store) | the file system |
//! | [`call`] | a call and its reply, for every transport |
//! | `procedures` | the 22 procedures |
//! | [`mount`] | the MOUNT program |
//! | [`application`] | both programs on a core |
//!
//! An [`rpcrdma::Node`] has the transports, RPC-over-RDMA and TCP, and judges each message by the
//! [`programs`](application::programs). Its core owns the service, and calls run to completion. The duplicate request cache is
//! that of [`rpcrdma::once`].
//!
//! `docs/nfs3.md` is the documentation for users.

pub mod application;
pub mod call;
pub mod mount;
mod procedures;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rpcrdma::once::{self, Begun, Clients};
use rpcrdma_engine::{BulkItem, Outcome};
use rpcrdma_fabric::memory::{Lease, SharedLease};
use rpcrdma_protocol::xdr::Reader;

use self::call::{Call, Items, Payload, Reply};
use crate::store::{Limits, Pages, Store};
use crate::wire::arguments::Write;
use crate::wire::auth_sys::Identity;
use crate::wire::types::Time;
use crate::wire::xdr::Decode;
use crate::wire::{self, Procedure};

/// The path of the export.
pub const EXPORT: &str = "/export";

/// The longest READ and WRITE, in bytes.
pub const DATA_BYTES_MAX: u32 = 1 << 20;

/// What is kept of the calls of a client. Nobody waits for a call that runs: it has ended before the next one begins.
pub type Session = once::Session<Infallible>;

/// The NFS service.
#[derive(Debug)]
pub struct Service<P> {
    store: Store<P>,
    clients: Arc<Clients<Infallible>>,
    /// The results of a call that came again.
    kept: Vec<u8>,
    clock: Clock,
}

impl<P: Pages> Service<P> {
    /// An empty file system in `pages`, for so many connections at a time, on all transports.
    #[must_use]
    pub fn new(pages: P, limits: Limits, connections_max: usize) -> Self {
        let mut clock = Clock::default();
        let now = clock.now();
        // The start time tells this instance from earlier ones.
        let instance = u64::from(now.seconds) << 32 | u64::from(now.nanoseconds);
        Self {
            store: Store::new(pages, limits, instance, now),
            clients: Arc::new(Clients::new(connections_max)),
            kept: Vec::with_capacity(once::KEPT_BYTES_MAX),
            clock,
        }
    }

    /// The file system.
    #[must_use]
    pub fn store(&self) -> &Store<P> {
        &self.store
    }

    /// Answers a call of the program and version of NFS. `reply` has results only with [`Outcome::Success`].
    ///
    /// A retransmission of a call that must not be executed twice gets the results of the first execution.
    pub fn call<I: Items>(&mut self, call: &Call<'_>, items: &I, reply: &mut Reply) -> Outcome {
        reply.clear();
        let Some(procedure) = Procedure::from_number(call.procedure) else {
            return Outcome::ProcedureUnavailable;
        };
        let caller = match Identity::of(&call.credential) {
            Ok(caller) => caller,
            Err(status) => return Outcome::AuthError(status),
        };
        let now = self.clock.now();
        if procedure.is_idempotent() {
            return self.execute(procedure, call, items, &caller, now, reply);
        }
        let Some(session) = call.session else {
            return Outcome::SystemError;
        };
        let key = self.key(procedure, call, items);
        let begun = self
            .clients
            .begin(session, call.arrival, &key, &mut self.kept, || None);
        let ticket = match begun {
            Begun::Run(ticket) => ticket,
            Begun::Finished(outcome) => {
                reply.replay(&self.kept);
                return outcome;
            }
            Begun::Full | Begun::Waits(_) | Begun::CannotWait | Begun::Superseded => {
                return Outcome::SystemError;
            }
        };
        let outcome = self.execute(procedure, call, items, &caller, now, reply);
        session.finish(ticket, outcome, Some(reply.stream()));
        outcome
    }

    /// What makes a call the same when it comes again. The data of WRITE count as bulk data also in the stream, so that a call is the same
    /// one by each way that its data can come.
    fn key<I: Items>(&self, procedure: Procedure, call: &Call<'_>, items: &I) -> once::Key {
        let data_at = match procedure {
            Procedure::Write => written_data_at(call.args),
            _ => call.args.len(),
        };
        let (stream, data) = call.args.split_at(data_at);
        let named = [wire::PROGRAM, wire::VERSION, call.procedure];
        let mut key = self.clients.key(call.xid, named, &call.credential, stream);
        // In the stream with its padding, and in a chunk without: what counts is as long as the word before it says.
        let length = stream
            .last_chunk()
            .filter(|_| procedure == Procedure::Write);
        let length = length.map_or(usize::MAX, |word| u32::from_be_bytes(*word) as usize);
        let pieces = || {
            let items = (0..items.count()).flat_map(|index| items.pieces(index));
            std::iter::once(data).chain(items.map(|piece| piece.bytes))
        };
        let bytes = pieces().map(<[u8]>::len).sum::<usize>().min(length);
        let mut left = bytes;
        let counted = pieces().map(|piece| {
            let (piece, _) = piece.split_at(piece.len().min(left));
            left -= piece.len();
            piece
        });
        key.add(data_at, bytes, counted);
        key.finish()
    }

    /// The number of calls that came again and were not executed.
    #[must_use]
    pub fn repeated(&self) -> u64 {
        self.clients.repeated()
    }

    /// Takes buffers for files, as many as are needed. Call it before each call. Returns whether memory is
    /// short, so that buffers which are still being sent are needed back.
    pub fn stock(&mut self, take: &mut dyn FnMut() -> Option<Lease>) -> bool {
        self.store.stock(take);
        self.store.is_short()
    }

    /// A payload as an item whose pieces are shared with its file; `None` if the store's memory does not
    /// support that, or the payload has too many pieces. Call it before the next call.
    #[must_use]
    pub fn shared_payload(&self, payload: &Payload) -> Option<BulkItem<SharedLease>> {
        self.store
            .shared(payload.file, payload.offset_bytes, payload.bytes)
    }

    /// The bytes of a payload, in pieces. Call it before the next call.
    pub fn payload(&self, payload: &Payload) -> impl Iterator<Item = &[u8]> {
        self.store
            .pieces(payload.file, payload.offset_bytes, payload.bytes)
    }
}

/// Where the data begin in the arguments of a WRITE, or would.
fn written_data_at(args: &[u8]) -> usize {
    let mut reader = Reader::new(args);
    let before_length = Write::decode(&mut reader).map(|_| reader.position());
    before_length.map_or(args.len(), |at| args.len().min(at + 4))
}

/// The clock of attributes. No two readings are the same, so that a client sees every change of a file.
#[derive(Debug, Default)]
struct Clock {
    last: Time,
}

impl Clock {
    fn now(&mut self) -> Time {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let now = Time {
            seconds: u32::try_from(since.as_secs()).unwrap_or(u32::MAX),
            nanoseconds: since.subsec_nanos(),
        };
        let next = match self.last.nanoseconds {
            999_999_999.. => Time {
                seconds: self.last.seconds.saturating_add(1),
                nanoseconds: 0,
            },
            nanoseconds => Time {
                seconds: self.last.seconds,
                nanoseconds: nanoseconds + 1,
            },
        };
        self.last = now.max(next);
        self.last
    }
}

#[cfg(test)]
mod tests;
