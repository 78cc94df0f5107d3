//! One direction of a connection: orders packets by sequence number and joins them to messages.

use std::time::Duration;

use super::event::{Event, Flow, Gap, Message};
use crate::capture::container::Packet;
use crate::capture::roce::{Operation, Part, RocePacket, SEQUENCE_NUMBERS};

/// The limit for the length of a message. Sends of RPC-over-RDMA are far shorter.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// The number of packets that may wait for a missing one. Then the missing one is given up.
const HELD_PACKETS_MAX: usize = 1024;
/// A packet counts as recently sent if fewer than this many sequence numbers came after it.
const LATELY: u32 = 1 << 12;
/// The smallest and the largest path MTU.
const PATH_MTU_MIN: u32 = 256;
const PATH_MTU_MAX: u32 = 4096;

/// The sequence number before this one.
pub(super) fn before(sequence: u32) -> u32 {
    forward(sequence, SEQUENCE_NUMBERS - 1)
}

fn forward(sequence: u32, steps: u32) -> u32 {
    sequence.wrapping_add(steps) % SEQUENCE_NUMBERS
}

/// How far `to` is ahead of `from`. `None` if it is behind. Sequence numbers wrap around, so a distance of half of all
/// numbers or more counts as behind.
fn ahead(from: u32, to: u32) -> Option<u32> {
    let steps = to.wrapping_sub(from) % SEQUENCE_NUMBERS;
    (steps < SEQUENCE_NUMBERS / 2).then_some(steps)
}

/// A packet of this direction, with the parts that are needed if it has to wait.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    number: u64,
    time: Duration,
    sequence: u32,
    operation: Operation,
    payload: Vec<u8>,
}

impl Arrival {
    pub(super) fn new(packet: &Packet, roce: &RocePacket<'_>) -> Self {
        // An RDMA Write is reported by its target only, so its payload is not kept.
        let payload = match roce.operation {
            Operation::Send { .. } => roce.payload.to_vec(),
            _ => Vec::new(),
        };
        Self {
            number: packet.number,
            time: packet.time,
            sequence: roce.sequence,
            operation: roce.operation,
            payload,
        }
    }
}

/// An event of this direction.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) first_packet: u64,
    pub(super) last_packet: u64,
    pub(super) began: Duration,
    pub(super) ended: Duration,
    pub(super) event: Event,
}

/// A message whose last packet has not come.
#[derive(Clone, Debug)]
struct Partial {
    first_packet: u64,
    last_packet: u64,
    began: Duration,
    ended: Duration,
    octets: Vec<u8>,
}

impl Partial {
    fn of(arrival: &Arrival) -> Self {
        Self {
            first_packet: arrival.number,
            last_packet: arrival.number,
            began: arrival.time,
            ended: arrival.time,
            octets: Vec::new(),
        }
    }

    fn tells(self, event: Event) -> Segment {
        Segment {
            first_packet: self.first_packet,
            last_packet: self.last_packet,
            began: self.began,
            ended: self.ended,
            event,
        }
    }
}

/// The sequence number of the next packet.
#[derive(Clone, Copy, Debug)]
struct Expected {
    sequence: u32,
    /// The next packet may have a number that is later by up to this amount. An RDMA Read takes as many sequence
    /// numbers as its response has packets, and that number is uncertain while the path MTU is unknown.
    slack: u32,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) connection: Option<u64>,
    pub(super) peer: Option<Flow>,
    /// The communication IDs of both ends. They show whether a connection reply is a retransmission.
    pub(super) ids: Option<(u32, u32)>,
    /// The payload of a full packet in octets; 0 while it is unknown.
    pub(super) path_mtu: u32,
    expected: Option<Expected>,
    partial: Option<Partial>,
    /// The start of the current message is missing and was reported. The rest of the message is dropped.
    is_lost: bool,
    /// Packets that wait for an earlier one, in the order of their numbers.
    held: Vec<Arrival>,
}

impl Stream {
    /// A direction whose first packet has this sequence number.
    pub(super) fn beginning_with(sequence: u32) -> Self {
        Self {
            expected: Some(Expected { sequence, slack: 0 }),
            ..Self::default()
        }
    }

    /// Takes a packet, and returns the events that it completes. `None` if the packet came before.
    pub(super) fn arrives(&mut self, arrival: &Arrival) -> Option<Vec<Segment>> {
        let mut told = Vec::new();
        let expected = *self.expected.get_or_insert(Expected {
            sequence: arrival.sequence,
            slack: 0,
        });
        let steps = ahead(expected.sequence, arrival.sequence)?;
        if steps <= expected.slack {
            self.take(arrival, &mut told);
            self.take_held(&mut told);
            return Some(told);
        }
        let place = self
            .held
            .partition_point(|held| ahead(expected.sequence, held.sequence) < Some(steps));
        if self
            .held
            .get(place)
            .is_some_and(|held| held.sequence == arrival.sequence)
        {
            return None;
        }
        self.held.insert(place, arrival.clone());
        if self.held.len() > HELD_PACKETS_MAX {
            self.give_up(&mut told);
        }
        Some(told)
    }

    /// The receiver has all packets up to this number. Those that are missing here were not captured, so no packet
    /// waits for them any longer.
    pub(super) fn acknowledged(&mut self, sequence: u32) -> Vec<Segment> {
        let mut told = Vec::new();
        while !self.held.is_empty()
            && self
                .expected
                .is_some_and(|expected| ahead(expected.sequence, sequence).is_some())
        {
            self.give_up(&mut told);
        }
        told
    }

    /// The bytes of packets that wait, for an earlier one or for the end of their message.
    pub(super) fn waiting_bytes(&self) -> usize {
        let held = self.held.iter().map(|arrival| arrival.payload.len());
        let partial = self.partial.as_ref().map_or(0, |it| it.octets.len());
        held.sum::<usize>() + partial
    }

    pub(super) fn has_lately_sent(&self, sequence: u32) -> bool {
        self.expected.is_some_and(|expected| {
            ahead(sequence, forward(expected.sequence, expected.slack))
                .is_some_and(|steps| (1..LATELY).contains(&steps))
        })
    }

    /// Ends the direction with the capture or the connection, and returns the last events.
    pub(super) fn finish(&mut self) -> Vec<Segment> {
        let mut told = Vec::new();
        while !self.held.is_empty() {
            self.give_up(&mut told);
        }
        if let Some(partial) = self.partial.take() {
            told.push(partial.tells(Event::Gap(Gap::NoEnd)));
        }
        told
    }

    /// Gives up the missing packets before the first one that waits, and continues with that one.
    fn give_up(&mut self, told: &mut Vec<Segment>) {
        let (Some(first), Some(expected)) = (self.held.first(), self.expected) else {
            return;
        };
        let missing = ahead(expected.sequence, first.sequence).unwrap_or_default();
        let gap = Partial::of(first).tells(Event::Gap(Gap::Missing(missing)));
        self.expected = Some(Expected {
            sequence: first.sequence,
            slack: 0,
        });
        // The missing packets can be the rest of the current message or the start of another one.
        self.partial = None;
        self.is_lost = true;
        told.push(gap);
        self.take_held(told);
    }

    /// Takes the packets that no longer have to wait.
    fn take_held(&mut self, told: &mut Vec<Segment>) {
        let mut held = std::mem::take(&mut self.held).into_iter().peekable();
        while let Some(arrival) = held.peek() {
            let steps = self
                .expected
                .and_then(|expected| Some((ahead(expected.sequence, arrival.sequence)?, expected)));
            match steps {
                Some((steps, expected)) if steps > expected.slack => break,
                Some(_) => self.take(arrival, told),
                None => {}
            }
            held.next();
        }
        self.held = held.collect();
    }

    /// Takes the next packet in order.
    fn take(&mut self, arrival: &Arrival, told: &mut Vec<Segment>) {
        self.expected = Some(self.behind(arrival));
        match arrival.operation {
            Operation::Send {
                part,
                immediate,
                invalidated,
            } => {
                let message = Message {
                    octets: Vec::new(),
                    immediate,
                    invalidated,
                };
                self.take_send(arrival, part, message, told);
            }
            Operation::Write {
                memory: Some(memory),
                ..
            } => told.push(Partial::of(arrival).tells(Event::Write(memory))),
            Operation::Read(memory) => {
                told.push(Partial::of(arrival).tells(Event::Read(memory)));
            }
            _ => {}
        }
    }

    /// The sequence number after this packet.
    fn behind(&self, arrival: &Arrival) -> Expected {
        let Operation::Read(memory) = arrival.operation else {
            return Expected {
                sequence: forward(arrival.sequence, 1),
                slack: 0,
            };
        };
        let answers = |mtu: u32| memory.length.div_ceil(mtu).max(1);
        let (least, most) = match self.path_mtu {
            0 => (answers(PATH_MTU_MAX), answers(PATH_MTU_MIN)),
            mtu => (answers(mtu), answers(mtu)),
        };
        Expected {
            sequence: forward(arrival.sequence, least),
            slack: (most - least).min(SEQUENCE_NUMBERS / 4),
        }
    }

    fn take_send(
        &mut self,
        arrival: &Arrival,
        part: Part,
        mut message: Message,
        told: &mut Vec<Segment>,
    ) {
        if part.begins() {
            if let Some(partial) = self.partial.take() {
                told.push(partial.tells(Event::Gap(Gap::NoEnd)));
            }
            self.partial = Some(Partial::of(arrival));
            self.is_lost = false;
        }
        let Some(mut partial) = self.partial.take() else {
            if !self.is_lost {
                told.push(Partial::of(arrival).tells(Event::Gap(Gap::NoBeginning)));
            }
            self.is_lost = !part.ends();
            return;
        };
        // A retransmitted packet can be captured after the packets that waited for it.
        partial.first_packet = partial.first_packet.min(arrival.number);
        partial.last_packet = partial.last_packet.max(arrival.number);
        partial.began = partial.began.min(arrival.time);
        partial.ended = partial.ended.max(arrival.time);
        if partial.octets.len() + arrival.payload.len() > MESSAGE_BYTES_MAX {
            told.push(partial.tells(Event::Gap(Gap::TooLong)));
            self.is_lost = !part.ends();
            return;
        }
        partial.octets.extend_from_slice(&arrival.payload);
        if !part.ends() {
            self.partial = Some(partial);
            return;
        }
        message.octets = std::mem::take(&mut partial.octets);
        told.push(partial.tells(Event::Message(message)));
    }
}
