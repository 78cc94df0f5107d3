//! A connection's life as the CM tells it: which events mean what, in which stage.
//!
//! Nothing here touches a device, so that every order of events can be tried in a test.
//!
//! ```text
//! client: ResolvingAddress → ResolvingRoute → Requesting → Replied → ClientPrepared ─┐
//! server: Requested → ServerPrepared → Accepted ─────────────────────────────────────┴→ Established
//! ```
//!
//! Whatever the peer or the CM does, the application hears of a connection's end once: as failed
//! or rejected when it has not heard of the peer yet, as disconnected afterwards. After it has
//! ended the connection itself it hears nothing more.

use crate::verbs::cm::event::EventKind;

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    /// Client: the host's name is being resolved.
    ResolvingName,
    /// Client: the way to the address is being looked for.
    ResolvingAddress,
    /// Client: the path is being looked for.
    ResolvingRoute,
    /// Client: the request is on its way.
    Requesting,
    /// Client: the peer accepted, and the application was told.
    Replied,
    /// Client: the application has the queue pair.
    ClientPrepared,
    /// Server: the application was told of the request.
    Requested,
    /// Server: the application has the queue pair.
    ServerPrepared,
    /// Server: the acceptance is on its way.
    Accepted,
    /// The connection stands.
    Established,
    /// The application ended the connection; the CM still has to hear from the peer.
    Closing,
}

/// What an event makes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing.
    Stay,
    /// Client: go on with the path.
    ResolveRoute,
    /// Client: make the queue pair and send the request.
    SendRequest,
    /// Client: tell the application of the reply.
    TellReply,
    /// Server: tell the application that the connection stands.
    TellEstablished,
    /// Client: this address failed; there may be others.
    Fail,
    /// Client: the peer rejected.
    Reject,
    /// The connection that the application knows of is gone.
    Lose,
    /// What the application ended is over.
    Finish,
}

/// What `event` makes of a connection in `stage`, and the stage after it. A connection after
/// [`Step::Reject`], [`Step::Lose`] and [`Step::Finish`] is gone; its stage has no meaning.
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
        // No identifier is on the CM yet: the event is of one before, and has no meaning.
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
        // The address matters to nobody any more.
        (Stage::Closing, E::AddressChange) => (Step::Stay, stage),
        (Stage::Closing, _) => (Step::Finish, stage),
    }
}

/// Whether an event ends whatever it is about.
fn is_end(event: EventKind) -> bool {
    match event {
        EventKind::AddressError
        | EventKind::RouteError
        | EventKind::ConnectError
        | EventKind::Unreachable
        | EventKind::Rejected
        | EventKind::Disconnected
        | EventKind::DeviceRemoval
        // The peer answers to an address that this connection's packets do not come from.
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
    /// The stage after the application got the queue pair, from those where it may ask for it.
    pub(super) fn prepared(self) -> Option<Self> {
        match self {
            Self::Replied => Some(Self::ClientPrepared),
            Self::Requested => Some(Self::ServerPrepared),
            _ => None,
        }
    }

    /// Whether the peer has to be told when the application ends the connection, and answers.
    pub(super) fn peer_answers_the_end(self) -> bool {
        matches!(self, Self::Accepted | Self::Established)
    }

    /// Whether it is the peer's, or the network's, turn: such a stage is given up in time.
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
