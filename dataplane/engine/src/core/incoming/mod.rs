//! Calls of peers with chunks or in transmission groups, from their intake to their replies.
//!
//! | file | what it does |
//! |---|---|
//! | [`call`], [`table`] | what is kept of a call, and its states; what calls share |
//! | [`begin`] | takes a slot for a call, and checks its chunks |
//! | [`arrive`], [`place`] | collects a transmission group, and leases the items that its Sends have placed |
//! | [`read`] | gets the items of chunks by RDMA Read |
//! | [`serve`] | has the application answer |
//! | [`plan`], [`write`](mod@write), [`send`], [`group`] | choose how the reply goes, write its results by RDMA Write, and send it |
//! | [`kept`], [`resend`] | keep the replies that a peer may find wrong, and send them again |

mod arrive;
mod begin;
pub(crate) mod call;
mod group;
mod kept;
mod place;
mod plan;
mod read;
mod resend;
mod send;
mod serve;
mod shares;
mod staying;
mod table;
mod write;

pub(crate) use call::{IncomingCall, IncomingState, Stream};
pub(crate) use table::Incoming;

use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::Refusal;

use super::application::Application;
use super::state::State;
use super::step::Step;
use crate::bulk::Home;
use crate::rpc::ConnectionKey;
use call::RpcReply;

impl<P: Port> State<P> {
    /// The next step of a call.
    ///
    /// # Errors
    /// What the call is refused with.
    pub(super) fn step_incoming<A: Application>(
        &mut self,
        application: &mut A,
        call: &mut IncomingCall,
    ) -> Result<Step, TransportError> {
        match call.state {
            IncomingState::Free
            | IncomingState::Arriving
            | IncomingState::Deferred
            | IncomingState::InParts => Ok(Step::Waits),
            IncomingState::Placing => self.place_items(call),
            IncomingState::AwaitingBuffers => Ok(self.take_read_buffers(call)),
            IncomingState::Reading => self.post_reads(call),
            IncomingState::Ready => self.serve_incoming(application, call),
            IncomingState::Answering => self.answer_incoming(call),
        }
    }

    /// Whether a call may have bulk buffers from now on: those that its chunks are read into, and those of its results.
    pub(super) fn may_have_buffers(&mut self, call: &mut IncomingCall) -> bool {
        if !call.has_buffers {
            let connection = self.connections.get(call.connection);
            let answerable = connection.map_or(0, |it| it.protocol.credits_for_replies());
            let pool = &self.reply.pool;
            let is_plenty = pool.level() > pool.total() / 2;
            let shares = &mut self.incoming.shares;
            call.has_buffers = shares.begin_buffers(call.connection.index, answerable, is_plenty);
        }
        call.has_buffers
    }

    /// Answers a call with a transport error.
    pub(super) fn refuse_incoming(&mut self, call: Box<IncomingCall>, error: TransportError) {
        let (key, xid) = (call.connection, call.xid);
        self.end_incoming(call);
        self.refuse(key, Refusal::new(xid, error));
    }

    /// Gives back all that a call holds, and frees its slot.
    pub(super) fn end_incoming(&mut self, mut call: Box<IncomingCall>) {
        let (key, slot) = (call.connection, call.index);
        if let Some(connection) = self.connections.get_mut(key) {
            connection.replies_reserved -= call.reply_reserved;
            connection.calls_in.leave_group(slot);
        }
        let pool = &mut self.reply.pool;
        for buffer in call.read_parts.iter_mut().filter_map(|it| it.buffer.take()) {
            pool.give(buffer);
        }
        for (piece, part) in call.write_parts.iter_mut().zip(0..) {
            pool.take_home(piece.buffer.take(), piece.index, Home::Reply { slot, part });
        }
        for (piece, part) in call.group.parts.iter_mut().zip(0..) {
            pool.take_home(
                piece.buffer.take(),
                piece.index,
                Home::ReplyGroup { slot, part },
            );
        }
        for received in call.arrival.receives.drain(..) {
            self.repost_of(key, received.receive);
        }
        if let RpcReply::Long(buffer) = std::mem::take(&mut call.reply) {
            self.messages.give(buffer);
        }
        self.give_stream(key, std::mem::take(&mut call.stream));
        self.incoming.starving.take_if(|it| *it == slot);
        if call.has_buffers {
            self.incoming.shares.end_buffers(key.index);
        }
        self.incoming.shares.give(key.index);
        call.reset();
        self.incoming.calls.give(slot, call);
    }

    /// As [`State::end_incoming`], of the call in a slot.
    pub(super) fn drop_incoming(&mut self, index: u32) {
        if let Some(call) = self.incoming.calls.take(index) {
            self.end_incoming(call);
        }
    }

    /// Gives back what a stream is in.
    pub(super) fn give_stream(&mut self, key: ConnectionKey, stream: Stream) {
        match stream {
            Stream::Chunk => {}
            Stream::Received(received) => self.repost_of(key, received.receive),
            Stream::Message(message) => self.messages.give(message),
        }
    }

    /// Lets go of all calls of a closing connection.
    pub(super) fn close_incoming(&mut self, key: ConnectionKey) {
        self.incoming
            .kept
            .forget_connection(key, &mut self.reply.pool);
        for index in 0..self.incoming.calls.len() {
            let call = self.incoming.calls.get(index);
            if call.is_some_and(|it| it.state != IncomingState::Free && it.connection == key) {
                self.drop_incoming(index);
            }
        }
    }
}
