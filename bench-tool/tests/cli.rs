//! The binary as a user meets it: exit codes, what stands on which stream, and messages that say what to do.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rpcrdma_testkit::{Ended, Folder, Running, command, until};
use rustix::process::Signal;
use serde_json::Value;

#[path = "support/checkpoint.rs"]
mod checkpoint;
#[path = "cli/decode.rs"]
mod decode;
#[path = "cli/ends.rs"]
mod ends;
#[path = "support/hangup.rs"]
mod hangup;
#[path = "support/json.rs"]
mod json;
#[path = "support/page.rs"]
mod page;
#[path = "support/patient.rs"]
mod patient;
#[path = "cli/reverse.rs"]
mod reverse;
#[path = "support/signal.rs"]
mod signal;
#[path = "cli/through.rs"]
mod through;
#[path = "support/usable.rs"]
mod usable;
#[path = "support/watched.rs"]
mod watched;

use self::checkpoint::report_in;
use self::json::Json as _;
use self::patient::PATIENT;
use self::usable::cores_usable;
use self::watched::{until_at_least, watched};

const BENCH_TOOL: &str = env!("CARGO_BIN_EXE_bench-tool");

fn bench_tool(line: &str) -> Ended {
    Ended::of(&mut command(BENCH_TOOL, line))
}

#[test]
fn help_teaches_and_is_no_error() {
    for (line, words) in [
        ("--help", "Exit status"),
        ("run --help", "--idle-connections"),
        ("run --help", "openssl"),
        ("serve --help", "--psk-file keys --identity server"),
        ("run --help", "bench-tool run --reverse --op echo"),
        ("serve --help", "--reverse"),
        ("serve --help", "listening on ADDR"),
        ("fleet --help", "ssh {host} bench-tool agent"),
        ("agent --help", "A coordinator starts it"),
        ("merge --help", "never averaged"),
        ("report --help", "in which they differ"),
        ("fleet --help", "--html"),
        ("fleet --help", "-- sweep --connect rdma:server:20049"),
        ("fleet --help", "Of a sweep:"),
        ("floor --help", "--buffers"),
        ("decode --help", "Examples"),
        ("sweep --help", "--repeats <N>"),
        ("compare --help", "beyond noise"),
        ("doctor --help", "what to do"),
        ("profile --help", "profile detect"),
        ("profile show --help", "inferred"),
        ("profile check --help", "[settings]"),
        ("completions --help", "~/.zfunc/_bench-tool"),
        ("man --help", "bench-tool-run.1"),
    ] {
        let help = bench_tool(line).with_code(0);
        help.check_out(&[words]);
        assert!(help.errors.is_empty(), "{help}");
    }
    for (line, hidden) in [
        ("serve --help", "exit-with-stdin"),
        ("doctor --help", "--root"),
    ] {
        assert!(!bench_tool(line).out.contains(hidden), "{line}");
    }
    let version = bench_tool("--version").out;
    assert!(version.starts_with("bench-tool 0.") && version.contains("revision"));
    let rdma_core = match cfg!(feature = "rdma-sys") {
        true => "rdma-core linked by rdma-sys",
        false => "rdma-core loaded at run time",
    };
    assert!(version.contains(rdma_core), "{version}");
}

#[test]
fn a_wrong_command_line_ends_with_2_and_says_what_is_right() {
    for (line, words) in [
        ("", "Usage"),
        ("run --sizes 64", "--size"),
        ("run --connect bench", "shm:NAME"),
        ("run --duration 10", "10s"),
        ("run --size 64", "--op echo"),
        ("run --op write --placement wire", "rdma"),
        ("run --placement rdma", "--op read"),
        ("run --op read --seed 3", "--op mix"),
        ("run --op read --reverse", "--op null or"),
        ("run --reverse --rate 5", "cannot be used with"),
        ("run --delay 5", "50us"),
        ("run --cores 1023", "numbers from"),
        ("run --duration 1s --count 5", "cannot be used with"),
        ("run --connect rdma:host:0", "port 0"),
        ("run --connect shm:x --fabric rdma", "cannot be used with"),
        ("run --connect shm:x --device mlx5_0", "no devices"),
        ("serve", "--listen"),
        ("fleet -- run --connect shm:x", "--hosts"),
        ("fleet --clients 2 -- run", "--connect ADDR"),
        (
            "fleet --clients 2 -- run --connect shm:x --depth 0",
            "1..=65535",
        ),
        (
            "fleet --clients 2 -- sweep --connect shm:x --csv a",
            "before the",
        ),
        (
            "fleet --clients 2 --plot a.svg -- sweep --connect shm:x",
            "nothing to draw",
        ),
        (
            "fleet --clients 2 --hgrm a -- sweep --connect shm:x",
            "no effect with a sweep",
        ),
        (
            "fleet --clients 2 -- sweep --connect shm:x --op null,write --size 4k",
            "leave --size out",
        ),
        ("merge", "FILE"),
        ("floor --cores 1022,1023", "numbers from"),
        ("floor --size 0", "one byte"),
        ("doctor --profile nosuch", "nosuch"),
        ("profile", "show"),
        ("profile show mlx6", "mlx5"),
        ("profile show efa", "reliable connections"),
        ("profile show shm --set reap", "NAME=VALUE"),
    ] {
        bench_tool(line).check_failed(2, &[words]);
    }
}

#[test]
fn the_floor_is_a_table_or_json() {
    if cores_usable().len() < 2 {
        let output = bench_tool("floor --quick").with_code(1);
        output.check_errors(&["only one core"]);
        return;
    }
    let table = bench_tool("floor --quick --size 4KiB --depth 2").with_code(0);
    table.check_out(&["round trip", "hand-off copy", "4 KiB", "clock", "gaps"]);
    let value = bench_tool("floor --quick --size 4KiB --json -").json();
    assert!(value["floor"]["round_trip_ns"].as_u64().unwrap() > 0);
    assert_eq!(value["copy"][0]["size_bytes"], 4096);
    let line = "bench-tool floor --quick --size 4KiB --json -";
    assert_eq!(value["command"], line);
}

/// Wherever the report cannot go, the answer is status 1, the path, and advice; and no file is left.
#[test]
fn a_report_that_cannot_be_written_is_status_1() {
    if cores_usable().len() < 2 {
        return;
    }
    let folder = Folder::new("report");
    for (path, words) in [
        (folder.path("missing/floor.json"), "create the directory"),
        (folder.path(""), "a file in that directory"),
        ("/dev/full".to_owned(), "free some space"),
    ] {
        let output = bench_tool(&format!("floor --quick --size 4KiB --json {path}"));
        output.check_code(1);
        output.check_errors(&[words, &path]);
    }
    assert_eq!(std::fs::read_dir(&*folder).unwrap().count(), 0);
}

/// The whole path, as a newcomer tries it: two processes, a table, and no process left behind.
#[test]
fn a_run_with_a_server_of_its_own() {
    let folder = Folder::new("run");
    let json = folder.path("run.json");
    let output = bench_tool(&format!(
        "run --count 2000 --warmup 10ms {PATIENT} --json {json}"
    ))
    .with_code(0);
    output.check_out(&["p99.99"]);
    let last = output.out.lines().last().unwrap();
    assert!(last.starts_with("floor"), "{output}");
    let value: Value = serde_json::from_str(&folder.read("run.json")).unwrap();
    for (key, expected) in [
        ("calls", Value::from(2000)),
        ("errors", 0.into()),
        ("fabric", "shm".into()),
        ("protocol", "v2".into()),
    ] {
        assert_eq!(value[key], expected, "{key}");
    }
    assert_eq!(value["latency_ns"]["count"], 2000);
}

/// The report of a short run with a server of its own.
fn run_of(words: &str) -> Value {
    report_of(&format!("--count 300 --warmup 50ms {words}"))
}

/// The report of a run of these words that ends well. Its cores sleep when they wait: where others keep the processors busy,
/// polling cores wait for each other's.
fn report_of(words: &str) -> Value {
    let line = format!("run --quiet --json - {PATIENT} --set idle=park {words}");
    bench_tool(&line).json()
}

#[test]
fn the_report_says_what_a_call_took() {
    // Round trips, RDMA Reads and Writes of the server, registrations of the client.
    #[rustfmt::skip]
    let cases = [
        ("--op write --placement rdma", [2.0, 1.0, 0.0, 1.0]),
        ("--op write --placement inline --size 1000", [1.0, 0.0, 0.0, 0.0]),
        ("--op read --placement rdma", [1.0, 0.0, 1.0, 1.0]),
        ("--op read --placement inline --size 1000", [1.0, 0.0, 0.0, 0.0]),
        ("--op write --placement rdma --operations 3", [2.0, 3.0, 0.0, 3.0]),
        ("--op read --placement rdma --operations 3 --size 100KiB", [1.0, 0.0, 3.0, 3.0]),
    ];
    for (words, expected) in cases {
        let report = run_of(words);
        let (client, server) = (&report["per_call"]["client"], &report["per_call"]["server"]);
        let took = [
            &report["per_call"]["round_trips"],
            &server["rdma_reads"],
            &server["rdma_writes"],
            &client["registrations"],
        ];
        assert_eq!(
            took.map(|number| number.as_f64().unwrap()),
            expected,
            "{words}"
        );
        // Grants and keep-alives are Sends too, but few.
        for end in [client, server] {
            let sends = end["sends"].as_f64().unwrap();
            assert!((1.0..1.5).contains(&sends), "{words}: {sends} Sends");
        }
        let is_inline = words.contains("inline");
        assert_eq!(
            report["placement"],
            if is_inline { "inline" } else { "rdma" },
            "{words}"
        );
        let copies = client["copies"].as_f64().unwrap() + server["copies"].as_f64().unwrap();
        assert!(is_inline || copies == 0.0, "{words}: {copies} copies");
        let server_calls = report["server_counters"]["calls_received"]
            .as_u64()
            .unwrap();
        let calls = report["per_call"]["calls"].as_u64().unwrap();
        // The second question for the counters is answered after it was counted.
        assert_eq!(server_calls, calls + 1, "{words}");
    }
}

#[test]
fn a_mix_does_both_and_every_payload_is_checked() {
    let report =
        run_of("--op mix --read-percent 50 --operations 2 --size 70KiB --depth 4 --connections 3");
    let server = &report["per_call"]["server"];
    let [reads, writes] = ["rdma_reads", "rdma_writes"].map(|key| server[key].as_f64().unwrap());
    assert!(
        reads > 0.5 && writes > 0.5 && (reads + writes - 2.0).abs() < 0.01,
        "{reads} {writes}"
    );
    assert_eq!(
        (&report["errors"], &report["calls"]),
        (&0.into(), &300.into())
    );
    assert_eq!(report["read_percent"], 50);
    assert_eq!(
        (&report["operations"], &report["seed"]),
        (&2.into(), &1.into())
    );
}

#[test]
fn a_run_to_the_knee_has_a_closed_loop_and_every_rate() {
    let line = format!(
        "run --to-knee --repeat-disturbed 0 --depth 4 --duration 400ms --warmup 0 {PATIENT} --set idle=park --json -"
    );
    let output = bench_tool(&line);
    let report = output.json();
    output.check_errors(&["\nknee "]);
    assert_eq!(report["schema"], "rpcrdma.bench-tool.knee/1");
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 13);
    let capacity = report["closed_loop"]["rate_per_s"].as_f64().unwrap();
    let offered = |step: &Value| step["offered_rate_per_s"].as_f64().unwrap();
    // A machine that stops for seconds may have a capacity below one call in a second, and no rate is.
    let near = |step: &Value, rate: f64| (offered(step) - rate.max(1.0)).abs() <= 0.5;
    assert!(near(&steps[4], capacity / 2.0), "{report}");
    assert!(near(&steps[11], capacity), "{report}");
    assert!(steps.iter().all(|it| it["errors"] == 0));
}

/// A server that is slow, or kept from its processor, may answer none of them within the time.
#[test]
fn without_a_warm_up_the_first_calls_count_however_short_the_time_is() {
    for (load, calls) in [("--depth 3", 3), ("--depth 3 --rate 1000", 1)] {
        let report = report_of(&format!("--duration 1us --warmup 0 {load}"));
        assert!(report["calls"].as_u64() >= Some(calls), "{load}: {report}");
    }
}

#[test]
fn payloads_of_several_sizes_are_checked_and_counted() {
    // Without a warm-up the calls that count are the first ones of the seed.
    let report =
        report_of("--op mix --sizes 1000=3,70k=1 --depth 4 --seed 5 --count 300 --warmup 0");
    assert_eq!(report["errors"], 0);
    assert_eq!(report["size_bytes"], 70 * 1024);
    assert_eq!(
        (&report["sizes"][0]["bytes"], &report["seed"]),
        (&1000.into(), &5.into())
    );
    assert_eq!(report["sizes"][0]["share_percent"], 75.0);
    let [rate, time] = ["bandwidth_bytes_per_s", "duration_s"].map(|key| report[key].as_f64());
    let payload = rate.unwrap() * time.unwrap();
    // A quarter of 300 calls of 70 KiB, give or take four deviations.
    assert!((3.4e6..7.8e6).contains(&payload), "{payload} bytes");
}

#[test]
fn a_set_delay_is_paid_once_by_a_message_and_twice_by_a_fetched_payload() {
    let delay_ns = 2_000_000;
    for (placement, trips) in [("inline", 1), ("rdma", 2)] {
        let report = report_of(&format!(
            "--op write --placement {placement} --size 1000 --delay 2ms --count 5 --warmup 0"
        ));
        assert_eq!(report["delay_ns"], delay_ns);
        let fastest = report["latency_ns"]["min"].as_u64().unwrap();
        assert!(fastest >= 2 * delay_ns * trips, "{placement}: {fastest} ns");
    }
}

#[test]
fn a_service_takes_the_time_that_it_is_given() {
    let report = report_of("--op echo --service-time 50us --count 20 --warmup 0");
    assert_eq!(report["service_time_ns"], 50_000);
    let fastest = report["latency_ns"]["min"].as_u64().unwrap();
    assert!(fastest >= 50_000, "{fastest} ns");
}

/// A core that slept on until something came would sleep for 100 ms each time, and half of its calls would be late by 50 ms
/// and more in every interval. One in which they are not is enough: a busy machine may have many others.
#[test]
fn calls_at_a_rate_are_made_in_time_by_a_core_that_parks() {
    let folder = Folder::new("parks");
    let json = folder.path("run.json");
    let run = Running::start(&mut command(
        BENCH_TOOL,
        &format!(
            "run --op null --rate 100 --duration 10m --warmup 0 {PATIENT} --set idle=park --interval 200ms \
             --checkpoint 300ms --quiet --json {json}"
        ),
    ));
    until("an interval with calls in time", || {
        let report = report_in(&json)?;
        let mut intervals = report["intervals"].as_array().unwrap().iter();
        let is_in_time = |it: &Value| {
            it["calls"].as_u64() >= Some(15)
                && it["latency_ns"]["p50"]
                    .as_u64()
                    .is_some_and(|p50| p50 < 30_000_000)
        };
        intervals.any(is_in_time).then_some(())
    });
    run.end_by(Signal::INT).check_code(0);
}

#[test]
fn a_signal_ends_a_run_with_the_report_of_what_was_measured() {
    let folder = Folder::new("signal");
    let json = folder.path("run.json");
    let line =
        format!("run --duration 1h --warmup 0 {PATIENT} --metrics 127.0.0.1:0 --json {json}");
    let (run, at) = watched(&mut command(BENCH_TOOL, &line));
    until_at_least(&at, "rpcrdma_load_calls_total{outcome=\"completed\"}", 1.0);
    let output = run.end_by(Signal::INT).with_code(0);
    output.check_out(&["stopped by a signal"]);
    let value: Value = serde_json::from_str(&folder.read("run.json")).unwrap();
    assert_eq!(value["interrupted"], true, "{output}");
}

#[test]
fn the_doctor_judges_this_machine_and_keeps_its_json_apart() {
    let folder = Folder::new("doctor");
    let json = folder.path("doctor.json");
    let table = bench_tool(&format!("doctor --json {json}"));
    // What is wrong with the machine of a test is its own affair, but it is no silent one.
    let costs = ["\n  problem ", "\n  warning "]
        .iter()
        .any(|it| table.out.contains(it));
    table.check_code(i32::from(costs));
    table.check_out(&[
        "shm:NAME is carried by shm",
        "rdma:HOST:PORT",
        "clock source",
    ]);
    let alone = bench_tool("doctor --json -");
    for text in [folder.read("doctor.json"), alone.out] {
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], "rpcrdma.bench-tool.doctor/1");
        assert_eq!(value["findings"][0]["area"], "providers");
    }
}

#[test]
fn the_doctor_fails_on_a_machine_on_which_something_cannot_work() {
    let root = Folder::new("doctor-root");
    root.write("proc/sys/kernel/osrelease", "4.19.0\n");
    let output = bench_tool(&format!("doctor --root {}", root.display())).with_code(1);
    output.check_out(&["problem  shm:NAME cannot be used: kernel 4.19"]);
    assert!(output.errors.is_empty(), "{output}");
}

#[test]
fn a_server_that_is_not_there_is_status_1_with_its_address() {
    let address = "shm:nobody-listens-here";
    bench_tool(&format!("run --connect {address}")).check_failed(1, &[address]);
}

/// The program on a machine whose rdma-core cannot be loaded: the loader finds a file of that name that is no library.
#[cfg(not(feature = "rdma-sys"))]
#[test]
fn without_rdma_core_it_is_said_which_library_is_missing_and_what_to_install() {
    let folder = Folder::new("no-rdma");
    folder.write("libibverbs.so.1", "none");
    for (line, status) in [
        ("run --connect rdma:192.0.2.1:20049", Some(1)),
        ("run --fabric rdma", Some(1)),
        ("serve --listen rdma:0.0.0.0:0", Some(1)),
        // The doctor ends with what it finds of the machine.
        ("doctor", None),
    ] {
        let mut tool = command(BENCH_TOOL, line);
        let ended = Ended::of(tool.env("LD_LIBRARY_PATH", &*folder));
        let text = [ended.out.as_str(), &ended.errors].concat();
        assert!(status.is_none() || ended.code == status, "{line}: {text}");
        for words in [
            "libibverbs.so.1 could not be loaded",
            "libibverbs1 librdmacm1 ibverbs-providers",
        ] {
            assert!(text.contains(words), "{line}: {words}: {text}");
        }
    }
}

/// A file with one key, 32 times the octet `digits`.
fn keys(folder: &Folder, name: &str, digits: &str, mode: u32) -> String {
    let path = folder.write(name, format!("lab {}\n", digits.repeat(32)));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn silent_connections_speak_the_version_of_the_others() {
    for (protocol, of_version_1) in [("v1", 3), ("v2", 0)] {
        let words = "--count 10 --warmup 0 --idle-connections 3";
        let value = report_of(&format!("{words} --protocol {protocol}"));
        assert_eq!(value["protocol"], protocol);
        let counters = &value["counters"];
        assert_eq!(counters["idle_connections_answered"], 3);
        assert_eq!(counters["idle_connections_of_version_1"], of_version_1);
    }
}

#[test]
fn a_run_and_its_own_server_prove_themselves() {
    let folder = Folder::new("psk");
    let file = keys(&folder, "keys", "5a", 0o600);
    let value = report_of(&format!(
        "--count 100 --warmup 0 --idle-connections 2 --psk-file {file} --identity client"
    ));
    assert_eq!(value["server_identity"], "client.server");
    assert_eq!(value["counters"]["idle_connections_answered"], 2);
}

/// A server with these arguments too, until its input closes; and what it said when it listened.
fn server(address: &str, arguments: &str) -> (Running, String) {
    let line = format!("serve --listen {address} --exit-with-stdin {PATIENT} {arguments}");
    let mut command = command(BENCH_TOOL, &line);
    let (server, line) = Running::listening(command.stdin(std::process::Stdio::piped()));
    let listening = format!("listening on {address}");
    assert!(line.starts_with(&listening), "{line}");
    (server, line)
}

#[test]
fn a_server_with_keys_takes_nobody_without_them_and_says_why() {
    let folder = Folder::new("psk-wrong");
    let [right, wrong] =
        [("right", "5a"), ("wrong", "5b")].map(|(name, digits)| keys(&folder, name, digits, 0o600));
    let address = format!("shm:psk-test-{}", std::process::id());
    let (server, line) = server(&address, &format!("--psk-file {right} --identity server"));
    assert!(line.contains("--psk-file"), "{line}");
    let run = |more: &str| {
        bench_tool(&format!(
            "run --connect {address} --count 10 --warmup 0 {PATIENT} {more}"
        ))
    };
    for (more, words) in [
        (String::new(), "requires authentication"),
        (
            format!("--psk-file {wrong} --identity client"),
            "does not verify",
        ),
        (
            format!("--psk-file {right} --identity server"),
            "refused this end",
        ),
    ] {
        let output = run(&more).with_code(1);
        output.check_errors(&[words, &address]);
    }
    run(&format!("--psk-file {right} --identity client")).check_code(0);
    server.end().check_code(0);
}

#[test]
fn keys_that_cannot_be_used_are_status_2_and_say_what_to_do() {
    let folder = Folder::new("psk-bad");
    let open = keys(&folder, "open", "5a", 0o644);
    let short = keys(&folder, "short", "5", 0o600);
    let none = "/nonexistent/keys";
    for (line, words) in [
        (format!("run --psk-file {open}"), "--identity"),
        ("run --identity a".to_owned(), "--psk-file"),
        (format!("run --psk-file {open} --identity a"), "chmod 600"),
        (
            format!("run --psk-file {short} --identity a"),
            "64 to 128 hexadecimal digits",
        ),
        (
            format!("serve --listen shm:never --psk-file {none} --identity a"),
            none,
        ),
    ] {
        bench_tool(&line).check_failed(2, &[words]);
    }
    let mut spaced = command(BENCH_TOOL, &format!("run --psk-file {open} --identity"));
    Ended::of(spaced.arg("a b")).check_failed(2, &["no spaces"]);
}

#[test]
fn profiles_are_listed_shown_and_detected() {
    let list = bench_tool("profile list").with_code(0);
    list.check_out(&["irdma/x722"]);
    let show = bench_tool("profile show mlx5 --set credits_per_connection=8").with_code(0);
    show.check_out(&["command line"]);
    let value = bench_tool("profile show mlx5 --json -").json();
    assert_eq!(value["schema"], "rpcrdma.bench-tool.profile-show/1");

    let root = Folder::new("profile-root");
    let function = root.join("sys/class/infiniband/mlx5_0/device");
    std::fs::create_dir_all(&function).unwrap();
    std::os::unix::fs::symlink("../drivers/mlx5_core", function.join("driver")).unwrap();
    let below = root.display();
    let value = bench_tool(&format!("profile detect --json - --root {below}")).json();
    assert_eq!(value["devices"][0]["profile"], "mlx5");
    let lost = bench_tool(&format!("profile detect --device mlx5_1 --root {below}")).with_code(1);
    lost.check_errors(&["mlx5_1", "what to do"]);
}

#[test]
fn a_bad_profile_is_one_error_and_a_wrong_rate_is_explained() {
    let ended = bench_tool("run --profile nosuch --count 1");
    ended.check_failed(2, &["no profile is called \"nosuch\""]);
    assert!(!ended.errors.contains("own server"), "{ended}");
    let ended = bench_tool("run --rate -5");
    ended.check_failed(2, &["`-5` is not a rate: write calls per second"]);
    let help = bench_tool("help run").with_code(0);
    help.check_out(&["--rate <CALLS_PER_S>", "Examples:"]);
}

#[test]
fn a_profile_file_is_checked_before_it_is_used() {
    let folder = Folder::new("profile-check");
    let path = folder.path("mine.toml");
    let check = |text: &str| {
        folder.write("mine.toml", text);
        bench_tool(&format!("profile check {path}"))
    };
    let good = check("base = \"irdma\"\n[settings]\nread_depth_max = 32\nreap_batch = 4\n");
    good.check_code(0);
    good.check_out(&[
        "mine.toml can be used",
        "reap_batch = 4",
        "warning: read_depth_max = 32 (file ",
        "8 is used",
    ]);
    let misspelt = "no knob is called \"reap_bach\"; did you mean reap_batch?";
    let needs_others = "base = \"qedr\"\n[settings]\nplacement_segments = 5\n";
    for (text, words) in [
        ("[settings]\nreap_bach = 4\n", misspelt),
        (
            "[settings]\nreap_batch = 65\n",
            "is out of range: use 1 to 64",
        ),
        ("base = \"mlx6\"\n", "mlx6"),
        (needs_others, "set placement_segments to"),
    ] {
        let bad = check(text).with_code(1);
        bad.check_errors(&[words, &path, "what to do"]);
    }
    bench_tool("profile check /nonexistent.toml").check_code(1);
}

#[test]
fn completions_and_manual_pages_are_written() {
    let script = bench_tool("completions bash").with_code(0);
    script.check_out(&["complete -F"]);
    bench_tool("completions tcsh").check_code(2);
    let main = bench_tool("man").with_code(0);
    main.check_out(&["\n.TH bench-tool 1 "]);
    let folder = Folder::new("man");
    let pages = bench_tool(&format!("man --out {}", folder.path("share/man1"))).with_code(0);
    assert!(pages.out.is_empty(), "{pages}");
    for page in ["bench-tool", "bench-tool-run", "bench-tool-profile-show"] {
        let text = folder.read(&format!("share/man1/{page}.1"));
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    let failed = bench_tool("man --out /dev/null/man1").with_code(1);
    failed.check_errors(&["/dev/null/man1", "what to do: give --out another folder"]);
}

/// The user of these lines gave options and no knob.
#[test]
fn a_limit_is_that_of_the_option_which_was_given() {
    // Another run of the tests may have the same test at the same time.
    let server = format!("serve --listen shm:limits-{}", std::process::id());
    let serve = format!("{server} --exit-with-stdin");
    for (line, status, words) in [
        (
            format!("{server} --max-payload 4GiB"),
            2,
            &["--max-payload 4GiB", "give --max-payload 256MiB at most"][..],
        ),
        (
            format!("{server} --max-payload 512MiB --max-operations 8"),
            2,
            &["8 of them", "127MiB at most", "--max-operations"],
        ),
        (
            format!("{server} --max-payload 256MiB --bulk-calls 65535 --max-connections 65536"),
            1,
            &[
                "--max-connections sets connections_max",
                "--max-payload sets message_bytes_max",
            ],
        ),
        (
            format!("{serve} --max-payload 256MiB --bulk-calls 65535 --max-connections 65536"),
            1,
            &[
                "--connections sets connections_max",
                "--size sets message_bytes_max",
            ],
        ),
        (
            "run --op write --sizes 8GiB=100".to_owned(),
            2,
            &["8 GiB is more than one call can carry"],
        ),
        ("run --size 1EiB --op echo".to_owned(), 2, &["1TiB"]),
    ] {
        bench_tool(&line).check_failed(status, words);
    }
    // More credits than a core has calls by default.
    let mut many = command(BENCH_TOOL, &format!("{serve} --credits 5000"));
    let (many, _) = Running::listening(many.stdin(Stdio::piped()));
    let _ = many.end().with_code(0);
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_no_death() {
    let folder = Folder::new("cli-full");
    let json = folder.path("r.json");
    for (line, words) in [
        ("exec $B --help >/dev/full".to_owned(), "No space left"),
        (
            format!("ulimit -f 4; exec $B run --duration 100ms --quiet --json {json}"),
            "raise the limit of the size of files",
        ),
    ] {
        let mut shell = std::process::Command::new("sh");
        shell
            .args(["-c", &line])
            .env("B", env!("CARGO_BIN_EXE_bench-tool"));
        let ended = Ended::of(&mut shell);
        ended.check_code(1);
        assert!(ended.errors.contains(words), "{ended}");
    }
}
