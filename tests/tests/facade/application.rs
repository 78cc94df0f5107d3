//! An application of the engine on the cores of a node, with services and clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rpcrdma::prelude::*;
use rpcrdma::{ErrorKind, Idle};
use rpcrdma_control::{ConnectOptions, CoreChoice};
use rpcrdma_engine::{
    Activity, Application, Call, CallError, CallTag, ConnectionKey, Context, Outcome, Reply,
    ReplyWriter, Request,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::rpc::{Program, Programs};
use rpcrdma_testkit::until;

use crate::{address, profile};

/// The program of the application.
const OWN: Procedure = Procedure::new(0x2000_0077, 1, 1);
/// A program that a service has.
const OF_SERVICE: Procedure = Procedure::new(0x2000_0078, 1, 1);
/// The tag of its calls.
const TAG: CallTag = CallTag::MAX >> 1;

/// Answers with its number, and calls the service of the other end once.
struct Own {
    number: u32,
    connection: Option<ConnectionKey>,
    ended: Arc<AtomicU32>,
}

impl Application for Own {
    fn programs(&self) -> Programs {
        Programs::new([Program::new(OWN.program, vec![1..=1])])
    }

    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        assert_eq!(request.program, OWN.program, "the service has the other");
        let written = reply.write_u32(self.number);
        written.map_or(Outcome::SystemError, |()| Outcome::Success)
    }

    fn connected(&mut self, connection: ConnectionKey, _: Option<&rpcrdma::HostIdentity>) {
        self.connection.get_or_insert(connection);
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let Some(connection) = self.connection.take() else {
            return Activity::Idle;
        };
        let call = Call {
            program: OF_SERVICE.program,
            version: 1,
            procedure: 1,
        };
        if core.call(connection, call, &[], TAG).is_err() {
            self.connection = Some(connection);
        }
        Activity::Busy
    }

    fn completed(
        &mut self,
        tag: CallTag,
        _: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _: Ticks,
    ) {
        assert_eq!(tag, TAG, "the calls of clients are not reported to it");
        if result.is_ok_and(|reply| reply.results == [0, 0, 0, 9]) {
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn application_calls_and_answers_on_the_cores_of_services_and_clients() {
    let at = address();
    let ended = Arc::new(AtomicU32::new(0));
    let builder = || {
        let ended = Arc::clone(&ended);
        Node::builder()
            .profile(profile())
            .procedure(OF_SERVICE, |call, reply| {
                call.args().end()?;
                reply.u32(9);
                Ok(())
            })
            .application(move |core| Own {
                number: u32::try_from(core).unwrap_or(0) + 5,
                connection: None,
                ended: Arc::clone(&ended),
            })
    };
    let server = builder().listen(&at).expect("the name is free");
    let node = builder().start(&at).expect("a small node");
    let client = node.client().connect(&at).expect("a server listens");
    let results = |procedure| {
        let mut answer = client.call(procedure, &[]).expect("it is served");
        answer.results().u32().expect("a word")
    };
    assert_eq!((results(OWN), results(OF_SERVICE)), (5, 9));
    let error = client
        .call(Procedure::new(0x2000_0079, 1, 1), &[])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ProgramUnavailable);
    let error = client
        .call(Procedure::new(OWN.program, 2, 1), &[])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ProgramMismatch);
    // The application of the client's node had the connection of the client, too.
    until("its call", || {
        (ended.load(Ordering::Relaxed) == 1).then_some(())
    });
    // A connection that no client has.
    let options = ConnectOptions {
        core: CoreChoice::Core(0),
        application_properties: Some(node.new_name()),
        ..ConnectOptions::default()
    };
    let own = node.control().connect(&at, options);
    own.expect("a server listens");
    until("its second call", || {
        (ended.load(Ordering::Relaxed) == 2).then_some(())
    });
    drop((client, node, server));
}

#[test]
fn application_that_takes_the_program_of_a_service_is_refused() {
    struct All;
    impl Application for All {}
    let service = || {
        Node::builder()
            .profile(profile())
            .procedure(OWN, |_, _| Ok(()))
    };
    let refused = service().application(|_| All).start(&address());
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(error.to_string().contains("programs"), "{error}");
    let own = |_| Own {
        number: 0,
        connection: None,
        ended: Arc::default(),
    };
    let refused = service().application(own).start(&address());
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Configuration);
    // Without services it may take all.
    let alone = Node::builder().profile(profile()).application(|_| All);
    drop(alone.start(&address()).expect("nobody else has a program"));
}

#[test]
fn sizes_that_the_program_configures_are_those_of_the_whole_node() {
    let at = address();
    // More calls can be deferred than the profile says, and all of them are answered.
    let server = Server::builder()
        .profile(profile())
        .knob("deferred_replies_max=1")
        .configure(|mut config| {
            config.core.deferred_max = 32;
            config.cores = vec![None; 2];
            config
        })
        .procedure(OWN, |call, _| {
            let later = call.later()?;
            std::thread::spawn(move || later.reply(|results| _ = results.u32(7)));
            Ok(())
        })
        .listen(&at)
        .expect("a node");
    assert_eq!(server.node().cores(), 2);
    let client = crate::connect(&at);
    let mut poller = client.poller(16).expect("room");
    for round in 0..20_u64 {
        for tag in 0..16 {
            let mut request = poller.request(OWN);
            poller
                .submit(&mut request, round * 16 + tag)
                .expect("a place");
        }
        for _ in 0..16 {
            let mut answer = poller
                .wait()
                .expect("calls are under way")
                .result
                .expect("an answer");
            assert_eq!(answer.results().u32().expect("a word"), 7);
        }
    }
}

/// What the kernel says of the threads of this process with that name.
fn processors_of(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").expect("a directory");
    let status =
        tasks.filter_map(|it| std::fs::read_to_string(it.ok()?.path().join("status")).ok());
    let of_name = status.filter(|status| status.contains(&format!("Name:\t{name}\n")));
    let allowed = of_name.filter_map(|status| {
        let line = status
            .lines()
            .find(|line| line.starts_with("Cpus_allowed_list:"))?;
        Some(line.split_whitespace().nth(1)?.to_owned())
    });
    allowed.collect()
}

#[test]
fn low_latency_cores_are_pinned_and_never_sleep() {
    let at = address();
    let node = Node::builder().low_latency().start(&at).expect("a node");
    assert_eq!(node.profile().idle, Idle::Spin);
    let last = rpcrdma_engine::processors().pop().expect("a processor");
    // Other tests have nodes whose cores are not pinned, at the same time.
    let processors = processors_of("rpcrdma-core-0");
    assert!(processors.contains(&last.to_string()), "{processors:?}");
    let other = Node::builder().low_latency().start(&at);
    match rpcrdma_engine::processors().iter().rev().nth(1) {
        // Each has its own.
        Some(before) => {
            let processors = processors_of("rpcrdma-core-0");
            assert!(processors.contains(&before.to_string()), "{processors:?}");
        }
        None => assert_eq!(other.as_ref().unwrap_err().kind(), ErrorKind::Configuration),
    }
    drop((node, other));
    // What they had is free again.
    let again = Node::builder().low_latency().start(&at).expect("a node");
    let processors = processors_of("rpcrdma-core-0");
    assert!(processors.contains(&last.to_string()), "{processors:?}");
    drop(again);
    let too_many = rpcrdma_engine::processors().len() + 1;
    let error = Node::builder().cores(too_many).low_latency().start(&at);
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Configuration);
    let node = Node::builder().start(&at).expect("a node");
    assert_eq!(node.profile().idle, Idle::Park);
}
