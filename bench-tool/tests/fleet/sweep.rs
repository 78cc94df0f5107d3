//! Sweeps over fleets.

use std::collections::BTreeSet;

use super::*;

/// A sweep over clients on this machine.
fn sweep(options: &str, address: &str, arguments: &str) -> Command {
    tool(&format!(
        "fleet {options} -- sweep --connect {address} {PATIENT} --set idle=park --repeat-disturbed 0 {arguments}"
    ))
}

fn list<'a>(report: &'a Value, key: &str) -> &'a [Value] {
    report[key].as_array().unwrap()
}

fn texts<'a>(of: &'a [Value], key: &str) -> Vec<&'a str> {
    of.iter().map(|it| it[key].as_str().unwrap()).collect()
}

#[test]
fn each_combination_is_a_run_of_all_clients_whose_agents_stay() {
    let (server, address) = server("sweep");
    let folder = Folder::new("fleet-sweep");
    let [json, html, csv, svg] =
        ["a.json", "a.html", "a.csv", "a.svg"].map(|name| folder.path(name));
    let options =
        format!("--clients 3 {NOBODY_LATE} --json {json} --html {html} --csv {csv} --plot {svg}");
    let arguments = "--warmup 50ms --op echo --size 100 --depth 1,2,3 --repeats 2 --count 40";
    let ended = Ended::of(&mut sweep(&options, &address, arguments)).with_code(0);
    ended.check_out(&[
        "fleet of 3 clients, many-to-one; each: sweep --connect shm:",
        "\necho, size 100 B, connections 1, v2 over shm; medians of 2 runs\n",
        "       depth         p50         p99       p99.9        rate     p50 spread    rate spread\n",
        "       depth       clients    errors    fairness       start  slowest\n",
        "\n           3        3 of 3         0  ",
        "  client ",
    ]);
    let report: Value = serde_json::from_str(&folder.read("a.json")).unwrap();
    assert_eq!(report["schema"], "rpcrdma.bench-tool.fleet-sweep/1");
    assert_eq!(
        (&report["repeats"], &report["interrupted"]),
        (&2.into(), &false.into())
    );
    assert!(list(&report, "failures").is_empty() && list(&report, "client_failures").is_empty());
    let runs = list(&report, "runs");
    assert_eq!(runs.len(), 6);
    let mut processes = BTreeSet::new();
    for run in runs {
        assert_eq!(check_sums(run), 3 * 40, "{run}");
        assert_eq!(number(&run["latency_ns"]["count"]), 3 * 40);
        assert_eq!(clients(run).len(), 3);
        for client in clients(run) {
            assert!(client["start_skew_ns"].is_i64(), "{client}");
            processes.insert(number(&client["process_id"]));
        }
        // A client is a `run` that can be made again alone.
        let command = clients(run)[0]["report"]["command"].as_str().unwrap();
        let depth = format!(
            "--op echo --size 100 --depth {} --connections 1",
            run["depth"]
        );
        assert!(
            command.starts_with("bench-tool run --connect shm:"),
            "{command}"
        );
        assert!(command.ends_with(&depth), "{command}");
        assert_eq!(list(run, "servers").len(), 1);
    }
    assert_eq!(processes.len(), 3, "an agent makes all runs of its client");
    check_gone(&processes.into_iter().collect::<Vec<_>>());
    let points = list(&report, "points");
    let of_points: Vec<_> = points
        .iter()
        .map(|it| (&it["depth"], &it["runs"]))
        .collect();
    let places = [[0, 5], [1, 4], [2, 3]].map(|it| serde_json::json!(it));
    assert_eq!(
        of_points,
        [
            (&1.into(), &places[0]),
            (&2.into(), &places[1]),
            (&3.into(), &places[2])
        ]
    );
    for point in points {
        for place in list(point, "runs") {
            assert_eq!(
                runs[usize::try_from(number(place)).unwrap()]["depth"],
                point["depth"]
            );
        }
    }
    let csv = folder.read("a.csv");
    let lines: Vec<Vec<&str>> = csv.lines().map(|it| it.split(',').collect()).collect();
    assert!(
        lines.len() == 7 && lines.iter().all(|it| it.len() == lines[0].len()),
        "{csv}"
    );
    let place = |name: &str| lines[0].iter().position(|it| *it == name).unwrap();
    let cells = [
        "op",
        "size_bytes",
        "connections",
        "calls",
        "errors",
        "clients",
    ]
    .map(place);
    let cells = cells.map(|it| lines[1][it]);
    assert_eq!(cells, ["echo", "100", "3", "120", "0", "3"]);
    assert!(folder.read("a.svg").contains("class=\"range s1\""));
    let page = folder.read("a.html");
    assert_eq!(
        page.matches("<figure>").count(),
        4,
        "rate, p50, p99 and percentiles"
    );
    assert_eq!(
        page.matches("<details>").count(),
        12,
        "clients and server of each run"
    );
    let line = format!("compare {json} {json} --fail-if p50+5%");
    let compared = Ended::of(&mut tool(&line)).with_code(0);
    compared.check_out(&[
        "A  6 runs  ",
        "\n\ndepth 3\n",
        "too few runs to tell",
        "\ndepth 3: p50+5%: kept (+0.0 %)\n",
    ]);
    server.end_by(Signal::TERM).check_code(0);
}

#[test]
fn a_client_that_is_killed_is_named_and_the_others_sweep_on() {
    let (_server, address) = server("sweep-kill");
    let options = format!("{} --json -", of_clients(3));
    // It makes few calls, for the others' sake.
    let arguments = "--warmup 0 --depth 1,2,4 --repeats 1 --duration 6s --rate 500";
    // Where this test is kept from the signal for longer than the first run takes, it is too late, and there is another
    // sweep.
    let (ended, report) = until("a client that is killed in the first run", || {
        let (fleet, agents, _) = running(&mut sweep(&options, &address, arguments), 3);
        let killed = Pid::from_raw(i32::try_from(agents[1]).unwrap()).unwrap();
        let _ = kill_process(killed, Signal::KILL);
        let ended = fleet.end();
        check_gone(&agents);
        let report: Value = serde_json::from_str(&ended.out).unwrap();
        let failures = list(&report, "client_failures");
        let is_in_time = failures.iter().any(|it| it["point"] == "depth 1");
        is_in_time.then_some((ended, report))
    });
    ended.check_code(1);
    let failures = list(&report, "client_failures");
    assert_eq!(failures.len(), 1, "{failures:?}");
    let why = failures[0]["why"].as_str().unwrap();
    assert!(why.contains("signal: 9"), "{why}");
    let lost = &failures[0]["client"];
    let runs = list(&report, "runs");
    assert_eq!(
        (runs.len(), report["interrupted"].as_bool()),
        (3, Some(false))
    );
    for run in runs {
        assert!(check_sums(run) > 0, "{run}");
        let two = clients(run);
        assert!(
            two.len() == 2 && two.iter().all(|it| it["client"] != *lost),
            "{run}"
        );
    }
    ended.check_errors(&[
        "3 of the 3 combinations have fewer clients than the 3",
        "1 of 3 clients failed; client ",
    ]);
}

/// What fails at every client is the fault of the combination.
#[test]
fn a_combination_that_fails_at_all_clients_is_marked_and_they_sweep_on() {
    let (_server, address) = server("sweep-large");
    let folder = Folder::new("fleet-sweep-large");
    let json = folder.path("a.json");
    let arguments = "--warmup 50ms --op echo --size 100,8MiB,200 --repeats 2 --count 30";
    let options = format!("--clients 2 {NOBODY_LATE} --json {json}");
    let ended = Ended::of(&mut sweep(&options, &address, arguments)).with_code(1);
    ended.check_out(&[
        "\n       8 MiB           -           -           -           -              -              -\n",
        "warning: size 8 MiB failed: client ",
    ]);
    ended.check_errors(&[
        "it takes part in the next run",
        "1 of 3 combinations failed; size 8 MiB: client ",
        "another client failed too",
    ]);
    let report: Value = serde_json::from_str(&folder.read("a.json")).unwrap();
    assert_eq!(
        texts(list(&report, "failures"), "point"),
        ["size 8 MiB"],
        "not repeated"
    );
    assert!(list(&report, "client_failures").is_empty(), "{report}");
    let runs = list(&report, "runs");
    assert_eq!(runs.len(), 4);
    for run in runs {
        assert_eq!((check_sums(run), list(run, "failures").len()), (2 * 30, 0));
    }
}

#[test]
fn a_client_that_fails_at_some_combinations_is_named_at_each_of_them() {
    let (_server, address) = server("sweep-some");
    let (name, _) = address.split_once("shm:").map_or(("", ""), |it| (it.1, ""));
    // Only host 0 has a server.
    let host = format!("{name},elsewhere");
    let mut fleet = launched(
        ":",
        &host,
        "shm:{host}",
        "--depth 1,2 --repeats 1 --count 30 --warmup 0",
    );
    let words: Vec<_> = fleet.get_args().map(ToOwned::to_owned).collect();
    let words = words
        .into_iter()
        .map(|it| if it == "run" { "sweep".into() } else { it });
    fleet = tool("");
    let report = report_of_failed(&Ended::of(fleet.args(words)));
    let failures = list(&report, "client_failures");
    assert_eq!(texts(failures, "point"), ["depth 1", "depth 2"]);
    assert_eq!(texts(failures, "host"), ["elsewhere"; 2]);
    let runs = list(&report, "runs");
    let counts: Vec<_> = runs
        .iter()
        .map(|it| (clients(it).len(), list(it, "failures").len()))
        .collect();
    assert!(counts.iter().all(|it| *it == (1, 1)), "{counts:?}");
}

#[test]
fn a_sweep_that_no_client_can_make_ends_with_a_report() {
    let folder = Folder::new("fleet-sweep-none");
    let html = folder.path("a.html");
    let svg = folder.path("a.svg");
    let line = format!(
        "fleet --launch /nonexistent/{{host}} --hosts a,b --html {html} --plot {svg} --json - --quiet"
    );
    let ended = Ended::of(&mut tool(&format!(
        "{line} -- sweep --connect shm:nobody --depth 1,2,3"
    )));
    let report = report_of_failed(&ended);
    assert_eq!(texts(list(&report, "failures"), "point"), ["depth 1"]);
    assert_eq!(texts(list(&report, "client_failures"), "host"), ["a", "b"]);
    assert_eq!(
        (list(&report, "runs").len(), list(&report, "points").len()),
        (0, 3)
    );
    ended.check_errors(&[
        "2 of 2 clients failed",
        "`/nonexistent/a` cannot be started",
    ]);
    assert!(folder.read("a.html").contains("<h2>What failed</h2>"));
}

#[test]
fn ctrl_c_ends_a_sweep_with_what_was_measured() {
    let (_server, address) = server("sweep-stop");
    let options = format!("{} --json -", of_clients(2));
    let arguments = "--warmup 0 --depth 1,2 --duration 10m";
    let (fleet, agents, _) = running(&mut sweep(&options, &address, arguments), 2);
    let ended = fleet.end_by(Signal::INT);
    let report = ended.json();
    check_gone(&agents);
    assert_eq!(report["interrupted"], true);
    let runs = list(&report, "runs");
    assert_eq!(runs.len(), 1);
    check_sums(&runs[0]);
    assert_eq!(runs[0]["interrupted"], true);
    ended.check_errors(&["stopped by a signal: 0 of 6 runs are complete"]);
}
