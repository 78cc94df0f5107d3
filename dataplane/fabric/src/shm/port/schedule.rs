//! Chooses the channels that a poll checks: the few hot ones always, a cold one when its doorbell was
//! rung, and now and then one cold channel in turn, in case a doorbell was missed.

use super::super::doorbell::{BellMemory, Pending};
use super::core::{Channels, channel_mut};

/// Polls for which a hot channel must have been quiet before another takes its place.
const QUIET_POLLS: u64 = 4096;
/// Polls for which a hot channel must have been quiet before it becomes cold anyway.
const ASLEEP_POLLS: u64 = 65_536;
/// Visits with work after which a cold channel becomes hot. Each must be within [`QUIET_POLLS`] of the one
/// before.
const PROMOTE_VISITS: u32 = 2;
/// Channels that one sweep examines to find a cold one.
const SWEEP_STEPS: usize = 16;

/// The order in which channels are checked.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Hot channels, in the order of the next poll.
    hot: Vec<u32>,
    hot_max: usize,
    /// Cold channels that the next polls have to visit.
    pending: Pending,
    /// The number at which the search for the next pending channel begins.
    cursor: u32,
    /// All channels.
    live: Vec<u32>,
    /// The place in `live` of the last sweep.
    swept: usize,
    /// The place in `hot` of the channel that was last checked for being quiet.
    checked: usize,
}

/// Whether a channel became hot, and whether one became cold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) promoted: bool,
    pub(super) demoted: bool,
}

impl Schedule {
    pub(super) fn new(hot_max: usize) -> Self {
        Self {
            hot: Vec::with_capacity(hot_max),
            hot_max,
            pending: Pending::new(),
            cursor: 0,
            live: Vec::new(),
            swept: 0,
            checked: 0,
        }
    }

    /// The hot channel at place `index`.
    #[inline]
    pub(super) fn hot(&self, index: usize) -> Option<u32> {
        self.hot.get(index).copied()
    }

    /// Makes the hot channel at place `index` the first one of the next poll.
    pub(super) fn begin_hot_at(&mut self, index: usize) {
        let count = self.hot.len();
        if index < count {
            self.hot.rotate_left(index);
            // Keeps pointing to the same channel.
            self.checked = (self.checked + count - index) % count;
        }
    }

    /// The number of channels.
    pub(super) fn live_count(&self) -> usize {
        self.live.len()
    }

    /// The channel at place `index` of all channels.
    pub(super) fn live(&self, index: usize) -> Option<u32> {
        self.live.get(index).copied()
    }

    /// Adds a channel.
    pub(super) fn open(&mut self, channels: &mut Channels, number: u32) {
        self.live.push(number);
        if self.hot.len() < self.hot_max {
            self.make_hot(channels, number, 0);
        }
    }

    /// Removes a channel.
    pub(super) fn close(&mut self, number: u32) {
        self.live.retain(|entry| *entry != number);
        self.hot.retain(|entry| *entry != number);
    }

    /// Marks a channel for the next poll.
    #[inline]
    pub(super) fn mark(&mut self, number: u32) {
        self.pending.mark(number);
    }

    /// Takes the bits of the doorbell.
    #[inline]
    pub(super) fn collect(&mut self, bell: &impl BellMemory) {
        if bell.rung() {
            self.pending.collect(bell);
        }
    }

    /// Whether a cold channel is pending.
    #[inline]
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes the next pending channel, in a circle.
    pub(super) fn take_pending(&mut self) -> Option<u32> {
        let number = self.pending.take_next(self.cursor)?;
        self.cursor = number + 1;
        Some(number)
    }

    /// Sets the number at which the search for the next pending channel begins.
    pub(super) fn begin_pending_at(&mut self, number: u32) {
        self.cursor = number;
    }

    fn make_hot(&mut self, channels: &mut Channels, number: u32, poll: u64) {
        if let Some(channel) = channel_mut(channels, number) {
            channel.hot = true;
            channel.last_active = poll;
            channel.head.set_hot(true);
            self.hot.push(number);
        }
    }

    fn make_cold(&mut self, channels: &mut Channels, place: usize) {
        let number = self.hot.swap_remove(place);
        if let Some(channel) = channel_mut(channels, number) {
            channel.hot = false;
            channel.visits = 0;
            channel.head.set_hot(false);
        }
        // The peer may have read the old flag and not rung for its last record: visit once more.
        self.pending.mark(number);
    }

    /// Notes that a cold channel had work in this poll, and makes it hot if it had work often enough.
    pub(super) fn note_cold_work(
        &mut self,
        channels: &mut Channels,
        number: u32,
        poll: u64,
    ) -> Moved {
        let Some(channel) = channel_mut(channels, number) else {
            return Moved::default();
        };
        let recent = poll.saturating_sub(channel.last_active) <= QUIET_POLLS;
        channel.visits = if recent { channel.visits + 1 } else { 1 };
        channel.last_active = poll;
        if channel.visits < PROMOTE_VISITS {
            return Moved::default();
        }
        let mut moved = Moved::default();
        if self.hot.len() >= self.hot_max {
            let quiet = |number: &u32| {
                channels
                    .get(*number as usize)
                    .and_then(Option::as_ref)
                    .is_none_or(|hot| poll.saturating_sub(hot.last_active) > QUIET_POLLS)
            };
            let Some(place) = self.hot.iter().position(quiet) else {
                return moved;
            };
            self.make_cold(channels, place);
            moved.demoted = true;
        }
        self.make_hot(channels, number, poll);
        moved.promoted = true;
        moved
    }

    /// The next cold channel of the sweep, if one is found in [`SWEEP_STEPS`] steps.
    pub(super) fn next_to_sweep(&mut self, channels: &mut Channels) -> Option<u32> {
        for _ in 0..SWEEP_STEPS.min(self.live.len()) {
            self.swept = if self.swept + 1 < self.live.len() {
                self.swept + 1
            } else {
                0
            };
            let number = *self.live.get(self.swept)?;
            if channel_mut(channels, number).is_some_and(|channel| !channel.hot) {
                return Some(number);
            }
        }
        None
    }

    /// Checks one hot channel in turn, and makes it cold if it was quiet for [`ASLEEP_POLLS`]. The last hot channel
    /// stays hot.
    pub(super) fn cool_down(&mut self, channels: &mut Channels, poll: u64) -> Moved {
        let mut moved = Moved::default();
        if self.hot.len() < 2 {
            return moved;
        }
        self.checked = if self.checked + 1 < self.hot.len() {
            self.checked + 1
        } else {
            0
        };
        let Some(number) = self.hot(self.checked) else {
            return moved;
        };
        let asleep = channel_mut(channels, number)
            .is_none_or(|channel| poll.saturating_sub(channel.last_active) > ASLEEP_POLLS);
        if asleep {
            self.make_cold(channels, self.checked);
            moved.demoted = true;
        }
        moved
    }
}
