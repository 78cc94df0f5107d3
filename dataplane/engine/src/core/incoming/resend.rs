//! Sends a reply again in which its requester reported an error: once, as plain version 2, with
//! all results in the stream (RTR section 5.4).

use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Memory;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::Direction;

use super::Incoming;
use super::call::{IncomingCall, RpcReply};
use super::kept::{KeptPart, KeptReply};
use crate::bulk::{BulkPool, Home, NO_INDEX, start_of};
use crate::connection::OutgoingMessage;
use crate::core::resources::Resources;
use crate::message::{MessageBuffer, Use};

/// The outcome of an attempt to send a reply again.
enum Resending {
    Done,
    Waits,
    /// Impossible: a buffer of it was given up, or it is too long for one stream.
    Gone,
}

impl Incoming {
    /// Keeps the reply to a call, after all of it was sent, until its requester has certainly received it. A reply
    /// whose stream alone is longer than a message is not kept.
    pub(super) fn keep_reply<P: Port>(&mut self, core: &mut Resources<P>, call: &mut IncomingCall) {
        let (RpcReply::Short(stream_bytes), Some(connection)) =
            (&call.reply, core.connections.get(call.connection))
        else {
            return;
        };
        let pool = &mut core.reply.pool;
        let Some(kept) = self.kept.begin(pool) else {
            return;
        };
        (kept.connection, kept.xid) = (call.connection, call.xid);
        kept.sent_total = connection.protocol.credits().sent_total;
        kept.stream_bytes = *stream_bytes;
        std::mem::swap(&mut kept.stream, &mut call.reply_space);
        std::mem::swap(&mut kept.results, &mut call.results);
        let home = Home::Kept { reply: kept.number };
        let mut written = call.write_parts.iter_mut();
        for part in &mut call.group.parts {
            let (offset, bytes) = (part.offset, part.bytes);
            // Pieces that were written were moved to `write_parts`, and left their places marked.
            let is_written = part.index == NO_INDEX;
            let (index, buffer) = match is_written.then(|| written.next()).flatten() {
                Some(part) => (part.index, part.buffer.take()),
                None => (part.index, part.buffer.take()),
            };
            pool.set_home(index, home);
            if let Some(buffer) = buffer {
                pool.keep(buffer);
            }
            kept.parts.push(KeptPart {
                index,
                offset,
                bytes,
            });
        }
    }

    /// Forgets replies that their requesters have received: they have granted as many Receives again as were
    /// used up to the reply.
    pub(super) fn forget_taken_replies<P: Port>(&mut self, core: &mut Resources<P>) {
        if self.kept.is_empty() {
            return;
        }
        let (kept, pool) = (&mut self.kept, &mut core.reply.pool);
        let connections = &core.connections;
        kept.forget_taken(pool, |reply| {
            let Some(connection) = connections.get(reply.connection) else {
                return true;
            };
            let handled = connection.protocol.credits().peer_handled_least;
            // Both count modulo 2^32, and are less than 2^31 apart.
            handled.wrapping_sub(reply.sent_total) < 1 << 31
        });
    }

    /// Sends the replies that are to be sent again, as many as possible.
    pub(in crate::core) fn send_kept_replies<P: Port>(&mut self, core: &mut Resources<P>) -> bool {
        let (mut from, mut busy) = (0, false);
        while let Some((place, reply)) = self.kept.first_asked_for(from) {
            from = place + 1;
            let (key, xid) = (reply.connection, reply.xid);
            match self.resend(core, place) {
                Resending::Waits => continue,
                Resending::Done => core.shared.counters.bulk_replies_resent.increment(),
                Resending::Gone => core.refuse(key, xid, TransportError::System),
            }
            busy = true;
            self.kept.done(place, &mut core.reply.pool);
        }
        busy
    }

    fn resend<P: Port>(&mut self, core: &mut Resources<P>, place: usize) -> Resending {
        let Some((_, reply)) = self.kept.first_asked_for(place) else {
            return Resending::Gone;
        };
        let pool = &core.reply.pool;
        for part in &reply.parts {
            match pool.kept_for(part.index, reply.number) {
                Ok(Some(_)) => {}
                // The Send or Write that has it has not completed.
                Ok(None) => return Resending::Waits,
                Err(_) => return Resending::Gone,
            }
        }
        let live = core.connections.get(reply.connection);
        let Some(connection) = live.filter(|it| it.is_live()) else {
            return Resending::Gone;
        };
        if !connection.may_queue() {
            return Resending::Waits;
        }
        let (key, xid) = (reply.connection, reply.xid);
        let Some(mut buffer) = core.messages.take(key.index, Use::Answer) else {
            return Resending::Waits;
        };
        if !write_whole(&mut buffer, reply, pool, core.port.memory()) {
            core.messages.give(buffer);
            return Resending::Gone;
        }
        let bytes = u64::try_from(buffer.filled().len()).unwrap_or(0);
        core.shared.counters.bulk_bytes_copied.add(bytes);
        core.queue_message(key, OutgoingMessage::new(xid, Direction::Reply, buffer));
        Resending::Done
    }
}

/// Writes a reply with all of its results in the stream. False when that is too long.
fn write_whole(
    buffer: &mut MessageBuffer,
    reply: &KeptReply,
    pool: &BulkPool,
    memory: &Memory,
) -> bool {
    let stream = reply.stream.get(..reply.stream_bytes).unwrap_or(&[]);
    let content = |part: &KeptPart| {
        let kept = pool.kept_for(part.index, reply.number).ok().flatten();
        let bytes = start_of(memory, kept, part.offset + part.bytes);
        bytes.get(part.offset as usize..).unwrap_or(&[])
    };
    let mut parts = reply.parts.as_slice();
    let attached = reply.results.iter().filter(|it| it.is_attached);
    let items = attached.clone().map(|result| {
        let mut rest = result.bytes;
        let is_own = |part: &&KeptPart| {
            let is_own = rest != 0;
            rest = rest.saturating_sub(part.bytes);
            is_own
        };
        let count = parts.iter().take_while(is_own).count();
        let (own, behind) = parts.split_at(count);
        parts = behind;
        (result.stream_offset as usize, own.iter().map(content))
    });
    let bytes = buffer.weave(stream, items);
    buffer.is_whole() && bytes == attached.map(|it| u64::from(it.bytes)).sum::<u64>()
}
