//! Two ends on a wire that keeps order and loses nothing, with calls in both directions, replies that wait, Receives
//! that are posted late, and wrong messages in between: nobody ever sends into a missing Receive, no end closes, and
//! every call is answered.

use std::collections::VecDeque;

use proptest::prelude::*;
use rpcrdma_protocol::v1::connection::{Config, Connection};
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_protocol::v2::connection::{Event, Role};

use super::wire::{CALL, REPLY, config, send};

/// What one end does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Sends a call, if it may.
    Call,
    /// Answers the call that has waited longest, if it may.
    Reply,
    /// Handles the message that came first.
    Handle,
    /// Posts one of its Receives again.
    Post,
    /// Gets a Receive more.
    Grow,
}

struct End {
    connection: Connection,
    /// Receives posted, as the fabric sees it.
    posted: u32,
    /// Receives that messages took, and that are not posted again.
    taken: u16,
    inbox: VecDeque<Vec<u8>>,
    to_answer: VecDeque<u32>,
    next_xid: u32,
    called: u32,
    answered: u32,
}

impl End {
    fn new(config: &Config) -> Self {
        Self {
            connection: Connection::new(config),
            posted: config.receive_reserve.into(),
            taken: 0,
            inbox: VecDeque::new(),
            to_answer: VecDeque::new(),
            next_xid: 1,
            called: 0,
            answered: 0,
        }
    }

    /// Makes a step; what it sends, if anything.
    fn step(&mut self, step: Step) -> Option<Vec<u8>> {
        match step {
            Step::Call => {
                let call = send(&mut self.connection, self.next_xid, CALL).ok()?;
                self.next_xid += 1;
                self.called += 1;
                Some(call)
            }
            Step::Reply => {
                let xid = *self.to_answer.front()?;
                let reply = send(&mut self.connection, xid, REPLY).ok()?;
                self.to_answer.pop_front();
                Some(reply)
            }
            Step::Handle => {
                let message = self.inbox.pop_front()?;
                self.taken += 1;
                match self.connection.handle_message(&message) {
                    Event::Call { xid, .. } => self.to_answer.push_back(xid),
                    Event::Reply { .. } => self.answered += 1,
                    other => panic!("{other:?}"),
                }
                None
            }
            Step::Post => {
                if self.taken != 0 {
                    self.taken -= 1;
                    self.posted += 1;
                    self.connection.handle_receives_posted(1);
                }
                None
            }
            Step::Grow => {
                self.posted += 1;
                self.connection.handle_receives_added(1);
                None
            }
        }
    }

    /// A message arrives: there must be a Receive for it.
    fn arrive(&mut self, message: Vec<u8>) {
        assert_ne!(self.posted, 0, "receiver not ready");
        self.posted -= 1;
        self.inbox.push_back(message);
    }
}

fn step() -> impl Strategy<Value = (bool, Step)> {
    let kind = prop_oneof![
        Just(Step::Call),
        Just(Step::Reply),
        Just(Step::Handle),
        Just(Step::Post),
        Just(Step::Grow),
    ];
    (any::<bool>(), kind)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn nobody_is_ever_without_a_receive(
        reserves in (3_u16..20, 3_u16..20),
        is_reverse in any::<bool>(),
        steps in proptest::collection::vec(step(), 0..400),
    ) {
        let reverse_requests = if is_reverse {
            ReverseRequestSupport::Inline
        } else {
            ReverseRequestSupport::None
        };
        let of = |role, reserve| Config { reverse_requests, ..config(role, reserve) };
        let mut client = End::new(&of(Role::Client, reserves.0));
        let mut server = End::new(&of(Role::Server, reserves.1));
        let mut act = |is_client: bool, step: Step| {
            let (actor, other) = if is_client {
                (&mut client, &mut server)
            } else {
                (&mut server, &mut client)
            };
            if let Some(message) = actor.step(step) {
                other.arrive(message);
                return true;
            }
            false
        };
        for (is_client, step) in steps {
            act(is_client, step);
        }
        // All that is under way comes to its end.
        for _ in 0..200 {
            for is_client in [true, false] {
                for step in [Step::Handle, Step::Post, Step::Reply] {
                    act(is_client, step);
                }
            }
        }
        // And the connection is as good as new.
        prop_assert!(act(true, Step::Call), "the client may call again");
        prop_assert_eq!(client.called, client.answered + 1);
        prop_assert_eq!(server.called, server.answered);
    }
}
