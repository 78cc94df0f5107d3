//! A call with bulk data as its caller describes it, and the reply that the caller gets.

use std::fmt;
use std::ops::Range;

use arrayvec::ArrayVec;
use rpcrdma_fabric::memory::{Lease, SharedLease};
use rpcrdma_protocol::rpc::{CallHeader, OpaqueAuth};

use super::{BULK_ITEMS_MAX, BULK_PARTS_MAX, BulkItem, Piece};
use crate::rpc::{Call, CallAuth, Reply};

/// How the items of a call and of its reply are to travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Chosen for each item by its size and by what both ends support.
    #[default]
    Auto,
    /// In the streams of their messages, copied.
    Inline,
    /// Placed by the Sends that carry them. Refused where an end cannot.
    Send,
    /// By RDMA Read and RDMA Write. Refused where the device has no memory windows.
    Rdma,
}

/// A result that may arrive outside the stream of the reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedResult {
    /// The part of the argument stream that asks for the result, in bytes of the stream with all
    /// items: with the round-trip-reduction extension a responder chooses by it among several. An
    /// empty range means the whole call.
    pub request_range: Range<u32>,
    /// The responder should leave a shorter result in the stream.
    pub bytes_min: u32,
    /// The most bytes that it can have.
    pub bytes_max: u32,
}

/// The call has no room for another item, result or piece, or not at that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the call holds no such item")]
pub struct NoRoom;

/// The most pieces of memory that a call brings with it for its results.
pub const TARGET_PARTS_MAX: usize = 8;

/// An item of a call, apart from its pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallItem {
    /// Bytes of the argument stream before it, other items not counted.
    pub(crate) args_offset: usize,
    pub(crate) bytes: u32,
    /// How many of the call's pieces belong to it.
    pub(crate) parts: usize,
}

/// A call with bulk data. [`crate::Context::call_bulk`] takes the items out of it when it accepts
/// the call, and leaves it as it is when it does not.
///
/// # Example
/// ```
/// use rpcrdma_engine::{BulkCall, BulkItem, Call, CallRefused, ConnectionKey, Context};
/// use rpcrdma_fabric::interface::Port;
///
/// /// Sends an opaque of variable length, whose length stays in the stream. False when there is no
/// /// buffer for it now, or it is longer than one.
/// fn store<P: Port>(
///     core: &mut Context<'_, P>,
///     connection: ConnectionKey,
///     cargo: &[u8],
/// ) -> Result<bool, CallRefused> {
///     let Some(mut piece) = core.take_bulk().filter(|it| cargo.len() <= it.len()) else {
///         return Ok(false);
///     };
///     piece.set_len(cargo.len());
///     piece.copy_from_slice(cargo);
///     let length = u32::try_from(cargo.len()).unwrap_or(u32::MAX).to_be_bytes();
///     let store = Call { program: 0x2000_0001, version: 1, procedure: 1 };
///     let mut call = BulkCall::new(store, &length);
///     call.add(4, &mut BulkItem::from(piece)).expect("room for one item");
///     core.call_bulk(connection, &mut call, 1).map(|()| true)
/// }
/// ```
pub struct BulkCall<'a> {
    /// What to call.
    pub call: Call,
    /// The credential (RFC 5531 section 8.2), of at most 400 bytes.
    pub credential: OpaqueAuth<'a>,
    /// The verifier, of at most 400 bytes. If the reply has one too, the bytes of its body count in
    /// [`BulkCall::results_bytes_max`].
    pub verifier: OpaqueAuth<'a>,
    /// The argument stream without the items and without their padding.
    pub args: &'a [u8],
    /// The most bytes of the result stream, without results that may arrive outside it.
    pub results_bytes_max: usize,
    /// How the items are to travel.
    pub placement: Placement,
    /// The pieces of all items, in order.
    pub(crate) parts: ArrayVec<Piece, BULK_PARTS_MAX>,
    pub(crate) items: ArrayVec<CallItem, BULK_ITEMS_MAX>,
    pub(crate) expected: ArrayVec<ExpectedResult, BULK_ITEMS_MAX>,
    /// Where results are to go, in order: the number of each result, and a piece of its memory.
    pub(crate) targets: ArrayVec<(usize, Lease), TARGET_PARTS_MAX>,
}

impl<'a> BulkCall<'a> {
    /// A call without items so far.
    #[must_use]
    pub fn new(call: Call, args: &'a [u8]) -> Self {
        Self {
            call,
            credential: OpaqueAuth::NONE,
            verifier: OpaqueAuth::NONE,
            args,
            results_bytes_max: 0,
            placement: Placement::Auto,
            parts: ArrayVec::new(),
            items: ArrayVec::new(),
            expected: ArrayVec::new(),
            targets: ArrayVec::new(),
        }
    }

    /// Its header.
    pub(crate) fn header(&self, xid: u32) -> CallHeader<'a> {
        let auth = CallAuth {
            credential: self.credential,
            verifier: self.verifier,
        };
        self.call.header(xid, auth)
    }

    /// Adds an item and takes its pieces out of `item`. Its place is behind the first `args_offset` bytes of the
    /// argument stream (without items): a multiple of four, and not before the items added earlier.
    ///
    /// # Errors
    /// [`NoRoom`] when its place is wrong or there is no room for it; `item` is unchanged then.
    #[inline]
    pub fn add(&mut self, args_offset: usize, item: &mut BulkItem) -> Result<(), NoRoom> {
        self.add_pieces(args_offset, item.len(), item.part_count())?;
        // Nearly all have a single piece.
        match item.part_count() {
            1 => self.parts.extend(item.pop().map(Piece::Own)),
            _ => self.parts.extend(item.drain().map(Piece::Own)),
        }
        Ok(())
    }

    /// As [`BulkCall::add`], for an item whose pieces the caller shares: it keeps them, to read them, or to send them again. They
    /// may lie anywhere in their buffers. Until the call has ended and its connection does not use them any more, the core has a share
    /// too, so that nobody writes them.
    ///
    /// # Errors
    /// As [`BulkCall::add`].
    pub fn add_shared(
        &mut self,
        args_offset: usize,
        item: &BulkItem<SharedLease>,
    ) -> Result<(), NoRoom> {
        self.add_pieces(args_offset, item.len(), item.part_count())?;
        let pieces = item.parts().cloned();
        self.parts.extend(pieces.map(Piece::Shared));
        Ok(())
    }

    /// Adds an item of so many bytes, whose pieces follow.
    #[inline(always)]
    fn add_pieces(&mut self, args_offset: usize, bytes: usize, parts: usize) -> Result<(), NoRoom> {
        let last = self.items.last().map_or(0, |item| item.args_offset);
        let fits = args_offset.is_multiple_of(4)
            && (last..=self.args.len()).contains(&args_offset)
            && !self.items.is_full()
            && parts <= self.parts.remaining_capacity();
        let (true, Ok(bytes)) = (fits, u32::try_from(bytes)) else {
            return Err(NoRoom);
        };
        self.items.push(CallItem {
            args_offset,
            bytes,
            parts,
        });
        Ok(())
    }

    /// Adds a result that may arrive outside the stream. The reply lists results in the order in which they were added.
    ///
    /// # Errors
    /// [`NoRoom`]; also when `bytes_max` is 0.
    pub fn expect(&mut self, result: ExpectedResult) -> Result<(), NoRoom> {
        if result.bytes_max == 0 {
            return Err(NoRoom);
        }
        self.expected.try_push(result).map_err(|_| NoRoom)
    }

    /// As [`BulkCall::expect`], for a result that is to be written into `item`, whose length is the most that it can have.
    /// It has at most [`TARGET_PARTS_MAX`] pieces, with those of
    /// other results. The reply brings the item back. It is empty if the result did not go there: the responder left it in the stream, or
    /// the peer offers no RDMA for it. In a rare case, when the call had to be made again, it is in other memory.
    ///
    /// # Errors
    /// [`NoRoom`]; `item` is unchanged then.
    pub fn expect_into(
        &mut self,
        result: ExpectedResult,
        item: &mut BulkItem,
    ) -> Result<(), NoRoom> {
        let bytes_max = u32::try_from(item.len()).map_err(|_| NoRoom)?;
        if self.targets.remaining_capacity() < item.part_count() {
            return Err(NoRoom);
        }
        self.expect(ExpectedResult {
            bytes_max,
            ..result
        })?;
        let number = self.expected.len() - 1;
        self.targets.extend(item.drain().map(|part| (number, part)));
        Ok(())
    }

    /// Takes the memory out in which result `number` was expected.
    pub fn take_target(&mut self, number: usize) -> BulkItem {
        let mut item = BulkItem::new();
        while let Some(at) = self.targets.iter().position(|(of, _)| *of == number) {
            // It fits: these pieces were moved out of one item.
            let _ = item.push(self.targets.remove(at).1);
        }
        item
    }

    /// Takes out the item that was added last. It is empty if its pieces are shared: the caller has them.
    pub fn pop(&mut self) -> Option<BulkItem> {
        let last = self.items.pop()?;
        let first = self.parts.len().checked_sub(last.parts)?;
        let mut item = BulkItem::new();
        for part in self.parts.drain(first..) {
            if let Piece::Own(lease) = part {
                // It fits: these pieces were moved out of one item.
                let _ = item.push(lease);
            }
        }
        Some(item)
    }

    /// How many pieces of memory for result `number` the call brings with it.
    pub(crate) fn targets_of(&self, number: usize) -> usize {
        let of = self.targets.iter().filter(|(of, _)| *of == number);
        of.count()
    }

    /// Whether so many views are enough for its pieces that are shared, or memory of the application.
    pub(crate) fn needs_no_more_views_than(&self, views: usize) -> bool {
        self.parts.len() + self.targets.len() <= views || self.views_needed() <= views
    }

    #[cold]
    fn views_needed(&self) -> usize {
        let items = self.parts.iter().filter(|piece| piece.needs_view());
        let targets = self.targets.iter().filter(|(_, it)| it.is_external());
        items.count() + targets.count()
    }

    pub(crate) fn items(&self) -> &[CallItem] {
        &self.items
    }

    pub(crate) fn expected(&self) -> &[ExpectedResult] {
        &self.expected
    }

    /// The pieces of all items, in order.
    pub(crate) fn parts(&self) -> &[Piece] {
        &self.parts
    }

    /// The pieces of item `index`, in order.
    pub(crate) fn parts_of(&self, index: usize) -> &[Piece] {
        let before = self.items.iter().take(index).map(|item| item.parts);
        let first = before.sum::<usize>();
        let count = self.items.get(index).map_or(0, |item| item.parts);
        self.parts.get(first..first + count).unwrap_or(&[])
    }

    /// Takes the pieces out, in order, and all items with them.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Piece> + '_ {
        self.items.clear();
        self.parts.drain(..)
    }

    /// Bytes of the argument stream with all items in it, with their padding.
    pub(crate) fn whole_args_bytes(&self) -> usize {
        let padded = |item: &CallItem| (item.bytes as usize).next_multiple_of(4);
        self.args.len() + self.items().iter().map(padded).sum::<usize>()
    }
}

impl fmt::Debug for BulkCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BulkCall")
            .field("call", &self.call)
            .field("args_bytes", &self.args.len())
            .field("items", &self.items())
            .field("expected", &self.expected())
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

/// A result that arrived outside the stream. Its item is empty when the responder left the result in
/// the stream, or had none.
#[derive(Debug, Default)]
pub struct BulkResult {
    /// Its bytes. They are freed with the reply unless the application takes the item.
    pub item: BulkItem,
    /// Its place in the result stream with all items, in bytes. `None` when the message does not say; the binding has
    /// to know it then.
    pub displacement: Option<u32>,
}

/// The reply to a call with bulk data.
#[derive(Debug)]
pub struct BulkReply<'a> {
    /// The result stream, without the results that arrived outside it, and the verifier.
    pub reply: Reply<'a>,
    /// The results that arrived outside the stream: an entry for each result that was expected, or none at all when
    /// the call offered no way for them.
    pub items: &'a mut [BulkResult],
}
