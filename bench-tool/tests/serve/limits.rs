//! Limits that change while the server runs.

use std::io::BufRead;

use rpcrdma_testkit::{Ended, Folder, until};
use rustix::process::Signal;

use crate::{Server, address, run, serve};

/// Arguments of a server with the limits of a file, which has room for eight connections of 16 credits.
fn limits(file: &str) -> String {
    format!("--limits {file} --max-connections 8 --credits 16")
}

/// What peers can make a server use must be there. On no machine are there 1 GiB for each of so many connections.
#[test]
fn a_server_that_guarantees_more_memory_than_there_is_does_not_start() {
    let arguments = "--max-connections 65536 --set message_bytes_max=268435456";
    let ended = Ended::of(&mut serve(&address("memory"), arguments));
    let words = [
        "(67108864 MiB for 65536 connections (connections_max) × 4 messages × 268435456 bytes",
        "MiB registered) = ",
        " needed, and there are ",
        "lower message_bytes_max or connections_max",
    ];
    ended.check_failed(1, &words);
}

#[test]
fn sighup_reads_limits_again_and_a_bad_file_changes_nothing() {
    let address = address("limits");
    let folder = Folder::new("limits");
    let write = |text: &str| folder.write("limits.toml", text);
    let file = write("max_connections = 1\n");
    let arguments = format!("{} --log-level info", limits(&file));
    let mut server = Server::start(&mut serve(&address, &arguments));
    let mut told = server.take_errors().lines();
    let mut line_with = |words: &str| {
        let mut lines = told.by_ref().map(Result::unwrap);
        lines.find(|line| line.contains(words)).expect(words)
    };
    // Two connections, of which one carries calls.
    let two = "--count 10 --idle-connections 1";
    let refused = run(&address, two);
    assert_ne!(refused.code, Some(0), "one connection at a time: {refused}");
    // A server may see the end of a client's connections after the next client has come, which it refuses then.
    let until_taken = |why: &str, words: &str| {
        until(why, || (run(&address, words).code == Some(0)).then_some(()));
    };

    write("max_connections = 2\nmax_connections_per_client = 2\ncredits = 3\n");
    server.process.signal(Signal::HUP);
    let line = line_with(" limits_changed ");
    let changed = "connections_per_core=2 connections_per_client=2 credits=3";
    assert!(line.ends_with(changed), "{line}");
    until_taken("two connections at a time", two);
    // Three calls at a time, however many the client would like.
    until_taken("three calls at a time", "--count 1000 --depth 16");

    for (text, words) in [
        ("max_connections = 9\n", "from 0 to 8"),
        ("max_connections = \n", "line 1"),
        ("connections = 1\n", "unknown field"),
    ] {
        write(text);
        server.process.signal(Signal::HUP);
        let line = line_with(" error limits_refused what=\"the old limits stay\" ");
        assert!(line.contains(words) && line.contains(&file), "{line}");
        until_taken("the old limits stay", two);
    }
    server.end();
}

/// Such as the loss of a terminal: there is nothing to read again.
#[test]
fn sighup_drains_a_server_without_limits() {
    crate::hangup::let_programs_heed_it();
    let server = Server::start(&mut serve(&address("hangup"), "--log-level info"));
    let ended = server.process.end_by(Signal::HUP);
    ended.check_code(0);
    ended.check_errors(&["draining"]);
}

#[test]
fn a_server_does_not_start_with_limits_that_it_cannot_keep() {
    let folder = Folder::new("limits-start");
    let file = folder.write("limits.toml", "credits = 100\n");
    let output = Ended::of(&mut serve(&address("too-many"), &limits(&file))).with_code(2);
    output.check_errors(&["100 credits of a connection"]);
    let without_node = format!("--service nfs3 --limits {file}");
    Ended::of(&mut serve("tcp:127.0.0.1:0", &without_node)).check_code(2);
}
