//! NFS and MOUNT on a core, by any transport of its node.

use std::convert::Infallible;

use rpcrdma::once::{Callers, Peer};
use rpcrdma_engine::{
    Application, BulkArguments, BulkItem, CloseReason, ConnectionKey, HostIdentity, Outcome,
    PeerProperties, ReplyTooLong, ReplyWriter, Request,
};
use rpcrdma_fabric::interface::PeerIdentity;
use rpcrdma_fabric::memory::{Lease, SharedLease};
use rpcrdma_protocol::rpc::{Program, Programs};

use super::Service;
use super::call::{Call, Items, NoItems, Payload, Reply};
use super::mount::Mounts;
use crate::store::{Pages, Piece};
use crate::wire::mount::MountProcedure;
use crate::wire::{self, Procedure, Status, mount};

/// The index of NFS among the [`programs`].
const NFS_INDEX: usize = 0;

/// NFS and MOUNT, by which calls are judged. Both take callers without an identity, and AUTH_SYS.
#[must_use]
pub fn programs() -> Programs {
    let numbers = |version, is_there: fn(u32) -> bool| {
        let numbers = (0..u32::from(u8::MAX)).filter(move |number| is_there(*number));
        numbers.map(move |number| (version, number))
    };
    let (nfs, mount) = (wire::VERSION, mount::VERSION);
    Programs::new([
        Program::new(wire::PROGRAM, [nfs..=nfs])
            .with_procedures(numbers(nfs, |it| Procedure::from_number(it).is_some())),
        Program::new(mount::PROGRAM, [mount..=mount]).with_procedures(numbers(mount, |it| {
            MountProcedure::from_number(it).is_some()
        })),
    ])
}

/// The service on its core.
#[derive(Debug)]
pub struct NfsApplication<P> {
    service: Service<P>,
    mounts: Mounts,
    /// The reply in hand.
    reply: Reply,
    callers: Callers<Infallible>,
}

impl<P: Pages> NfsApplication<P> {
    /// Answers with `service`.
    pub fn new(service: Service<P>) -> Self {
        Self {
            callers: Callers::new(&service.clients),
            service,
            mounts: Mounts::default(),
            reply: Reply::new(),
        }
    }

    /// The service.
    #[must_use]
    pub const fn service(&self) -> &Service<P> {
        &self.service
    }

    fn answer<I: Items>(
        &mut self,
        request: &Request<'_>,
        items: &I,
        writer: &mut ReplyWriter<'_>,
        is_whole: bool,
    ) -> Outcome {
        let peer = self.callers.peer(request.connection);
        let arrival = self.callers.arrival(request.connection);
        let session = self.callers.session(request.connection);
        let call = Call {
            peer: peer.unwrap_or(Peer::Process(0)),
            session: session.map(|session| &**session),
            arrival,
            xid: request.xid,
            procedure: request.procedure,
            credential: request.credential,
            args: request.args,
        };
        let (service, reply) = (&mut self.service, &mut self.reply);
        if service.stock(&mut || writer.take_bulk()) {
            writer.give_up_shared();
        }
        let outcome = if request.program_index == NFS_INDEX {
            service.call(&call, items, reply)
        } else if items.count() == 0 {
            self.mounts.call(&call, service, reply)
        } else {
            // No argument of MOUNT may leave the stream.
            Outcome::GarbageArgs
        };
        if outcome != Outcome::Success {
            return outcome;
        }
        match written(service, reply, writer, is_whole) {
            Ok(()) => Outcome::Success,
            Err(ReplyTooLong) => Outcome::SystemError,
        }
    }
}

/// Writes the results. The payload is the last part of them, so it is attached after the stream. `is_whole` says that all of the
/// reply is in its stream.
fn written<P: Pages>(
    service: &Service<P>,
    reply: &mut Reply,
    writer: &mut ReplyWriter<'_>,
    is_whole: bool,
) -> Result<(), ReplyTooLong> {
    let payload = reply.payload().copied();
    let shared = payload.and_then(|payload| service.shared_payload(&payload));
    if let Some(mut shared) = shared.filter(|item| writer.takes_shared(item)) {
        writer.write(reply.stream())?;
        return writer.attach_shared(0, &mut shared);
    }
    if let Some(payload) = payload.filter(|_| is_whole) {
        let (stream, bytes) = (reply.stream(), payload.bytes as usize);
        // If it is too long, what is attached below says how long.
        if let Ok(space) = writer.reserve(stream.len() + bytes.next_multiple_of(4)) {
            let mut pieces = std::iter::once(stream).chain(service.payload(&payload));
            let rest = pieces.try_fold(space, |space, piece| {
                let (now, later) = space.split_at_mut_checked(piece.len())?;
                now.copy_from_slice(piece);
                Some(later)
            });
            rest.unwrap_or_default().fill(0);
            return Ok(());
        }
    }
    let item = item_of(service, reply, || writer.take_bulk());
    writer.write(reply.stream())?;
    item.map_or(Ok(()), |mut item| writer.attach(0, &mut item))
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
        self.answer(request, &NoItems, reply, true)
    }

    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        self.answer(request, &BulkView::new(items), reply, false)
    }
}
