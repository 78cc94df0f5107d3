//! NFS by RPC-over-RDMA: the service on a polling core, and the channel by which a thread that serves
//! TCP has its calls answered there.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use rpcrdma::once::{Callers, Clients, Peer};
use rpcrdma_engine::{
    Activity, Application, BulkArguments, BulkItem, CloseReason, ConnectionKey, Context,
    HostIdentity, Outcome, PeerProperties, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::{PeerIdentity, Port};
use rpcrdma_fabric::memory::{Lease, SharedLease};
use rpcrdma_protocol::rpc::Programs;

use super::Service;
use super::call::{Call, Items, NoItems, Payload, Reply};
use super::rpc_service::{RpcService, programs};
use super::tcp::Answers;
use crate::store::{Pages, Piece};
use crate::wire::Status;

/// How long a call on TCP waits for the core, at most.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How often it looks.
const CALL_LOOK_PERIOD: Duration = Duration::from_micros(200);

/// The service on its core.
#[derive(Debug)]
pub struct NfsApplication<P> {
    rpc: RpcService<P>,
    /// Calls on TCP come by it, if there are any.
    channel: Option<Arc<CallChannel>>,
    callers: Callers<Infallible>,
}

impl<P: Pages> NfsApplication<P> {
    /// Serves `rpc`, also to the calls that come by `channel` if there is one.
    pub fn new(rpc: RpcService<P>, channel: Option<Arc<CallChannel>>) -> Self {
        if let Some(channel) = &channel {
            // The first time counts: a channel leads to one service.
            let _ = channel.clients.set(Arc::clone(&rpc.service.clients));
        }
        Self {
            callers: Callers::new(&rpc.service.clients),
            rpc,
            channel,
        }
    }

    /// The service.
    #[must_use]
    pub const fn service(&self) -> &Service<P> {
        &self.rpc.service
    }

    fn answer<I: Items>(
        &mut self,
        request: &Request<'_>,
        items: &I,
        writer: &mut ReplyWriter<'_>,
    ) -> Outcome {
        let peer = self.callers.peer(request.connection);
        let session = self.callers.session(request.connection);
        let call = Call {
            peer: peer.unwrap_or(Peer::Process(0)),
            session: session.map(|session| &**session),
            xid: request.xid,
            procedure: request.procedure,
            credential: request.credential,
            args: request.args,
        };
        if self.rpc.service.stock(&mut || writer.take_bulk()) {
            writer.give_up_shared();
        }
        let outcome = self.rpc.call(request.program_index, &call, items);
        if outcome != Outcome::Success {
            return outcome;
        }
        let RpcService { service, reply, .. } = &mut self.rpc;
        let shared = reply.payload().copied();
        let shared = shared.and_then(|payload| service.shared_payload(&payload));
        if let Some(mut shared) = shared.filter(|item| writer.takes_shared(item)) {
            let is_written = writer.write(reply.stream()).is_ok();
            return if is_written && writer.attach_shared(0, &mut shared).is_ok() {
                Outcome::Success
            } else {
                Outcome::SystemError
            };
        }
        let item = item_of(service, reply, || writer.take_bulk());
        match written(reply, item, writer) {
            Some(()) => Outcome::Success,
            None => Outcome::SystemError,
        }
    }
}

/// Copies the payload of a reply, if it has one, into registered memory. If too little memory is free at the moment, the
/// reply becomes NFS3ERR_JUKEBOX, and the client repeats its call.
pub(super) fn item_of<P: Pages>(
    service: &Service<P>,
    reply: &mut Reply,
    take: impl FnMut() -> Option<Lease>,
) -> Option<BulkItem> {
    let payload = *reply.payload()?;
    let item = filled(service.payload(&payload), &payload, take);
    if item.is_none() {
        reply.fail(Status::Jukebox);
    }
    item
}

/// Copies the bytes of a payload into registered memory; `None` when too little is free.
fn filled<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    payload: &Payload,
    mut take: impl FnMut() -> Option<Lease>,
) -> Option<BulkItem> {
    let mut item = BulkItem::new();
    let mut left = payload.bytes as usize;
    // The lease that is being filled, and the bytes that are filled.
    let mut lease = None;
    let mut filled_bytes = 0;
    for mut piece in pieces {
        while !piece.is_empty() {
            let space = match &mut lease {
                Some(space) => space,
                None => {
                    let mut fresh = take()?;
                    fresh.set_len(left);
                    filled_bytes = 0;
                    lease.insert(fresh)
                }
            };
            let room = space.get_mut(filled_bytes..)?;
            let count = room.len().min(piece.len());
            let (now, later) = piece.split_at_checked(count)?;
            room.get_mut(..count)?.copy_from_slice(now);
            (filled_bytes, left, piece) = (filled_bytes + count, left - count, later);
            if filled_bytes == space.len() {
                item.push(lease.take()?).ok()?;
            }
        }
    }
    Some(item)
}

/// Writes the results with their payload.
fn written(reply: &Reply, item: Option<BulkItem>, writer: &mut ReplyWriter<'_>) -> Option<()> {
    let stream = reply.stream();
    let Some(mut item) = item else {
        return writer.write(stream).ok();
    };
    // The payload is the last part of the results, so it is attached after the stream.
    writer.write(stream).ok()?;
    writer.attach(0, &mut item).ok()
}

/// The bulk arguments of a call by RPC-over-RDMA.
struct BulkView<'a, 'b> {
    arguments: &'a BulkArguments<'b>,
    /// The pieces of the only one, which can be kept.
    taken: BulkItem<SharedLease>,
}

impl<'a, 'b> BulkView<'a, 'b> {
    fn new(arguments: &'a mut BulkArguments<'b>) -> Self {
        let mut taken = BulkItem::new();
        let item = (arguments.len() == 1).then(|| arguments.take(0)).flatten();
        for part in item.into_iter().flatten() {
            // This cannot fail: an item has room for as many parts as another.
            let _ = taken.push(part.share());
        }
        Self { arguments, taken }
    }
}

impl Items for BulkView<'_, '_> {
    fn at(&self, args_offset: usize) -> Option<usize> {
        let mut all = 0..self.arguments.len();
        all.find(|index| self.arguments.args_offset(*index) == Some(args_offset))
    }

    fn is_of(&self, index: usize, bytes: usize) -> bool {
        self.arguments.is_of(index, bytes)
    }

    fn count(&self) -> usize {
        self.arguments.len()
    }

    fn pieces(&self, index: usize) -> impl Iterator<Item = Piece<'_>> {
        let taken = self.taken.parts().map(|part| Piece {
            bytes: part,
            lies_in: Some((part, part.offset() as usize)),
        });
        // `arguments` no longer has the parts that were taken.
        self.arguments.parts(index).map(Piece::from).chain(taken)
    }
}

impl<P: Pages + 'static> Application for NfsApplication<P> {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn programs(&self) -> Programs {
        programs()
    }

    fn opened(&mut self, connection: ConnectionKey, peer: &PeerIdentity) {
        self.callers.opened(connection, peer);
    }

    fn peer_properties(&mut self, connection: ConnectionKey, properties: &PeerProperties) {
        self.callers.announced(connection, properties);
    }

    fn connected(&mut self, connection: ConnectionKey, peer: Option<&HostIdentity>) {
        self.callers.connected(connection, peer);
    }

    fn disconnected(&mut self, connection: ConnectionKey, _reason: CloseReason) {
        self.callers.disconnected(connection);
    }

    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        self.answer(request, &NoItems, reply)
    }

    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        self.answer(request, &BulkView::new(items), reply)
    }

    fn poll<V: Port>(&mut self, core: &mut Context<'_, V>, _now: Ticks) -> Activity {
        let Some(channel) = &self.channel else {
            return Activity::Idle;
        };
        let Some(mut asked) = channel.asked.pop() else {
            return Activity::Idle;
        };
        if self.rpc.service.stock(&mut || core.take_bulk()) {
            core.give_up_shared();
        }
        asked.answered = self
            .rpc
            .answer(asked.peer, &asked.message, &mut asked.output)
            .is_ok();
        // This fails only if an abandoned call still occupies the place, and then nobody waits for it.
        let _ = channel.answered.push(asked);
        Activity::Busy
    }
}

/// A call that goes from the TCP thread to the core and returns with its answer.
#[derive(Debug)]
struct Asked {
    number: u64,
    peer: IpAddr,
    message: Vec<u8>,
    output: Vec<u8>,
    answered: bool,
}

/// Between the thread that serves TCP and the core that has the service: one call at a time.
pub struct CallChannel {
    asked: ArrayQueue<Asked>,
    answered: ArrayQueue<Asked>,
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
    clients: OnceLock<Arc<Clients<Infallible>>>,
}

impl fmt::Debug for CallChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallChannel").finish_non_exhaustive()
    }
}

impl Default for CallChannel {
    fn default() -> Self {
        Self::new()
    }
}

impl CallChannel {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        Self {
            asked: ArrayQueue::new(1),
            answered: ArrayQueue::new(1),
            wake: OnceLock::new(),
            clients: OnceLock::new(),
        }
    }

    /// Says how the core is woken; the first time counts.
    pub fn set_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        let _ = self.wake.set(Box::new(wake));
    }
}

/// Calls the service on its core from another thread.
#[derive(Debug)]
pub struct ServerHandle {
    channel: Arc<CallChannel>,
    number: u64,
}

impl ServerHandle {
    /// Calls by `channel`.
    #[must_use]
    pub fn new(channel: Arc<CallChannel>) -> Self {
        Self { channel, number: 0 }
    }
}

impl Answers for ServerHandle {
    fn clients(&self) -> Option<&Clients<Infallible>> {
        self.channel.clients.get().map(|clients| &**clients)
    }

    fn answer(&mut self, peer: IpAddr, message: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
        self.number += 1;
        let asked = Asked {
            number: self.number,
            peer,
            message: message.to_vec(),
            output: Vec::new(),
            answered: false,
        };
        let busy = |_| io::Error::from(io::ErrorKind::ResourceBusy);
        self.channel.asked.push(asked).map_err(busy)?;
        if let Some(wake) = self.channel.wake.get() {
            wake();
        }
        let deadline = Instant::now() + CALL_TIMEOUT;
        loop {
            match self.channel.answered.pop() {
                Some(asked) if asked.number == self.number && asked.answered => {
                    output.extend_from_slice(&asked.output);
                    return Ok(());
                }
                Some(asked) if asked.number == self.number => {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                // The answer to an earlier call, which timed out.
                Some(_) => {}
                None if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
                // WAIT: `CALL_LOOK_PERIOD`; the whole until `deadline`.
                None => std::thread::sleep(CALL_LOOK_PERIOD),
            }
        }
    }
}
