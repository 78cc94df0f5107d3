//! Header types and properties of the application (-00 appendix B).

use std::collections::VecDeque;

use rpcrdma_engine::{
    Activity, Application, ApplicationMessage, AuthenticationFailure, CallError, CallRefused,
    CallTag, CloseReason, Command, ConnectionKey, Context, CoreConfig, MessageOutcome, Outcome,
    PeerProperties, Reply, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::connection::{CloseReason as ProtocolReason, Role};
use rpcrdma_protocol::v2::{ApplicationHeaderTypes, ApplicationProperties, TransportError};

use crate::support::fabric::unless_skipped;
use crate::support::raw::{Attack, CREDIT, CREDITS, error, null_call, null_reply, words};
use crate::support::{App, NULL, Pair, call, pattern};

const TYPE: u32 = 0xffff_ff01;
const OTHER_TYPE: u32 = 0xffff_ff02;

/// What came, without the connection.
type Came = (u32, u32, bool, Vec<u8>);

/// A message that is to be sent.
#[derive(Clone, Debug)]
struct Wanted {
    connection: ConnectionKey,
    header_type: u32,
    answers: Option<u32>,
    body: Vec<u8>,
}

/// Sends what it is told to, and keeps what comes.
#[derive(Debug, Default)]
struct Own {
    wanted: VecDeque<Wanted>,
    sent: Vec<u32>,
    /// Messages that were refused for good.
    refused: Vec<CallRefused>,
    /// How often a message had to wait for a credit or a send buffer.
    waited: u64,
    came: Vec<Came>,
    told: Vec<(u32, TransportError)>,
    properties: Vec<PeerProperties>,
    connected: usize,
    /// What it says of messages.
    outcome: MessageOutcome,
    /// Messages that are no answers are answered with their own bodies.
    answers: bool,
    /// Null calls that are made on this connection, one after the other message.
    calls: Option<ConnectionKey>,
    ended: Vec<Result<(), CallError>>,
}

impl Own {
    fn taking() -> Self {
        Self {
            outcome: MessageOutcome::Taken,
            ..Self::default()
        }
    }

    fn want(&mut self, connection: ConnectionKey, header_type: u32, body: &[u8]) {
        self.wanted.push_back(Wanted {
            connection,
            header_type,
            answers: None,
            body: body.to_vec(),
        });
    }
}

impl Application for Own {
    fn call(&mut self, _request: &Request<'_>, _reply: &mut ReplyWriter<'_>) -> Outcome {
        Outcome::Success
    }

    fn completed(
        &mut self,
        _tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        self.ended.push(result.map(|_| ()));
    }

    fn peer_properties(&mut self, _connection: ConnectionKey, properties: &PeerProperties) {
        assert_eq!(self.connected, self.properties.len(), "told before");
        self.properties.push(properties.clone());
    }

    fn connected(
        &mut self,
        _connection: ConnectionKey,
        _peer: Option<&rpcrdma_engine::HostIdentity>,
    ) {
        self.connected += 1;
    }

    fn message(&mut self, message: &ApplicationMessage<'_>) -> MessageOutcome {
        let body = message.body.to_vec();
        let (header_type, xid) = (message.header_type, message.xid);
        if self.answers && !message.is_answer {
            self.wanted.push_back(Wanted {
                connection: message.connection,
                header_type,
                answers: Some(xid),
                body: body.clone(),
            });
        }
        self.came.push((header_type, xid, message.is_answer, body));
        self.outcome
    }

    fn message_refused(&mut self, _: ConnectionKey, xid: u32, error: TransportError) {
        self.told.push((xid, error));
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut busy = false;
        for _ in 0..self.wanted.len() {
            let Some(it) = self.wanted.pop_front() else {
                break;
            };
            match core.send_message(it.connection, it.header_type, it.answers, &it.body) {
                Ok(xid) => {
                    self.sent.push(xid);
                    busy = true;
                    if let Some(connection) = self.calls {
                        let _ = core.call(connection, call(NULL), &[], 0);
                    }
                }
                Err(refused) if refused.is_transient() => {
                    self.waited += 1;
                    self.wanted.push_back(it);
                }
                Err(refused) => self.refused.push(refused),
            }
        }
        Activity::from_busy(busy)
    }
}

fn types() -> ApplicationHeaderTypes {
    ApplicationHeaderTypes::NONE
        .with(TYPE)
        .expect("a number of applications")
}

fn config() -> CoreConfig {
    CoreConfig {
        header_types: types(),
        ..crate::support::raw::config()
    }
}

/// A message by hand, which grants one credit.
fn own(xid: u32, header_type: u32, flags: u32, body: &[u32]) -> Vec<u8> {
    [words(&[xid, 2, CREDIT, header_type, flags]), words(body)].concat()
}

#[test]
fn messages_go_both_ways_and_are_answered() {
    let with = |text: &[u8]| CoreConfig {
        application_properties: ApplicationProperties::NONE
            .with(TYPE, text)
            .expect("it fits"),
        ..config()
    };
    let answering = Own {
        answers: true,
        ..Own::taking()
    };
    let mut pair = Pair::with(&with(b"client"), &with(b"server"), Own::taking(), answering);
    let (at_client, at_server) = pair.connect();
    // As long as one message may be: in the form with segments it lies in several.
    let longest = pattern(4096 - 20, 5);
    let client = pair.client.app_mut();
    client.want(at_client, TYPE, b"question");
    client.want(at_client, TYPE, &longest);
    client.want(at_client, TYPE, &pattern(4096 - 19, 5));
    pair.server.app_mut().want(at_server, TYPE, &[]);
    pair.until("all have come", |pair| {
        let (client, server) = (&pair.client.core, &pair.server.core);
        client.application().came.len() == 3 && server.application().came.len() == 2
    });
    let (client, server) = (pair.client.app(), pair.server.app());
    let xids = client.sent.clone();
    assert_eq!(
        server.came,
        [
            (TYPE, xids[0], false, b"question".to_vec()),
            (TYPE, xids[1], false, longest.clone()),
        ]
    );
    assert_eq!(client.refused, [CallRefused::TooLong]);
    let mut came = client.came.clone();
    came.sort_by_key(|(_, _, is_answer, body)| (*is_answer, body.len()));
    assert_eq!(
        came,
        [
            (TYPE, server.sent[0], false, Vec::new()),
            (TYPE, xids[0], true, b"question".to_vec()),
            (TYPE, xids[1], true, longest),
        ]
    );
    let told = |own: &Own| own.properties[0].get(TYPE).map(<[u8]>::to_vec);
    assert_eq!(told(client), Some(b"server".to_vec()));
    assert_eq!(told(server), Some(b"client".to_vec()));
    let (client, server) = (pair.client.counters(), pair.server.counters());
    assert_eq!(client.application_messages_sent, 2);
    assert_eq!(client.application_messages_received, 3);
    assert_eq!(server.application_messages_sent, 3);
    assert_eq!(client.errors_received + server.errors_received, 0);
}

#[test]
fn sender_is_notified_of_a_refused_application_message() {
    let unregistered = CoreConfig {
        header_types: ApplicationHeaderTypes::NONE,
        ..config()
    };
    for (server, outcome, error, served) in [
        // Not registered: the application is not asked.
        (
            &unregistered,
            MessageOutcome::Taken,
            TransportError::InvalHtype,
            0,
        ),
        (
            &config(),
            MessageOutcome::default(),
            TransportError::InvalHtype,
            1,
        ),
        (
            &config(),
            MessageOutcome::Malformed,
            TransportError::BadXdr,
            1,
        ),
        (&config(), MessageOutcome::Failed, TransportError::System, 1),
    ] {
        let application = Own {
            outcome,
            ..Own::default()
        };
        let mut pair = Pair::with(&config(), server, Own::taking(), application);
        let (connection, _) = pair.connect();
        let client = pair.client.app_mut();
        client.calls = Some(connection);
        // Calls and messages by turns: what is refused is never taken for a call.
        for _ in 0..20 {
            client.want(connection, TYPE, b"body");
        }
        client.want(connection, OTHER_TYPE, &[]);
        pair.until("all are told", |pair| pair.client.app().told.len() == 20);
        pair.turns(50);
        let client = pair.client.app();
        let expected: Vec<_> = client.sent.iter().map(|xid| (*xid, error)).collect();
        assert_eq!(client.told, expected);
        assert_eq!(client.refused, [CallRefused::NotRegistered]);
        assert!(!client.ended.is_empty());
        assert!(client.ended.iter().all(Result::is_ok), "calls are answered");
        let taken = pair.server.app().came.len();
        assert_eq!(taken, 20 * served);
        assert!(pair.client.closed.is_empty() && pair.server.closed.is_empty());
    }
}

/// The default of the trait, of an application that knows of nothing.
#[test]
fn an_application_that_knows_of_no_messages_refuses_them() {
    let mut attack = Attack::against(Role::Server, false, &config(), App::default());
    attack.agree();
    attack.send(&own(3, TYPE, 0, &[1]));
    assert_eq!(attack.take(), [error(3, &[3])]);
    attack.assert_serves(9);
}

/// As a call would be: the peer has told no properties.
#[test]
fn a_message_before_properties_is_answered() {
    let answering = Own {
        answers: true,
        ..Own::taking()
    };
    let mut attack = Attack::against(Role::Server, false, &config(), answering);
    attack.agree();
    attack.send(&own(3, TYPE, 0, &[5]));
    assert_eq!(attack.take(), [words(&[3, 2, 0, TYPE, 1, 5])]);
    let own = attack.victim.app();
    assert_eq!((own.connected, own.came.len()), (0, 1));
}

#[test]
fn an_answer_that_is_not_taken_ends_its_connection() {
    for (header_type, outcome) in [
        (OTHER_TYPE, MessageOutcome::Taken),
        (TYPE, MessageOutcome::Unsupported),
    ] {
        let application = Own {
            outcome,
            ..Own::default()
        };
        let mut attack = Attack::against(Role::Server, false, &config(), application);
        attack.agree();
        attack.send(&own(3, header_type, 1, &[]));
        let error = ProtocolReason::BadReply(TransportError::InvalHtype);
        attack.assert_closed(CloseReason::Protocol(error));
    }
}

#[test]
fn a_message_before_authentication_ends_its_connection() {
    let mut attack = Attack::against(Role::Server, true, &config(), Own::taking());
    attack.send(&own(1, TYPE, 0, &[1, 2]));
    let early = AuthenticationFailure::CalledEarly;
    attack.assert_closed(CloseReason::Unauthenticated(early));
    assert!(attack.victim.app().came.is_empty());
}

#[test]
fn version_1_has_none_and_a_drain_sends_none() {
    let mut pair = Pair::with(&config(), &config(), Own::taking(), Own::taking());
    let connection = pair.connect_with(Versions::One, Versions::Both);
    pair.client.app_mut().want(connection, TYPE, &[]);
    pair.turns(5);
    let client = pair.client.app();
    assert_eq!(client.refused, [CallRefused::NotRegistered]);

    let answering = Own {
        answers: true,
        ..Own::taking()
    };
    let mut pair = Pair::with(&config(), &config(), Own::taking(), answering);
    let (connection, at_server) = pair.connect();
    pair.server.command(Command::Drain);
    pair.turns(5);
    pair.server.app_mut().want(at_server, TYPE, &[]);
    pair.client.app_mut().want(connection, TYPE, b"late");
    pair.until("it is answered", |pair| pair.client.app().came.len() == 1);
    let server = pair.server.app();
    assert_eq!(server.refused, [CallRefused::Draining]);
}

/// A peer sends as fast as its credits come, for long, and another that calls beside it is served all the while. One
/// more than its credits, and it is left.
#[test]
fn a_flood_stays_within_credits_and_keeps_nobody_waiting() {
    unless_skipped!("a_flood_stays_within_credits_and_keeps_nobody_waiting");
    const ROUNDS: u32 = 200;
    let mut attack = Attack::against(Role::Server, false, &config(), Own::taking());
    attack.agree();
    let flooding = attack.raw.queue_pair.expect("planted");
    attack.connect(false);
    let calling = attack.raw.queue_pair.expect("planted");
    attack.agree();
    let batch = u32::from(CREDITS);
    for round in 0..ROUNDS {
        attack.raw.queue_pair = Some(flooding);
        for _ in 0..batch {
            // It grants nothing: nothing answers.
            attack
                .raw
                .send(&words(&[round, 2, 60 << 16, TYPE, 0, round]));
        }
        attack.raw.queue_pair = Some(calling);
        // Handled in the order in which they came, so behind one batch at the most.
        attack.send(&null_call(1000 + round));
        assert_eq!(attack.take(), [null_reply(1000 + round)]);
    }
    let came = u64::from(ROUNDS * batch);
    let counters = attack.victim.counters();
    assert_eq!(counters.application_messages_received, came);
    assert_eq!(counters.receiver_not_ready, 0);
    assert!(attack.victim.closed.is_empty());
    // The credits are not waited for.
    attack.raw.queue_pair = Some(flooding);
    for _ in 0..=batch {
        attack.raw.send(&words(&[1, 2, 60 << 16, TYPE, 0]));
    }
    attack.turns(20);
    let reason = CloseReason::Protocol(ProtocolReason::OverSend);
    assert_eq!(attack.victim.closed, [(attack.connection(), reason)]);
    attack.raw.queue_pair = Some(calling);
    attack.send(&null_call(9));
    assert_eq!(attack.take(), [null_reply(9)], "the other goes on");
}

/// A peer that floods with what is refused, and grants nothing to be told so, is left.
#[test]
fn a_flood_of_refused_messages_is_bounded() {
    let mut attack = Attack::against(Role::Server, false, &config(), App::default());
    attack.agree();
    let none = 60 << 16;
    for number in 0..40 {
        let message = words(&[number, 2, none, TYPE, 0]);
        attack.raw.send(&message);
        attack.turns(2);
        if !attack.victim.closed.is_empty() {
            break;
        }
    }
    attack.assert_closed(CloseReason::ErrorsUnread);
}

/// An application that sends without end to a peer that takes nothing keeps neither buffers nor credits of others.
#[test]
fn messages_to_a_peer_that_stands_still_keep_nobody_waiting() {
    let config = CoreConfig {
        connections_max: 3,
        send_buffers: 2,
        ..config()
    };
    let mut pair = Pair::with(&config, &config, Own::taking(), Own::taking());
    let (still, _) = pair.connect();
    let (other, _) = pair.connect();
    let long = pattern(4000, 1);
    let client = pair.client.app_mut();
    for _ in 0..100 {
        client.want(still, TYPE, &long);
    }
    // Only the client's core runs: nothing is granted, and no buffer comes back by a turn of the server's.
    for _ in 0..20 {
        pair.now += pair.clock.ticks(std::time::Duration::from_micros(1));
        pair.client.iterate(pair.now);
    }
    let client = pair.client.app();
    let sent = client.sent.len();
    assert!(client.waited > 0 && sent <= usize::from(CREDITS), "{sent}");
    // On the other connection one more goes at once: a buffer is its own.
    let client = pair.client.app_mut();
    client.wanted.clear();
    client.want(other, TYPE, &long);
    pair.client.iterate(pair.now);
    assert_eq!(pair.client.app().sent.len(), sent + 1);
}

/// As calls do of an end that answers calls.
#[test]
fn messages_leave_a_credit_for_replies() {
    let mut pair = Pair::with(&config(), &config(), Own::taking(), Own::taking());
    let (_, at_server) = pair.connect();
    pair.turns(20);
    let server = pair.server.app_mut();
    for _ in 0..100 {
        server.want(at_server, TYPE, &[]);
    }
    // The client stands still, and grants nothing.
    for _ in 0..10 {
        pair.now += pair.clock.ticks(std::time::Duration::from_micros(1));
        pair.server.iterate(pair.now);
    }
    let credits = pair.server.core.credits(at_server).expect("it is open");
    assert_eq!(credits.unused(), 1);
    assert!(!pair.server.app().sent.is_empty());
}

/// Only the first set counts (-00 section 6.4.4), and what is too much of it is left out.
#[test]
fn a_peer_cannot_add_properties_later_or_have_many_kept() {
    let mut attack = Attack::against(Role::Server, false, &config(), Own::taking());
    let set = |numbers: std::ops::Range<u32>| {
        let count = u32::try_from(numbers.len()).expect("few");
        let mut body = vec![0, 2, CREDIT, 5, 0, count];
        body.extend(numbers.flat_map(|number| [number, 4, number]));
        words(&body)
    };
    attack.send(&set(TYPE..TYPE + 40));
    attack.turns(10);
    attack.send(&set(TYPE + 40..TYPE + 41));
    attack.turns(10);
    let own = attack.victim.app();
    assert_eq!((own.connected, own.properties.len()), (1, 1));
    assert_eq!(own.properties[0].iter().count(), 16);
    assert_eq!(own.properties[0].left_out(), 24);
    assert!(own.properties[0].get(TYPE + 40).is_none());
    assert!(attack.victim.closed.is_empty());
}
