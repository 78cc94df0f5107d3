//! Captures of RoCEv2 traffic: what they hold, in the order in which it was complete. Messages are decoded as those
//! that are given as hex, each connection by itself; replies tell how long after their calls they came.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::time::Duration;

use rpcrdma_capture::{Event, Flow, Gap, Happened, Packets, RemoteAccess, Traffic};
use rpcrdma_protocol::cm_private_data::PrivateData;
use serde::Serialize;

use super::captured_text::paragraph;
use super::conversation::Conversation;
use super::message::Decoded;
use super::round_trips::RoundTrips;
use super::{Output, unreadable};
use crate::exit::{Failure, Status};
use crate::report::units::count;

/// Something in a capture. Its serialization is the stable JSON of `decode --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Captured {
    /// Its last packet, counted from 1 as Wireshark does.
    pub packet: u64,
    /// Its first packet.
    pub first_packet: u64,
    /// When its last packet was captured, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The address of its sender.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The address of its receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The queue pair of its receiver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_pair: Option<u32>,
    /// The connection, counted from 1 as they appear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<u64>,
    /// What it is.
    #[serde(flatten)]
    pub what: What,
    /// Since the first packet of the capture, for the text.
    #[serde(skip)]
    pub since_start: Duration,
}

/// What a capture holds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// A message.
    Message {
        /// The handle that its receiver's device invalidates.
        #[serde(skip_serializing_if = "Option::is_none")]
        invalidated: Option<u32>,
        /// Its immediate data.
        #[serde(skip_serializing_if = "Option::is_none")]
        immediate: Option<u32>,
        /// Of a reply: from the first packet of its call to its own last one, in nanoseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        round_trip_ns: Option<u64>,
        /// What it says.
        #[serde(flatten)]
        decoded: Box<Decoded>,
    },
    /// An RDMA Read of memory of the receiver.
    Read(Memory),
    /// An RDMA Write into memory of the receiver.
    Write(Memory),
    /// A connection is asked for.
    ConnectRequest {
        /// The port of RDMA-CM.
        #[serde(skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// What the private data says (RFC 8797).
        private_data: Option<Told>,
    },
    /// It is granted.
    ConnectReply {
        /// As above.
        private_data: Option<Told>,
    },
    /// It is refused.
    ConnectReject {
        /// The reason of the connection manager; 28 is the application's own.
        reason_number: u16,
        /// As above.
        private_data: Option<Told>,
    },
    /// One end ends a connection.
    Disconnect,
    /// Packets are missing, and with them a message or more.
    Gap {
        /// How many, where it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        packets: Option<u32>,
        /// How that is known.
        reason: &'static str,
    },
    /// A packet that cannot be read.
    Damaged {
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// Memory of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// The rkey.
    pub handle: u32,
    /// Bytes.
    pub length: u32,
    /// The address behind the rkey.
    pub offset: u64,
}

/// What private data tells of its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Told {
    /// It supports remote invalidation.
    pub remote_invalidation: bool,
    /// Its inline threshold for sending, in bytes.
    pub send_bytes: u32,
    /// Its inline threshold for receiving, in bytes.
    pub receive_bytes: u32,
}

impl From<RemoteAccess> for Memory {
    fn from(access: RemoteAccess) -> Self {
        Self {
            handle: access.key,
            length: access.length,
            offset: access.address,
        }
    }
}

fn told(private_data: &[u8]) -> Option<Told> {
    PrivateData::find(private_data).map(|found| Told {
        remote_invalidation: found.remote_invalidation,
        send_bytes: found.send_bytes,
        receive_bytes: found.receive_bytes,
    })
}

/// Decodes all of a capture, as far as it can be read.
pub(super) fn decode(
    input: impl BufRead,
    name: &str,
    output: &mut Output<impl Write>,
) -> Result<(), Failure> {
    let packets = Packets::new(input).map_err(|error| broken(name, error))?;
    let mut traffic = Traffic::default();
    let mut explained = Explained::default();
    let mut end = Ok(());
    for packet in packets {
        let packet = match packet {
            Ok(packet) => packet,
            Err(error) => {
                end = Err(broken(name, error));
                break;
            }
        };
        explained.start.get_or_insert(packet.time);
        for happened in traffic.packet(&packet) {
            explained.show(happened, output)?;
        }
        if output.is_closed {
            return Ok(());
        }
    }
    for happened in traffic.finish() {
        explained.show(happened, output)?;
    }
    let counts = traffic.counts();
    eprintln!(
        "{name}: {} packets of RoCEv2, of which {} were sent again; {} others, {} that cannot be read",
        count(counts.roce),
        count(counts.again),
        count(counts.other),
        count(counts.damaged)
    );
    end?;
    if explained.messages == 0 {
        return Err(
            Failure::failed(format!("there was no message in {name}")).advice(
                "capture UDP port 4791 on the network device below the RDMA device, or on a mirror port where the device \
                 does not show its own traffic",
            ),
        );
    }
    Ok(())
}

fn broken(name: &str, error: rpcrdma_capture::CaptureError) -> Failure {
    match error.fault {
        rpcrdma_capture::Fault::Read(error) => unreadable(name, error),
        _ => Failure::failed(format!("{name} is no good capture"))
            .because(error)
            .advice("take the capture again, or give what Wireshark makes of it when it saves it"),
    }
}

/// What was seen so far, for what comes.
#[derive(Default)]
struct Explained {
    start: Option<Duration>,
    messages: u64,
    /// By connection, and by direction where that is not known.
    conversations: HashMap<(Option<u64>, Option<Flow>), Conversation>,
    round_trips: RoundTrips,
}

impl Explained {
    fn show(&mut self, happened: Happened, output: &mut Output<impl Write>) -> Result<(), Failure> {
        let captured = self.explain(happened);
        if is_wrong(&captured.what) {
            output.status = Status::Failure;
        }
        output.show(&captured, |number| paragraph(&captured, number))
    }

    fn explain(&mut self, happened: Happened) -> Captured {
        let (flow, connection) = (happened.flow, happened.connection);
        let (began, ended) = (happened.began, happened.ended);
        let (first_packet, packet) = (happened.first_packet, happened.last_packet);
        let what = match happened.event {
            Event::Message(message) => {
                self.messages += 1;
                let without = flow.filter(|_| connection.is_none());
                let conversation = self.conversations.entry((connection, without)).or_default();
                let decoded = conversation.decode(&message.octets, None);
                let round_trip = match (&decoded, flow) {
                    (Decoded::Right(message), Some(flow)) => {
                        let direction = (connection, flow);
                        self.round_trips.message(message, direction, began, ended)
                    }
                    _ => None,
                };
                What::Message {
                    invalidated: message.invalidated,
                    immediate: message.immediate,
                    round_trip_ns: round_trip.map(nanoseconds),
                    decoded: Box::new(decoded),
                }
            }
            Event::Read(access) => What::Read(access.into()),
            Event::Write(access) => What::Write(access.into()),
            Event::ConnectRequest { port, private_data } => What::ConnectRequest {
                port,
                private_data: told(&private_data),
            },
            Event::ConnectReply { private_data } => What::ConnectReply {
                private_data: told(&private_data),
            },
            Event::ConnectReject {
                reason,
                private_data,
            } => What::ConnectReject {
                reason_number: reason,
                private_data: told(&private_data),
            },
            Event::Disconnect => What::Disconnect,
            Event::Gap(gap) => explain_gap(gap),
            Event::Damaged(reason) => What::Damaged { reason },
        };
        Captured {
            packet,
            first_packet,
            time_ns: nanoseconds(ended),
            from: flow.map(|flow| flow.source.to_string()),
            to: flow.map(|flow| flow.destination.to_string()),
            queue_pair: flow.map(|flow| flow.queue_pair),
            connection,
            what,
            since_start: ended.saturating_sub(self.start.unwrap_or_default()),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn explain_gap(gap: Gap) -> What {
    let (packets, reason) = match gap {
        Gap::Missing(packets) => (Some(packets), MISSING),
        Gap::NoBeginning => (None, "the capture begins within a message"),
        Gap::NoEnd => (None, "a message has no end"),
        Gap::TooLong => (None, "a message is longer than this tool keeps"),
    };
    What::Gap { packets, reason }
}

const MISSING: &str = "packets are missing, as the numbers of the others show";

/// Whether it makes the tool fail. That a capture begins within a message, or ends within one, is no fault of its.
fn is_wrong(what: &What) -> bool {
    match what {
        What::Message { decoded, .. } => decoded.is_wrong(),
        What::Gap { packets, .. } => packets.is_some(),
        What::Damaged { .. } => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::conversation::Conversation;
    use crate::decode::{self, input};

    const CAPTURES: [(&str, &[u8]); 3] = [
        (
            "requester-knfsd",
            include_bytes!("../../../tests/corpus/requester-knfsd.pcap"),
        ),
        (
            "client-responder",
            include_bytes!("../../../tests/corpus/client-responder.pcap"),
        ),
        (
            "version-2",
            include_bytes!("../../../tests/corpus/version-2.pcap"),
        ),
    ];

    fn run(file: &[u8], json: bool) -> (Result<(), Failure>, Status, String) {
        let mut output = Output::new(Vec::new(), json);
        let result = decode::decode(file, "a.pcap", &mut output);
        let text = String::from_utf8(output.write).unwrap();
        (result, output.status, text)
    }

    #[test]
    fn every_call_in_the_captures_has_its_reply() {
        for (name, file) in CAPTURES {
            let (result, status, output) = run(file, true);
            result.unwrap();
            assert_eq!(status, Status::Success, "{name}");
            let mut waiting = HashMap::new();
            let mut replies = 0;
            for line in output.lines() {
                let object: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_ne!(object["what"], "gap", "{name}: {object}");
                let direction = object["rpc"]["direction"].as_str().unwrap_or_default();
                let key = (object["connection"].clone(), object["xid"].clone());
                if direction == "call" {
                    waiting.insert(key, object);
                } else if let Some(round_trip) = object["round_trip_ns"].as_u64() {
                    assert!(round_trip > 0, "{name}: {object}");
                    waiting.remove(&key);
                    replies += 1;
                }
            }
            assert_eq!(waiting.values().collect::<Vec<_>>().len(), 0, "{name}");
            assert!(replies > 10, "{name}: {replies}");
        }
    }

    #[test]
    fn people_read_what_happened() {
        let text: String = CAPTURES.map(|(_, file)| run(file, false).2).concat();
        for part in [
            "asks for a connection at port 20049; sends up to",
            "grants the connection; sends up to 4 KiB and receives up to 4 KiB inline",
            "an RDMA Read of 5,000 B at ",
            "an RDMA Write of 5,000 B at ",
            "NFS version 3 READDIRPLUS",
            "after its call began",
            "ends a connection",
            "transmission 2 of its group",
            "invalidates handle",
        ] {
            assert!(text.contains(part), "{part}");
        }
    }

    #[test]
    fn a_capture_that_is_cut_says_where_and_shows_what_came_before() {
        let (_, file) = CAPTURES[0];
        let (result, _, output) = run(&file[..file.len() - 1], true);
        let failure = result.unwrap_err().to_string();
        for part in ["a.pcap", "after 140 whole", "at byte", "what to do"] {
            assert!(failure.contains(part), "{part}: {failure}");
        }
        assert!(output.lines().count() > 50);
        let (result, ..) = run(&file[..24], true);
        let failure = result.unwrap_err().to_string();
        assert!(failure.contains("no message in a.pcap"), "{failure}");
    }

    #[test]
    fn packets_that_are_missing_are_told_and_fail_the_whole() {
        let (_, file) = CAPTURES[0];
        // Every tenth packet is left out.
        let mut thinned = file[..24].to_vec();
        let (mut at, mut number) = (24, 0);
        while at < file.len() {
            let length = u32::from_le_bytes(file[at + 8..at + 12].try_into().unwrap());
            let end = at + 16 + usize::try_from(length).unwrap();
            number += 1;
            if number % 10 != 0 {
                thinned.extend(&file[at..end]);
            }
            at = end;
        }
        let (result, status, output) = run(&thinned, true);
        result.unwrap();
        assert_eq!(status, Status::Failure);
        assert!(
            output.contains("\"what\":\"gap\",\"packets\":1"),
            "{output}"
        );
    }

    /// Wireshark's dissector and this decoder agree on what is malformed (tests/wireshark/check has the other half).
    #[test]
    fn what_the_dissector_takes_for_malformed_is_wrong_here() {
        let mut counts = [0, 0];
        for line in include_str!("../../../tests/wireshark/messages")
            .lines()
            .filter(|line| !line.starts_with('#'))
        {
            let [filter, header, hex] = line.split('|').map(str::trim).collect::<Vec<_>>()[..]
            else {
                continue;
            };
            let message = input::message_bytes(hex.as_bytes()).unwrap().unwrap();
            let is_malformed = header == "0";
            let decoded = Conversation::default().decode(&message, None);
            assert_eq!(decoded.is_wrong(), is_malformed, "{filter}: {decoded:?}");
            counts[usize::from(is_malformed)] += 1;
            for bytes in (20..header.parse().unwrap()).step_by(4) {
                let decoded = Conversation::default().decode(&message[..bytes], None);
                let is_version_1 = bytes == 28;
                assert!(decoded.is_wrong() || is_version_1, "{bytes} of {filter}");
            }
        }
        assert!(counts[0] > 20 && counts[1] > 15, "{counts:?}");
    }
}
