//! Application threads and cores on threads of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::raw::{self, Attack, header, null_call, words};
use crate::support::{App, ECHO, NULL, PROGRAM, Pair, VERSION, call, pattern};
use rpcrdma_engine::ring_client::{
    CallMessage, CallStatus, ReplyMessage, ReplySender, ReplyService, RingApplication, reply_ring,
};
use rpcrdma_engine::{
    Activity, Application, CallError, CallRefused, ConnectionKey, Context, CoreConfig, DeferToken,
    IdlePolicy, Outcome, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_testkit::{Wait, until};

fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 2,
        credits_per_connection: 4,
        message_buffers: 6,
        calls_outstanding_max: 16,
        deferred_max: 64,
        // A thread may stand still for long: no call and no peer is given up for that.
        call_timeout: Duration::from_secs(1_000_000),
        keep_alive_interval: Duration::ZERO,
        stall_timeout: Duration::from_secs(1_000_000),
        idle: IdlePolicy::Park {
            after: Duration::from_millis(1),
            awake_percent: 100,
        },
        ..CoreConfig::default()
    }
}

#[test]
fn threads_call_through_rings_while_the_cores_run() {
    let (application, clients) = RingApplication::new(2, 8);
    let mut pair = Pair::with(&config(), &config(), application, App::default());
    let (connection, _) = pair.connect();
    let Pair { client, server, .. } = pair;
    let (client_handle, server_handle) = (client.handle.clone(), server.handle.clone());
    std::thread::scope(|scope| {
        let cores = [
            scope.spawn(move || client.core.run().map(drop)),
            scope.spawn(move || server.core.run().map(drop)),
        ];
        let threads: Vec<_> = clients
            .into_iter()
            .map(|mut ring| {
                let handle = client_handle.clone();
                scope.spawn(move || {
                    let (mut tag, mut ended) = (0, 0);
                    let wait = Wait::begin("all calls");
                    while ended < 500 {
                        wait.look(|| format!("{ended} calls ended"));
                        if tag < 500 {
                            let size = usize::try_from(tag % 7 * 1200).expect("small");
                            let message = Box::new(CallMessage {
                                connection,
                                call: call(ECHO),
                                tag,
                                args: pattern(size, tag),
                                results: Vec::with_capacity(size),
                                ..CallMessage::default()
                            });
                            if ring.submit(message).is_ok() {
                                tag += 1;
                                handle.wake();
                            }
                        }
                        while let Some(message) = ring.complete() {
                            assert_eq!(message.status, CallStatus::Success);
                            assert!(message.results == message.args);
                            ended += 1;
                        }
                        std::thread::yield_now();
                    }
                    assert_eq!(ring.outstanding(), 0);
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("all calls are right");
        }
        for handle in [&client_handle, &server_handle] {
            handle.stop();
        }
        for core in cores {
            core.join().expect("no panic").expect("not pinned");
        }
    });
}

#[test]
fn a_ring_tells_of_calls_that_fail_or_do_not_fit() {
    let (application, mut clients) = RingApplication::new(1, 2);
    let mut pair = Pair::with(&config(), &config(), application, App::default());
    let (connection, _) = pair.connect();
    let ring = &mut clients[0];
    let message = |procedure, connection, capacity| {
        Box::new(CallMessage {
            connection,
            call: call(procedure),
            args: vec![1; 16],
            results: Vec::with_capacity(capacity),
            ..CallMessage::default()
        })
    };
    let mut status = |pair: &mut Pair<RingApplication, App>, message| {
        ring.submit(message).expect("room");
        let mut ended = None;
        pair.until("it comes back", |_| {
            ended = ring.complete();
            ended.is_some()
        });
        ended.expect("it came back").status
    };
    let too_long = status(&mut pair, message(ECHO, connection, 0));
    assert_eq!(too_long, CallStatus::ResultsTooLong { bytes: 16 });
    let failed = status(&mut pair, message(99, connection, 0));
    assert_eq!(failed, CallStatus::Failed(CallError::ProcedureUnavailable));
    let unknown = ConnectionKey {
        index: 1,
        generation: 77,
    };
    let refused = status(&mut pair, message(ECHO, unknown, 16));
    assert_eq!(refused, CallStatus::Refused(CallRefused::UnknownConnection));
    for _ in 0..2 {
        ring.submit(message(ECHO, connection, 16))
            .expect("room for two");
    }
    assert!(
        ring.submit(message(ECHO, connection, 16)).is_err(),
        "and no more"
    );
}

/// Answers with the credential that calls come with.
struct Whoever;

impl Application for Whoever {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        let written = reply.write_u32(request.credential.flavor);
        match written.and_then(|()| reply.write(request.credential.body)) {
            Ok(()) => Outcome::Success,
            Err(_) => Outcome::SystemError,
        }
    }
}

#[test]
fn a_call_through_a_ring_has_the_credential_of_its_message() {
    let (application, mut clients) = RingApplication::new(1, 2);
    let mut pair = Pair::with(&config(), &config(), application, Whoever);
    let (connection, _) = pair.connect();
    // The bodies are of 400 octets at most (RFC 5531 section 8.2).
    for (flavor, body, expected) in [
        (0, vec![], CallStatus::Success),
        (99, vec![7; 20], CallStatus::Success),
        (99, vec![8; 400], CallStatus::Success),
        (99, vec![9; 404], CallStatus::Refused(CallRefused::TooLong)),
    ] {
        let message = CallMessage {
            connection,
            call: call(ECHO),
            credential: (flavor, body.clone()),
            results: Vec::with_capacity(404),
            ..CallMessage::default()
        };
        clients[0].submit(Box::new(message)).expect("room");
        let mut ended = None;
        pair.until("it comes back", |_| {
            ended = clients[0].complete();
            ended.is_some()
        });
        let ended = ended.expect("it came back");
        assert_eq!(ended.status, expected);
        if expected == CallStatus::Success {
            let answer = [&flavor.to_be_bytes()[..], &body].concat();
            assert_eq!(ended.results, answer);
        }
    }
}

/// Hands every call to a thread, which answers it.
struct Worker {
    calls: std::sync::mpsc::SyncSender<(DeferToken, Vec<u8>)>,
    replies: ReplyService,
}

impl Application for Worker {
    fn call(&mut self, request: &Request<'_>, _reply: &mut ReplyWriter<'_>) -> Outcome {
        let Some(token) = request.defer() else {
            return Outcome::SystemError;
        };
        match self.calls.try_send((token, request.args.to_vec())) {
            Ok(()) => Outcome::Deferred,
            Err(_) => Outcome::SystemError,
        }
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        self.replies.poll(core)
    }
}

fn answer(calls: &std::sync::mpsc::Receiver<(DeferToken, Vec<u8>)>, replies: &ReplySender) {
    while let Ok((token, mut results)) = calls.recv() {
        results.reverse();
        let mut message = replies.recycled().unwrap_or_else(|| {
            Box::new(ReplyMessage {
                token: None,
                outcome: Outcome::Success,
                results: Vec::new(),
            })
        });
        message.token = Some(token);
        message.outcome = Outcome::Success;
        message.results = results;
        while let Err(back) = replies.send(message) {
            message = back;
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_thread_answers_deferred_calls_through_a_ring() {
    let (calls, receiver) = std::sync::mpsc::sync_channel(64);
    let (sender, replies) = reply_ring(4);
    let thread = std::thread::spawn(move || answer(&receiver, &sender));
    let worker = Worker { calls, replies };
    let mut pair = Pair::with(&config(), &config(), App::default(), worker);
    let (client, _) = pair.connect();
    for tag in 0..50 {
        let size = if tag % 10 == 0 { 20_000 } else { 64 };
        let args = pattern(size, tag);
        pair.client.app_mut().want(client, ECHO, &args, tag);
    }
    let wait = Wait::begin("the thread answers");
    while pair.client.app().ended.len() < 50 {
        wait.look(|| format!("{} calls ended", pair.client.app().ended.len()));
        pair.turn();
        std::thread::yield_now();
    }
    for tag in 0..50 {
        let mut expected = pattern(if tag % 10 == 0 { 20_000 } else { 64 }, tag);
        expected.reverse();
        assert!(pair.client.app().result(tag) == Some(&Ok(expected)));
    }
    drop(pair);
    thread.join().expect("no panic");
}

/// A peer grants no credits, so that its deferred replies wait; those of another peer go out.
#[test]
fn a_peer_that_takes_no_deferred_replies_keeps_only_its_own_waiting() {
    let (calls, receiver) = std::sync::mpsc::sync_channel(64);
    let (sender, replies) = reply_ring(64);
    let worker = Worker { calls, replies };
    let config = CoreConfig {
        deferred_max: 64,
        ..raw::config()
    };
    let mut attack = Attack::against(Role::Server, false, &config, worker);
    let deaf = attack.raw.queue_pair;
    attack.connect(false);
    let answer_all = |attack: &mut Attack<Worker>| {
        while let Ok((token, results)) = receiver.try_recv() {
            let message = ReplyMessage {
                token: Some(token),
                outcome: Outcome::Success,
                results,
            };
            sender.send(Box::new(message)).expect("room in the ring");
        }
        attack.turns(20);
    };
    let next = std::mem::replace(&mut attack.raw.queue_pair, deaf);
    // All of them are deferred before the first is answered.
    for xid in 1..=8 {
        let mut prefix = header(xid, 0, 0);
        prefix[2] = 60 << 16;
        let rpc = [xid, 0, 2, PROGRAM, VERSION, NULL, 0, 0, 0, 0];
        attack.send(&[words(&prefix), words(&rpc)].concat());
    }
    answer_all(&mut attack);
    let answered = attack.take().len();
    assert!(answered < 5, "it has granted credits for {answered}");
    attack.raw.queue_pair = next;
    for xid in 101..110 {
        attack.send(&null_call(xid));
        answer_all(&mut attack);
        assert_eq!(attack.take(), [raw::null_reply(xid)]);
    }
}

/// Has something to do every two milliseconds, and counts how often it is polled for that in good time.
struct Clockwork {
    clock: Clock,
    due: Ticks,
    punctual: Arc<AtomicU64>,
}

impl Clockwork {
    /// Half of the time that a core sleeps at most.
    // TIME: a core that is not punctual sleeps twice as long. One that is punctual has many seconds for few polls.
    const LATE: Duration = Duration::from_millis(50);
}

impl Application for Clockwork {
    fn poll<P: Port>(&mut self, _core: &mut Context<'_, P>, now: Ticks) -> Activity {
        if now < self.due {
            return Activity::Idle;
        }
        let late = Duration::from_nanos(self.clock.nanos_between(self.due, now));
        let is_punctual = late < Self::LATE;
        self.punctual
            .fetch_add(is_punctual.into(), Ordering::Relaxed);
        self.due = now + self.clock.ticks(Duration::from_millis(2));
        Activity::Busy
    }

    fn next_due(&self) -> Option<Ticks> {
        Some(self.due)
    }
}

#[test]
fn a_parked_core_wakes_when_its_application_has_something_to_do() {
    // A core that knows nothing of its application sleeps for 100 ms each time. It is punctual only where it lost the
    // processor before it slept, which does not happen so often within the patience.
    const TIMES: u64 = 200;
    let parking = CoreConfig {
        idle: IdlePolicy::Park {
            after: Duration::ZERO,
            awake_percent: 100,
        },
        ..config()
    };
    let clock = Clock::new();
    let punctual = Arc::new(AtomicU64::new(0));
    let application = Clockwork {
        due: clock.now(),
        clock,
        punctual: Arc::clone(&punctual),
    };
    let pair = Pair::with(&config(), &parking, App::default(), application);
    let (core, handle) = (pair.server.core, pair.server.handle);
    let core = std::thread::spawn(move || core.run().map(drop));
    until("punctual polls of a core that parks", || {
        let is_enough =
            punctual.load(Ordering::Relaxed) >= TIMES && handle.counters().parks >= TIMES;
        is_enough.then_some(())
    });
    handle.stop();
    core.join().expect("no panic").expect("not pinned");
}

#[test]
fn a_parked_core_wakes_for_commands_and_messages() {
    let mut pair = Pair::new(&config());
    let (client, _) = pair.connect();
    let Pair {
        client: mut caller,
        server,
        ..
    } = pair;
    let handle = server.handle.clone();
    let core = std::thread::spawn(move || server.core.run());
    until("an idle core parks", || {
        (handle.counters().parks >= 3).then_some(())
    });
    caller.app_mut().want(client, ECHO, &[5; 8], 1);
    let wait = Wait::begin("a parked core answers");
    while caller.app().result(1).is_none() {
        wait.look(|| caller.counters().to_string());
        let _ = caller.core.iterate();
    }
    handle.stop();
    core.join().expect("no panic").expect("not pinned");
}
