//! The binary as a user meets it: exit codes, what stands on which stream, and messages that say what to do.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

#[path = "cli/decode.rs"]
mod decode;
#[path = "cli/reverse.rs"]
mod reverse;
#[path = "support/usable.rs"]
mod usable;

use self::usable::cores_usable;

fn bench_tool(arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_bench-tool"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that does not read its input may be gone already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().expect("ended by itself")
}

#[test]
fn help_teaches_and_is_no_error() {
    for (arguments, words) in [
        (&["--help"][..], "Exit status"),
        (&["run", "--help"], "--idle-connections"),
        (&["run", "--help"], "openssl"),
        (&["serve", "--help"], "--psk-file keys --identity server"),
        (&["run", "--help"], "bench-tool run --reverse --op echo"),
        (&["serve", "--help"], "--reverse"),
        (&["serve", "--help"], "listening on ADDR"),
        (&["floor", "--help"], "--buffers"),
        (&["decode", "--help"], "Examples"),
        (&["sweep", "--help"], "--repeats <N>"),
        (&["compare", "--help"], "beyond noise"),
        (&["doctor", "--help"], "what to do"),
        (&["profile", "--help"], "profile detect"),
        (&["profile", "show", "--help"], "inferred"),
        (&["profile", "check", "--help"], "[settings]"),
        (&["completions", "--help"], "~/.zfunc/_bench-tool"),
        (&["man", "--help"], "bench-tool-run.1"),
    ] {
        let output = bench_tool(arguments, "");
        assert_eq!(code(&output), 0, "{arguments:?}");
        assert!(stdout(&output).contains(words), "{arguments:?}");
        assert!(output.stderr.is_empty());
    }
    assert!(!stdout(&bench_tool(&["serve", "--help"], "")).contains("exit-with-stdin"));
    let version = bench_tool(&["--version"], "");
    assert!(stdout(&version).starts_with("bench-tool 0.") && stdout(&version).contains("revision"));
}

#[test]
fn a_wrong_command_line_ends_with_2_and_says_what_is_right() {
    for (arguments, words) in [
        (&[][..], "Usage"),
        (&["run", "--sizes", "64"], "--size"),
        (&["run", "--connect", "bench"], "shm:NAME"),
        (&["run", "--duration", "10"], "10s"),
        (&["run", "--size", "64"], "--op echo"),
        (&["run", "--op", "write", "--placement", "wire"], "rdma"),
        (&["run", "--placement", "rdma"], "--op read"),
        (&["run", "--op", "read", "--seed", "3"], "--op mix"),
        (&["run", "--op", "read", "--reverse"], "--op null or"),
        (&["run", "--reverse", "--rate", "5"], "cannot be used with"),
        (&["run", "--delay", "5"], "50us"),
        (&["run", "--cores", "1023"], "numbers from"),
        (
            &["run", "--duration", "1s", "--count", "5"],
            "cannot be used with",
        ),
        (&["serve"], "--listen"),
        (&["floor", "--cores", "1022,1023"], "numbers from"),
        (&["floor", "--size", "0"], "one byte"),
        (&["doctor", "--profile", "nosuch"], "nosuch"),
        (&["profile"], "show"),
        (&["profile", "show", "mlx6"], "mlx5"),
        (&["profile", "show", "efa"], "reliable connections"),
        (&["profile", "show", "shm", "--set", "reap"], "NAME=VALUE"),
    ] {
        let output = bench_tool(arguments, "");
        assert_eq!(code(&output), 2, "{arguments:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(words),
            "{arguments:?}: {}",
            stderr(&output)
        );
        assert!(output.stdout.is_empty(), "{arguments:?}");
    }
}

#[test]
fn the_floor_is_a_table_or_json() {
    if cores_usable().len() < 2 {
        let output = bench_tool(&["floor", "--quick"], "");
        assert_eq!(code(&output), 1);
        assert!(
            stderr(&output).contains("only one core"),
            "{}",
            stderr(&output)
        );
        return;
    }
    let table = bench_tool(&["floor", "--quick", "--size", "4KiB", "--depth", "2"], "");
    assert_eq!(code(&table), 0, "{}", stderr(&table));
    for words in ["round trip", "hand-off copy", "4 KiB", "clock", "gaps"] {
        assert!(stdout(&table).contains(words), "{words}");
    }
    let json = bench_tool(&["floor", "--quick", "--size", "4KiB", "--json", "-"], "");
    assert_eq!(code(&json), 0, "{}", stderr(&json));
    let value: serde_json::Value = serde_json::from_str(stdout(&json)).unwrap();
    assert!(value["floor"]["round_trip_ns"].as_u64().unwrap() > 0);
    assert_eq!(value["copy"][0]["size_bytes"], 4096);
    assert_eq!(
        value["command"],
        "bench-tool floor --quick --size 4KiB --json -"
    );
}

/// Wherever the report cannot go, the answer is status 1, the path, and advice; and no file is left.
#[test]
fn a_report_that_cannot_be_written_is_status_1() {
    if cores_usable().len() < 2 {
        return;
    }
    let directory = Temporary::new("report");
    let missing = directory.0.join("missing/floor.json");
    for (path, words) in [
        (missing.as_path(), "create the directory"),
        (directory.0.as_path(), "a file in that directory"),
        (Path::new("/dev/full"), "free some space"),
    ] {
        let path = path.to_str().unwrap();
        let output = bench_tool(&["floor", "--quick", "--size", "4KiB", "--json", path], "");
        assert_eq!(code(&output), 1, "{path}");
        assert!(
            stderr(&output).contains(words) && stderr(&output).contains(path),
            "{}",
            stderr(&output)
        );
    }
    assert_eq!(std::fs::read_dir(&directory.0).unwrap().count(), 0);
}

struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("bench-tool-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The whole path, as a newcomer tries it: two processes, a table, and no process left behind.
#[test]
fn a_run_with_a_server_of_its_own() {
    let directory = Temporary::new("run");
    let json = directory.0.join("run.json");
    let arguments = [
        "run",
        "--count",
        "2000",
        "--warmup",
        "10ms",
        "--json",
        json.to_str().unwrap(),
    ];
    let output = bench_tool(&arguments, "");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("p99.99"), "{}", stdout(&output));
    assert!(
        stdout(&output).lines().last().unwrap().starts_with("floor"),
        "{}",
        stdout(&output)
    );
    let value: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(
        (&value["calls"], &value["errors"]),
        (&2000.into(), &0.into())
    );
    assert_eq!(value["latency_ns"]["count"], 2000);
    assert_eq!(
        (&value["fabric"], &value["protocol"]),
        (&"shm".into(), &"v2".into())
    );
}

/// The report of a short run with a server of its own.
fn run_of(words: &str) -> serde_json::Value {
    report_of(&format!("--count 300 --warmup 50ms {words}"))
}

/// The report of a run of these words that ends well.
fn report_of(words: &str) -> serde_json::Value {
    let line = format!("run --quiet --json - {words}");
    let arguments: Vec<&str> = line.split_whitespace().collect();
    let output = bench_tool(&arguments, "");
    assert_eq!(code(&output), 0, "{words}: {}", stderr(&output));
    serde_json::from_str(stdout(&output)).expect("a report")
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
    let arguments = "run --to-knee --depth 4 --duration 400ms --warmup 0 --set idle=park --json -";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    // Where other work has the processors for 400 ms, no call completes, which the run says.
    let output = (0..4)
        .map(|_| bench_tool(&arguments, ""))
        .find(|output| !stderr(output).contains("no call completed"))
        .expect("a run in which calls complete");
    let text = stderr(&output);
    assert_eq!(code(&output), 0, "{text}");
    assert!(text.contains("\nknee "), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "rpcrdma.bench-tool.knee/1");
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 12);
    let capacity = report["closed_loop"]["rate_per_s"].as_f64().unwrap();
    let offered = |step: &serde_json::Value| step["offered_rate_per_s"].as_f64().unwrap();
    assert!((offered(&steps[4]) - capacity / 2.0).abs() <= 0.5);
    assert!((offered(&steps[11]) - capacity).abs() <= 0.5);
    assert!(steps.iter().all(|it| it["errors"] == 0));
}

#[test]
fn payloads_of_several_sizes_are_checked_and_counted() {
    let report = run_of("--op mix --sizes 1000=3,70k=1 --depth 4 --seed 5");
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

#[test]
fn calls_at_a_rate_are_made_in_time_by_a_core_that_parks() {
    let report = report_of("--op null --rate 100 --duration 1s --warmup 0 --set idle=park");
    let p50 = report["latency_ns"]["p50"].as_u64().unwrap();
    // A core that slept on until something came would sleep for 100 ms each time.
    assert!(p50 < 30_000_000, "{p50} ns");
}

/// Starts a run without end, interrupts it after `life`, and returns what it said.
fn interrupted_run(json: &Path, life: Duration) -> Output {
    let child = Command::new(env!("CARGO_BIN_EXE_bench-tool"))
        .args(["run", "--duration", "1h", "--warmup", "0", "--json"])
        .arg(json)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    std::thread::sleep(life);
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_signal_ends_a_run_with_the_report_of_what_was_measured() {
    let directory = Temporary::new("signal");
    let json = directory.0.join("run.json");
    // When calls are being measured depends on the machine, above all where client and server
    // share a core; how long the run is given until then is no part of what is tested.
    let lives = [1, 4, 16, 64].map(Duration::from_secs);
    let output = lives
        .iter()
        .map(|life| interrupted_run(&json, *life))
        .find(|output| stdout(output).contains("stopped by a signal"))
        .expect("a run measures something within a minute");
    let value: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(value["interrupted"], true, "{}", stderr(&output));
}

#[test]
fn the_doctor_judges_this_machine_and_keeps_its_json_apart() {
    let directory = Temporary::new("doctor");
    let json = directory.0.join("doctor.json");
    let table = bench_tool(&["doctor", "--json", json.to_str().unwrap()], "");
    // What is wrong with the machine of a test is its own affair, but it is no silent one.
    let costs = ["\n  problem ", "\n  warning "]
        .iter()
        .any(|it| stdout(&table).contains(it));
    assert_eq!(code(&table), i32::from(costs), "{}", stdout(&table));
    for words in [
        "shm:NAME is carried by shm",
        "rdma:HOST:PORT",
        "clock source",
    ] {
        assert!(stdout(&table).contains(words), "{}", stdout(&table));
    }
    let from_file = std::fs::read_to_string(&json).unwrap();
    let alone = bench_tool(&["doctor", "--json", "-"], "");
    for text in [from_file.as_str(), stdout(&alone)] {
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(value["schema"], "rpcrdma.bench-tool.doctor/1");
        assert_eq!(value["findings"][0]["area"], "providers");
    }
}

#[test]
fn the_doctor_fails_on_a_machine_on_which_something_cannot_work() {
    let directory = Temporary::new("doctor-root");
    let kernel = directory.0.join("proc/sys/kernel");
    std::fs::create_dir_all(&kernel).unwrap();
    std::fs::write(kernel.join("osrelease"), "4.19.0\n").unwrap();
    let root = directory.0.to_str().unwrap();
    let output = bench_tool(&["doctor", "--root", root], "");
    assert_eq!(code(&output), 1);
    assert!(
        stdout(&output).contains("problem  shm:NAME cannot be used: kernel 4.19"),
        "{}",
        stdout(&output)
    );
    assert!(output.stderr.is_empty());
    assert!(!stdout(&bench_tool(&["doctor", "--help"], "")).contains("--root"));
}

#[test]
fn a_server_that_is_not_there_is_status_1_with_its_address() {
    let output = bench_tool(&["run", "--connect", "shm:nobody-listens-here"], "");
    assert_eq!(code(&output), 1);
    assert!(
        stderr(&output).contains("shm:nobody-listens-here"),
        "{}",
        stderr(&output)
    );
    assert!(output.stdout.is_empty());
}

#[cfg(not(any(feature = "verbs", feature = "verbs-dlopen")))]
#[test]
fn an_rdma_address_without_the_verbs_fabric_is_status_2_and_says_how_to_get_it() {
    for arguments in [
        &["run", "--connect", "rdma:192.0.2.1:20049"][..],
        &["run", "--fabric", "rdma"],
        &["serve", "--listen", "rdma:0.0.0.0:0"],
    ] {
        let output = bench_tool(arguments, "");
        let text = stderr(&output);
        assert_eq!(code(&output), 2, "{arguments:?}: {text}");
        for word in ["--features verbs", "verbs-dlopen", "libibverbs-dev"] {
            assert!(text.contains(word), "{arguments:?}: {text}");
        }
        assert!(stdout(&output).is_empty(), "{arguments:?}");
    }
}

#[test]
fn addresses_that_nobody_can_be_called_at_are_status_2() {
    #[rustfmt::skip]
    let cases = [
        (&["run", "--connect", "rdma:host:0"][..], "port 0"),
        (&["run", "--connect", "shm:x", "--fabric", "rdma"], "cannot be used with"),
        (&["run", "--connect", "shm:x", "--device", "mlx5_0"], "no devices"),
    ];
    for (arguments, words) in cases {
        let output = bench_tool(arguments, "");
        let text = stderr(&output);
        assert_eq!(code(&output), 2, "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
}

/// A file with one key, 32 times the octet `digits`.
fn keys(directory: &Temporary, name: &str, digits: &str, mode: u32) -> String {
    let path = directory.0.join(name);
    std::fs::write(&path, format!("lab {}\n", digits.repeat(32))).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn silent_connections_speak_the_version_of_the_others() {
    let directory = Temporary::new("idle-version");
    let json = directory.0.join("run.json");
    let run = |protocol: &str| -> serde_json::Value {
        let arguments = "run --count 10 --warmup 0 --idle-connections 3 --protocol";
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let json = ["--json", json.to_str().unwrap()];
        let output = bench_tool(&[&arguments[..], &[protocol], &json].concat(), "");
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        serde_json::from_str(&std::fs::read_to_string(json[1]).unwrap()).unwrap()
    };
    for (protocol, of_version_1) in [("v1", 3), ("v2", 0)] {
        let value = run(protocol);
        assert_eq!(value["protocol"], protocol);
        let counters = &value["counters"];
        assert_eq!(counters["idle_connections_answered"], 3);
        assert_eq!(counters["idle_connections_of_version_1"], of_version_1);
    }
}

#[test]
fn a_run_and_its_own_server_prove_themselves() {
    let directory = Temporary::new("psk");
    let file = keys(&directory, "keys", "5a", 0o600);
    let json = directory.0.join("run.json");
    let arguments = [
        "run",
        "--count",
        "100",
        "--warmup",
        "0",
        "--idle-connections",
        "2",
        "--psk-file",
        &file,
        "--identity",
        "client",
        "--json",
        json.to_str().unwrap(),
    ];
    let output = bench_tool(&arguments, "");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let value: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(value["server_identity"], "client.server");
    assert_eq!(value["counters"]["idle_connections_answered"], 2);
}

/// A server that requires keys, until its input closes.
fn server(address: &str, file: &str) -> Child {
    let mut server = Command::new(env!("CARGO_BIN_EXE_bench-tool"))
        .args(["serve", "--listen", address, "--exit-with-stdin"])
        .args(["--psk-file", file, "--identity", "server"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(server.stdout.as_mut().unwrap());
    stdout.read_line(&mut line).unwrap();
    assert!(
        line.starts_with(&format!("listening on {address} ")),
        "{line}"
    );
    assert!(line.contains("--psk-file"), "{line}");
    server
}

#[test]
fn a_server_with_keys_takes_nobody_without_them_and_says_why() {
    let directory = Temporary::new("psk-wrong");
    let [right, wrong] = [("right", "5a"), ("wrong", "5b")]
        .map(|(name, digits)| keys(&directory, name, digits, 0o600));
    let address = format!("shm:psk-test-{}", std::process::id());
    let mut server = server(&address, &right);
    let run = |more: &[&str]| {
        let mut arguments = vec![
            "run",
            "--connect",
            &address,
            "--count",
            "10",
            "--warmup",
            "0",
        ];
        arguments.extend(more);
        bench_tool(&arguments, "")
    };
    #[rustfmt::skip]
    let cases = [
        (&[][..], "requires authentication"),
        (&["--psk-file", &wrong, "--identity", "client"], "does not verify"),
        (&["--psk-file", &right, "--identity", "server"], "refused this end"),
    ];
    for (more, words) in cases {
        let output = run(more);
        let text = stderr(&output);
        assert_eq!(code(&output), 1, "{more:?}: {text}");
        assert!(
            text.contains(words) && text.contains(&address),
            "{more:?}: {text}"
        );
    }
    let output = run(&["--psk-file", &right, "--identity", "client"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}

#[test]
fn keys_that_cannot_be_used_are_status_2_and_say_what_to_do() {
    let directory = Temporary::new("psk-bad");
    let open = keys(&directory, "open", "5a", 0o644);
    let short = keys(&directory, "short", "5", 0o600);
    #[rustfmt::skip]
    let cases = [
        (&["run", "--psk-file", &open][..], "--identity"),
        (&["run", "--identity", "a"], "--psk-file"),
        (&["run", "--psk-file", &open, "--identity", "a b"], "no spaces"),
        (&["run", "--psk-file", &open, "--identity", "a"], "chmod 600"),
        (&["run", "--psk-file", &short, "--identity", "a"], "64 to 128 hexadecimal digits"),
        (
            &[
                "serve",
                "--listen",
                "shm:never",
                "--psk-file",
                "/nonexistent/keys",
                "--identity",
                "a",
            ],
            "/nonexistent/keys",
        ),
    ];
    for (arguments, words) in cases {
        let output = bench_tool(arguments, "");
        let text = stderr(&output);
        assert_eq!(code(&output), 2, "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
}

#[test]
fn profiles_are_listed_shown_and_detected() {
    let list = bench_tool(&["profile", "list"], "");
    assert_eq!(code(&list), 0);
    assert!(stdout(&list).contains("irdma/x722"));
    let show = bench_tool(
        &[
            "profile",
            "show",
            "mlx5",
            "--set",
            "credits_per_connection=8",
        ],
        "",
    );
    assert_eq!(code(&show), 0, "{}", stderr(&show));
    assert!(stdout(&show).contains("command line"));
    let json = bench_tool(&["profile", "show", "mlx5", "--json", "-"], "");
    let value: serde_json::Value = serde_json::from_str(stdout(&json)).unwrap();
    assert_eq!(value["schema"], "rpcrdma.bench-tool.profile-show/1");

    let root = Temporary::new("profile-root");
    let function = root.0.join("sys/class/infiniband/mlx5_0/device");
    std::fs::create_dir_all(&function).unwrap();
    std::os::unix::fs::symlink("../drivers/mlx5_core", function.join("driver")).unwrap();
    let below = root.0.to_str().unwrap();
    let detect = bench_tool(&["profile", "detect", "--json", "-", "--root", below], "");
    let value: serde_json::Value = serde_json::from_str(stdout(&detect)).unwrap();
    assert_eq!(value["devices"][0]["profile"], "mlx5");
    let lost = bench_tool(
        &["profile", "detect", "--device", "mlx5_1", "--root", below],
        "",
    );
    assert_eq!(code(&lost), 1);
    assert!(stderr(&lost).contains("mlx5_1") && stderr(&lost).contains("what to do"));
}

#[test]
fn a_profile_file_is_checked_before_it_is_used() {
    let directory = Temporary::new("profile-check");
    let file = directory.0.join("mine.toml");
    let path = file.to_str().unwrap();
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        bench_tool(&["profile", "check", path], "")
    };
    let good = check("base = \"irdma\"\n[settings]\nread_depth_max = 32\nreap_batch = 4\n");
    assert_eq!(code(&good), 0, "{}", stderr(&good));
    for words in [
        "mine.toml can be used",
        "reap_batch = 4",
        "warning: read_depth_max = 32 (file ",
        "8 is used",
    ] {
        assert!(stdout(&good).contains(words), "{words}: {}", stdout(&good));
    }
    for (text, words) in [
        (
            "[settings]\nreap_bach = 4\n",
            "no knob is called \"reap_bach\"; did you mean reap_batch?",
        ),
        (
            "[settings]\nreap_batch = 65\n",
            "is out of range: use 1 to 64",
        ),
        ("base = \"mlx6\"\n", "mlx6"),
        (
            "base = \"qedr\"\n[settings]\nplacement_segments = 5\n",
            "set placement_segments to",
        ),
    ] {
        let bad = check(text);
        assert_eq!(code(&bad), 1, "{text}");
        let told = stderr(&bad);
        assert!(
            told.contains(words) && told.contains(path),
            "{text}: {told}"
        );
        assert!(told.contains("what to do"), "{told}");
    }
    let none = bench_tool(&["profile", "check", "/nonexistent.toml"], "");
    assert_eq!(code(&none), 1);
}

#[test]
fn completions_and_manual_pages_are_written() {
    let script = bench_tool(&["completions", "bash"], "");
    assert_eq!(code(&script), 0, "{}", stderr(&script));
    assert!(stdout(&script).contains("complete -F"));
    assert_eq!(code(&bench_tool(&["completions", "tcsh"], "")), 2);
    let main = bench_tool(&["man"], "");
    assert_eq!(code(&main), 0, "{}", stderr(&main));
    assert!(stdout(&main).contains("\n.TH bench-tool 1 "));
    let directory = Temporary::new("man");
    let folder = directory.0.join("share/man1");
    let folder = folder.to_str().unwrap();
    let pages = bench_tool(&["man", "--out", folder], "");
    assert_eq!(code(&pages), 0, "{}", stderr(&pages));
    assert!(pages.stdout.is_empty());
    for page in [
        "bench-tool.1",
        "bench-tool-run.1",
        "bench-tool-profile-show.1",
    ] {
        let text = std::fs::read_to_string(Path::new(folder).join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    let failed = bench_tool(&["man", "--out", "/dev/null/man1"], "");
    assert_eq!(code(&failed), 1);
    for words in ["/dev/null/man1", "what to do: give --out another folder"] {
        assert!(stderr(&failed).contains(words), "{}", stderr(&failed));
    }
}
