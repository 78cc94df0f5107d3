//! What the tables of a core say that its connections have, added up and held against the pools.

use rpcrdma_fabric::share::Share;

use super::super::State;
use super::device::Device;
use crate::connection::Stage;
use crate::core::incoming::{IncomingCall, IncomingState, Stream};
use crate::core::outgoing::{Answer, CallPart, CallShare, OutgoingCall, OutgoingState};
use crate::core::receives::ReceiveQueues;
use crate::core::waiting_receives::WaitingWork;
use crate::rpc::ConnectionKey;

/// A shared table: what all holders have, by their places.
struct Shared<'a> {
    what: &'static str,
    share: &'a Share,
    capacity: u32,
    /// What each holder is guaranteed, and all of them together.
    each: u32,
    guaranteed: u32,
    held: Vec<u32>,
    /// Those that the pool itself says are free.
    free: usize,
}

impl Shared<'_> {
    fn assert_sums(&self) {
        let what = self.what;
        let held: u32 = self.held.iter().sum();
        let free = self.share.free();
        assert_eq!(free + held, self.capacity, "{what}: held and free");
        assert_eq!(free as usize, self.free, "{what}: the pool and its share");
        let owned: u32 = self.held.iter().map(|held| (*held).min(self.each)).sum();
        let kept = self.guaranteed - owned;
        assert!(free >= kept, "{what}: {free} free of {kept} guaranteed");
        // Whoever has its own may take what is beyond all guarantees.
        let has_more = |count| self.share.may_take(self.each, self.each, count);
        let spare = free - kept;
        assert!(
            has_more(spare) && !has_more(spare + 1),
            "{what}: {free} free, {kept} kept, another number may be borrowed"
        );
    }
}

/// Fails unless what is held and what is free add up to what there is.
pub(super) fn assert_sums(state: &mut State<Device>) {
    let config = state.resources.config.clone();
    let connections = config.connections_max;
    let (share, sends, free) = state.resources.transmit.ledger();
    Shared {
        what: "send buffers",
        share,
        // All but the scratch buffer.
        capacity: config.send_buffers_total() - 1,
        each: crate::ledger::SEND_BUFFERS,
        guaranteed: config.send_buffers_guaranteed(),
        held: sends.iter().map(|sends| sends.held).collect(),
        free,
    }
    .assert_sums();
    let (share, held, free) = state.resources.messages.ledger();
    Shared {
        what: "message buffers",
        share,
        capacity: config.message_buffers_total(),
        each: 1,
        guaranteed: crate::ledger::MESSAGE_BUFFERS * connections,
        held: held.iter().flatten().copied().collect(),
        free,
    }
    .assert_sums();
    let (share, held, free) = state.incoming.deferrals.ledger();
    Shared {
        what: "places of deferred calls",
        share,
        capacity: connections + config.deferred_max,
        each: 1,
        guaranteed: connections,
        held: held.to_vec(),
        free,
    }
    .assert_sums();
    let (share, keys, free) = state.outgoing.requester.ledger();
    let slots = state.outgoing.requester.slots();
    let mut outstanding = Vec::new();
    for place in 0..connections {
        let Some(connection) = state.resources.connections.at(place) else {
            continue;
        };
        let key = connection.key(place);
        let found = keys.iter().filter(|it| **it == key).count();
        let has = if connection.stage == Stage::Free {
            0
        } else {
            connection.calls.outstanding()
        };
        assert_eq!(found, has as usize, "slots of calls of {key:?}");
        outstanding.push(has);
    }
    Shared {
        what: "slots of calls",
        share,
        capacity: slots,
        each: 1,
        guaranteed: connections,
        held: outstanding,
        free,
    }
    .assert_sums();
    assert_bulk_sums(state);
    assert_outgoing_sums(state);
    assert_connections_add_up(state);
}

fn assert_bulk_sums(state: &mut State<Device>) {
    let incoming = &state.incoming;
    let used = || {
        let calls = incoming.calls.iter().map(|(_, call)| call);
        calls.filter(|call: &&IncomingCall| call.state != IncomingState::Free)
    };
    assert_eq!(
        incoming.calls.free_count() + used().count(),
        incoming.calls.len() as usize,
        "calls of peers with chunks"
    );
    let (in_use, connections, shared, shared_free) = incoming.shares.ledger();
    let in_use: Vec<(u32, u32)> = in_use.collect();
    for (place, (all, with_buffers)) in (0..).zip(&in_use) {
        let found = || used().filter(|it| it.connection.index == place);
        assert_eq!(
            *all as usize,
            found().count(),
            "slots of the connection at {place}"
        );
        let found = found().filter(|it| it.has_buffers).count();
        assert_eq!(
            *with_buffers as usize, found,
            "calls with buffers of {place}"
        );
    }
    let with_any = in_use.iter().filter(|(all, _)| *all != 0).count();
    assert_eq!(
        connections as usize, with_any,
        "connections with calls in slots"
    );
    let borrowed: u32 = in_use.iter().map(|(all, _)| all.saturating_sub(1)).sum();
    assert_eq!(shared_free + borrowed, shared, "slots that are shared");
    assert!(state.resources.reply.pool.level() <= state.resources.reply.pool.total());
    let placement = &state.resources.placement;
    let spares = state
        .resources
        .config
        .placement
        .map_or(0, |it| it.spares as usize);
    assert_eq!(
        placement.spares() + placement.leased(),
        spares,
        "placement segments"
    );
}

/// What a call has of something that calls share.
type TakenBy = fn(&OutgoingCall) -> u32;

/// Calls of ours with bulk data hold what the shares say, and have the windows that are counted.
fn assert_outgoing_sums(state: &State<Device>) {
    let outgoing = &state.outgoing;
    let used = || {
        let calls = outgoing.calls.iter().map(|(_, call)| call);
        calls.filter(|call: &&OutgoingCall| call.state != OutgoingState::Free)
    };
    assert_eq!(
        outgoing.calls.free_count() + used().count(),
        outgoing.calls.len() as usize,
        "calls of ours with bulk data"
    );
    let taken: [(&str, &CallShare, TakenBy); 2] = [
        ("slots for calls of ours", &outgoing.shares.slots, |_| 1),
        (
            "buffers of calls of ours",
            &outgoing.shares.buffers,
            |call| call.buffers,
        ),
    ];
    for (what, share, taken) in taken {
        let (free, total, held, holders) = share.ledger();
        for (place, held) in (0..).zip(held) {
            let found = used().filter(|call| call.connection.index == place);
            let found: u32 = found.map(taken).sum();
            assert_eq!(*held, found, "{what}: the connection at {place}");
        }
        assert_eq!(free + held.iter().sum::<u32>(), total, "{what}");
        let found = held.iter().filter(|held| **held != 0).count();
        assert_eq!(holders as usize, found, "{what}: connections with any");
    }
    let windows: u32 = used().map(|call| call.windows).sum();
    assert_eq!(outgoing.windows_open, windows, "windows");
    for call in used() {
        let is_exposed = |part: &&CallPart| part.window.is_some() || part.invalidating;
        let exposed = call.parts.iter().filter(is_exposed).count();
        // An invalidation that has ended leaves its mark on the part until the call ends.
        assert!(call.windows as usize <= exposed, "{call:?}");
    }
    assert!(outgoing.windows_open <= outgoing.windows_max);
}

/// What a connection counts is what its calls and messages have: Receives, credits kept for replies, Reads in flight, and
/// whether it waits to send.
fn assert_connections_add_up(state: &mut State<Device>) {
    assert_lent_receives(state);
    let is_woken = state.resources.is_woken;
    for place in 0..state.resources.config.connections_max {
        let connection = state.resources.connections.at(place).expect("a place");
        if !connection.is_live() {
            continue;
        }
        let key = connection.key(place);
        let (incoming, outgoing) = (&state.incoming, &state.outgoing);
        let calls = || {
            let calls = incoming.calls.iter().map(|(_, call)| call);
            calls.filter(|it| it.state != IncomingState::Free && it.connection == key)
        };
        let own_calls = || {
            let calls = outgoing.calls.iter().map(|(_, call)| call);
            calls.filter(|it| it.state != OutgoingState::Free && it.connection == key)
        };
        let of_calls = calls().map(|it| it.arrival.receives.len() + receives_in(&it.stream));
        let of_own = own_calls().map(|it| {
            let answer = match &it.answer {
                Answer::Stream(stream) => receives_in(stream),
                _ => 0,
            };
            it.arrival.receives.len() + answer
        });
        let held = state.waiting_receives.held_messages();
        let held = held.filter(|it| it.connection == key).count();
        let of_held = state.waiting_receives.held_messages().filter(|it| {
            let is_whole = matches!(
                it.work,
                WaitingWork::Call(Stream::Message(_) | Stream::Chunk)
            );
            it.connection == key && is_whole
        });
        let kept = of_calls.sum::<usize>() + of_own.sum::<usize>() + held - of_held.count();
        if !connection.protocol.is_version_1() {
            let credits = connection.protocol.credits();
            assert_eq!(
                credits.receives_posted as usize + kept,
                credits.receives_reserved as usize,
                "Receives of {key:?}, of which {kept} are kept"
            );
            let promised = credits.unconsumed() as usize;
            assert!(
                promised < credits.receives_reserved as usize,
                "{key:?} has more credits than Receives: {credits:?}"
            );
        }
        let reserved: u32 = calls().map(|it| it.reply_reserved).sum();
        assert_eq!(
            connection.replies_reserved, reserved,
            "credits for replies of {key:?}"
        );
        let extra = own_calls().map(|it| it.reply_transmissions_max.saturating_sub(1));
        assert_eq!(
            connection.reply_transmissions_extra,
            extra.sum::<u32>(),
            "transmissions of replies to {key:?}"
        );
        // One that has failed stays with its call.
        let reads: u32 = calls().map(|it| it.reads.in_flight).sum();
        assert!(
            connection.reads_in_flight <= reads,
            "RDMA Reads from {key:?}"
        );
        if let Some(first) = connection.group_first {
            let first = outgoing.calls.get(first).expect("a slot");
            assert_eq!(
                (first.connection, first.state),
                (key, OutgoingState::Sending),
                "who has the turn of {key:?}"
            );
        }
        let pending = connection.pending;
        for call in calls() {
            let is_queued = incoming.calls.is_queued(call.index);
            match call.state {
                // These wait for nothing that their connections bring.
                IncomingState::Placing | IncomingState::AwaitingBuffers => {
                    assert!(is_queued, "nobody goes on with {call:?}");
                }
                // A slot may be on the list of those that wait for a call that it had before, so that it says nothing.
                // What is being sent may wait for the end of its queue pair alone.
                IncomingState::Ready => assert!(
                    is_queued || connection.is_awaited || is_woken,
                    "nobody wakes {call:?}"
                ),
                _ => {}
            }
        }
        let queued = state.resources.pending.iter();
        let queued = queued.filter(|other| **other == place).count();
        assert_eq!(queued, usize::from(pending), "{key:?} waits to send");
    }
    if let Some(starving) = state.incoming.starving {
        let call = state.incoming.calls.get(starving).expect("a slot");
        assert_eq!(call.state, IncomingState::AwaitingBuffers, "who is next");
    }
    let deferred = state.incoming.deferrals.ledger().1.iter().sum::<u32>();
    assert_eq!(deferred as usize, state.incoming.deferrals.open());
}

/// Fails unless each connection has its guaranteed Receives and those that it was lent, and what was lent and what was
/// not is all that is shared.
fn assert_lent_receives(state: &mut State<Device>) {
    let config = state.resources.config.clone();
    let is_shared = matches!(state.resources.queues, ReceiveQueues::Shared(_));
    let own = match (is_shared, config.lends_receives()) {
        (true, true) => config.receives_guaranteed(),
        (true, false) => config.receives_per_connection(),
        (false, _) => config.receives_of_own_queue(),
    };
    let mut lent = 0;
    for place in 0..config.connections_max {
        let connection = state.resources.connections.at(place).expect("a place");
        let key = connection.key(place);
        let held = u32::from(connection.lent);
        lent += held;
        if connection.stage == Stage::Free {
            assert_eq!(held, 0, "{key:?} is gone and has Receives");
            continue;
        }
        let credits = connection.protocol.credits();
        assert_eq!(credits.receives_reserved, own + held, "Receives of {key:?}");
        assert!(
            credits.limit < credits.receives_reserved && credits.limit <= credits.window,
            "{key:?}: {credits:?}"
        );
    }
    if is_shared && config.lends_receives() {
        let free = state.resources.lending.free();
        assert_eq!(free + lent, config.receives_lendable(), "Receives to lend");
        assert_eq!(
            own * config.connections_max + free + lent,
            config.receives()
        );
    } else {
        assert_eq!(lent, 0, "there is nothing to be lent");
    }
}

fn receives_in(stream: &Stream) -> usize {
    usize::from(matches!(stream, Stream::Received(_)))
}

/// Fails unless a group that a peer is sending belongs to a call of its connection that waits for it, and has no
/// Receives beside.
pub(super) fn assert_groups_have_their_calls(state: &mut State<Device>) {
    let mut arriving = 0;
    let mut keeping = 0;
    for place in 0..state.resources.config.connections_max {
        let connection = state.resources.connections.at(place).expect("a place");
        if connection.stage == Stage::Free {
            continue;
        }
        let key = connection.key(place);
        let (call, reply) = (connection.calls_in.group, connection.replies_in.group);
        if let Some(group) = call {
            let call = state.incoming.calls.get(group.slot).expect("a slot");
            assert_eq!(
                (call.state, call.connection),
                (IncomingState::Arriving, key)
            );
            arriving += 1;
        }
        if let Some(group) = reply {
            let call = state.outgoing.calls.get(group.slot).expect("a slot");
            assert_eq!((call.state, call.connection), (OutgoingState::Waiting, key));
            keeping += 1;
        }
    }
    let incoming = state.incoming.calls.iter();
    let found = incoming.filter(|(_, call)| call.state == IncomingState::Arriving);
    assert_eq!(found.count(), arriving, "groups of peers' calls");
    let outgoing = state.outgoing.calls.iter();
    let found = outgoing.filter(|(_, call)| {
        let has_receives = !call.arrival.receives.is_empty();
        has_receives && call.state != OutgoingState::Placing
    });
    assert_eq!(found.count(), keeping, "groups of replies");
}

/// Fails if a connection that is gone has anything, but for calls that the application has deferred.
pub(super) fn assert_the_dead_hold_nothing(state: &mut State<Device>) {
    let places = 0..state.resources.config.connections_max;
    let mut queue_pairs = Vec::new();
    let mut is_free = Vec::new();
    for place in places {
        let connection = state.resources.connections.at(place).expect("a place");
        is_free.push(connection.stage == Stage::Free);
        if connection.stage != Stage::Free {
            queue_pairs.push(connection.queue_pair.index);
        }
    }
    let (_, sends, _) = state.resources.transmit.ledger();
    for (index, sends) in (0..).zip(sends) {
        let is_dead = !queue_pairs.contains(&index);
        assert!(
            !is_dead || sends.held == 0,
            "queue pair {index} is gone: {sends:?}"
        );
    }
    let (_, messages, _) = state.resources.messages.ledger();
    for ((place, is_free), held) in (0..).zip(&is_free).zip(messages) {
        let place: u32 = place;
        assert!(
            !is_free || *held == [0; 4],
            "message buffers of {place}: {held:?}"
        );
    }
    let connections = &state.resources.connections;
    let is_dead = |key: ConnectionKey| connections.get(key).is_none();
    let (_, calls, _) = state.outgoing.requester.ledger();
    for key in calls {
        assert!(!is_dead(key), "a call of {key:?}");
    }
    for held in state.waiting_receives.held_messages() {
        assert!(!is_dead(held.connection), "{held:?}");
    }
    for (index, call) in state.incoming.calls.iter() {
        let (stage, key) = (call.state, call.connection);
        let is_free = stage == IncomingState::Free;
        assert!(is_free || !is_dead(key), "slot {index}, {stage:?}: {key:?}");
    }
    for index in &state.resources.pending {
        assert!(
            !is_free[*index as usize],
            "connection {index} waits to send"
        );
    }
}

/// Fails unless a connection that was just adopted has all Receives of its place, also after an earlier connection.
pub(super) fn assert_receives_planted(state: &State<Device>, key: ConnectionKey) {
    let config = &state.resources.config;
    let reserve = match state.resources.queues {
        ReceiveQueues::Shared(_) => config.receives_per_connection(),
        ReceiveQueues::OfPlaces(_) => config.receives_of_own_queue(),
    };
    let posted = state
        .resources
        .queues
        .posted(&state.resources.port, key.index, reserve);
    assert_eq!(posted, reserve, "Receives of {key:?}");
}

/// Fails unless everything is where it was before the first connection.
pub(super) fn assert_nothing_held(state: &mut State<Device>, gathers: usize) {
    assert_sums(state);
    assert_the_dead_hold_nothing(state);
    assert_eq!(state.resources.connections.in_use(), 0, "connections");
    assert!(state.resources.transmit.is_idle(), "send buffers");
    assert_eq!(state.resources.transmit.padding_away(), 0, "padding");
    let messages = state.resources.config.message_buffers_total() as usize;
    assert_eq!(
        state.resources.messages.available(),
        messages,
        "message buffers"
    );
    assert!(state.resources.backlog.is_empty(), "messages that wait");
    assert_eq!(state.outgoing.requester.waiting(), 0, "calls that wait");
    assert!(state.incoming.deferrals.open() == 0, "deferred calls");
    assert!(
        state.waiting_receives.held() == 0
            && state.resources.pending.is_empty()
            && state.resources.closing.is_empty()
    );
    assert!(
        state.incoming.calls.is_idle() && state.outgoing.calls.is_idle(),
        "calls with bulk data"
    );
    assert_eq!(state.incoming.starving, None);
    assert_eq!(state.outgoing.windows_open, 0, "windows");
    assert_eq!(state.incoming.gathers.len(), gathers, "lists of RDMA Reads");
    let pool = &mut state.resources.reply.pool;
    assert_eq!(pool.available(), pool.total(), "bulk buffers");
    assert_eq!(state.resources.placement.leased(), 0, "placement segments");
    if matches!(state.resources.queues, ReceiveQueues::Shared(_)) {
        let posted = state.resources.queues.posted_shared(&state.resources.port);
        assert_eq!(posted, state.resources.config.receives(), "Receives");
    }
}
