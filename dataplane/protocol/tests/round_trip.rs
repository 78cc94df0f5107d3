//! Property tests: whatever is encoded decodes to itself, whatever is cut is refused, and no bytes panic.

mod support;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use rpcrdma_protocol::chunks::{
    ChunkLists, ChunkListsRepr, EncodeChunkLists, ReadSegment, Segment, write_read_list,
    write_reply_chunk, write_write_list,
};
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::common::CommonPrefix;
use rpcrdma_protocol::connection::{ChunksAt, chunks_of};
use rpcrdma_protocol::rpc::{
    self, AcceptStatus, AuthStatus, CallHeader, OpaqueAuth, RejectStatus, ReplyBody, ReplyHeader,
};
use rpcrdma_protocol::v2::rtr::{ReceiveBufferStructure, RtrSupport};
use rpcrdma_protocol::v2::{
    self, Body, CreditWord, ErrVers, Flags, Prefix, Properties, Property, PropertySet,
    ReverseRequestSupport, TransportError,
};
use rpcrdma_protocol::xdr::{Reader, Writer};
use rpcrdma_protocol::{DecodeError, EncodeError, Reason, v1};
use support::encoded;

/// Chunk lists that own their segments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OwnedLists {
    reads: Vec<ReadSegment>,
    writes: Vec<Vec<Segment>>,
    reply: Option<Vec<Segment>>,
}

impl OwnedLists {
    fn from_view(lists: &ChunkLists<'_>) -> Self {
        Self {
            reads: lists.reads.collect(),
            writes: lists.writes.map(Iterator::collect).collect(),
            reply: lists.reply.map(Iterator::collect),
        }
    }

    fn with_repr<T>(&self, use_repr: impl FnOnce(ChunkListsRepr<'_>) -> T) -> T {
        let writes: Vec<&[Segment]> = self.writes.iter().map(Vec::as_slice).collect();
        use_repr(ChunkListsRepr {
            reads: &self.reads,
            writes: &writes,
            reply: self.reply.as_deref(),
        })
    }
}

fn segment() -> impl Strategy<Value = Segment> {
    any::<(u32, u32, u64)>().prop_map(|(handle, length_bytes, offset)| Segment {
        handle,
        length_bytes,
        offset,
    })
}

fn read_segment() -> impl Strategy<Value = ReadSegment> {
    let position = prop_oneof![Just(0), (0..64_u32).prop_map(|word| word * 4), any::<u32>()];
    (position, segment()).prop_map(|(position, target)| ReadSegment { position, target })
}

fn lists() -> impl Strategy<Value = OwnedLists> {
    (
        vec(read_segment(), 0..40),
        vec(vec(segment(), 0..6), 0..6),
        option::of(vec(segment(), 0..20)),
    )
        .prop_map(|(reads, writes, reply)| OwnedLists {
            reads,
            writes,
            reply,
        })
}

fn prefix() -> impl Strategy<Value = Prefix> {
    (any::<u32>(), any::<u16>(), any::<u16>(), 0..4_u32).prop_map(
        |(xid, granted, maximum, flags)| Prefix {
            xid,
            credit: CreditWord { granted, maximum },
            flags: Flags::from_word(flags).expect("defined flags"),
        },
    )
}

fn transport_error() -> impl Strategy<Value = TransportError> {
    any::<(u32, u32)>().prop_flat_map(|(a, b)| {
        prop_oneof![
            Just(TransportError::Vers(ErrVers { low: a, high: b })),
            Just(TransportError::BadXdr),
            Just(TransportError::InvalHtype),
            Just(TransportError::InvalFlag),
            Just(TransportError::ReadChunks { max_chunks: a }),
            Just(TransportError::WriteChunks { max_chunks: a }),
            Just(TransportError::Segments { max_segments: a }),
            Just(TransportError::WriteResource {
                chunk_index: a,
                length_needed_bytes: b
            }),
            Just(TransportError::ReplyResource {
                length_needed_bytes: a
            }),
            Just(TransportError::System),
            Just(TransportError::Unknown { code: a.max(11) }),
        ]
    })
}

fn auth_body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        vec(any::<u8>(), 0..32),
        vec(any::<u8>(), 390..=400)
    ]
}

fn reverse_requests() -> impl Strategy<Value = ReverseRequestSupport> {
    (0..3_u32).prop_map(ReverseRequestSupport::from_word)
}

/// A decoder of any format, as far as cuts are concerned.
fn assert_cuts_fail(
    octets: &[u8],
    header_bytes: usize,
    decode: impl Fn(&[u8]) -> Result<(), DecodeError>,
) {
    for cut in 0..header_bytes {
        let Err(error) = decode(&octets[..cut]) else {
            panic!("{cut} of {header_bytes} octets decode");
        };
        assert!(error.at <= cut, "the error is at {} of {cut}", error.at);
        assert!(
            matches!(error.reason, Reason::Truncated | Reason::BelowLeastSize),
            "{cut} of {header_bytes}: {error}"
        );
    }
}

proptest! {
    #[test]
    fn v2_messages_with_chunks(
        prefix in prefix(),
        inv_handle: u32,
        owned in lists(),
        payload in vec(any::<u8>(), 4..64),
    ) {
        let mut message = owned.with_repr(|lists| {
            encoded(|space| v2::encode_msg_header(space, prefix, inv_handle, &lists))
        });
        let header_bytes = message.len();
        owned.with_repr(|lists| assert_eq!(24 + lists.encoded_bytes(), header_bytes));
        message.extend_from_slice(&payload);
        let header = v2::decode(&message).unwrap();
        let chunks = *header.chunks().unwrap();
        prop_assert_eq!((header.prefix, header.header_bytes), (prefix, header_bytes));
        prop_assert_eq!(chunks.inv_handle, inv_handle);
        prop_assert_eq!(OwnedLists::from_view(&chunks.lists), owned.clone());
        prop_assert!(matches!(header.body, Body::Msg(_)));
        assert_cuts_fail(&message, header_bytes + 4, |octets| v2::decode(octets).map(drop));

        // The same lists as an RDMA2_NOMSG.
        let nomsg = encoded(|space| v2::encode_nomsg(space, prefix, inv_handle, &chunks.lists));
        prop_assert_eq!(&nomsg[16..], &message[16..header_bytes]);
        for message in [&message, &nomsg] {
            let found = ChunksAt::find(message).expect("it was decoded");
            let header = v2::decode(message).unwrap();
            prop_assert_eq!(Some(&found.chunks(message)), header.chunks());
        }
        let header = v2::decode(&nomsg).unwrap();
        prop_assert_eq!(header.is_credit_grant(), owned == OwnedLists::default());
        prop_assert_eq!(OwnedLists::from_view(&header.chunks().unwrap().lists), owned);
        assert_cuts_fail(&nomsg, nomsg.len(), |octets| v2::decode(octets).map(drop));
    }

    #[test]
    fn v2_messages_without_chunks(prefix in prefix(), payload in vec(any::<u8>(), 4..64)) {
        let fast = encoded(|space| v2::encode_msg_header_without_chunks(space, prefix));
        let slow =
            encoded(|space| v2::encode_msg_header(space, prefix, 0, &ChunkListsRepr::default()));
        prop_assert_eq!(&fast, &slow);
        let message = [fast, payload].concat();
        let header = v2::decode(&message).unwrap();
        prop_assert_eq!((header.prefix, header.header_bytes), (prefix, 36));
        prop_assert!(header.lists_are_empty() && matches!(header.body, Body::Msg(_)));
        let peeked = CommonPrefix::peek(&message).unwrap();
        prop_assert_eq!((peeked.xid, peeked.version, peeked.header_type), (prefix.xid, 2, 0));
        prop_assert_eq!(peeked.credit, prefix.credit.to_word());
        assert_cuts_fail(&message, 40, |octets| v2::decode(octets).map(drop));
    }

    #[test]
    fn v2_grants_and_errors(credit in any::<u32>(), xid: u32, error in transport_error()) {
        let credit = CreditWord::from_word(credit);
        let grant = encoded(|space| v2::encode_credit_grant(space, credit));
        let header = v2::decode(&grant).unwrap();
        prop_assert!(header.is_credit_grant());
        prop_assert_eq!(header.prefix, Prefix { xid: 0, credit, flags: Flags::NONE });

        let message = encoded(|space| v2::encode_error(space, xid, &error));
        let header = v2::decode(&message).unwrap();
        prop_assert_eq!(header.body, Body::Error(error));
        prop_assert_eq!((header.prefix.xid, header.prefix.flags), (xid, Flags::RESPONSE));
        assert_cuts_fail(&message, message.len(), |octets| v2::decode(octets).map(drop));
    }

    #[test]
    fn err_vers_in_the_version_1_layout(xid: u32, credit: u32, low: u32, high: u32) {
        let supported = ErrVers { low, high };
        for version in [1, 2] {
            let message = encoded(|space| {
                v2::encode_err_vers_in_version_1_layout(space, xid, version, credit, supported)
            });
            let ambiguous = version == 2 && matches!(low, 5 | 6 | 7 | 9);
            let found = v2::err_vers_in_version_1_layout(&message, true);
            prop_assert_eq!(found, (!ambiguous).then_some(supported));
        }
        // It is what version 1 itself sends.
        let error = v1::TransportError::Vers { low, high };
        let message = encoded(|space| v1::encode_error(space, xid, 1, credit, error));
        prop_assert_eq!(v2::err_vers_in_version_1_layout(&message, true), Some(supported));
        prop_assert_eq!(v1::decode(&message).unwrap().body, v1::Body::Error(error));
    }

    #[test]
    fn v1_messages(xid: u32, credit: u32, owned in lists()) {
        let message = owned.with_repr(|lists| {
            encoded(|space| v1::encode_msg_header(space, xid, credit, &lists))
        });
        let header = v1::decode(&message).unwrap();
        let lists = *header.chunk_lists().unwrap();
        prop_assert_eq!((header.xid, header.credit), (xid, credit));
        prop_assert_eq!(header.header_bytes, message.len());
        prop_assert_eq!(OwnedLists::from_view(&lists), owned);
        let found = ChunksAt::find(&message).expect("it was decoded");
        prop_assert_eq!(Some(&found.chunks(&message).lists), header.chunk_lists());
        assert_cuts_fail(&message, message.len(), |octets| v1::decode(octets).map(drop));
        let nomsg = encoded(|space| v1::encode_nomsg(space, xid, credit, &lists));
        prop_assert_eq!(&nomsg[16..], &message[16..]);
        let nomsg_body = v1::decode(&nomsg).map(|header| header.body);
        let expected = if lists.are_empty() {
            Err(DecodeError::new(16, Reason::NoPayload))
        } else {
            Ok(v1::Body::Nomsg(lists))
        };
        prop_assert_eq!(nomsg_body, expected);
    }

    #[test]
    fn a_returned_write_list_keeps_its_shape(owned in lists(), unused: bool) {
        // What a responder does: the same chunks and segments, with the lengths written.
        struct Returned<'a>(ChunkLists<'a>, bool);
        impl EncodeChunkLists for Returned<'_> {
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
                let length = |bytes: u32| if self.1 { 0 } else { bytes / 2 };
                let shortened =
                    |segment: Segment| Segment { length_bytes: length(segment.length_bytes), ..segment };
                write_read_list(writer, [])?;
                write_write_list(writer, self.0.writes.map(|chunk| chunk.map(shortened)))?;
                write_reply_chunk(writer, self.0.reply.map(|chunk| chunk.map(shortened)))
            }
        }
        let call = owned.with_repr(|lists| {
            encoded(|space| v1::encode_msg_header(space, 1, 1, &lists))
        });
        let lists = *v1::decode(&call).unwrap().chunk_lists().unwrap();
        let reply = encoded(|space| v1::encode_msg_header(space, 1, 1, &Returned(lists, unused)));
        let returned = *v1::decode(&reply).unwrap().chunk_lists().unwrap();
        prop_assert!(returned.reads.is_empty());
        for (sent, back) in lists.writes.zip(returned.writes) {
            prop_assert_eq!(sent.len(), back.len());
            for (sent, back) in sent.zip(back) {
                prop_assert_eq!((sent.handle, sent.offset), (back.handle, back.offset));
                prop_assert!(!unused || back.length_bytes == 0);
            }
        }
        prop_assert_eq!(returned.writes.len(), owned.writes.len());
        prop_assert_eq!(returned.reply.map(|chunk| chunk.len()), owned.reply.map(|chunk| chunk.len()));
    }

    #[test]
    fn read_chunks_are_runs_of_one_position(positions in vec(0..3_u32, 0..20)) {
        let reads: Vec<ReadSegment> = positions
            .iter()
            .map(|position| ReadSegment { position: position * 2, ..ReadSegment::default() })
            .collect();
        let lists = ChunkListsRepr { reads: &reads, ..ChunkListsRepr::default() };
        let message = encoded(|space| v1::encode_msg_header(space, 1, 1, &lists));
        let list = v1::decode(&message).unwrap().chunk_lists().unwrap().reads;
        let mut runs = positions.clone();
        runs.dedup();
        prop_assert_eq!(list.chunk_count(), runs.len());
        prop_assert_eq!(list.has_position_zero(), positions.contains(&0));
        prop_assert_eq!(list.positions_are_aligned(), !positions.contains(&1));
    }

    #[test]
    fn rpc_calls(
        words: [u32; 6],
        credential in auth_body(),
        verifier in auth_body(),
        arguments in vec(any::<u8>(), 0..16),
    ) {
        let [xid, program, version, procedure, flavor, verifier_flavor] = words;
        let header = CallHeader {
            xid,
            program,
            version,
            procedure,
            credential: OpaqueAuth { flavor, body: &credential },
            verifier: OpaqueAuth { flavor: verifier_flavor, body: &verifier },
        };
        let octets = encoded(|space| header.encode(space));
        prop_assert_eq!(octets.len(), header.encoded_bytes());
        assert_cuts_fail(&octets, octets.len(), |octets| CallHeader::decode(octets).map(drop));
        let message = [octets.as_slice(), &arguments].concat();
        prop_assert_eq!(CallHeader::decode(&message), Ok((header, octets.len())));
        prop_assert_eq!(
            ReplyHeader::decode(&message),
            Err(DecodeError::new(4, Reason::NotAReply))
        );
    }

    #[test]
    fn rpc_replies(xid: u32, flavor: u32, verifier in auth_body(), kind in 0..8_u32, a: u32, b: u32) {
        let accepted = |status| ReplyBody::Accepted {
            verifier: OpaqueAuth { flavor, body: &verifier },
            status,
        };
        let body = match kind {
            0 => accepted(AcceptStatus::Success),
            1 => accepted(AcceptStatus::ProgUnavail),
            2 => accepted(AcceptStatus::ProgMismatch { low: a, high: b }),
            3 => accepted(AcceptStatus::ProcUnavail),
            4 => accepted(AcceptStatus::GarbageArgs),
            5 => accepted(AcceptStatus::SystemErr),
            6 => ReplyBody::Denied(RejectStatus::RpcMismatch { low: a, high: b }),
            _ => ReplyBody::Denied(RejectStatus::AuthError(AuthStatus(a))),
        };
        let header = ReplyHeader { xid, body };
        let octets = encoded(|space| header.encode(space));
        prop_assert_eq!(ReplyHeader::decode(&octets), Ok((header, octets.len())));
        assert_cuts_fail(&octets, octets.len(), |octets| ReplyHeader::decode(octets).map(drop));
        prop_assert_eq!(CallHeader::decode(&octets), Err(DecodeError::new(4, Reason::NotACall)));
    }

    #[test]
    fn property_sets(
        words: [u32; 4],
        reverse_requests in reverse_requests(),
        rtr in (0..8_u32, option::of(1..1000_u32), 1..100_u32, 1..100_u32),
        host_authentication in option::of(vec(any::<u8>(), 0..600)),
        unknown in vec((7..u32::MAX, vec(any::<u8>(), 0..40)), 0..5),
        order in any::<u64>(),
    ) {
        let (support, structure_bytes, request_transmissions_max, response_transmissions_max) = rtr;
        let properties = Properties {
            send_bytes_max: words[0],
            // The two agree.
            receive_buffer_bytes: structure_bytes.unwrap_or(words[1]),
            receive_buffer_structure: structure_bytes.map(ReceiveBufferStructure::single),
            rtr_support: RtrSupport::from_word(support),
            request_transmissions_max,
            response_transmissions_max,
            segment_bytes_max: words[2],
            segment_count_max: words[3],
            reverse_requests,
        };
        let mut all = properties.to_properties().to_vec();
        all.push(Property::HostAuthentication(host_authentication.as_deref()));
        all.extend(unknown.iter().map(|(id, data)| Property::Unknown { id: *id, data }));
        // A set has no order.
        let count = all.len();
        all.rotate_left(usize::try_from(order % 16).unwrap() % count);
        if order % 2 == 0 {
            all.reverse();
        }
        let message = encoded(|space| v2::encode_connprop(space, Prefix::default(), &all));
        let Body::Connprop(body) = v2::decode(&message).unwrap().body else { panic!() };
        let set = PropertySet::decode(body).unwrap();
        prop_assert_eq!(set.collect::<Vec<_>>(), all);
        prop_assert_eq!(set.properties(), properties);
        prop_assert_eq!(set.host_authentication(), host_authentication.as_deref());
        assert_cuts_fail(body, body.len(), |octets| PropertySet::decode(octets).map(drop));
    }

    #[test]
    fn private_data(before in vec(any::<u8>(), 0..48), invalidation: bool, send in 1..=256_u32, receive in 1..=256_u32) {
        let data = PrivateData {
            remote_invalidation: invalidation,
            send_bytes: send * 1024,
            receive_bytes: receive * 1024,
        };
        let mut area = before.clone();
        area.extend(data.to_bytes());
        area.resize(56, 0);
        // Chance does not put the identifier, 32 bits, into 48 octets.
        prop_assert_eq!(PrivateData::find(&area), Some(data));
        prop_assert_eq!(PrivateData::find(&area[..before.len() + 7]), None);
    }

    #[test]
    fn no_octets_panic(octets in vec(prop_oneof![3 => 0..4_u8, 1 => any::<u8>()], 0..256)) {
        let within = |error: DecodeError| assert!(error.at <= octets.len() && !error.to_string().is_empty());
        prop_assert_eq!(ChunksAt::find(&octets).map(|it| it.chunks(&octets)), chunks_of(&octets));
        let _ = v1::decode(&octets).map_err(within);
        let _ = v2::decode(&octets).map_err(within);
        let _ = PropertySet::decode(&octets).map_err(within);
        let _ = CallHeader::decode(&octets).map_err(within);
        let _ = ReplyHeader::decode(&octets).map_err(within);
        let _ = rpc::peek(&octets).map_err(within);
        let _ = ChunkLists::decode(&mut Reader::new(&octets)).map_err(within);
        let _ = PrivateData::find(&octets);
        let _ = CommonPrefix::peek(&octets);
        let _ = v2::err_vers_in_version_1_layout(&octets, true);
    }

    #[test]
    fn no_octets_behind_a_valid_start_panic(
        header_type in prop_oneof![Just(0_u8), Just(1), Just(4), Just(5)],
        version in 1..=2_u8,
        tail in vec(prop_oneof![6 => Just(0_u8), 3 => Just(1), 1 => any::<u8>()], 0..300),
    ) {
        let mut message = vec![0, 0, 0, 9, 0, 0, 0, version, 0, 1, 0, 1, 0, 0, 0, header_type];
        message.extend(tail);
        if let Ok(header) = v2::decode(&message) {
            prop_assert!(version == 2 && header.header_bytes <= message.len());
        }
        if let Ok(header) = v1::decode(&message) {
            prop_assert!(version == 1 && header.header_bytes <= message.len());
        }
    }
}
