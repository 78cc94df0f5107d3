//! Fleets of processes on this machine: one report of all, and what becomes of it when some of them fail.
#![forbid(unsafe_code)]

use std::process::Command;

use rpcrdma_testkit::{Ended, Folder, Running, command, until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[path = "../support/hangup.rs"]
mod hangup;
#[path = "../support/json.rs"]
mod json;
#[path = "../support/page.rs"]
mod page;
#[path = "../support/patient.rs"]
mod patient;
#[path = "../support/signal.rs"]
mod signal;
mod sweep;
#[path = "../support/usable.rs"]
mod usable;
#[path = "../support/watched.rs"]
mod watched;

use self::json::Json as _;
use self::patient::PATIENT;
use self::usable::cores_usable;
use self::watched::{until_at_least, watched};

const BENCH_TOOL: &str = env!("CARGO_BIN_EXE_bench-tool");

fn tool(line: &str) -> Command {
    command(BENCH_TOOL, line)
}

/// A server on the last core. It sleeps when it has nothing to do: the clients need the core too.
fn server(what: &str) -> (Running, String) {
    let address = format!("shm:fleet-{what}-{}", std::process::id());
    let core = *cores_usable().last().unwrap();
    let line = format!("serve --listen {address} --cores {core} {PATIENT} --set idle=park");
    (Running::listening(&mut tool(&line)).0, address)
}

/// Options of a fleet in which nobody is given up, because a machine may be slow. Those of a test follow them.
const NOBODY_LATE: &str = "--start-timeout 4m --silence-timeout 4m";

/// A fleet with these options, whose clients run `run` with those.
fn fleet(options: &str, address: &str, arguments: &str) -> Command {
    tool(&format!(
        "fleet {options} --json - -- run --connect {address} {PATIENT} --set idle=park {arguments}"
    ))
}

/// Starts a fleet of `count` clients whose metrics are served; it and its processes, once each client has made calls; and
/// the address of the metrics.
fn running(fleet: &mut Command, count: usize) -> (Running, Vec<u64>, String) {
    let (fleet, at) = watched(fleet);
    for client in 0..count {
        let calls = format!(
            "rpcrdma_load_calls_total{{client=\"{client}\",host=\"localhost\",outcome=\"completed\"}}"
        );
        until_at_least(&at, &calls, 1.0);
    }
    let agents = children(&fleet);
    assert_eq!(agents.len(), count);
    (fleet, agents, at)
}

/// Options of a fleet of `count` clients for [`running`].
fn of_clients(count: usize) -> String {
    format!("--clients {count} --metrics 127.0.0.1:0 {NOBODY_LATE}")
}

/// The same, with a shell script that launches the agent of client `$0`. It ends with `exec "$1" agent`.
fn launched(script: &str, hosts: &str, address: &str, arguments: &str) -> Command {
    let mut command = tool(&format!("fleet {NOBODY_LATE} --json - --quiet --launch"));
    let script = format!("sh -c '{script}; exec \"$1\" agent' {{index}} {BENCH_TOOL}");
    command.arg(script).args(["--hosts", hosts, "--", "run"]);
    command.args(["--connect", address, "--set", "idle=park"]);
    command.args(PATIENT.split(' ').chain(arguments.split_whitespace()));
    command
}

fn is_gone(process_id: u64) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{process_id}/stat"));
    state.map_or(true, |state| state.contains(") Z "))
}

fn check_gone(processes: &[u64]) {
    for process_id in processes {
        until("an agent is gone", || is_gone(*process_id).then_some(()));
    }
}

/// The processes that `of` has started.
fn children(of: &Running) -> Vec<u64> {
    let file = format!("/proc/{0}/task/{0}/children", of.id());
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace()
        .map(|it| it.parse().unwrap())
        .collect()
}

fn signal(process_id: u64, signal: Signal) {
    let process_id = Pid::from_raw(i32::try_from(process_id).unwrap()).unwrap();
    kill_process(process_id, signal).unwrap();
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

fn clients(report: &Value) -> &[Value] {
    report["clients"].as_array().unwrap()
}

/// The report of a fleet that failed after it.
fn report_of_failed(ended: &Ended) -> Value {
    ended.check_code(1);
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {ended}"))
}

/// The calls of the report are those of its clients, and of its histogram.
fn check_sums(report: &Value) -> u64 {
    let calls = number(&report["calls"]);
    let clients = clients(report);
    let sum = |key: &str| clients.iter().map(|it| number(&it[key])).sum::<u64>();
    assert_eq!(sum("calls"), calls);
    assert_eq!(sum("errors"), number(&report["errors"]));
    // Null without calls.
    assert_eq!(report["latency_ns"]["count"].as_u64().unwrap_or(0), calls);
    for client in clients {
        assert_eq!(client["report"]["calls"], client["calls"]);
        assert_eq!(client["latency_ns"], client["report"]["latency_ns"]);
    }
    calls
}

#[test]
fn eight_clients_are_one_report() {
    let (server, address) = server("eight");
    let report = Ended::of(&mut fleet(
        &format!("--clients 8 --quiet {NOBODY_LATE}"),
        &address,
        "--warmup 50ms --depth 2 --count 50",
    ))
    .json();
    assert_eq!(report["schema"], "rpcrdma.bench-tool.fleet/1");
    assert_eq!(report["pattern"], "many-to-one");
    assert_eq!(
        (&report["clients_asked"], &report["connections"]),
        (&8.into(), &8.into())
    );
    assert_eq!(check_sums(&report), 8 * 50, "{report}");
    assert_eq!(report["failures"], serde_json::json!([]));
    let clients = clients(&report);
    assert_eq!(clients.len(), 8);
    for client in clients {
        assert_eq!(client["server"], address);
        assert!(client["start_skew_ns"].is_i64(), "{client}");
        assert!(number(&client["start_uncertainty_ns"]) > 0, "{client}");
    }
    let fairness = report["fairness"].as_f64().unwrap();
    assert!((0.125..=1.0).contains(&fairness), "{fairness}");
    let slowest = usize::try_from(number(&report["slowest_client"])).unwrap();
    let p99 = |it: &Value| number(&it["latency_ns"]["p99"]);
    assert_eq!(
        clients.iter().map(p99).max().unwrap(),
        p99(&clients[slowest])
    );
    // The server has counted the calls of the warm-ups too.
    let counters = report["servers"].as_array().unwrap();
    assert_eq!(counters.len(), 1);
    assert_eq!(counters[0]["server"], address);
    let processes: Vec<u64> = clients.iter().map(|it| number(&it["process_id"])).collect();
    check_gone(&processes);
    // The sum of the clients' reports is the fleet's.
    let folder = Folder::new("fleet-merge");
    let mut line = "merge --quiet --json -".to_owned();
    for (index, client) in clients.iter().enumerate() {
        let file = folder.write(&format!("{index}.json"), client["report"].to_string());
        line += &format!(" {file}");
    }
    let sum = Ended::of(&mut tool(&line)).json();
    for key in ["calls", "errors", "latency_ns", "histogram"] {
        assert_eq!(sum[key], report[key], "{key}");
    }
    server.end_by(Signal::TERM).check_code(0);
}

#[test]
fn a_total_rate_is_divided_and_the_table_names_every_client() {
    let (_server, address) = server("rate");
    let folder = Folder::new("fleet-rate");
    let (json, hgrm) = (folder.path("fleet.json"), folder.path("fleet.hgrm"));
    let ended = Ended::of(&mut tool(&format!(
        "fleet --clients 3 {NOBODY_LATE} --json {json} --hgrm {hgrm} -- run --connect {address} {PATIENT} \
         --set idle=park --rate 301 --depth 8 --count 60 --warmup 0"
    )))
    .with_code(0);
    ended.check_out(&[
        "fleet of 3 clients, many-to-one, open loop at 301.0 /s",
        "response time, from the moment at which the call was due",
        "fairness  ",
        "slowest   client ",
        "client  host",
        "\n2       localhost",
    ]);
    let report: Value = serde_json::from_str(&folder.read("fleet.json")).unwrap();
    let calls = check_sums(&report);
    assert_eq!(calls, 3 * 60);
    assert_eq!(
        (&report["loop"], &report["offered_rate_per_s"]),
        (&"open".into(), &301.into())
    );
    let rates: Vec<u64> = clients(&report)
        .iter()
        .map(|it| number(&it["report"]["offered_rate_per_s"]))
        .collect();
    assert_eq!(rates, [101, 100, 100]);
    let total = format!("Total count    = {calls:12}]");
    assert!(folder.read("fleet.hgrm").contains(&total), "{calls}");
}

#[test]
fn every_host_calls_every_server() {
    let (_first, a) = server("all-a");
    let (_second, b) = server("all-b");
    let mut command = launched(":", "x,y", "{target}", "--count 30 --warmup 0");
    let mut words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    words.splice(1..1, ["--targets".into(), format!("{a},{b}").into()]);
    command = tool("");
    let report = Ended::of(command.args(words)).json();
    assert_eq!(report["pattern"], "all-to-all");
    assert_eq!(check_sums(&report), 4 * 30);
    let pair = |it: &Value| format!("{} {}", it["host"], it["server"]);
    let pairs: Vec<String> = clients(&report).iter().map(pair).collect();
    let expected = [("x", &a), ("y", &a), ("x", &b), ("y", &b)];
    assert_eq!(
        pairs,
        expected.map(|(host, server)| format!("\"{host}\" \"{server}\""))
    );
    assert_eq!(report["servers"].as_array().unwrap().len(), 2);
}

#[test]
fn clients_that_are_killed_or_stopped_are_named_and_the_others_go_on() {
    let (_server, address) = server("killed");
    // TIME: the load is longer than this test may be kept from the three signals, and clients that go on are not silent for
    // so long: threads may be stopped for seconds. It makes few calls, for the others' sake.
    let options = of_clients(5).replace("--silence-timeout 4m", "--silence-timeout 20s");
    let load = "--warmup 0 --duration 30s --rate 500";
    let (fleet, agents, _) = running(&mut fleet(&options, &address, load), 5);
    signal(agents[0], Signal::KILL);
    signal(agents[1], Signal::STOP);
    // It reports what it has measured.
    signal(agents[2], Signal::TERM);
    let ended = fleet.end();
    let report = report_of_failed(&ended);
    check_gone(&agents);
    assert!(check_sums(&report) > 0, "{report}");
    assert_eq!(clients(&report).len(), 3, "{report}");
    assert_eq!(report["interrupted"], false);
    let failures = report["failures"].as_array().unwrap();
    let why: Vec<&str> = failures
        .iter()
        .map(|it| it["why"].as_str().unwrap())
        .collect();
    assert_eq!(why.len(), 3, "{why:?}");
    for words in ["signal: 9", "no message for 20 s", "its load ended early"] {
        assert!(why.iter().any(|it| it.contains(words)), "{words}: {why:?}");
    }
    ended.check_errors(&["3 of 5 clients failed", "the others go on"]);
}

/// A report that takes longer to arrive than a client may be silent: its bytes are signs of life.
///
/// TIME: a pause between them of one second is far shorter than the limit also where threads are stopped for seconds.
#[test]
fn a_slow_report_is_no_silence() {
    let (_server, address) = server("slow");
    let folder = Folder::new("fleet-slow");
    // Of the report, a part in 23 every second.
    let script = folder.write(
        "slow",
        r#"
        "$1" agent | while IFS= read -r line; do
            step=${#line}
            case $line in *'"message":"report"'*) step=$((step / 23 + 1)) ;; esac
            while [ -n "$line" ]; do
                printf %s "${line:0:step}"
                line=${line:step}
                [ -z "$line" ] || { sleep 1; echo >>"$2"; }
            done
            echo
        done"#,
    );
    let options = "--start-timeout 4m --silence-timeout 20s";
    let mut command = tool(&format!(
        "fleet {options} --json - --quiet --hosts a --launch"
    ));
    let sleeps = folder.write("sleeps", "");
    command.arg(format!("bash {script} {BENCH_TOOL} {sleeps}"));
    command.args(["--", "run", "--connect", &address, "--set", "idle=park"]);
    command.args(PATIENT.split(' '));
    let report = Ended::of(command.args(["--count", "30", "--warmup", "0"])).json();
    assert_eq!(check_sums(&report), 30, "{report}");
    assert_eq!(report["failures"], serde_json::json!([]));
    let sleeps = folder.read("sleeps").lines().count();
    assert!(sleeps >= 21, "{sleeps} seconds are longer than 20 s");
}

/// What the clients measured before they lost the server is in the report.
#[test]
fn a_server_that_is_killed_leaves_a_report() {
    let (server, address) = server("lost");
    let load = "--warmup 0 --duration 10m";
    let (fleet, agents, _) = running(&mut fleet(&of_clients(2), &address, load), 2);
    drop(server);
    let report = report_of_failed(&fleet.end());
    check_gone(&agents);
    check_sums(&report);
    let failures = report["failures"].as_array().unwrap();
    let mut failed: Vec<u64> = failures.iter().map(|it| number(&it["client"])).collect();
    failed.sort_unstable();
    assert_eq!(failed, [0, 1], "{report}");
    for client in clients(&report) {
        let why = client["failure"].as_str().unwrap();
        assert!(why.contains("lost") && why.contains(&address), "{why}");
    }
}

#[test]
fn a_launcher_that_prints_something_else_is_named() {
    let (_server, address) = server("rubbish");
    let script = r#"if [ "$0" = 0 ]; then echo Welcome to host a; exec cat >&2; fi"#;
    let ended = Ended::of(&mut launched(script, "a,b", &address, "--count 30"));
    let report = report_of_failed(&ended);
    assert_eq!(check_sums(&report), 30);
    let failure = &report["failures"][0];
    assert_eq!(
        (&failure["client"], &failure["host"]),
        (&0.into(), &"a".into())
    );
    let why = failure["why"].as_str().unwrap();
    assert!(
        why.contains("`Welcome to host a`") && why.contains(".bashrc"),
        "{why}"
    );
    assert_eq!(clients(&report).len(), 1);
    assert_eq!(clients(&report)[0]["host"], "b");
}

/// An agent is another program on another host: what it says is text, and no command for this terminal.
#[test]
fn control_characters_of_an_agent_reach_neither_the_terminal_nor_the_report() {
    let (_server, address) = server("control");
    let folder = Folder::new("fleet-control");
    // The agent of host a reports, that of b fails.
    let script = folder.write(
        "agent",
        r#"
        printf '\033[2Jwarned\n' >&2
        if [ "$1" = a ]; then
            "$2" agent | sed -u 's/"warnings":\["/&\\u001b]0;x\\u0007/; s/"node":"/&\\u009b/'
        else
            "$2" agent </dev/null | head -n 1
            printf '%s\n' '{"message":"failed","why":"\u001b]52;c\u0007\n \u009b2J\r"}'
            exec cat >/dev/null
        fi"#,
    );
    let json = folder.path("fleet.json");
    let mut command = tool(&format!(
        "fleet {NOBODY_LATE} --json {json} --hosts a,b --launch"
    ));
    command.arg(format!("sh {script} {{host}} {BENCH_TOOL}"));
    command.args(["--", "run", "--connect", &address, "--set", "idle=park"]);
    command.args(PATIENT.split(' '));
    let ended = Ended::of(command.args(["--count", "30", "--warmup", "0"])).with_code(1);
    ended.check_out(&[
        "failed    client 1 on b while it prepared the load: ?]52;c?; ?2J\n",
        "warning: client 0: ?]0;x?",
    ]);
    ended.check_errors(&["[client 0 (a)] ?[2Jwarned"]);
    let shown = ended.out + &ended.errors;
    let is_ugly = |it: char| it.is_control() && it != '\n';
    assert!(!shown.contains(is_ugly), "{shown:?}");
    let report: Value = serde_json::from_str(&folder.read("fleet.json")).unwrap();
    let client = &clients(&report)[0];
    for text in [&client["node"], &client["report"]["warnings"][0]] {
        let text = text.as_str().unwrap();
        assert!(text.starts_with('?') && !text.contains(is_ugly), "{text:?}");
    }
}

#[test]
fn an_agent_of_another_version_is_named_with_both_versions() {
    let hello = r#"{"message":"hello","protocol":99,"version":"9.8.7","process_id":1,"node":"a"}"#;
    let script = format!("echo '\\''{hello}'\\''; exec cat");
    let ended = Ended::of(&mut launched(&script, "a", "shm:nobody", ""));
    let report = report_of_failed(&ended);
    let why = report["failures"][0]["why"].as_str().unwrap();
    let own = concat!("bench-tool ", env!("CARGO_PKG_VERSION"), " (protocol 2)");
    assert!(why.contains("bench-tool 9.8.7 (protocol 99)"), "{why}");
    assert!(why.contains(own), "{why}");
}

#[test]
fn a_launch_command_that_does_not_start_or_does_not_end_is_named() {
    let line = "fleet --launch /nonexistent/{host} --hosts a,b -- run --connect shm:nobody";
    let ended = Ended::of(&mut tool(line)).with_code(1);
    ended.check_errors(&[
        "2 of 2 clients failed",
        "`/nonexistent/a` cannot be started",
    ]);
    ended.check_out(&["failed    client 1 on b before it said anything"]);
    let fleet = tool("fleet --json - --quiet --start-timeout 200ms --hosts a --launch")
        .arg("sh -c 'exec sleep 1000'")
        .args(["--", "run", "--connect", "shm:nobody"])
        .spawn();
    let ended = {
        let output = fleet.unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(ended.contains("not ready within 200 ms"), "{ended}");
}

/// The failure of a client's command is the reason, in the words of the command.
#[test]
fn a_server_that_is_not_there_is_the_reason_of_every_client() {
    let ended = Ended::of(&mut fleet(
        &format!("--clients 2 --quiet {NOBODY_LATE}"),
        "shm:fleet-nobody",
        "",
    ));
    let report = report_of_failed(&ended);
    let failures = report["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 2);
    for failure in failures {
        assert_eq!(failure["when"], "while it prepared the load");
        let why = failure["why"].as_str().unwrap();
        assert!(why.contains("cannot connect to shm:fleet-nobody"), "{why}");
    }
    assert_eq!(report["calls"], 0);
}

#[test]
fn ctrl_c_ends_all_clients_and_the_report_is_there() {
    let (_server, address) = server("stop");
    let load = "--warmup 0 --duration 10m";
    let (fleet, agents, _) = running(&mut fleet(&of_clients(3), &address, load), 3);
    let report = fleet.end_by(Signal::INT).json();
    check_gone(&agents);
    assert_eq!(report["interrupted"], true);
    assert_eq!(clients(&report).len(), 3, "{report}");
    check_sums(&report);
}

#[test]
fn a_second_ctrl_c_kills_the_clients() {
    let (_server, address) = server("twice");
    let load = "--warmup 0 --duration 10m";
    let (fleet, agents, at) = running(&mut fleet(&of_clients(2), &address, load), 2);
    // It cannot report, so that the first signal is not the end.
    signal(agents[0], Signal::STOP);
    fleet.signal(Signal::INT);
    // Two signals at a time could be one.
    let reported = "rpcrdma_fleet_clients{state=\"reported\"}";
    until_at_least(&at, reported, 1.0);
    fleet.end_by(Signal::INT).check_code(130);
    check_gone(&agents);
}

#[test]
fn lost_terminal_ends_a_fleet_with_its_report() {
    hangup::let_programs_heed_it();
    let (_server, address) = server("hangup");
    let load = "--warmup 0 --duration 10m";
    let (fleet, _, _) = running(&mut fleet(&of_clients(2), &address, load), 2);
    fleet.signal(Signal::HUP);
    // Two are as good as one, whether they arrive as two or not.
    let report = fleet.end_by(Signal::HUP).json();
    assert_eq!(report["interrupted"], true);
    check_sums(&report);
}

/// A script that begins with an agent's hello.
fn greeting(script: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let hello = format!(
        r#"{{"message":"hello","protocol":2,"version":"{version}","process_id":1,"node":"n"}}"#
    );
    format!("echo '{hello}'; {script}")
}

/// Words that no pipe takes: an agent that reads nothing has not read them.
fn deaf(options: &str, folder: &Folder) -> Command {
    let greeted = folder.path("greeted");
    let progress = r#"{"message":"progress","calls":0,"errors":0}"#;
    // What it reads first says that the coordinator has taken its greeting.
    let script = format!(
        "head -c 1000 >/dev/null; echo >{greeted}; while sleep 0.2; do echo '{progress}'; done"
    );
    let agent = folder.write("agent", greeting(&script));
    let mut command = tool(&format!("fleet {options} --hosts a --launch"));
    command.arg(format!("sh {agent}"));
    command.args(["--", "run", "--connect", "shm:nobody", "--count", "1"]);
    command
        .args(["--set", "idle=park"].repeat(6000))
        .args(["--quiet"]);
    command
}

#[test]
fn agent_that_reads_nothing_is_left_at_its_limit() {
    let folder = Folder::new("deaf");
    // TIME: the agent never is ready, so each limit is met, however fast the machine is. It says something far more often
    // than the second limit asks for.
    for (options, words) in [
        (
            "--start-timeout 1s",
            "not ready within 1 s (--start-timeout)",
        ),
        (
            "--start-timeout 4m --silence-timeout 10s",
            "it has read no message for 10 s (--silence-timeout)",
        ),
    ] {
        let ended = Ended::of(&mut deaf(options, &folder));
        ended.check_code(1);
        ended.check_errors(&[words]);
    }
}

#[test]
fn signals_end_a_fleet_whose_agent_reads_nothing() {
    let folder = Folder::new("deaf-signals");
    let fleet = Running::start(&mut deaf(NOBODY_LATE, &folder));
    until("the agent is there", || {
        std::fs::exists(folder.path("greeted")).ok()?.then_some(())
    });
    signal::signal_taken(&fleet, Signal::TERM);
    // Two of one kind may be seen as one, and of two kinds either may be seen first.
    let ended = fleet.end_by(Signal::INT);
    assert!(matches!(ended.code, Some(130 | 143)), "{ended}");
}

/// The reader of standard error of the fleet has stopped, an agent has filled it, and the coordinator has something to say.
#[test]
fn two_signals_end_a_fleet_that_cannot_write() {
    let folder = Folder::new("full");
    let cue = folder.path("cue");
    let script = format!(
        "yes 'a long line of an agent' >&2 & until [ -e {cue} ]; do sleep 0.1; done; echo rubbish; wait"
    );
    let mut command = tool(&format!("fleet {NOBODY_LATE} --hosts a --launch"));
    command.arg(format!("sh {}", folder.write("agent", greeting(&script))));
    command.args(["--", "run", "--connect", "shm:nobody", "--count", "1"]);
    let mut fleet = Running::start(&mut command);
    let errors = fleet.errors.take().expect("a pipe");
    until("the pipe is full", || {
        let waiting = rustix::io::ioctl_fionread(errors.get_ref()).ok()?;
        (waiting > 60_000).then_some(())
    });
    signal::signal_taken(&fleet, Signal::TERM);
    folder.write("cue", "");
    // TIME: a thread that waits for a lock tells nobody. Where the coordinator does not get there within this time, the test
    // misses the fault, and passes.
    std::thread::sleep(std::time::Duration::from_secs(1));
    fleet.end_by(Signal::TERM).check_code(143);
}

#[test]
fn agents_end_with_a_coordinator_that_is_killed() {
    let (_server, address) = server("orphans");
    let load = "--warmup 0 --duration 10m";
    let (fleet, agents, _) = running(&mut fleet(&of_clients(3), &address, load), 3);
    fleet.end_by(Signal::KILL);
    check_gone(&agents);
}

#[test]
fn a_fleet_finds_the_knee_of_its_total_rate() {
    let (_server, address) = server("knee");
    let report = Ended::of(&mut tool(&format!(
        "fleet --clients 2 {NOBODY_LATE} --json - --quiet -- run --connect {address} {PATIENT} --set idle=park \
         --to-knee --depth 4 --duration 100ms --warmup 0"
    )))
    .json();
    assert_eq!(report["schema"], "rpcrdma.bench-tool.knee/1");
    check_sums(&report["closed_loop"]);
    let steps = report["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 13);
    let capacity = report["closed_loop"]["rate_per_s"].as_f64().unwrap();
    let offered = steps[11]["offered_rate_per_s"].as_f64().unwrap();
    // Of a machine that stops for seconds it may be less, and each client makes a call in a second at least.
    let expected = capacity.max(2.0);
    assert!((offered - expected).abs() < 1.0, "{offered} of {capacity}");
}

#[test]
fn clients_call_an_nfs_server_each_in_its_own_folder() {
    let line = "serve --service nfs3 --listen tcp:127.0.0.1:0 --space 64MiB";
    let (_server, line) = Running::listening(&mut tool(line));
    let (_, address) = line.split_once("tcp:").expect(&line);
    let address = &address[..address.find([' ', ')']).unwrap_or(address.len())];
    let report = Ended::of(&mut tool(&format!(
        "fleet --clients 2 {NOBODY_LATE} --json - --quiet -- nfs --connect tcp:{address} --export /export \
         --op mix --verify --files 2 --file-size 64KiB --count 40 --warmup 0"
    )))
    .json();
    assert_eq!(check_sums(&report), 2 * 40, "{report}");
    let seeds: Vec<u64> = clients(&report)
        .iter()
        .map(|it| number(&it["report"]["seed"]))
        .collect();
    assert_eq!(seeds, [1, 2]);
    assert!(
        clients(&report)
            .iter()
            .all(|it| it["report"]["blocks_wrong"] == 0)
    );
}
