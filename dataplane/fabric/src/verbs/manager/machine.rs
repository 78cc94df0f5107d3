//! The state machine of a connection: what each event of RDMA-CM means in each stage.
//!
//! It touches no device, so that a test can try every order of events.
//!
//! ```text
//! client: ResolvingAddress → ResolvingRoute → Requesting → Replied → ClientPrepared ─┐
//! server: Requested → ServerPrepared → Accepted ─────────────────────────────────────┴→ Established
//! ```
//!
//! Whatever the peer or the CM does, the application gets one event for the end of a connection:
//! failed or rejected before it knows the peer, disconnected afterwards. It gets no event after it
//! has ended the connection itself.

use crate::verbs::cm::event::EventKind;

/// The stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Client: the host name is being resolved.
    ResolvingName,
    /// Client: RDMA-CM looks for the device that leads to the address.
    ResolvingAddress,
    /// Client: RDMA-CM looks for the path to the address.
    ResolvingRoute,
    /// Client: the request was sent, or another thread is sending it (iWARP).
    Requesting,
    /// Client: the peer accepted, and the application received the reply.
    Replied,
    /// Client: the application has the queue pair.
    ClientPrepared,
    /// Server: the application received the request.
    Requested,
    /// Server: the application has the queue pair.
    ServerPrepared,
    /// Server: the reply was sent.
    Accepted,
    /// The connection is established.
    Established,
    /// The application ended the connection; the peer has not answered yet.
    Closing,
}

/// The action that an event calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// No action.
    Stay,
    /// Client: resolve the path.
    ResolveRoute,
    /// Client: make the queue pair and send the request.
    SendRequest,
    /// Client: report the reply to the application.
    TellReply,
    /// Server: report to the application that the connection is established.
    TellEstablished,
    /// Client: this address failed; try the next.
    Fail,
    /// Client: the peer rejected.
    Reject,
    /// The peer or the fabric ended a connection that the application knows.
    Lose,
    /// The end that the application began is complete.
    Finish,
}

/// The action for `event` in `stage`, and the stage after it. [`Step::Reject`], [`Step::Lose`] and
/// [`Step::Finish`] remove the connection; the stage has no meaning then.
pub(super) fn step(stage: Stage, event: EventKind) -> (Step, Stage) {
    use EventKind as E;
    match (stage, event) {
        (Stage::ResolvingAddress, E::AddressResolved) => {
            (Step::ResolveRoute, Stage::ResolvingRoute)
        }
        (Stage::ResolvingRoute, E::RouteResolved) => (Step::SendRequest, Stage::Requesting),
        (Stage::Requesting, E::ConnectResponse)
        // On iWARP the reply itself makes the connection.
        | (Stage::Requesting, E::Established) => (Step::TellReply, Stage::Replied),
        (Stage::Requesting, E::Rejected) => (Step::Reject, stage),
        (Stage::Accepted, E::Established) => (Step::TellEstablished, Stage::Established),
        (_, event) if !is_end(event) => (Step::Stay, stage),
        // No identifier exists yet, so the event belongs to an earlier one.
        (Stage::ResolvingName, _) => (Step::Stay, stage),
        (Stage::ResolvingAddress | Stage::ResolvingRoute | Stage::Requesting, _) => {
            (Step::Fail, stage)
        }
        (
            Stage::Replied
            | Stage::ClientPrepared
            | Stage::Requested
            | Stage::ServerPrepared
            | Stage::Accepted
            | Stage::Established,
            _,
        ) => (Step::Lose, stage),
        // The connection ends anyway: wait for the peer's answer.
        (Stage::Closing, E::AddressChange) => (Step::Stay, stage),
        (Stage::Closing, _) => (Step::Finish, stage),
    }
}

/// Whether an event ends the attempt or the connection.
fn is_end(event: EventKind) -> bool {
    match event {
        EventKind::AddressError
        | EventKind::RouteError
        | EventKind::ConnectError
        | EventKind::Unreachable
        | EventKind::Rejected
        | EventKind::Disconnected
        | EventKind::DeviceRemoval
        // The peer's packets go to the address, which another device has now.
        | EventKind::AddressChange
        | EventKind::TimewaitExit => true,
        EventKind::AddressResolved
        | EventKind::RouteResolved
        | EventKind::ConnectRequest
        | EventKind::ConnectResponse
        | EventKind::Established
        | EventKind::Other(_) => false,
    }
}

impl Stage {
    /// The stage after `prepare`; `None` in a stage that does not permit it.
    pub(super) fn prepared(self) -> Option<Self> {
        match self {
            Self::Replied => Some(Self::ClientPrepared),
            Self::Requested => Some(Self::ServerPrepared),
            _ => None,
        }
    }

    /// Whether ending the connection takes a disconnect message, which the peer answers.
    pub(super) fn peer_answers_the_end(self) -> bool {
        matches!(self, Self::Accepted | Self::Established)
    }

    /// Whether the stage waits for the peer, the network or the name server. Such a stage has a
    /// timeout.
    pub(super) fn waits_for_the_peer(self) -> bool {
        matches!(
            self,
            Self::ResolvingName
                | Self::ResolvingAddress
                | Self::ResolvingRoute
                | Self::Requesting
                | Self::Accepted
                | Self::Closing
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [EventKind; 15] = [
        EventKind::AddressResolved,
        EventKind::AddressError,
        EventKind::RouteResolved,
        EventKind::RouteError,
        EventKind::ConnectRequest,
        EventKind::ConnectResponse,
        EventKind::ConnectError,
        EventKind::Unreachable,
        EventKind::Rejected,
        EventKind::Established,
        EventKind::Disconnected,
        EventKind::DeviceRemoval,
        EventKind::AddressChange,
        EventKind::TimewaitExit,
        EventKind::Other(12),
    ];

    /// What happens to a connection: an event, or the application's next call.
    #[derive(Clone, Copy, Debug)]
    enum Input {
        Event(EventKind),
        Prepare,
        /// Accept at a server, confirm at a client.
        Answer,
        Disconnect,
    }

    /// What an application hears of one connection.
    #[derive(Clone, Copy, Debug, Default)]
    struct Heard {
        peer: u32,
        established: u32,
        ends: u32,
        ended_itself: bool,
    }

    /// The connection and its application after an input; `None` when the connection is gone.
    fn apply(stage: Stage, input: Input, heard: &mut Heard) -> Option<Stage> {
        match input {
            Input::Event(event) => {
                let (step, next) = step(stage, event);
                match step {
                    Step::Stay => assert_eq!(next, stage),
                    Step::ResolveRoute | Step::SendRequest => {}
                    Step::TellReply => heard.peer += 1,
                    Step::TellEstablished => heard.established += 1,
                    Step::Fail | Step::Reject | Step::Lose => {
                        heard.ends += 1;
                        return None;
                    }
                    Step::Finish => return None,
                }
                Some(next)
            }
            Input::Prepare => Some(stage.prepared().unwrap_or(stage)),
            Input::Answer => Some(match stage {
                Stage::ServerPrepared => Stage::Accepted,
                Stage::ClientPrepared => {
                    heard.established += 1;
                    Stage::Established
                }
                other => other,
            }),
            Input::Disconnect if stage == Stage::Closing => Some(stage),
            Input::Disconnect => {
                heard.ended_itself = true;
                stage.peer_answers_the_end().then_some(Stage::Closing)
            }
        }
    }

    fn inputs() -> impl Iterator<Item = Input> {
        let calls = [Input::Prepare, Input::Answer, Input::Disconnect];
        EVENTS.into_iter().map(Input::Event).chain(calls)
    }

    /// Walks every order of inputs up to a length, and checks what must hold after each.
    fn walk(stage: Stage, heard: Heard, depth: u32, walked: &mut u64) {
        for input in inputs() {
            let mut now = heard;
            let next = apply(stage, input, &mut now);
            *walked += 1;
            assert!(now.ends <= 1, "told twice of an end: {stage:?} {input:?}");
            assert!(now.peer <= 1 && now.established <= 1, "{stage:?} {input:?}");
            assert!(
                !(heard.ended_itself
                    && (now.ends, now.established) != (heard.ends, heard.established)),
                "told after it ended the connection itself: {stage:?} {input:?}"
            );
            if now.established > heard.established {
                assert_eq!(now.peer, 1, "established before the peer was told of");
            }
            if let Some(next) = next
                && depth > 1
            {
                walk(next, now, depth - 1, walked);
            }
        }
    }

    #[test]
    fn no_order_of_events_and_calls_tells_too_much() {
        let mut walked = 0;
        walk(Stage::ResolvingAddress, Heard::default(), 5, &mut walked);
        let told_of_peer = Heard {
            peer: 1,
            ..Heard::default()
        };
        walk(Stage::Requested, told_of_peer, 5, &mut walked);
        assert!(walked > 100_000, "{walked}");
    }

    #[test]
    fn every_stage_ends_with_the_device() {
        for stage in [
            Stage::ResolvingAddress,
            Stage::ResolvingRoute,
            Stage::Requesting,
            Stage::Replied,
            Stage::ClientPrepared,
            Stage::Requested,
            Stage::ServerPrepared,
            Stage::Accepted,
            Stage::Established,
            Stage::Closing,
        ] {
            let (step, _) = step(stage, EventKind::DeviceRemoval);
            assert!(
                matches!(step, Step::Fail | Step::Lose | Step::Finish),
                "{stage:?}: {step:?}"
            );
        }
    }

    #[test]
    fn a_client_and_a_server_go_their_ways() {
        let mut stage = Stage::ResolvingAddress;
        for (event, expected) in [
            (EventKind::AddressResolved, Step::ResolveRoute),
            (EventKind::RouteResolved, Step::SendRequest),
            (EventKind::ConnectResponse, Step::TellReply),
        ] {
            let (step, next) = step(stage, event);
            assert_eq!(step, expected);
            stage = next;
        }
        assert_eq!(stage.prepared(), Some(Stage::ClientPrepared));
        assert_eq!(Stage::Requested.prepared(), Some(Stage::ServerPrepared));
        assert_eq!(Stage::Established.prepared(), None);
        assert_eq!(
            step(Stage::Accepted, EventKind::Established),
            (Step::TellEstablished, Stage::Established)
        );
        assert_eq!(
            step(Stage::Established, EventKind::Disconnected).0,
            Step::Lose
        );
        assert_eq!(
            step(Stage::Closing, EventKind::Disconnected).0,
            Step::Finish
        );
    }

    #[test]
    fn an_event_out_of_turn_changes_nothing() {
        for (stage, event) in [
            (Stage::ResolvingAddress, EventKind::RouteResolved),
            (Stage::ResolvingAddress, EventKind::ConnectResponse),
            (Stage::Requesting, EventKind::AddressResolved),
            (Stage::Requested, EventKind::Established),
            (Stage::Established, EventKind::Established),
            (Stage::Closing, EventKind::Established),
            (Stage::ResolvingName, EventKind::Disconnected),
        ] {
            assert_eq!(step(stage, event), (Step::Stay, stage));
        }
    }
}
