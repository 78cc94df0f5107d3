//! Limits that change while the server runs.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::Signal;

use crate::{Server, address, run, serve};

/// A file of limits, which is gone with the test.
struct File(PathBuf);

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl File {
    fn new(what: &str, text: &str) -> Self {
        let name = format!("rpcrdma-limits-{what}-{}.toml", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        file.write(text);
        file
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.0, text).unwrap();
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Of a server with these limits, which has room for eight connections of 16 credits.
    fn arguments(&self) -> [&str; 6] {
        let [connections, credits] = ["--max-connections", "--credits"];
        ["--limits", self.path(), connections, "8", credits, "16"]
    }
}

/// What peers can make a server use must be there. On no machine are there 1 GiB for each of so many connections.
#[test]
fn a_server_that_guarantees_more_memory_than_there_is_does_not_start() {
    let arguments = [
        "--max-connections",
        "65536",
        "--set",
        "message_bytes_max=268435456",
    ];
    let ended = serve(&address("memory"), &arguments).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stdout.is_empty(), "it does not listen");
    let told = String::from_utf8(ended.stderr).unwrap();
    for words in [
        "(67108864 MiB for 65536 connections (connections_max) × 4 messages × 268435456 bytes",
        "MiB registered) = ",
        " needed, and there are ",
        "lower message_bytes_max or connections_max",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[test]
fn sighup_reads_limits_again_and_a_bad_file_changes_nothing() {
    let address = address("limits");
    let file = File::new("reload", "max_connections = 1\n");
    let mut command = serve(&address, &file.arguments());
    command.args(["--log-level", "info"]);
    let mut server = Server::start(command.stderr(Stdio::piped()));
    let mut told = BufReader::new(server.child.stderr.take().unwrap()).lines();
    let mut until = |words: &str| {
        let mut lines = told.by_ref().map(Result::unwrap);
        lines.find(|line| line.contains(words)).expect(words)
    };
    // Two connections, of which one carries calls: whether the server takes both.
    let takes_two = || {
        run(&address, "10", &["--idle-connections", "1"])
            .status
            .success()
    };
    assert!(!takes_two(), "one connection at a time");

    file.write("max_connections = 2\nmax_connections_per_client = 2\ncredits = 3\n");
    server.signal(Signal::HUP);
    let line = until(" limits_changed ");
    assert!(
        line.ends_with("connections_per_core=2 connections_per_client=2 credits=3"),
        "{line}"
    );
    assert!(takes_two());
    // Three calls at a time, however many the client would like.
    assert!(run(&address, "1000", &["--depth", "16"]).status.success());

    for (text, words) in [
        ("max_connections = 9\n", "from 0 to 8"),
        ("max_connections = \n", "line 1"),
        ("connections = 1\n", "unknown field"),
    ] {
        file.write(text);
        server.signal(Signal::HUP);
        let line = until(" error limits_refused what=\"the old limits stay\" ");
        assert!(line.contains(words) && line.contains(file.path()), "{line}");
        assert!(takes_two(), "the old limits stay");
    }
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn a_server_does_not_start_with_limits_that_it_cannot_keep() {
    let file = File::new("start", "credits = 100\n");
    let output = serve(&address("too-many"), &file.arguments())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("100 credits of a connection"), "{message}");
    let arguments = ["--service", "nfs3", "--limits", file.path()];
    let output = serve("tcp:127.0.0.1:0", &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "no node, no limits");
}
