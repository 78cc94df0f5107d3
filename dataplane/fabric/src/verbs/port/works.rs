//! The pool of all work requests of a port. Each has a place in the library's format, a scatter or
//! gather list, and a piece of registered memory for copied Sends.

use std::sync::Arc;

use super::super::bindings::{ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode};
use super::super::memory_region::MemoryRegion;
use super::super::protection_domain::ProtectionDomain;
use super::super::work_request::{Fixed, GENERATION_MASK, WorkName};
use crate::interface::{Gather, RemoteAddress, RemoteKey, SetupError, Window, WorkId};
use crate::memory::{Arena, ArenaOptions, Buffer, HugePages, Mapping, Memory, PoolShape};
use crate::share::Share;

/// No work.
pub(super) const NONE: u32 = u32::MAX;

/// The kind of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send,
    Write,
    Read,
    Bind,
    Invalidate,
}

/// A work request that is staged, posted, or (an RDMA Read) waiting for its turn.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) kind: Kind,
    pub(super) signalled: Option<WorkId>,
    /// Its queue pair's index; [`NONE`] when the work is free.
    pub(super) queue_pair: u32,
    /// The slot of the window that is bound or invalidated.
    pub(super) window_slot: u32,
    pub(super) window: Option<Window>,
    /// The buffers of a Send or RDMA Write. It is swapped with the caller's list, so that posting does
    /// not allocate.
    pub(super) list: Gather,
    /// The caller's list of an RDMA Read, which its completion returns.
    pub(super) read_list: Gather,
    generation: u32,
    next: u32,
}

/// A list of works, first in, first out.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
    };

    #[inline]
    pub(super) fn first(self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    #[inline]
    pub(super) fn last(self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }

    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.first == NONE
    }
}

/// The pool. `segments` entries of the segment array belong to each work.
#[derive(Debug)]
pub(super) struct Works {
    entries: Vec<Work>,
    requests: Fixed<ibv_send_wr>,
    segments: Fixed<ibv_sge>,
    segments_max: usize,
    free: Vec<u32>,
    share: Share,
    guaranteed: u32,
    /// Works taken and not released, by queue pair.
    held: Box<[u32]>,
    /// Registered memory for copied Sends: a buffer for each work.
    staging: Vec<Buffer>,
    staging_memory: Memory,
    staging_region: MemoryRegion,
}

impl Works {
    /// `count` works for `queue_pairs` queue pairs, each of which is guaranteed `guaranteed`.
    pub(super) fn new(
        domain: &Arc<ProtectionDomain>,
        count: u32,
        (queue_pairs, guaranteed): (u32, u32),
        segments_max: u32,
        copied_bytes_max: u32,
    ) -> Result<Self, SetupError> {
        let stride = copied_bytes_max.max(1).next_multiple_of(64);
        let mut arena = Arena::private(&ArenaOptions {
            bytes: u64::from(count) * u64::from(stride),
            // The system's hugepages are reserved for the port's arena, whose size the user chose.
            huge_pages: HugePages::Never,
        })?;
        let mut pool = arena.pool(PoolShape {
            buffers: count,
            buffer_bytes: copied_bytes_max.max(1),
            stride_bytes: stride,
            align_bytes: 64,
        })?;
        let staging_memory = arena.memory();
        let entry = |_| Work {
            kind: Kind::Send,
            signalled: None,
            queue_pair: NONE,
            window_slot: 0,
            window: None,
            list: Gather::new(),
            read_list: Gather::default(),
            generation: 0,
            next: NONE,
        };
        let total = count as usize;
        Ok(Self {
            entries: (0..count).map(entry).collect(),
            requests: Fixed::zeroed(total),
            segments: Fixed::zeroed(total * segments_max as usize),
            segments_max: segments_max as usize,
            free: (0..count).rev().collect(),
            share: Share::new(count, guaranteed * queue_pairs),
            guaranteed,
            held: vec![0; queue_pairs as usize].into_boxed_slice(),
            staging: std::iter::from_fn(|| pool.take()).take(total).collect(),
            staging_region: MemoryRegion::new(domain, staging_memory.mapping())?,
            staging_memory,
        })
    }

    /// The memory of copied Sends.
    pub(super) fn mapping(&self) -> &Arc<Mapping> {
        self.staging_memory.mapping()
    }

    /// Its key in the protection domain of the port.
    pub(super) fn local_key(&self) -> u32 {
        self.staging_region.local_key()
    }

    /// Works of a queue pair that are not released.
    #[inline]
    pub(super) fn outstanding(&self, queue_pair: u32) -> u32 {
        let held = self.held.get(queue_pair as usize);
        held.copied().unwrap_or(u32::MAX)
    }

    /// Whether a queue pair may take `count` more works. It can always have its guarantee, whatever other queue pairs
    /// hold.
    #[inline]
    pub(super) fn may_take(&self, queue_pair: u32, count: u32) -> bool {
        let outstanding = self.outstanding(queue_pair);
        self.share.may_take(outstanding, self.guaranteed, count)
    }

    /// Takes a work, which is in no list.
    #[inline]
    pub(super) fn take(
        &mut self,
        queue_pair: u32,
        kind: Kind,
        signalled: Option<WorkId>,
    ) -> Option<u32> {
        let held = self.held.get_mut(queue_pair as usize)?;
        let index = self.free.pop()?;
        self.share.take(held, self.guaranteed);
        let work = self.get_mut(index);
        work.kind = kind;
        work.signalled = signalled;
        work.queue_pair = queue_pair;
        work.next = NONE;
        Some(index)
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> &Work {
        &self.entries[index as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, index: u32) -> &mut Work {
        &mut self.entries[index as usize]
    }

    /// The queue pair of the work that a completion names; `None` if that work has ended.
    #[inline]
    pub(super) fn queue_pair_of(&self, index: u32, generation: u32) -> Option<u32> {
        let work = self.entries.get(index as usize)?;
        (work.generation == generation && work.queue_pair != NONE).then_some(work.queue_pair)
    }

    /// What completions of a work say.
    pub(super) fn name(&self, index: u32) -> u64 {
        let generation = self.get(index).generation;
        WorkName::Work { index, generation }.pack()
    }

    #[inline]
    pub(super) fn push(&mut self, list: &mut List, index: u32) {
        match self.entries.get_mut(list.last as usize) {
            Some(last) => last.next = index,
            None => list.first = index,
        }
        list.last = index;
    }

    /// Takes the first work off a list.
    #[inline]
    pub(super) fn pop(&mut self, list: &mut List) -> Option<u32> {
        let index = list.first()?;
        let work = self.get_mut(index);
        list.first = std::mem::replace(&mut work.next, NONE);
        if list.first == NONE {
            list.last = NONE;
        }
        Some(index)
    }

    /// The next work in the list of this one.
    #[inline]
    pub(super) fn next(&self, index: u32) -> Option<u32> {
        let next = self.get(index).next;
        (next != NONE).then_some(next)
    }

    /// Frees a work that is in no list. The caller has taken its buffers.
    #[inline]
    pub(super) fn release(&mut self, index: u32) {
        let work = self.get_mut(index);
        debug_assert!(work.list.is_empty() && work.read_list.is_empty());
        let queue_pair = std::mem::replace(&mut work.queue_pair, NONE);
        work.generation = work.generation.wrapping_add(1) & GENERATION_MASK;
        self.free.push(index);
        if let Some(held) = self.held.get_mut(queue_pair as usize) {
            self.share.give(held, self.guaranteed);
        }
    }

    /// Resets the work request of `index` and sets its opcode and name.
    #[inline]
    pub(super) fn request(&mut self, index: u32, opcode: ibv_wr_opcode::Type) -> &mut ibv_send_wr {
        let generation = self.get(index).generation;
        // SAFETY: within the array; `&mut self` makes this the only reference, and the library
        // has no pointer to it: it copies what is posted.
        let request = unsafe { &mut *self.requests.at(index as usize) };
        request.wr_id = WorkName::Work { index, generation }.pack();
        request.next = std::ptr::null_mut();
        request.sg_list = std::ptr::null_mut();
        request.num_sge = 0;
        request.opcode = opcode;
        request.send_flags = 0;
        // Some devices refuse a binding with an old value in this field.
        request.imm_data_invalidated_rkey_union.invalidated_rkey = 0;
        request
    }

    /// The work request of `index`, which [`Works::request`] has begun.
    #[inline]
    pub(super) fn begun(&mut self, index: u32) -> &mut ibv_send_wr {
        // SAFETY: as in `request`.
        unsafe { &mut *self.requests.at(index as usize) }
    }

    /// The address of the work request.
    #[inline]
    pub(super) fn address(&self, index: u32) -> *mut ibv_send_wr {
        self.requests.at(index as usize)
    }

    /// The work whose request is at this address.
    pub(super) fn at_address(&self, request: *const ibv_send_wr) -> Option<u32> {
        let index = self.requests.index_of(request)?;
        u32::try_from(index).ok()
    }

    /// Makes the work request ask the device for a completion.
    #[inline]
    pub(super) fn ask_completion(&mut self, index: u32) {
        self.begun(index).send_flags |= ibv_send_flags::IBV_SEND_SIGNALED.0;
    }

    /// Makes `list` the segments of the work request.
    #[inline]
    pub(super) fn set_segments<'a>(
        &mut self,
        index: u32,
        list: impl Iterator<Item = &'a (Buffer, u32, u32)>,
        local_key: u32,
    ) {
        let first = index as usize * self.segments_max;
        let mut count = 0;
        for (buffer, offset, bytes) in list.take(self.segments_max) {
            // SAFETY: within the array; `&mut self` makes this the only access.
            unsafe {
                *self.segments.at(first + count) = ibv_sge {
                    addr: buffer.start().addr() as u64 + u64::from(*offset),
                    length: *bytes,
                    lkey: local_key,
                };
            }
            count += 1;
        }
        let list = self.segments.at(first);
        let request = self.begun(index);
        request.sg_list = list;
        request.num_sge = i32::try_from(count).unwrap_or(0);
    }

    /// Sets the key of segment `number` of the work request.
    pub(super) fn set_key(&mut self, index: u32, number: usize, local_key: u32) {
        debug_assert!(number < self.segments_max, "set with its segments");
        let place = self
            .segments
            .at(index as usize * self.segments_max + number);
        // SAFETY: within the array; `&mut self` makes this the only access.
        unsafe { (*place).lkey = local_key };
    }

    /// Copies the bytes into the work's registered memory, and makes that the only segment of the work
    /// request.
    #[inline]
    pub(super) fn set_copy(&mut self, index: u32, bytes: &[u8], inline: bool, local_key: u32) {
        let Some(place) = self.staging.get_mut(index as usize) else {
            return;
        };
        let length = bytes.len();
        if length > 0 {
            self.staging_memory.bytes_mut(place)[..length].copy_from_slice(bytes);
        }
        let segment = ibv_sge {
            addr: place.start().addr() as u64,
            length: u32::try_from(length).unwrap_or(0),
            lkey: local_key,
        };
        let place = self.segments.at(index as usize * self.segments_max);
        // SAFETY: within the array; `&mut self` makes this the only access.
        unsafe { *place = segment };
        let request = self.begun(index);
        request.sg_list = place;
        // An empty message has no segment, because not every device accepts a segment of length zero.
        request.num_sge = i32::from(length > 0);
        if inline {
            request.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        }
    }

    /// Sets the remote address of an RDMA Read or Write.
    #[inline]
    pub(super) fn set_remote(&mut self, index: u32, to: RemoteAddress) {
        self.begun(index).wr.rdma = super::super::bindings::rdma_t {
            remote_addr: to.offset,
            rkey: to.key.0,
        };
    }

    /// Sets the key that a Send invalidates at the peer, or a local invalidation here.
    #[inline]
    pub(super) fn set_invalidated(&mut self, index: u32, key: RemoteKey) {
        self.begun(index)
            .imm_data_invalidated_rkey_union
            .invalidated_rkey = key.0;
    }
}
