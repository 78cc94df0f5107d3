//! Work requests, the handles that name things, and the tokens that own them.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};

use super::SetupError;
use crate::memory::Buffer;

/// The number of a port, which no other port of this process has or had: it tells the tokens of a
/// port from those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortNumber(NonZeroU32);

impl PortNumber {
    /// The number of a new port.
    ///
    /// # Errors
    ///
    /// [`SetupError::Limit`] after 4,294,967,294 ports: a number that came round again would let a
    /// token of an old port pass for one of a new port.
    pub(crate) fn new() -> Result<Self, SetupError> {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let next = |last: u32| last.checked_add(1);
        let last = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        last.ok()
            .and_then(next)
            .and_then(NonZeroU32::new)
            .map(Self)
            .ok_or(SetupError::Limit {
                what: "ports that a process makes",
                asked: 1 << 32,
                limit: u32::MAX.into(),
            })
    }

    /// The number itself.
    #[cfg(any(feature = "verbs", feature = "verbs-dlopen"))]
    pub(crate) fn get(self) -> u32 {
        self.0.get()
    }
}

/// The most segments in a scatter or gather list, over all providers.
pub const SEGMENTS_MAX: usize = 32;

/// Names a queue pair of a port: a dense index, and a generation that tells its users apart.
///
/// # Example
///
/// ```
/// use rpcrdma_fabric::interface::QueuePairId;
///
/// // What a core keeps of each queue pair, at its index.
/// let mut kept = [None; 64];
/// let id = QueuePairId { index: 3, generation: 2 };
/// kept[id.index as usize] = Some((id, "the second that had this index"));
/// let known = |id: QueuePairId| kept[id.index as usize].filter(|(kept, _)| *kept == id);
/// assert!(known(id).is_some());
/// // A completion of the first comes late, and finds nothing.
/// assert!(known(QueuePairId { generation: 1, ..id }).is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueuePairId {
    /// Index into the port's table, smaller than [`super::Attributes::queue_pairs_max`].
    pub index: u32,
    /// Raised whenever the index is used again.
    pub generation: u32,
}

/// Names a receive queue of a port.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// use rpcrdma_fabric::interface::{Port, ReceiveQueueAttributes, ReceiveQueueId};
///
/// # let mut port = ends::End::new(0).port;
/// // This port has one already.
/// let attributes = ReceiveQueueAttributes { depth: 4, segments_max: 2 };
/// let bulk: ReceiveQueueId = port.create_receive_queue(attributes)?;
/// assert_eq!(port.receives_posted(bulk), 0);
/// assert_eq!(port.receives_posted(ReceiveQueueId(0)), 8);
/// # Ok::<(), rpcrdma_fabric::interface::SetupError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReceiveQueueId(pub u16);

/// A Receive that is not posted: its scatter list stands in the port's table, and this is the
/// only handle on it. Posting moves it away; its completion gives it back. It belongs to the port
/// that made it: other ports neither read nor take it.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// use rpcrdma_fabric::interface::Port;
///
/// # let ends::End { mut port, mut pool, queue, .. } = ends::End::new(0);
/// let before = port.receives_posted(queue);
/// let buffer = pool.take().expect("one is free");
/// let receive = port.create_receive(queue, &mut std::iter::once(buffer))?;
/// assert_eq!(receive.queue(), queue);
/// port.post_receive(receive);
/// port.flush_receives();
/// assert_eq!(port.receives_posted(queue), before + 1);
/// # Ok::<(), rpcrdma_fabric::interface::SetupError>(())
/// ```
#[derive(Debug)]
#[must_use = "a Receive that is dropped is never posted again, and a credit is lost"]
pub struct Receive {
    pub(crate) port: PortNumber,
    pub(crate) slot: u32,
    pub(crate) queue: ReceiveQueueId,
}

impl Receive {
    /// The same token, for one who gives this one up.
    #[inline]
    pub(crate) const fn again(&self) -> Self {
        Self {
            port: self.port,
            slot: self.slot,
            queue: self.queue,
        }
    }

    /// The receive queue that it belongs to.
    #[must_use]
    pub fn queue(&self) -> ReceiveQueueId {
        self.queue
    }
}

/// A message that arrived and has not taken a Receive: see [`PortPoll::next_arrival`](super::PortPoll::next_arrival).
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// # use rpcrdma_fabric::interface::SendOptions;
/// use rpcrdma_fabric::interface::{Arrival, CompletionBatch, Port};
///
/// # let [mut a, mut b] = ends::ends();
/// # let buffer = a.filled(&[7; 64]);
/// # a.port.post_send_copied(a.id, &buffer, 64, SendOptions::default())?;
/// # a.port.flush_sends();
/// # let mut batch = CompletionBatch::new();
/// let mut octets = 0;
/// for _ in 0..256 {
///     b.port.begin_poll(0, &mut batch);
///     while let Some(arrival) = b.port.next_arrival() {
///         let Arrival { queue_pair, bytes, .. } = arrival;
///         assert_eq!((queue_pair, bytes), (b.id, 64));
///         octets += b.port.arrived(&arrival).len();
///     }
/// }
/// assert_eq!(octets, 64);
/// // No Receive was taken.
/// assert_eq!(b.port.receives_posted(b.queue), 8);
/// # Ok::<(), rpcrdma_fabric::interface::PostError>(())
/// ```
#[derive(Debug)]
pub struct Arrival {
    /// The queue pair that it came on.
    pub queue_pair: QueuePairId,
    /// Its bytes.
    pub bytes: u32,
    /// Which one of the port it is.
    pub(crate) number: u64,
}

/// The requester's own name for a work request; comes back in its completion.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// use rpcrdma_fabric::interface::{CompletionKind, Port, SendOptions, WorkId};
///
/// # let [mut a, mut b] = ends::ends();
/// # let buffer = a.filled(b"call");
/// let calls = ["LOOKUP", "GETATTR"];
/// for slot in [0, 1] {
///     let options = SendOptions { signalled: Some(WorkId(slot)), ..SendOptions::default() };
///     a.port.post_send_copied(a.id, &buffer, 4, options)?;
/// }
/// let [ended, _] = ends::settle(&mut a, &mut b);
/// let sent = ended.iter().map(|completion| match completion.kind {
///     CompletionKind::Send(WorkId(slot)) => calls[slot as usize],
///     _ => "nothing else was posted",
/// });
/// assert_eq!(sent.collect::<Vec<_>>(), calls);
/// # Ok::<(), rpcrdma_fabric::interface::PostError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct WorkId(pub u64);

/// The key by which a peer names registered memory (`rdma_handle`, RFC 8166 section 3.4.2).
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// # use rpcrdma_fabric::interface::Access;
/// use rpcrdma_fabric::interface::{CompletionKind, Port, RemoteKey, SendOptions};
///
/// # let [mut a, mut b] = ends::ends();
/// # let access = Access { remote_read: true, remote_write: false };
/// # let window = ends::expose(&mut a, &mut b, b"payload", access);
/// # let reply = b.filled(b"reply");
/// // The four octets of the key that the peer read in a header (XDR is big-endian).
/// let octets: [u8; 4] = window.remote().key.0.to_be_bytes();
/// let key = RemoteKey(u32::from_be_bytes(octets));
/// let options = SendOptions { invalidate: Some(key), ..SendOptions::default() };
/// b.port.post_send_copied(b.id, &reply, 5, options)?;
/// let [arrived, _] = ends::settle(&mut a, &mut b);
/// let CompletionKind::Receive { invalidated, .. } = arrived[0].kind else {
///     panic!("one Send arrived");
/// };
/// assert_eq!(invalidated, Some(key));
/// assert!(a.port.window_has_key(&window, key) && a.port.close_window(window).is_ok());
/// # Ok::<(), rpcrdma_fabric::interface::PostError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

/// A place in a peer's registered memory.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// # use rpcrdma_fabric::interface::Access;
/// use rpcrdma_fabric::interface::{CompletionKind, Gather, Port, RemoteAddress, WorkId};
///
/// # let [mut a, mut b] = ends::ends();
/// # let access = Access { remote_read: true, remote_write: false };
/// # let window = ends::expose(&mut a, &mut b, b"head and payload", access);
/// # let mut list = Gather::new();
/// # list.push(b.pool.take().expect("one is free"), 0, 7).expect("it lies within");
/// let start: RemoteAddress = window.remote();
/// let payload = RemoteAddress { offset: start.offset + 9, ..start };
/// b.port.post_read(b.id, list, payload, WorkId(1)).expect("the queue has room");
/// let [_, mut ended] = ends::settle(&mut a, &mut b);
/// let Some(CompletionKind::Read(_, mut list)) = ended.pop().map(|read| read.kind) else {
///     panic!("one RDMA Read was posted");
/// };
/// let (buffer, _, bytes) = list.pop().expect("one segment");
/// assert_eq!(b.port.memory().bytes(&buffer)[..bytes as usize], *b"payload");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The key that the peer handed out.
    pub key: RemoteKey,
    /// The offset that the peer handed out, in bytes; its meaning is the peer's.
    pub offset: u64,
}

/// A memory window that is bound: the buffer that it exposes has been moved into the port. It
/// belongs to that port: others neither invalidate nor close it.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// use rpcrdma_fabric::interface::{Access, CompletionKind, Port, WorkId};
///
/// # let [mut a, mut b] = ends::ends();
/// # let (id, buffer) = (a.id, a.filled(b"payload"));
/// let access = Access { remote_read: true, remote_write: false };
/// let window = a.port.bind_window(id, buffer, 7, access).expect("a window is free");
/// assert_eq!(window.bytes(), 7);
/// // The peer never asked for it back: it is taken away, and its buffer is ours again.
/// a.port.invalidate_window(window, WorkId(1)).expect("the queue has room");
/// let [ended, _] = ends::settle(&mut a, &mut b);
/// assert!(matches!(ended[0].kind, CompletionKind::Invalidated(WorkId(1), _)));
/// let buffer = a.port.next_returned().expect("that of the window");
/// assert_eq!(a.port.memory().bytes(&buffer)[..7], *b"payload");
/// ```
#[derive(Debug)]
#[must_use = "a window that is dropped stays exposed until its port closes"]
pub struct Window {
    pub(crate) port: PortNumber,
    pub(crate) slot: u32,
    /// The key and offset to hand to the peer. They stand apart, since a [`RemoteAddress`] has four
    /// bytes of padding.
    pub(crate) key: RemoteKey,
    pub(crate) bytes: u32,
    pub(crate) offset: u64,
}

impl Window {
    /// What the peer needs to reach it.
    #[must_use]
    pub fn remote(&self) -> RemoteAddress {
        RemoteAddress {
            key: self.key,
            offset: self.offset,
        }
    }

    /// The bytes that are exposed.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

/// How a Send is to be done.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// use rpcrdma_fabric::interface::{Port, SendOptions, WorkId};
///
/// # let [mut a, mut b] = ends::ends();
/// # let buffer = a.filled(b"message");
/// let silent = SendOptions::default();
/// let told = SendOptions { signalled: Some(WorkId(2)), ..silent };
/// for options in [silent, told] {
///     a.port.post_send_copied(a.id, &buffer, 7, options)?;
/// }
/// let [ended, arrived] = ends::settle(&mut a, &mut b);
/// assert_eq!((ended.len(), arrived.len()), (1, 2));
/// # Ok::<(), rpcrdma_fabric::interface::PostError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Ask for a completion that carries this name. Without it the Send completes in silence,
    /// and its buffers come back by [`super::PortSends::next_returned`] all the same.
    pub signalled: Option<WorkId>,
    /// Invalidate this key at the peer when the Send arrives (Send With Invalidate).
    pub invalidate: Option<RemoteKey>,
}

/// A gather or scatter list under construction: buffers, each with the range that counts.
///
/// The list owns its buffers. Posting drains it; when posting fails it is left as it was.
///
/// # Example
///
/// ```
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/ends/shm.rs")); }
/// use rpcrdma_fabric::interface::{Gather, Port, SendOptions};
///
/// # let [mut a, mut b] = ends::ends();
/// # let [header, item] = [&b"header, not all of it"[..], b"page"].map(|bytes| a.filled(bytes));
/// let mut list = Gather::new();
/// list.push(header, 0, 6).expect("it lies within");
/// // A range that is not within its buffer is refused, and the buffer comes back.
/// let item = list.push(item, 0, 10_000).expect_err("it has 8192 bytes");
/// list.push(item, 0, 4).expect("it lies within");
/// assert_eq!((list.len(), list.bytes()), (2, 10));
/// a.port.post_send(a.id, &mut list, SendOptions::default())?;
/// assert!(list.is_empty());
/// # let [_, arrived] = ends::settle(&mut a, &mut b);
/// # assert_eq!(arrived.len(), 1);
/// # Ok::<(), rpcrdma_fabric::interface::PostError>(())
/// ```
#[derive(Debug, Default)]
pub struct Gather {
    segments: Vec<(Buffer, u32, u32)>,
}

impl Gather {
    /// An empty list with room for [`SEGMENTS_MAX`] segments, so that filling it never allocates.
    #[must_use]
    pub fn new() -> Self {
        Self {
            segments: Vec::with_capacity(SEGMENTS_MAX),
        }
    }

    /// Appends `bytes` bytes of `buffer` from `offset`. Gives the buffer back when the list is
    /// full or the range does not lie within the buffer.
    pub fn push(&mut self, buffer: Buffer, offset: u32, bytes: u32) -> Result<(), Buffer> {
        let fits = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= buffer.capacity());
        if self.segments.len() == SEGMENTS_MAX || !fits {
            return Err(buffer);
        }
        self.segments.push((buffer, offset, bytes));
        Ok(())
    }

    /// Takes the last segment off: buffer, offset, bytes.
    pub fn pop(&mut self) -> Option<(Buffer, u32, u32)> {
        self.segments.pop()
    }

    /// Takes the first segment's buffer off: how a provider gives back what it has copied.
    pub(crate) fn take_first(&mut self) -> Option<Buffer> {
        (!self.segments.is_empty()).then(|| self.segments.remove(0).0)
    }

    /// Exchanges the segments with those of `other`: how a provider takes a list over without
    /// allocating.
    pub(crate) fn swap(&mut self, other: &mut Self) {
        std::mem::swap(&mut self.segments, &mut other.segments);
    }

    /// Whether a segment is not to be written ([`Buffer::is_view`]).
    pub(crate) fn has_view(&self) -> bool {
        self.segments.iter().any(|(buffer, ..)| buffer.is_view())
    }

    /// The segments in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(Buffer, u32, u32)> {
        self.segments.iter()
    }

    /// The number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The bytes of all segments together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segments
            .iter()
            .map(|(_, _, bytes)| u64::from(*bytes))
            .sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::interface::Completion;

    #[test]
    fn no_two_ports_have_the_same_number() {
        let numbers = [(); 3].map(|()| PortNumber::new().expect("few ports were made"));
        assert_ne!(numbers[0], numbers[1]);
        assert_ne!(numbers[1], numbers[2]);
        assert_ne!(numbers[0], numbers[2]);
    }

    /// They are moved several times for each message.
    #[test]
    fn tokens_are_small() {
        assert_eq!(size_of::<Receive>(), 12);
        assert_eq!(size_of::<Option<Receive>>(), 12);
        assert_eq!(size_of::<Window>(), 24);
        assert_eq!(size_of::<Option<Window>>(), 24);
        assert_eq!(size_of::<Completion>(), 56);
    }
}
