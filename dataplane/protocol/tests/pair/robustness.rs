//! Any bytes, in any state: no panic, and the accounting stays sound.

use proptest::prelude::*;
use rpcrdma_protocol::v2::TransportError;
use rpcrdma_protocol::v2::connection::{
    Connection, Direction, Event, Phase, Refusal, Role, rpc_start_matches,
};

use super::connections::config;
use super::groups;
use super::wire::bytes_of;

#[derive(Clone, Debug)]
enum Step {
    Handle(Vec<u8>),
    Post,
    Send {
        direction: Direction,
        more: bool,
        payload_bytes: usize,
    },
    Grant,
    Properties,
    Refuse,
    Tick,
    Drain,
}

/// Words that mean something, and any others.
fn message_word() -> impl Strategy<Value = u32> {
    prop_oneof![
        8 => 0_u32..=12,
        2 => Just(0x0064_0000),
        1 => (0_u32..4, 0_u32..200).prop_map(|(granted, maximum)| maximum << 16 | granted),
        1 => any::<u32>(),
    ]
}

pub(crate) fn message() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        // Nearly right: version 2, a known type, few flags.
        6 => (0_u32..3, 0_u32..6, 0_u32..5, prop::collection::vec(message_word(), 0..14)).prop_map(
            |(xid, header_type, flags, rest)| {
                let mut words = vec![xid, 2, 0x0064_0001, header_type, flags];
                words.extend(rest);
                bytes_of(&words)
            }
        ),
        4 => (1_u32..3, 1_u32..=4, 0_u32..3, prop::collection::vec(message_word(), 3..24)).prop_map(
            |(xid, number, flags, rest)| {
                let mut words = vec![xid, 2, 0x0064_0001, 0x5254_5200 + number, flags];
                words.extend(rest);
                bytes_of(&words)
            }
        ),
        2 => prop::collection::vec(message_word(), 0..20).prop_map(|words| bytes_of(&words)),
        1 => prop::collection::vec(any::<u8>(), 0..120),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => message().prop_map(Step::Handle),
        8 => Just(Step::Post),
        3 => (any::<bool>(), any::<bool>(), 0_usize..5000).prop_map(|(call, more, payload_bytes)| {
            let direction = if call { Direction::Call } else { Direction::Reply };
            Step::Send { direction, more, payload_bytes }
        }),
        2 => Just(Step::Grant),
        1 => Just(Step::Properties),
        1 => Just(Step::Refuse),
        1 => Just(Step::Tick),
        1 => Just(Step::Drain),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_in_any_state(
        is_client in any::<bool>(),
        has_rtr in any::<bool>(),
        reserve in 2_u16..20,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let role = if is_client { Role::Client } else { Role::Server };
        let mut config = config(role, reserve);
        if has_rtr {
            config.properties = groups::properties();
        }
        let mut connection = Connection::new(&config);
        let mut report = None;
        let mut taken = 0_u32;
        let mut refusal = Refusal::new(1, TransportError::System);
        let mut space = [0; 256];
        for step in steps {
            let before = connection.clone();
            match step {
                Step::Handle(message) => {
                    // The model of a receive queue: without a Receive nothing comes.
                    if taken == u32::from(reserve) {
                        continue;
                    }
                    let event = connection.handle_message(&message);
                    match event {
                        Event::Refused(wrong) => refusal = wrong,
                        Event::TransmissionRefused(wrong) => {
                            prop_assert!(has_rtr);
                            prop_assert!(!wrong.group_given_up || before.is_group_open());
                            report = Some(wrong.report);
                        }
                        Event::Transmission(part) => {
                            prop_assert!(has_rtr);
                            prop_assert_eq!(connection.is_group_open(), !part.is_last());
                            let end = part.stream_offset as usize + part.payload.len();
                            prop_assert!(end <= 20_000);
                        }
                        _ => {}
                    }
                    let over = matches!(before.phase(), Phase::Closed | Phase::Mismatched);
                    prop_assert_eq!(
                        matches!(event, Event::Close(_)),
                        connection.phase() == Phase::Closed && !over
                    );
                    if !over {
                        taken += 1;
                    }
                    if let Event::Fragment { offset, payload, .. } = event {
                        prop_assert!(offset as usize + payload.len() <= 20_000);
                    }
                }
                Step::Post if taken > 0 => {
                    taken -= 1;
                    connection.handle_receives_posted(1);
                }
                Step::Post => {}
                Step::Send { direction, more, payload_bytes } => {
                    let result = connection.encode_message(&mut space, 1, direction, more, payload_bytes);
                    prop_assert!(result.is_err() || before.credits_available() > 0);
                }
                Step::Grant => {
                    let result = connection.encode_grant(&mut space);
                    prop_assert!(result.is_ok() || !before.grant_due());
                }
                Step::Properties => {
                    let _ = connection.encode_properties(&mut space, 1);
                }
                Step::Refuse => {
                    let _ = connection.encode_error(&mut space, &refusal);
                    if let Some(report) = report.take() {
                        let _ = connection.encode_report_error(&mut space, &report);
                    }
                }
                Step::Tick => {
                    let _ = connection.handle_tick(3);
                }
                Step::Drain => connection.handle_drain(),
            }
            let credits = connection.credits();
            prop_assert_eq!(credits.receives_posted, u32::from(reserve) - taken);
            prop_assert!(credits.unconsumed() < u32::from(reserve));
            prop_assert!(credits.unused() <= 0xffff);
            prop_assert!(credits.owed + credits.unconsumed() < u32::from(reserve));
            prop_assert!(connection.send_threshold_bytes() >= 1024);
        }
    }

    #[test]
    fn start_of_an_rpc_message_is_compared_as_far_as_it_goes(
        xid in any::<u32>(),
        payload in prop::collection::vec(any::<u8>(), 0..20),
        cut in 0_usize..20,
        flip in prop::option::of(0_usize..8),
    ) {
        let mut whole = bytes_of(&[xid, 1]);
        whole.extend(&payload);
        if let Some(at) = flip {
            whole[at] ^= 1;
        }
        let cut = cut.min(whole.len());
        let (first, second) = whole.split_at(cut);
        let matches = rpc_start_matches(xid, Direction::Reply, 0, first)
            && rpc_start_matches(xid, Direction::Reply, cut, second);
        prop_assert_eq!(matches, flip.is_none());
    }
}
