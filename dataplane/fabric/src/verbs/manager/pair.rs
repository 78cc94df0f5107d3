//! Connects two queue pairs of one process by RDMA-CM, in one call. On iWARP there is no other way,
//! because the kernel changes the states of the queue pairs.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connection::depths_of;
use super::negotiate::QueuePairFacts;
use super::{ManagerOptions, device, drive};
use crate::interface::SetupError;
use crate::verbs::cm::address;
use crate::verbs::cm::channel::Channel;
use crate::verbs::cm::event::{Event, EventKind};
use crate::verbs::cm::id::{ConnectionParameters, Families, Id};
use crate::verbs::errno::failed;
use crate::verbs::queue_pair::QueuePair;
use crate::verbs::{Context, PortHandle};

/// Far more than a connection within one host takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// The numbers that the events of the three identifiers carry.
const CLIENT: u64 = 0;
const SERVER: u64 = 1;
const LISTENER: u64 = 2;

/// Connects a queue pair of `a` with one of `b`, both of one device. Both ends are ready: each may send
/// first. The connection ends with either queue pair.
pub(in crate::verbs) fn connected_pair(
    a: &PortHandle,
    b: &PortHandle,
) -> Result<(QueuePair, QueuePair), SetupError> {
    let (mut client, mut server) = (QueuePair::create(a)?, QueuePair::create(b)?);
    let channel = Channel::open().map_err(failed("opening RDMA-CM's channel"))?;
    let ids = connect(&channel, (a, &client), (b, &server)).map_err(failed(format!(
        "two queue pairs of `{}` could not be connected",
        a.context().name()
    )))?;
    let [client_id, server_id] = ids;
    client.hold(client_id);
    server.hold(server_id);
    Ok((client, server))
}

fn connect(
    channel: &Arc<Channel>,
    (a, client): (&PortHandle, &QueuePair),
    (b, server): (&PortHandle, &QueuePair),
) -> io::Result<[Id; 2]> {
    let deadline = Instant::now() + DEADLINE;
    let listener = listener_on(channel, b.context())?;
    let address = listener
        .local_address()
        .ok_or(io::ErrorKind::AddrNotAvailable)?;
    let mut id = Id::create(channel, CLIENT)?;
    id.resolve_address(address, DEADLINE)?;
    await_event(channel, deadline, CLIENT, EventKind::AddressResolved)?;
    id.resolve_route(DEADLINE)?;
    await_event(channel, deadline, CLIENT, EventKind::RouteResolved)?;
    drive::to_init(&mut id, client).map_err(io::Error::other)?;
    // On iWARP this returns when TCP has connected. The kernel accepts TCP for the listener, so the
    // call does not wait for `answer.accept` below.
    id.connect(parameters(client, a))?;
    let request = await_event(channel, deadline, LISTENER, EventKind::ConnectRequest)?;
    let mut answer = request.request.ok_or(io::ErrorKind::NotConnected)?;
    answer.set_number(SERVER);
    drive::to_init(&mut answer, server).map_err(io::Error::other)?;
    answer.accept(parameters(server, b))?;
    let mut established = [false; 2];
    while established != [true; 2] {
        let event = next(channel, deadline)?;
        match (event.number, event.kind) {
            (CLIENT, EventKind::Established) => established[0] = true,
            (SERVER, EventKind::Established) => established[1] = true,
            _ => return Err(unexpected(&event)),
        }
    }
    Ok([id, answer])
}

fn parameters(queue_pair: &QueuePair, port: &PortHandle) -> ConnectionParameters<'static> {
    let facts = QueuePairFacts::of(queue_pair);
    facts.parameters(depths_of(port), &ManagerOptions::default(), &[])
}

/// Listens on an address of the device, at a port that the system chooses.
fn listener_on(channel: &Arc<Channel>, context: &Context) -> io::Result<Id> {
    for address in address::of_this_host()? {
        let mut id = Id::create(channel, LISTENER)?;
        let bound = id.bind(address, Families::Own).is_ok();
        if bound && id.context() == context.raw() {
            id.listen()?;
            return Ok(id);
        }
    }
    Err(io::ErrorKind::AddrNotAvailable.into())
}

fn await_event(
    channel: &Arc<Channel>,
    deadline: Instant,
    number: u64,
    kind: EventKind,
) -> io::Result<Event> {
    let event = next(channel, deadline)?;
    if (event.number, event.kind) == (number, kind) {
        return Ok(event);
    }
    Err(unexpected(&event))
}

fn next(channel: &Arc<Channel>, deadline: Instant) -> io::Result<Event> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if let Some(event) = device::next_event(channel, left)? {
            return Ok(event);
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

fn unexpected(event: &Event) -> io::Error {
    io::Error::other(format!(
        "RDMA-CM says {:?} with status {}",
        event.kind, event.status
    ))
}
