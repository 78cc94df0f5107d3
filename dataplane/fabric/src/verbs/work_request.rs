//! Work requests in the format of the device's library, and their names.

use std::ptr::NonNull;

use super::bindings::{ibv_recv_wr, ibv_send_wr, ibv_sge};

/// The name of a work request (`wr_id`): an index and a generation, never a pointer, because a
/// completion may arrive after the work has ended.
///
/// ```text
/// work:    bit 63 = 0   generation (31 bits)               index (32 bits)
/// Receive: bit 63 = 1   queue (15 bits)  generation (16)   slot (32 bits)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkName {
    /// Of the send queue.
    Work {
        /// Index among the works of the port.
        index: u32,
        /// 31 bits.
        generation: u32,
    },
    /// Of a receive queue.
    Receive {
        /// The receive queue's number, 15 bits.
        queue: u16,
        /// Index among the Receives of the queue.
        slot: u32,
        /// Raised at every post.
        generation: u16,
    },
}

/// Receive queues whose number fits into a name.
pub(super) const RECEIVE_QUEUES_MAX: usize = 1 << 15;
/// The bits of a work's generation that a name holds.
pub(super) const GENERATION_MASK: u32 = u32::MAX >> 1;

impl WorkName {
    #[inline]
    pub(super) fn pack(self) -> u64 {
        match self {
            Self::Work { index, generation } => {
                u64::from(generation & GENERATION_MASK) << 32 | u64::from(index)
            }
            Self::Receive {
                queue,
                slot,
                generation,
            } => {
                1 << 63
                    | u64::from(queue & 0x7fff) << 48
                    | u64::from(generation) << 32
                    | u64::from(slot)
            }
        }
    }

    /// Reads any 64 bits.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // Each cast takes one part of the bits.
    pub(super) fn unpack(bits: u64) -> Self {
        let (high, low) = ((bits >> 32) as u32, bits as u32);
        if high >> 31 == 0 {
            Self::Work {
                index: low,
                generation: high,
            }
        } else {
            Self::Receive {
                queue: (high >> 16 & 0x7fff) as u16,
                slot: low,
                generation: high as u16,
            }
        }
    }
}

/// An array that never moves: the library reads it by pointers, which stay valid as long as it lives.
pub(super) struct Fixed<T> {
    start: NonNull<T>,
    count: usize,
}

// SAFETY: it owns its elements, like the box that it was made of, and `Zeroed` promises that those may
// go to another thread.
unsafe impl<T: Zeroed> Send for Fixed<T> {}

/// Plain structures of C.
///
/// # Safety
///
/// All zeros is a value of the type. A value may be moved to another thread: the pointers in it own
/// nothing, and the device's library follows them only when the value is posted.
pub(super) unsafe trait Zeroed {}

// SAFETY: numbers and nullable pointers, in unions too, which are filled in when the request is posted.
unsafe impl Zeroed for ibv_send_wr {}
// SAFETY: as for `ibv_send_wr`.
unsafe impl Zeroed for ibv_recv_wr {}
// SAFETY: three numbers.
unsafe impl Zeroed for ibv_sge {}

impl<T: Zeroed> Fixed<T> {
    /// `count` elements, all zero.
    pub(super) fn zeroed(count: usize) -> Self {
        // SAFETY: `Zeroed` promises that all zeros is a value.
        let elements: Box<[T]> = (0..count).map(|_| unsafe { std::mem::zeroed() }).collect();
        let start = Box::into_raw(elements).cast::<T>();
        Self {
            // The pointer of a box is never null.
            start: NonNull::new(start).unwrap_or(NonNull::dangling()),
            count,
        }
    }

    /// The element of this index.
    ///
    /// # Panics
    ///
    /// When there is no such element, which is an error in the port.
    #[inline]
    pub(super) fn at(&self, index: usize) -> *mut T {
        assert!(index < self.count, "no such element");
        // SAFETY: within the array, just checked.
        unsafe { self.start.as_ptr().add(index) }
    }

    /// The index of the element that `pointer` points to.
    pub(super) fn index_of(&self, pointer: *const T) -> Option<usize> {
        let bytes = pointer.addr().checked_sub(self.start.as_ptr().addr())?;
        let index = bytes / size_of::<T>();
        (index < self.count).then_some(index)
    }
}

impl<T> std::fmt::Debug for Fixed<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fixed").field("count", &self.count).finish()
    }
}

impl<T> Drop for Fixed<T> {
    fn drop(&mut self) {
        let whole = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.count);
        // SAFETY: made of a box of this length, given back once.
        drop(unsafe { Box::from_raw(whole) });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_name_survives_packing(index: u32, generation: u32, queue: u16, short: u16) {
            let generation = generation & GENERATION_MASK;
            let work = WorkName::Work { index, generation };
            prop_assert_eq!(WorkName::unpack(work.pack()), work);
            let receive = WorkName::Receive {
                queue: queue & 0x7fff,
                slot: index,
                generation: short,
            };
            prop_assert_eq!(WorkName::unpack(receive.pack()), receive);
            prop_assert_ne!(work.pack(), receive.pack());
        }

        #[test]
        fn any_bits_are_a_name(bits: u64) {
            prop_assert_eq!(WorkName::unpack(bits).pack(), bits);
        }
    }

    #[test]
    fn elements_keep_their_places() {
        let array = Fixed::<ibv_sge>::zeroed(5);
        for index in 0..5 {
            assert_eq!(array.index_of(array.at(index)), Some(index));
        }
        assert_eq!(array.index_of(array.at(4).wrapping_add(1)), None);
        assert_eq!(array.index_of(std::ptr::null()), None);
    }
}
