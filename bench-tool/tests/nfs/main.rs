//! `bench-tool nfs` against servers that are right, and against servers that are not.

mod server;

use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use self::server::{Fault, Server};

fn command(server: &Server, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench-tool"));
    let (port, address) = (server.port().to_string(), server.address());
    command
        .args([
            "nfs",
            "--connect",
            &address,
            "--export",
            "/export",
            "--mount-port",
            &port,
        ])
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn nfs(server: &Server, arguments: &str) -> Output {
    command(server, arguments).output().unwrap()
}

/// The JSON of a run that must succeed, and leave nothing on the server.
fn report(server: &Server, arguments: &str) -> Value {
    let output = nfs(server, &format!("{arguments} --json - --warmup 0"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{arguments}: {text}");
    assert_eq!(server.names(), Vec::<String>::new(), "{arguments}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What a run that must fail says, which leaves nothing on the server either.
fn failure(server: &Server, arguments: &str) -> String {
    let output = nfs(server, &format!("{arguments} --warmup 0"));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{arguments}: {text}");
    assert_eq!(server.names(), Vec::<String>::new(), "{arguments}");
    text
}

/// What a run leaves that is asked to stop.
fn interrupted(child: Child) -> Output {
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn every_op_at_odd_sizes_is_right_to_the_last_byte() {
    let server = Server::start(Fault::None);
    #[rustfmt::skip]
    let cases = [
        ("--op null --count 300 --depth 4", "null"),
        ("--op getattr --count 300 --files 3", "getattr"),
        ("--op getattr --count 50 --files 0", "getattr"),
        ("--op read --size 1 --file-size 99 --count 300 --depth 3 --verify", "read"),
        ("--op read --size 4097 --file-size 100000 --count 300 --access random --verify", "read"),
        ("--op write --size 5001 --file-size 100000 --count 300 --depth 7 --verify", "write"),
        ("--op write --size 1MiB --file-size 3MiB --files 2 --count 12 --stable file --verify", "write"),
        ("--op read --size 1048573 --file-size 3MiB --files 2 --count 12 --depth 2 --verify", "read"),
    ];
    for (arguments, procedure) in cases {
        let report = report(&server, arguments);
        assert_eq!(report["errors"], 0, "{arguments}");
        let calls = report["calls"].as_u64().unwrap();
        assert!(calls >= 12, "{arguments}: {calls}");
        assert_eq!(
            report["procedures"][procedure]["calls"], calls,
            "{arguments}"
        );
        assert_eq!(report["blocks_wrong"], 0);
        if procedure == "write" {
            assert!(
                report["blocks_checked"].as_u64().unwrap() > 0,
                "{arguments}"
            );
        }
    }
}

#[test]
fn a_mix_reads_what_it_writes_on_several_connections() {
    let server = Server::start(Fault::None);
    let report = report(
        &server,
        "--op mix --read-percent 30 --size 3000 --file-size 60000 --count 2000 --depth 5 --connections 3 \
         --access random --verify",
    );
    assert_eq!(
        (&report["errors"], &report["calls"]),
        (&0.into(), &2000.into())
    );
    let reads = report["procedures"]["read"]["calls"].as_u64().unwrap();
    assert!((450..750).contains(&reads), "{reads}");
    assert!(report["bandwidth_bytes_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn an_open_loop_makes_its_calls_when_they_are_due() {
    let server = Server::start(Fault::None);
    let report = report(&server, "--op null --rate 500 --duration 1s --depth 64");
    let calls = report["calls"].as_u64().unwrap();
    assert!(calls <= 501, "{calls}");
    assert_eq!(report["loop"], "open");
}

#[test]
fn reports_go_to_the_files_that_a_run_has() {
    let server = Server::start(Fault::None);
    let folder = std::env::temp_dir().join(format!("bench-tool-nfs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [hlog, html, knee] = ["a.hlog", "a.html", "knee.html"].map(|name| folder.join(name));
    let arguments = format!(
        "--op read --connections 2 --duration 400ms --interval 100ms --intervals --hlog {} --html {}",
        hlog.display(),
        html.display()
    );
    let report = report(&server, &arguments);
    let intervals = report["intervals"].as_array().unwrap();
    let calls: u64 = intervals
        .iter()
        .map(|it| it["calls"].as_u64().unwrap())
        .sum();
    assert!(intervals.len() >= 3 && report["calls"] == calls, "{report}");
    let log = std::fs::read_to_string(&hlog).unwrap();
    assert!(
        log.starts_with("#[Histogram log format version 1.3]\n"),
        "{log}"
    );
    let page = std::fs::read_to_string(&html).unwrap();
    assert_eq!(page.matches("<figure>").count(), 3);

    let arguments = format!(
        "--to-knee --op getattr --duration 50ms --warmup 0 --html {}",
        knee.display()
    );
    let output = nfs(&server, &format!("{arguments} --json -"));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{words}");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema"], "rpcrdma.bench-tool.knee/1");
    assert_eq!(json["closed_loop"]["schema"], "rpcrdma.bench-tool.nfs/1");
    assert_eq!(json["steps"].as_array().unwrap().len(), 12);
    assert_eq!(json["steps"][11]["share_percent"], 100);
    assert!(words.contains("knee"), "{words}");
    assert!(
        std::fs::read_to_string(&knee)
            .unwrap()
            .contains("Latency against rate")
    );
    assert_eq!(server.names(), Vec::<String>::new());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_server_that_is_wrong_is_found_out() {
    #[rustfmt::skip]
    let cases = [
        (Fault::Content, "--op read --count 50", "wrong_content"),
        (Fault::Content, "--op write --count 50 --verify", "do not hold what was written"),
        (Fault::Stale, "--op getattr --count 50", "nfs3err_stale"),
        (Fault::Trailing, "--op getattr --count 50", "malformed_replies"),
        (Fault::Truncated, "--op read --count 50", "malformed_replies"),
        (Fault::LessStable, "--op write --stable file --count 50", "writes_less_stable"),
    ];
    for (fault, arguments, words) in cases {
        let server = Server::start(fault);
        let text = failure(&server, arguments);
        assert!(text.contains("what to do"), "{text}");
        let output = nfs(&server, arguments);
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(stdout.contains(words), "{fault:?}: {stdout}");
    }
}

#[test]
fn a_refusal_says_what_to_do() {
    for (fault, words) in [
        (Fault::NotExported, ["MNT3ERR_ACCES", "insecure"]),
        (Fault::ReadOnly, ["NFS3ERR_ROFS", "read-write"]),
        (Fault::NoSpace, ["NFS3ERR_NOSPC", "--file-size"]),
    ] {
        let server = Server::start(fault);
        let text = failure(&server, "--op read --count 5");
        for words in words {
            assert!(text.contains(words), "{fault:?}: {text}");
        }
    }
    let server = Server::start(Fault::None);
    let output = nfs(&server, "--op read --size 2MiB --count 5");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--size 1MiB"), "{text}");
}

#[test]
fn less_than_was_asked_for_is_told_and_no_error() {
    let server = Server::start(Fault::Short);
    for op in ["read", "write"] {
        let report = report(
            &server,
            &format!("--op {op} --size 5000 --count 50 --verify"),
        );
        assert_eq!(report["short_transfers"], 50, "{op}");
        assert_eq!(report["procedures"][op]["payload_bytes"], 50 * 2500);
        assert!(report["warnings"].to_string().contains("moved less"));
    }
}

#[test]
fn a_connection_that_is_lost_ends_the_run_or_is_made_again() {
    let server = Server::start(Fault::Cut);
    let text = failure(&server, "--op write --count 400 --depth 4");
    assert!(
        text.contains("was lost") && text.contains("--retry"),
        "{text}"
    );
    let (_, came_again) = *server.failed().last().expect("it was cut");
    assert!(!came_again, "the run has ended");
    let report = report(
        &server,
        "--op write --count 400 --depth 4 --verify --retry 60s",
    );
    assert_eq!(
        (&report["errors"], &report["calls"]),
        (&0.into(), &400.into())
    );
    assert!(report["reconnects"].as_u64().unwrap() >= 1, "{report}");
    let (xid, came_again) = *server.failed().last().expect("it was cut");
    assert!(came_again, "the call {xid:#x} was made under another XID");
}

#[test]
fn what_prepares_a_run_and_cleans_up_survives_lost_replies_too() {
    let server = Server::start(Fault::Fickle);
    let arguments = "--op mix --count 40 --depth 4 --verify";
    let output = nfs(&server, arguments);
    assert_eq!(output.status.code(), Some(1), "a connection is lost");
    let server = Server::start(Fault::Fickle);
    let report = report(&server, &format!("{arguments} --retry 60s"));
    assert_eq!(
        (&report["errors"], &report["blocks_wrong"]),
        (&0.into(), &0.into())
    );
    // FSINFO, MKDIR, CREATE, LOOKUP, SETATTR, COMMIT, READ, REMOVE and RMDIR.
    assert_eq!(server.failed().len(), 9);
}

#[test]
fn a_call_that_is_put_off_is_told_or_made_again_as_another() {
    for op in ["getattr", "read", "write"] {
        let server = Server::start(Fault::Busy);
        let arguments = format!("--op {op} --count 40 --depth 4 --files 1");
        let output = nfs(&server, &arguments);
        let told = [output.stdout, output.stderr].concat();
        let told = String::from_utf8_lossy(&told).to_ascii_lowercase();
        assert!(told.contains("nfs3err_jukebox"), "{op}: {told}");
        assert_eq!(output.status.code(), Some(1), "{op}: {told}");
        // Another server: the XIDs of two runs may be the same.
        let server = Server::start(Fault::Busy);
        let report = report(&server, &format!("{arguments} --retry 60s"));
        assert_eq!(
            (&report["errors"], &report["calls"]),
            (&0.into(), &40.into()),
            "{op}"
        );
        assert!(report["put_off"].as_u64().unwrap() >= 4, "{report}");
        assert!(report["latency_ns"]["max"].as_u64().unwrap() >= 100_000_000);
        let same = server.failed().iter().filter(|it| it.1).count();
        assert_eq!(same, 0, "XIDs of their own");
    }
}

#[test]
fn a_signal_ends_calls_that_are_put_off_for_ever() {
    let server = Server::start(Fault::Stuck);
    let arguments = "--op write --depth 4 --duration 10m --retry 10m --warmup 0 --json -";
    let child = command(&server, arguments).spawn().unwrap();
    while server.failed().len() < 12 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = interrupted(child);
    assert_eq!(output.status.code(), Some(1), "calls failed");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["interrupted"], true);
    assert_eq!(report["errors_by_name"]["nfs3err_jukebox"], 4);
    assert_eq!(server.names(), Vec::<String>::new());
}

#[test]
fn a_changed_verifier_says_that_the_server_was_restarted() {
    let server = Server::start(Fault::Verifier);
    let report = report(&server, "--op write --count 50 --verify");
    assert!(report["verifier_changes"].as_u64().unwrap() >= 1);
    assert_eq!(report["blocks_checked"], 0, "lost by right");
    assert!(report["warnings"].to_string().contains("restarted"));
}

#[test]
fn a_signal_ends_it_in_good_order() {
    let server = Server::start(Fault::None);
    let child: Child = command(&server, "--op write --duration 10m --warmup 0 --json -")
        .spawn()
        .unwrap();
    while server.writes() < 20 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = interrupted(child);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{text}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["interrupted"], true);
    assert_eq!(server.names(), Vec::<String>::new());
}

#[test]
fn nobody_there_is_said_with_the_port() {
    let server = Server::start(Fault::None);
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench-tool"));
    // Nothing listens on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let output = command
        .args([
            "nfs",
            "--connect",
            &server.address(),
            "--export",
            "/export",
            "--mount-port",
            &port,
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains(&format!("mountd on 127.0.0.1 port {port}")),
        "{text}"
    );
}
