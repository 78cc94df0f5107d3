//! One end of a channel: our ring towards a core, and that core's ring towards us.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::copy::write_u32;
use super::counters::Counters;
use super::doorbell;
use super::files::{self, CheckedPeer, CoreIdentity};
use super::link::QueuePairNumber;
use super::mapped::{ChannelHead, MappedRing, Progress};
use super::record::{
    EXTENSION_BYTES, Extension, FLAG_EXTENDED, FLAG_INVALIDATE, HEADER_BYTES, Header, LINE_BYTES,
    Pieces, op, status_code,
};
use super::ring::{Producer, RingMemory, distance};
use super::work::List;
use crate::interface::{RemoteKey, SetupError, Status};
use crate::memory::Mapping;

/// The contents of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outgoing {
    pub(super) destination: QueuePairNumber,
    pub(super) op: u8,
    pub(super) payload_bytes: u32,
    pub(super) invalidate: Option<RemoteKey>,
    /// The earliest time of delivery in ticks; zero if the port has no delay.
    pub(super) not_before: u64,
}

/// The report of a failed queue pair to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The record at this position failed.
    Nak { position: u32, status: Status },
    /// The queue pair is in error.
    Disconnect,
}

impl Report {
    /// The position of the record that failed.
    fn position(self) -> Option<u32> {
        match self {
            Self::Nak { position, .. } => Some(position),
            Self::Disconnect => None,
        }
    }
}

/// The operation at the head of the peer's ring, if it takes more than one poll.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) target: Target,
    /// Our queue pair, by number: it may be destroyed before the pull continues.
    pub(super) queue_pair: QueuePairNumber,
    /// The index of the record in the ring.
    pub(super) index: u32,
    /// The units of the record.
    pub(super) units: u32,
    /// The bytes that were copied.
    pub(super) done: u32,
    pub(super) pieces: Pieces,
}

/// The target of pulled bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Nothing is being pulled.
    Nothing,
    /// Into a Receive.
    Receive {
        queue: usize,
        slot: u32,
        invalidated: Option<RemoteKey>,
    },
    /// Into our own memory, by RDMA Write.
    Window { key: RemoteKey, offset: u64 },
}

/// A queue pair whose peer has closed or died, to be flushed when the ring is drained.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    pub(super) queue_pair: QueuePairNumber,
    /// The head when the port event arrived. The peer published its last record at most one ring after
    /// it.
    pub(super) from: u32,
}

/// The part of a payload to write: see [`Channel::publish`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    /// The bytes after the first `n`.
    Behind(u32),
    /// The first `n` bytes.
    FirstLine(u32),
}

/// The sizes of the last short records, from which the prefetches for the next ones are guessed. A wrong guess only costs
/// time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forecast {
    /// Lines after the first one, of the last record that was received.
    pub(super) received_lines_behind: u32,
    /// Lines after the first one, of the last record that was written.
    pub(super) sent_lines_behind: u32,
    /// Units of the last burst. A burst is what is written between two flushes.
    pub(super) burst_units: u32,
    /// The position at which the current burst began.
    burst_from: u32,
}

/// One end of a channel.
#[derive(Debug)]
pub(super) struct Channel {
    /// The number of its bit in our doorbell.
    pub(super) number: u32,
    /// The peer's core.
    pub(super) identity: CoreIdentity,
    /// Our file, which `producer` and `head` point into. The port has this one reference. Any other one belongs to a
    /// prepared queue pair of the channel, or to the manager, which may still make one.
    own: Arc<Mapping>,
    pub(super) producer: Producer<MappedRing>,
    /// The head of our file: it holds the position up to which we have consumed the peer's ring.
    pub(super) head: ChannelHead,
    pub(super) peer: Option<CheckedPeer>,
    /// The position up to which the peer has acknowledged our ring.
    pub(super) acked: u32,
    /// Work requests that wait for an acknowledgement.
    pub(super) unacked: List,
    /// The positions that we last wrote to our control line.
    told: Progress,
    /// The position that we last acknowledged, in the control line or in a record.
    pub(super) told_acked: u32,
    /// Reports of failures that wait because our ring is full.
    reports: VecDeque<(QueuePairNumber, Report)>,
    /// The most reports that may wait.
    reports_max: usize,
    /// The position of the first failed record whose report waits. No acknowledgement goes beyond it,
    /// because the peer would take the failed record as done.
    unreported: Option<u32>,
    /// More than `reports_max` reports would wait: the channel has to be abandoned.
    pub(super) overrun: bool,
    pub(super) pull: Pull,
    pub(super) gone: Vec<Gone>,
    pub(super) forecast: Forecast,
    /// The position that the last record acknowledged, for a later visit that takes none.
    pub(super) short_acked: u32,
    /// The record at the head of the peer's ring waits for a Receive.
    pub(super) stalled: bool,
    /// The channel was abandoned: its queue pairs have failed, and its records are no longer read.
    pub(super) broken: bool,
    /// Short Sends go the general way: the quick way refused one of them, one waits for a Receive, a pull is under way, or
    /// the channel is broken.
    pub(super) is_refused: bool,
    /// A poll found short Sends on it, and no later one has looked whether they are acknowledged.
    pub(super) is_visited: bool,
    /// The number of the forms that we have; zero for none.
    forms: u32,
    /// The peer is known to receive messages by them.
    takes_forms: bool,
    /// Every poll checks the channel, without a doorbell.
    pub(super) hot: bool,
    /// The poll in which it last had work.
    pub(super) last_active: u64,
    /// The visits with work while it was cold, since its last quiet time.
    pub(super) visits: u32,
    /// Whether it is in the port's list of this name, as the next two.
    pub(super) in_dirty: bool,
    pub(super) in_untold: bool,
    pub(super) in_awaiting: bool,
    pub(super) queue_pairs: u32,
}

impl Channel {
    /// A channel for at most `queue_pairs_max` queue pairs at a time.
    pub(super) fn new(
        number: u32,
        identity: CoreIdentity,
        own: Arc<Mapping>,
        queue_pairs_max: usize,
    ) -> Result<Self, SetupError> {
        // SAFETY: both are moved into the value that also holds the mapping.
        let (ring, head) = unsafe { (MappedRing::new(&own), ChannelHead::new(&own)) };
        let (Some(ring), Some(head)) = (ring, head) else {
            return Err(SetupError::Peer {
                what: "channel, our own side, does not have the size of a ring".into(),
            });
        };
        if !head.open() {
            return Err(SetupError::Peer {
                what: "channel was closed before: connect again".into(),
            });
        }
        Ok(Self {
            number,
            identity,
            producer: Producer::new(ring),
            head,
            own,
            peer: None,
            acked: 0,
            unacked: List::EMPTY,
            told: Progress { freed: 0, acked: 0 },
            told_acked: 0,
            reports: VecDeque::new(),
            reports_max: queue_pairs_max,
            unreported: None,
            overrun: false,
            pull: Pull {
                target: Target::Nothing,
                queue_pair: QueuePairNumber(0),
                index: 0,
                units: 0,
                done: 0,
                pieces: Pieces::new(),
            },
            gone: Vec::new(),
            forecast: Forecast::default(),
            short_acked: 0,
            stalled: false,
            broken: false,
            is_refused: false,
            is_visited: false,
            forms: 0,
            takes_forms: false,
            hot: false,
            last_active: 0,
            visits: 0,
            in_dirty: false,
            in_untold: false,
            in_awaiting: false,
            queue_pairs: 0,
        })
    }

    /// Makes room for the report of one more queue pair.
    pub(super) fn admit_queue_pair(&mut self) {
        self.queue_pairs += 1;
        self.reports.reserve(self.queue_pairs as usize);
        self.gone.reserve(self.queue_pairs as usize);
    }

    /// Whether `mapping` is our file.
    pub(super) fn is_of(&self, mapping: &Arc<Mapping>) -> bool {
        Arc::ptr_eq(&self.own, mapping)
    }

    /// Ends the channel, unless another reference to our file exists: then it is returned. No reference can be taken in
    /// between.
    pub(super) fn end(self: Box<Self>) -> Option<Box<Self>> {
        let channel = *self;
        match Arc::try_unwrap(channel.own) {
            Ok(_unmapped) => None,
            Err(own) => Some(Box::new(Self { own, ..channel })),
        }
    }

    /// The position up to which we have consumed.
    #[inline]
    pub(super) fn consumed(&self) -> u32 {
        self.peer.as_ref().map_or(0, |peer| peer.consumer.head())
    }

    /// Units of the peer's ring.
    #[inline]
    pub(super) fn inbound_units(&self) -> u32 {
        self.peer
            .as_ref()
            .map_or(u32::MAX, |peer| peer.consumer.memory().units())
    }

    /// The position that may be acknowledged: never beyond a failure that is not reported yet.
    #[inline]
    pub(super) fn ackable(&self) -> u32 {
        self.unreported.unwrap_or_else(|| self.consumed())
    }

    /// Whether there is something to acknowledge.
    #[inline]
    pub(super) fn has_untold(&self) -> bool {
        self.ackable() != self.told_acked
            || (!self.reports.is_empty() && self.consumed() != self.told.freed)
    }

    /// Units consumed but not yet reported to the peer.
    #[inline]
    pub(super) fn untold_units(&self) -> u32 {
        distance(self.told_acked, self.consumed())
    }

    /// Reports our position in our control line.
    #[inline]
    pub(super) fn tell(&mut self) {
        let progress = Progress {
            freed: self.consumed(),
            acked: self.ackable(),
        };
        if progress != self.told {
            self.head.store_progress(progress);
            self.told = progress;
        }
        self.told_acked = progress.acked;
    }

    /// Reads the free room from the peer's control line.
    #[cold]
    fn refresh_room(&mut self) -> bool {
        let Some(peer) = &self.peer else {
            return false;
        };
        let progress = peer.head.load_progress();
        self.producer.set_freed(progress.freed)
    }

    /// Handles an acknowledgement; returns whether it is new. Positions before the known one, or beyond what was
    /// written, are ignored.
    #[inline]
    pub(super) fn accept_acked(&mut self, acked: u32) -> bool {
        let ahead = distance(self.acked, acked);
        if ahead == 0 || ahead > distance(self.acked, self.producer.tail()) {
            return false;
        }
        self.acked = acked;
        // False if the control line has already reported more.
        let _ = self.producer.set_freed(acked);
        true
    }

    /// Whether the record at `position` is acknowledged.
    #[inline]
    pub(super) fn is_acked(&self, position: u32) -> bool {
        let behind = distance(position, self.acked);
        behind != 0 && behind <= distance(position, self.producer.tail())
    }

    /// Writes and publishes a record, whose payload `fill` writes. Returns its position, or
    /// `None` when there is no room.
    ///
    /// The receiver polls the first line of the record, and each poll takes the line away from our cache. So `fill` is
    /// called twice: first for the bytes after that line, then for the bytes in it. Both calls get the address of the
    /// payload and the number of its bytes in the line.
    #[inline]
    pub(super) fn publish(
        &mut self,
        outgoing: Outgoing,
        counters: &mut Counters,
        mut fill: impl FnMut(*mut u8, Part),
    ) -> Option<u32> {
        let extended = outgoing.not_before != 0 || outgoing.invalidate.is_some();
        let extension_bytes = if extended { EXTENSION_BYTES } else { 0 };
        let invalidate = u8::from(outgoing.invalidate.is_some()) * FLAG_INVALIDATE;
        let flags = (u8::from(extended) * FLAG_EXTENDED) | invalidate;
        let header = Header {
            destination: outgoing.destination.0,
            acked: self.ackable(),
            payload_bytes: u16::try_from(outgoing.payload_bytes).ok()?,
            op: outgoing.op,
            flags,
        };
        let units = header.units();
        let index = match self.producer.reserve(units) {
            Some(index) => index,
            None if self.refresh_room() => self.producer.reserve(units)?,
            None => return None,
        };
        let ring = self.producer.memory();
        let place = ring
            .unit(index)
            .wrapping_add((HEADER_BYTES + extension_bytes) as usize);
        let first_line = LINE_BYTES - header.payload_offset();
        fill(place, Part::Behind(first_line));
        fill(place, Part::FirstLine(first_line));
        let ring = self.producer.memory();
        if extended {
            let extension = Extension {
                not_before: outgoing.not_before,
                invalidate: outgoing.invalidate.map_or(0, |key| key.0),
            };
            ring.write_extension(index, extension);
        }
        ring.write_header(index, header);
        self.told_acked = header.acked;
        counters.records_out += 1;
        Some(self.producer.publish(units))
    }

    /// The header of a Send of `bytes` bytes without extension; `None` if the record is not a short one.
    #[inline]
    pub(super) fn short_header(&self, destination: QueuePairNumber, bytes: u32) -> Option<Header> {
        let header = Header {
            destination: destination.0,
            acked: self.ackable(),
            payload_bytes: u16::try_from(bytes).ok()?,
            op: op::SEND,
            flags: 0,
        };
        header.short_bytes().map(|_| header)
    }

    /// Announces the forms that we have, and receive.
    pub(super) fn set_forms(&mut self, number: u32) {
        self.forms = number;
        self.head.announce_forms(number);
    }

    /// Whether the peer receives messages by the forms that we have.
    #[inline]
    pub(super) fn takes_forms(&mut self) -> bool {
        self.takes_forms || self.look_for_forms()
    }

    /// Reads what the peer has announced: it may have opened its file after we attached it.
    #[cold]
    fn look_for_forms(&mut self) -> bool {
        let (own, peer) = (self.forms, self.peer.as_ref());
        self.takes_forms = own != 0 && peer.is_some_and(|peer| peer.head.forms() == own);
        self.takes_forms
    }

    /// Ends a burst: the records written since the last call.
    #[inline]
    pub(super) fn end_burst(&mut self) {
        let tail = self.producer.tail();
        self.forecast.burst_units = distance(self.forecast.burst_from, tail);
        self.forecast.burst_from = tail;
    }

    /// Rings the peer's doorbell, if the peer does not poll this channel.
    #[inline]
    pub(super) fn ring_peer(&self, counters: &mut Counters) {
        let Some(peer) = &self.peer else {
            return;
        };
        if !peer.head.is_hot() {
            doorbell::ring(&peer.bell, peer.doorbell_number);
            counters.doorbells_out += 1;
        }
        if peer.keys.is_parked() {
            files::wake(peer.event.as_fd());
            counters.wakes += 1;
        }
    }

    /// Whether the channel has work that no new record announces.
    #[inline]
    pub(super) fn has_rare_work(&self) -> bool {
        self.has_reports() || !self.gone.is_empty()
    }

    /// Whether a visit that took short messages has nothing left to do: a record of ours has acknowledged them, and nothing
    /// waits for what the peer acknowledged in them. Room for records is taken from it only when half of the room is used.
    #[inline]
    pub(super) fn is_settled(&self) -> bool {
        self.untold_units() == 0
            && self.unacked.is_empty()
            && self.producer.knows_half()
            && !self.has_rare_work()
    }

    /// The index of the queue pair that the record at the head of the ring names, whether or not it is published.
    pub(super) fn next_destination(&self) -> Option<u32> {
        let consumer = &self.peer.as_ref()?.consumer;
        let index = consumer.peek()?;
        let header = consumer.memory().read_header(index);
        Some(QueuePairNumber(header.destination).id().index)
    }

    /// Whether reports wait for room.
    #[inline]
    pub(super) fn has_reports(&self) -> bool {
        !self.reports.is_empty()
    }

    /// Reports a failure to the peer's queue pair `to`, now or when there is room.
    ///
    /// Each of our queue pairs reports once. The channel overruns if the peer takes nothing while all queue pairs that
    /// there may be at a time fail, and then their successors as well.
    pub(super) fn report(
        &mut self,
        to: QueuePairNumber,
        report: Report,
        not_before: u64,
        counters: &mut Counters,
    ) {
        if self.peer.is_none() {
            return;
        }
        if matches!(report, Report::Nak { .. }) {
            counters.naks_out += 1;
        }
        if self.reports.is_empty() && self.publish_report(to, report, not_before, counters) {
            self.ring_peer(counters);
            return;
        }
        counters.reports_delayed += 1;
        // Also for a failure that is never reported: its record must not be acknowledged as success.
        self.unreported = self.unreported.or(report.position());
        if self.reports.len() < self.reports_max {
            self.reports.push_back((to, report));
        } else {
            self.overrun = true;
        }
    }

    /// Publishes the waiting reports while there is room.
    pub(super) fn flush_reports(&mut self, not_before: u64, counters: &mut Counters) {
        while let Some((to, report)) = self.reports.front().copied() {
            // Its own header does not acknowledge beyond it yet.
            if !self.publish_report(to, report, not_before, counters) {
                return;
            }
            self.reports.pop_front();
            if report.position().is_some() {
                self.unreported = self.reports.iter().find_map(|(_, next)| next.position());
            }
            self.ring_peer(counters);
        }
    }

    fn publish_report(
        &mut self,
        to: QueuePairNumber,
        report: Report,
        not_before: u64,
        counters: &mut Counters,
    ) -> bool {
        let (op, payload) = match report {
            Report::Nak { position, status } => (op::NAK, [position, status_code(status)]),
            Report::Disconnect => (op::DISCONNECT, [0, 0]),
        };
        let outgoing = Outgoing {
            destination: to,
            op,
            payload_bytes: 8,
            invalidate: None,
            not_before,
        };
        let fill = |place: *mut u8, part| {
            if matches!(part, Part::Behind(_)) {
                return;
            }
            // SAFETY: `place` is at least 16-byte aligned and has room for the 8 bytes asked for.
            unsafe {
                write_u32(place, payload[0]);
                write_u32(place.add(4), payload[1]);
            }
        };
        self.publish(outgoing, counters, fill).is_some()
    }

    /// Marks the record at `position` as revoked, if it has not been overwritten.
    pub(super) fn revoke(&self, position: u32) {
        if self.producer.still_holds(position) {
            let ring = self.producer.memory();
            ring.revoke(position & (ring.units() - 1));
        }
    }
}
