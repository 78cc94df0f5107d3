//! Tests of open files: none leaks, and a shortage is reported. They run in child processes, because the limit and the
//! number of open files belong to a process.

use rpcrdma_testkit::Wait;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::children::run_part;
use super::support::*;
use crate::interface::{Manager as _, ManagerError, ManagerEvent, RejectReason};

/// The parts of the children of these tests.
pub(super) fn play(part: &str) {
    match part {
        "leaks" => no_files_leak(),
        "limit-raised" => the_soft_limit_is_raised(),
        "client-without-files" => a_client_without_files(),
        "server-without-files" => a_server_without_files(),
        other => panic!("unknown part {other}"),
    }
}

#[test]
fn files_do_not_leak() {
    run_part("leaks");
}

#[test]
fn the_limit_of_open_files_is_raised() {
    run_part("limit-raised");
}

#[test]
fn a_client_that_runs_out_of_files_says_what_to_do() {
    run_part("client-without-files");
}

#[test]
fn a_server_that_runs_out_of_files_turns_clients_away() {
    run_part("server-without-files");
}

fn no_files_leak() {
    let (client_port, server_port) = (port(64), port(64));
    let before = open_files();
    for round in 0..3 {
        let (mut client, mut server, address) = client_and_server();
        for _ in 0..20 {
            client.connect(&address, &client_port, b"").unwrap();
        }
        let storm = establish_all((&mut client, &client_port), (&mut server, &server_port), 20);
        // Step 0: the server rejects. Step 1: the client disconnects early. Steps 2 and 3: one end disconnects after
        // the reply.
        for step in 0..4 {
            let asked = client.connect(&address, &client_port, b"").unwrap();
            let (accepted, ..) = expect_request(&mut server);
            match step {
                0 => {
                    server.reject(accepted, RejectReason::Draining, b"");
                    expect_rejected(&mut client);
                }
                1 => {
                    client.disconnect(asked);
                    expect_disconnected(&mut server);
                }
                _ => {
                    let _seed = server.prepare(accepted, &server_port).unwrap();
                    server.accept(accepted, b"").unwrap();
                    expect_reply(&mut client);
                    if step == 2 {
                        client.disconnect(asked);
                        expect_disconnected(&mut server);
                    } else {
                        server.disconnect(accepted);
                        expect_disconnected(&mut client);
                    }
                }
            }
        }
        // The manager also closes the files that came with broken messages.
        super::faults::break_the_protocol(&mut server, &address);
        drop(storm);
        drop((client, server));
        assert_eq!(open_files(), before, "round {round}");
    }
}

fn limit_open_files(soft: u64, hard: u64) {
    let limit = Rlimit {
        current: Some(soft),
        maximum: Some(hard),
    };
    setrlimit(Resource::Nofile, limit).unwrap();
}

fn the_soft_limit_is_raised() {
    limit_open_files(40, 60);
    let manager = manager();
    assert_eq!(getrlimit(Resource::Nofile).current, Some(60));
    let text = &manager.open_files_limit;
    assert!(
        text.contains("60 files") && text.contains("ulimit -n"),
        "{text}"
    );
}

fn a_client_without_files() {
    let (mut client, _server, address) = client_and_server();
    let client_port = port(64);
    let free = u64::try_from(open_files()).unwrap() + 4;
    limit_open_files(free, free);
    let mut failed = 0;
    for _ in 0..8 {
        client.connect(&address, &client_port, b"").unwrap();
    }
    let mut events = Vec::new();
    client.wait(std::time::Duration::ZERO, &mut events).unwrap();
    for event in events {
        let ManagerEvent::Failed { error, .. } = event else {
            panic!("{}", name(&event));
        };
        let text = error.to_string();
        assert!(matches!(error, ManagerError::System { .. }), "{text}");
        assert!(text.contains("ulimit -n"), "{text}");
        failed += 1;
    }
    // The limit counts descriptor numbers, and numbers that were closed before may be free below it.
    assert!((1..=5).contains(&failed), "{failed} of 8 failed");
}

fn a_server_without_files() {
    let (mut client, mut server, address) = client_and_server();
    let client_port = port(64);
    for _ in 0..8 {
        client.connect(&address, &client_port, b"").unwrap();
    }
    let full = u64::try_from(open_files()).unwrap() - 1;
    limit_open_files(full, full);
    // The server can accept nothing. A turn that tries rejects one client with the spare descriptor, and then rests.
    let mut rejected = 0;
    let mut events = Vec::new();
    let wait = Wait::begin("three rejections");
    while rejected < 3 {
        wait.look(|| format!("{rejected}, and {:?}", server.counters));
        let pause = std::time::Duration::from_millis(30);
        server.wait(pause, &mut events).unwrap();
        assert!(events.iter().all(|event| name(event) == "ConnectRequest"));
        events.clear();
        client.wait(std::time::Duration::ZERO, &mut events).unwrap();
        for event in events.drain(..) {
            if let ManagerEvent::Rejected { reason, .. } = event {
                assert_eq!(reason, RejectReason::ConnectionsExhausted);
                rejected += 1;
            }
        }
    }
    assert!(server.counters.accepts_out_of_files >= 1);
}
