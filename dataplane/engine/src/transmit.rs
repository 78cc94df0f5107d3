//! Putting encoded messages on the wire.

use rpcrdma_fabric::interface::{Gather, Port, PostError, SendOptions};
use rpcrdma_fabric::memory::{Buffer, Memory, Pool};
use rpcrdma_protocol::v2::connection::Direction;

use crate::connection::{Connection, Stuck};
use crate::counters::Counters;

/// The send buffers of a core. Every message is written into the *scratch* buffer first; a short
/// one is copied out of it when it is posted, a long one leaves with it.
#[derive(Debug)]
pub(crate) struct Transmit {
    memory: Memory,
    scratch: Buffer,
    pool: Pool,
    gather: Gather,
    inline_bytes_max: u32,
}

/// Send buffers kept back for grants and errors, which let others go on.
const KEPT_BACK: usize = 1;

impl Transmit {
    /// `None` when the pool is empty.
    pub(crate) fn new(memory: Memory, mut pool: Pool, inline_bytes_max: u32) -> Option<Self> {
        let scratch = pool.take()?;
        Some(Self {
            memory,
            scratch,
            pool,
            gather: Gather::new(),
            inline_bytes_max,
        })
    }

    /// Whether a payload message may be encoded: should the send queue be full, a buffer must be
    /// left to take the place of the one that keeps it.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.pool.available() > KEPT_BACK
    }

    /// Whether a grant or an error may be encoded.
    #[inline]
    pub(crate) fn has_room_for_control(&self) -> bool {
        self.pool.available() > 0
    }

    /// The bytes of the scratch buffer.
    #[inline]
    pub(crate) fn scratch(&mut self) -> &mut [u8] {
        self.memory.bytes_mut(&mut self.scratch)
    }

    /// Whether a buffer is one of these.
    #[inline]
    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        self.pool.owns(buffer)
    }

    /// Takes back a buffer whose Send is done.
    #[inline]
    pub(crate) fn give(&mut self, buffer: Buffer) {
        self.pool.give(buffer);
    }

    /// Sends the RPC reply of `rpc_bytes` bytes that stands in the scratch buffer behind the place
    /// of its transport header. False, and nothing is done, when it has to wait.
    #[inline]
    pub(crate) fn send_reply<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        xid: u32,
        rpc_bytes: usize,
        counters: &Counters,
    ) -> bool {
        if connection.has_backlog() || !self.has_room() {
            return false;
        }
        let scratch = self.scratch();
        let reply = Direction::Reply;
        let encoded = connection
            .protocol
            .encode_message(scratch, xid, reply, false, rpc_bytes);
        let Ok(transport_bytes) = encoded else {
            return false;
        };
        counters.replies_sent.increment();
        self.post_scratch(port, connection, transport_bytes + rpc_bytes, counters);
        true
    }

    /// Posts the first `bytes` bytes of the scratch buffer, which were encoded for `connection`
    /// and must therefore go out: when the send queue is full, the connection keeps them.
    #[inline]
    pub(crate) fn post_scratch<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        bytes: usize,
        counters: &Counters,
    ) {
        let options = SendOptions::default();
        self.post_scratch_with(port, connection, bytes, options, counters);
    }

    /// As [`Transmit::post_scratch`], as `options` say.
    #[inline]
    pub(crate) fn post_scratch_with<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        bytes: usize,
        options: SendOptions,
        counters: &Counters,
    ) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        debug_assert!(connection.stuck.is_none(), "messages leave in order");
        if bytes <= self.inline_bytes_max {
            match port.post_send_copied(connection.queue_pair, &self.scratch, bytes, options) {
                Ok(()) => counters.sends_copied.increment(),
                Err(error) => self.copied_failed(error, connection, (bytes, options), counters),
            }
            return;
        }
        let Some(fresh) = self.pool.take() else {
            debug_assert!(false, "encoded without a buffer to spare");
            return;
        };
        let buffer = std::mem::replace(&mut self.scratch, fresh);
        let message = Stuck {
            buffer,
            bytes,
            options,
        };
        self.post_buffer(port, connection, message, counters);
    }

    /// Posts a message that found the send queue full, once more. Returns whether it is gone.
    pub(crate) fn post_stuck<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        counters: &Counters,
    ) -> bool {
        if let Some(stuck) = connection.stuck.take() {
            self.post_buffer(port, connection, stuck, counters);
        }
        connection.stuck.is_none()
    }

    fn post_buffer<P: Port>(
        &mut self,
        port: &mut P,
        connection: &mut Connection,
        Stuck {
            buffer,
            bytes,
            options,
        }: Stuck,
        counters: &Counters,
    ) {
        if let Err(buffer) = self.gather.push(buffer, 0, bytes) {
            debug_assert!(false, "one segment, within its buffer");
            self.pool.give(buffer);
            return;
        }
        match port.post_send(connection.queue_pair, &mut self.gather, options) {
            Ok(()) => counters.sends_registered.increment(),
            Err(error) => {
                let Some((buffer, _, bytes)) = self.gather.pop() else {
                    return;
                };
                if error == PostError::QueueFull {
                    connection.stuck = Some(Stuck {
                        buffer,
                        bytes,
                        options,
                    });
                } else {
                    // The queue pair is in error: its Disconnected is on its way.
                    self.pool.give(buffer);
                }
            }
        }
    }

    #[cold]
    fn copied_failed(
        &mut self,
        error: PostError,
        connection: &mut Connection,
        (bytes, options): (u32, SendOptions),
        counters: &Counters,
    ) {
        if error != PostError::QueueFull {
            // As above.
            return;
        }
        let Some(fresh) = self.pool.take() else {
            debug_assert!(false, "encoded without a buffer to spare");
            return;
        };
        counters.awaiting_send_slot.increment();
        let buffer = std::mem::replace(&mut self.scratch, fresh);
        connection.stuck = Some(Stuck {
            buffer,
            bytes,
            options,
        });
    }
}
