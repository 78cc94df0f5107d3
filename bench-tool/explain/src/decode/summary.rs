//! The summary of an input: its messages, calls, errors, credits and chunks, and the slowest calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;

use crate::capture::{Counts, Flow};
use crate::recent::Recent;

use super::captured::{Memory, What, nanoseconds};
use super::message::{Decoded, Message, Note, Segment};
use super::round_trips::{Call, Part, RoundTrips};
use super::text::what_it_is;

/// A summary. Its serialization is the stable JSON of `decode --json --summary`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Always `summary`.
    pub(crate) what: &'static str,
    /// The name of the input.
    pub(crate) input: String,
    /// Captures: the numbers of packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) packets: Option<Packets>,
    /// Captures: the time of the first packet, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) begin_ns: Option<u64>,
    /// Captures: the time from the first packet to the last, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) duration_ns: Option<u64>,
    /// The number of messages.
    pub(crate) messages: u64,
    /// What each end sent, in the order of appearance.
    pub(crate) directions: Vec<Direction>,
    pub(crate) connections: Connections,
    pub(crate) calls: Calls,
    /// The calls without a reply, in their order; of very many, the last ones.
    pub(crate) unanswered: Vec<Unanswered>,
    /// The procedures that were called.
    pub(crate) procedures: Vec<Procedure>,
    pub(crate) errors: Errors,
    pub(crate) chunks: Chunks,
    /// The slowest calls, slowest first.
    pub(crate) slowest: Vec<Slow>,
}

/// Packets by kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Packets {
    pub(crate) roce: u64,
    /// Of those: retransmissions.
    pub(crate) again: u64,
    pub(crate) other: u64,
    pub(crate) damaged: u64,
    /// Directions of connections that were forgotten, because there were too many others, or too much waited in all of them.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) flows_forgotten: u64,
}

/// What a summary lists of each kind: pairs of addresses, procedures, and connections with one sender. Each packet can have
/// new ones.
const LISTED_MAX: usize = 4096;

/// Connections whose senders are collected at the same time.
const CONNECTIONS_MAX: usize = 8192;

/// In place of the addresses of all pairs that are not listed.
const OTHERS: &str = "others";

/// What one address sent to another.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Direction {
    /// The sender; null in hex, which does not show it.
    pub(crate) from: Option<String>,
    pub(crate) to: Option<String>,
    /// The messages by version and type.
    pub(crate) messages: Vec<Kind>,
    /// The number of messages that are wrong.
    pub(crate) wrong: u64,
    /// RDMA Reads from the memory of the receiver.
    pub(crate) reads: Volume,
    /// RDMA Writes into the memory of the receiver.
    pub(crate) writes: Volume,
    /// The credits, by version.
    pub(crate) credits: Vec<Credits>,
}

/// Messages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Kind {
    pub(crate) version: u32,
    #[serde(rename = "type")]
    pub(crate) header_type: &'static str,
    /// `true` for replies, `false` for calls; null for messages that are neither, or do not show it.
    pub(crate) is_reply: Option<bool>,
    /// The kind in words.
    pub(crate) meaning: &'static str,
    pub(crate) messages: u64,
    /// Inline bytes after the headers.
    pub(crate) payload_bytes: u64,
}

/// Operations and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Volume {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Volume {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

/// The range of a number in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Range {
    pub(crate) least: u64,
    pub(crate) most: u64,
    /// The number of messages with it.
    pub(crate) messages: u64,
}

fn widen(range: &mut Option<Range>, value: u64) {
    let range = range.get_or_insert(Range {
        least: value,
        most: value,
        messages: 0,
    });
    range.least = range.least.min(value);
    range.most = range.most.max(value);
    range.messages += 1;
}

/// The credits of the messages of one direction and version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Credits {
    pub(crate) version: u32,
    /// Version 1: what replies grant. Version 2: what messages newly grant.
    pub(crate) granted: Option<Range>,
    /// Version 1: what calls ask for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) asked: Option<Range>,
    /// Version 2: the largest number that the sender will ever have granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) maximum: Option<Range>,
}

/// The connections of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Connections {
    /// Connections with messages.
    pub(crate) with_messages: u64,
    pub(crate) requested: u64,
    pub(crate) granted: u64,
    pub(crate) refused: u64,
    pub(crate) ended: u64,
    /// Connections whose messages all have the same sender.
    pub(crate) one_way: Vec<OneWay>,
}

/// A connection of which the input holds the messages of one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct OneWay {
    pub(crate) connection: u64,
    /// The sender of its messages.
    pub(crate) from: String,
    pub(crate) to: String,
}

/// Calls and replies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Calls {
    pub(crate) calls: u64,
    /// Calls that came again while their reply was missing.
    pub(crate) repeated: u64,
    /// Calls with a reply of the same xid.
    pub(crate) answered: u64,
    pub(crate) unanswered: u64,
    /// Replies whose call the input does not hold.
    pub(crate) replies_without_call: u64,
}

/// A call without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Unanswered {
    pub(crate) xid: u32,
    pub(crate) connection: Option<u64>,
    /// The number of its first packet, or its line.
    pub(crate) call_packet: u64,
    /// Program, version and procedure, if the messages show them.
    pub(crate) procedure: Option<[u32; 3]>,
}

/// The calls of one procedure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Procedure {
    /// Program, version and procedure; null if the messages do not show them.
    pub(crate) procedure: Option<[u32; 3]>,
    /// Calls and replies that show this procedure: a long call does not, and its reply may.
    pub(crate) calls: u64,
    pub(crate) answered: u64,
    pub(crate) round_trip_ns: Option<RoundTripRange>,
}

/// The round trips of a procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RoundTripRange {
    pub(crate) least: u64,
    pub(crate) mean: u64,
    pub(crate) most: u64,
}

/// The round trips of a procedure together.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    total_ns: u128,
    /// The answered calls that have a time: the clock of a capture can go back.
    calls: u64,
}

/// What went wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Errors {
    /// Messages that are wrong.
    pub(crate) wrong_messages: u64,
    /// Transport errors and Report Errors, by name.
    pub(crate) transport: BTreeMap<String, u64>,
    /// Replies that were not executed, by outcome.
    pub(crate) rpc: BTreeMap<&'static str, u64>,
    /// Parts of the traffic that are missing.
    pub(crate) gaps: u64,
    /// The packets that are missing in them, as far as known.
    pub(crate) packets_missing: u64,
    pub(crate) packets_damaged: u64,
}

/// The chunks by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Chunks {
    /// Read chunks with arguments.
    pub(crate) read: Volume,
    /// Read chunks at position 0, which hold whole calls.
    pub(crate) read_at_position_zero: Volume,
    /// Write chunks of calls: the memory that is offered.
    pub(crate) write_offered: Volume,
    /// Write chunks of replies: what the responder filled. An unused one counts as zero bytes.
    pub(crate) write_filled: Volume,
    pub(crate) reply_offered: Volume,
    pub(crate) reply_filled: Volume,
    /// Items of the round-trip reduction that are in the Send.
    pub(crate) items_placed: Volume,
    /// Items of the round-trip reduction that are moved by explicit RDMA.
    pub(crate) items_explicit: Volume,
}

/// An answered call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Slow {
    /// From the first packet of the call to the last of its reply.
    pub(crate) round_trip_ns: u64,
    pub(crate) xid: u32,
    pub(crate) connection: Option<u64>,
    /// The number of the first packet of the call.
    pub(crate) call_packet: u64,
    /// The number of the last packet of the reply.
    pub(crate) reply_packet: u64,
    /// Program, version and procedure, if the messages show them.
    pub(crate) procedure: Option<[u32; 3]>,
}

/// A message for the summary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub(crate) decoded: &'a Decoded,
    pub(crate) part: Part,
    pub(crate) flow: Option<Flow>,
    pub(crate) connection: Option<u64>,
    /// The number of its last packet, or its line.
    pub(crate) last_packet: u64,
    /// The time of its last packet; `None` in hex.
    pub(crate) ended: Option<Duration>,
}

/// Collects a summary message by message.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    slowest_max: usize,
    summary: Summary,
    /// The index of each direction, by its addresses.
    directions: BTreeMap<Option<[String; 2]>, usize>,
    /// The messages of each direction by version, type, role and meaning.
    kinds: BTreeMap<(usize, u32, &'static str, Option<bool>, &'static str), Volume>,
    credits: BTreeMap<(usize, u32), Credits>,
    /// The senders of each connection that is not counted yet.
    senders: Recent<u64, BTreeSet<Flow>, CONNECTIONS_MAX>,
    procedures: BTreeMap<Option<[u32; 3]>, (Procedure, Times)>,
}

impl Collector {
    /// A collector that keeps so many of the slowest calls.
    pub(crate) fn new(slowest_max: usize) -> Self {
        Self {
            slowest_max,
            ..Self::default()
        }
    }

    fn direction(&mut self, flow: Option<Flow>) -> usize {
        let ends = flow.map(|flow| [flow.source.to_string(), flow.destination.to_string()]);
        let directions = &mut self.summary.directions;
        let is_listed = self.directions.len() < LISTED_MAX || self.directions.contains_key(&ends);
        let ends = ends.map(|it| match is_listed {
            true => it,
            false => [OTHERS, OTHERS].map(str::to_owned),
        });
        *self.directions.entry(ends.clone()).or_insert_with(|| {
            let (from, to) = ends.map(|[from, to]| (from, to)).unzip();
            directions.push(Direction {
                from,
                to,
                ..Direction::default()
            });
            directions.len() - 1
        })
    }

    /// Takes an event that is no message.
    pub(crate) fn event(&mut self, what: &What, flow: Option<Flow>) {
        let connections = &mut self.summary.connections;
        let errors = &mut self.summary.errors;
        match what {
            What::Message { .. } => {}
            What::Read(memory) => self.access(*memory, flow, |it| &mut it.reads),
            What::Write(memory) => self.access(*memory, flow, |it| &mut it.writes),
            What::ConnectRequest { .. } => connections.requested += 1,
            What::ConnectReply { .. } => connections.granted += 1,
            What::ConnectReject { .. } => connections.refused += 1,
            What::Disconnect => connections.ended += 1,
            What::Gap { packets, .. } => {
                errors.gaps += 1;
                errors.packets_missing += u64::from(packets.unwrap_or_default());
            }
            What::Damaged { .. } => errors.packets_damaged += 1,
        }
    }

    fn access(
        &mut self,
        memory: Memory,
        flow: Option<Flow>,
        of: impl Fn(&mut Direction) -> &mut Volume,
    ) {
        let at = self.direction(flow);
        if let Some(direction) = self.summary.directions.get_mut(at) {
            of(direction).add(memory.length.into());
        }
    }

    /// Takes a message.
    pub(crate) fn message(&mut self, seen: Seen<'_>) {
        self.summary.messages += 1;
        let direction = self.direction(seen.flow);
        if let (Some(connection), Some(flow)) = (seen.connection, seen.flow) {
            // Those that spoke last stay: one that is counted and speaks again would count twice.
            if self.senders.get(&connection).is_none() {
                for (connection, senders) in self.senders.make_room(1) {
                    self.count_connection(connection, &senders);
                }
            }
            self.senders.entry(connection).insert(flow);
        }
        let message = match seen.decoded {
            Decoded::Right(message) => message,
            Decoded::Wrong(_) => {
                self.summary.errors.wrong_messages += 1;
                if let Some(direction) = self.summary.directions.get_mut(direction) {
                    direction.wrong += 1;
                }
                return;
            }
        };
        let role = message.is_reply().filter(|_| is_rpc(message));
        let kind = (
            direction,
            message.version,
            message.header_type,
            role,
            what_it_is(message),
        );
        let bytes = u64::try_from(message.payload_bytes).unwrap_or(u64::MAX);
        self.kinds.entry(kind).or_default().add(bytes);
        self.count_credits(direction, message);
        self.count_chunks(message);
        self.count_errors(message);
        self.count_calls(message, seen);
    }

    fn count_credits(&mut self, direction: usize, message: &Message) {
        let credits = self
            .credits
            .entry((direction, message.version))
            .or_insert(Credits {
                version: message.version,
                ..Credits::default()
            });
        match (message.credit_granted, message.credit_maximum) {
            // The credits of an error are ignored.
            _ if message.version == 2 && message.error.is_some() => {}
            (Some(granted), Some(maximum)) => {
                widen(&mut credits.granted, granted.into());
                widen(&mut credits.maximum, maximum.into());
            }
            _ => match message.is_reply() {
                Some(true) => widen(&mut credits.granted, message.credit.into()),
                Some(false) => widen(&mut credits.asked, message.credit.into()),
                None => {}
            },
        }
    }

    fn count_chunks(&mut self, message: &Message) {
        let chunks = &mut self.summary.chunks;
        let entries = &message.read_list;
        for chunk in entries.chunk_by(|a, b| a.position == b.position) {
            let bytes = chunk.iter().map(|entry| u64::from(entry.length)).sum();
            match chunk.first().map(|entry| entry.position) {
                Some(0) => chunks.read_at_position_zero.add(bytes),
                _ => chunks.read.add(bytes),
            }
        }
        let bytes = |segments: &[Segment]| segments.iter().map(|it| u64::from(it.length)).sum();
        let (write, reply) = match message.is_reply() {
            Some(true) => (&mut chunks.write_filled, &mut chunks.reply_filled),
            _ => (&mut chunks.write_offered, &mut chunks.reply_offered),
        };
        for chunk in &message.write_list {
            write.add(bytes(chunk));
        }
        if let Some(chunk) = &message.reply_chunk {
            reply.add(bytes(chunk));
        }
        for item in message.transmission.iter().flat_map(|it| &it.items) {
            match item.location {
                "placed" => chunks.items_placed.add(item.length.into()),
                "explicit" => chunks.items_explicit.add(item.length.into()),
                _ => {}
            }
        }
    }

    fn count_errors(&mut self, message: &Message) {
        let errors = &mut self.summary.errors;
        let prefix = if message.version == 1 {
            "ERR"
        } else {
            "RDMA2_ERR"
        };
        if let Some(error) = &message.error {
            let name = format!("{prefix}_{}", error.name);
            *errors.transport.entry(name).or_default() += 1;
        }
        if let Some(reported) = &message.reported {
            let name = format!("REPORT_ERROR {}", reported.name);
            *errors.transport.entry(name).or_default() += 1;
        }
        let outcome = message.rpc.and_then(|rpc| rpc.outcome);
        if let Some(outcome) = outcome.filter(|it| *it != super::convert::EXECUTED) {
            *errors.rpc.entry(outcome).or_default() += 1;
        }
    }

    fn count_calls(&mut self, message: &Message, seen: Seen<'_>) {
        let calls = &mut self.summary.calls;
        match seen.part {
            Part::Other => {}
            Part::Call => {
                calls.calls += 1;
                self.procedure(message.called()).0.calls += 1;
            }
            Part::Again => calls.repeated += 1,
            Part::Stray => calls.replies_without_call += 1,
            Part::Reply(call) => {
                calls.answered += 1;
                self.answer(call, message, seen);
            }
        }
    }

    fn procedure(&mut self, called: Option<[u32; 3]>) -> &mut (Procedure, Times) {
        let procedure = Procedure {
            procedure: called,
            ..Procedure::default()
        };
        let is_listed = self.procedures.len() < LISTED_MAX || self.procedures.contains_key(&called);
        let entry = self.procedures.entry(called.filter(|_| is_listed));
        entry.or_insert((procedure, Times::default()))
    }

    fn answer(&mut self, call: Call, message: &Message, seen: Seen<'_>) {
        let called = call.called.or(message.called());
        let round_trip = seen.ended.and_then(|ended| call.until(ended));
        let (procedure, times) = self.procedure(called);
        procedure.answered += 1;
        let Some(round_trip_ns) = round_trip.map(nanoseconds) else {
            return;
        };
        times.total_ns += u128::from(round_trip_ns);
        times.calls += 1;
        let range = procedure.round_trip_ns.get_or_insert(RoundTripRange {
            least: round_trip_ns,
            mean: 0,
            most: round_trip_ns,
        });
        range.least = range.least.min(round_trip_ns);
        range.most = range.most.max(round_trip_ns);
        self.summary.slowest.push(Slow {
            round_trip_ns,
            xid: message.xid,
            connection: call.connection,
            call_packet: call.first_packet,
            reply_packet: seen.last_packet,
            procedure: called,
        });
        // Sorting seldom keeps both the memory and the work per call small.
        if self.summary.slowest.len() > self.slowest_max.saturating_mul(2).max(1_024) {
            self.keep_slowest();
        }
    }

    fn keep_slowest(&mut self) {
        let slowest = &mut self.summary.slowest;
        slowest.sort_by_key(|it| (std::cmp::Reverse(it.round_trip_ns), it.call_packet));
        slowest.truncate(self.slowest_max);
    }

    fn count_connection(&mut self, connection: u64, senders: &BTreeSet<Flow>) {
        let connections = &mut self.summary.connections;
        connections.with_messages += 1;
        if let (1, Some(flow)) = (senders.len(), senders.first())
            && connections.one_way.len() < LISTED_MAX
        {
            connections.one_way.push(OneWay {
                connection,
                from: flow.source.to_string(),
                to: flow.destination.to_string(),
            });
        }
    }

    /// The summary of the input `name`.
    pub(crate) fn finish(mut self, name: &str, round_trips: &RoundTrips) -> Summary {
        self.keep_slowest();
        for (connection, senders) in self.senders.take_all() {
            self.count_connection(connection, &senders);
        }
        for ((at, version, header_type, is_reply, meaning), volume) in self.kinds {
            let kind = Kind {
                version,
                header_type,
                is_reply,
                meaning,
                messages: volume.count,
                payload_bytes: volume.bytes,
            };
            if let Some(direction) = self.summary.directions.get_mut(at) {
                direction.messages.push(kind);
            }
        }
        for ((at, _), credits) in self.credits {
            if let Some(direction) = self.summary.directions.get_mut(at) {
                direction.credits.push(credits);
            }
        }
        let procedures = self.procedures.into_values();
        self.summary.procedures = procedures.map(with_mean).collect();
        let unanswered = round_trips.unanswered().into_iter();
        let unanswered = unanswered.map(|call| Unanswered {
            xid: call.xid,
            connection: call.connection,
            call_packet: call.first_packet,
            procedure: call.called,
        });
        self.summary.unanswered = unanswered.collect();
        self.summary.calls.unanswered = u64::try_from(self.summary.unanswered.len())
            .unwrap_or(u64::MAX)
            + round_trips.forgotten();
        self.summary.what = "summary";
        self.summary.input = name.to_owned();
        self.summary
    }
}

fn with_mean((mut procedure, times): (Procedure, Times)) -> Procedure {
    if let Some(range) = &mut procedure.round_trip_ns {
        let mean = times.total_ns / u128::from(times.calls.max(1));
        range.mean = u64::try_from(mean).unwrap_or(u64::MAX);
    }
    procedure
}

impl Summary {
    /// The same summary with the packets and times of a capture.
    pub(crate) fn of_capture(
        mut self,
        counts: Counts,
        (first, last): (Option<Duration>, Duration),
    ) -> Self {
        self.packets = Some(Packets {
            roce: counts.roce,
            again: counts.again,
            other: counts.other,
            damaged: counts.damaged,
            flows_forgotten: counts.forgotten,
        });
        self.begin_ns = first.map(nanoseconds);
        self.duration_ns = first.map(|first| nanoseconds(last.saturating_sub(first)));
        self
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// Whether the message carries an RPC message or a part of one.
fn is_rpc(message: &Message) -> bool {
    match message.header_type {
        "CONNPROP" | "REPORT_ERROR" | "DONE" => false,
        "NOMSG" => message.version == 1 || message.has_chunks(),
        _ => true,
    }
}

impl Message {
    /// Program, version and procedure, as far as the message and its call show them.
    pub(crate) fn called(&self) -> Option<[u32; 3]> {
        let inline = self.rpc.and_then(|rpc| {
            let (program, version) = rpc.program.zip(rpc.version)?;
            Some([program, version, rpc.procedure?])
        });
        inline.or_else(|| {
            self.notes.iter().find_map(|note| match note {
                Note::Answers(called) => Some(*called),
                _ => None,
            })
        })
    }
}
