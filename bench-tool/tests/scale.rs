//! `tests/scale`, which measures how the data plane scales with cores: that it measures everything on a small machine, that
//! its table and its JSON say the same, and that what it leaves out, and what fails, is named. No figure is judged.
#![forbid(unsafe_code)]

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use rpcrdma_testkit::{Ended, Folder, Running, command};
use rustix::process::Signal;
use serde_json::Value;

const SCALE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/scale");
/// More cores a side than a machine has.
const TOO_MANY: usize = 512;

/// The program with a line of options, for the `bench-tool` of this build.
fn scale(line: &str) -> Command {
    let mut command = command(SCALE, line);
    command.args(["--bench", env!("CARGO_BIN_EXE_bench-tool")]);
    command
}

/// A program in place of `bench-tool`: it has a version, and does `what` when it is to measure.
fn program(folder: &Folder, what: &str) -> String {
    let text = format!("#!/bin/sh\n[ \"$1\" = --version ] && exec echo a program\n{what}\n");
    let path = folder.write("program", text);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The cells of the rows of the table that begins with a column `first`.
fn table(markdown: &str, first: &str) -> Vec<Vec<String>> {
    let header = format!("| {first} |");
    let lines = markdown
        .lines()
        .skip_while(|line| !line.starts_with(&header));
    let rows = lines.skip(2).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| {
        let row = row.trim_matches('|').split('|');
        row.map(|cell| cell.trim().to_owned()).collect()
    };
    rows.map(cells).collect()
}

/// The number that a cell begins with.
fn figure(cell: &str) -> f64 {
    let number = cell.split(' ').next().unwrap().replace(',', "");
    number
        .parse()
        .unwrap_or_else(|_| panic!("no figure: {cell:?}"))
}

/// The sum of a whole number of each element of an array.
fn sum(all: &Value, key: &str) -> u64 {
    let all = all.as_array().unwrap().iter();
    all.map(|it| it[key].as_u64().unwrap()).sum()
}

#[test]
fn one_core_a_side_is_measured_and_more_than_fit_are_named() {
    let folder = Folder::new("scale");
    // A machine that is busy enough answers no call in the shortest time.
    let ended = ["0.2", "2", "20"].iter().find_map(|duration| {
        let line = format!(
            "--cores 1,{TOO_MANY} --duration {duration} --rounds 1 --json {}",
            folder.path("scale.json")
        );
        let ended = Ended::of(&mut scale(&line));
        // The script finds it, or the client of a run.
        let is_short = ["no call was answered", "no call completed"];
        let is_short = is_short.iter().any(|it| ended.out.contains(it));
        (!is_short).then_some(ended)
    });
    let ended = ended.expect("calls are answered").with_code(0);
    let left_out = format!(
        "left out: {TOO_MANY} cores a side: needs {} processors",
        2 * TOO_MANY
    );
    ended.check_out(&[
        "* Machine: ",
        "* Caches: ",
        "* Load average ",
        "* Others kept ",
        &left_out,
    ]);
    ended.check_out(&["debug build"]);
    ended.check_errors(&[&left_out, "8/8 floor of"]);

    let report: Value = serde_json::from_str(&folder.read("scale.json")).unwrap();
    assert_eq!(report["left_out"][0]["cores"], TOO_MANY);
    assert_eq!(report["failures"], Value::Array(Vec::new()), "{ended}");

    let pairs = table(&ended.out, "Pair");
    assert_eq!(pairs.len(), 1, "{ended}");
    for cell in &pairs[0][5..7] {
        assert!(figure(cell) > 0.0, "{ended}");
    }
    let rows = table(&ended.out, "What");
    let names: Vec<_> = rows.iter().map(|row| &row[0][..]).collect();
    let expected = [
        "null, depth 1",
        "null, depth 32",
        "read 4 KiB, depth 8",
        "write 4 KiB, depth 8",
        "read 64 KiB, depth 8",
        "write 64 KiB, depth 8",
    ];
    assert_eq!(names, expected, "{ended}");
    for (row, json) in rows.iter().zip(report["rows"].as_array().unwrap()) {
        let has_payload = !row[0].starts_with("null");
        for (at, cell) in row.iter().enumerate().skip(1) {
            let is_figure = at != 3 || has_payload;
            assert!(
                if is_figure {
                    figure(cell) > 0.0
                } else {
                    cell == "–"
                },
                "{row:?}"
            );
        }
        // One core a side is what others are compared with, and its core is both the least and the most served one.
        assert_eq!(row[1], "1");
        assert_eq!(row[5..9], ["1.00", "100 %", "100 %", "1"]);
        assert_eq!(json["case"], row[0].as_str());
        assert_eq!(
            json["calls"].as_u64().unwrap(),
            row[9].replace(',', "").parse::<u64>().unwrap()
        );
        assert_eq!(sum(&json["runs"], "calls"), json["calls"], "{json}");
        for run in json["runs"].as_array().unwrap() {
            assert_eq!(sum(&run["per_core"], "calls"), run["calls"], "{run}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_an_error_with_a_reason() {
    let nowhere = Ended::of(&mut command(SCALE, "--cores 1 --bench /nonexistent"));
    nowhere.check_failed(
        2,
        &["no program /nonexistent", "cargo build", "--bench PATH"],
    );
    for (line, reason) in [
        ("--cores 1,0", "no list of counts"),
        ("--duration 0", "no number from 0.01"),
        ("--json /nonexistent/scale.json", "cannot write"),
        ("--core 1", "--core"),
    ] {
        Ended::of(&mut scale(line)).check_failed(2, &[reason, "--help"]);
    }
    let line = format!("--cores {TOO_MANY}");
    Ended::of(&mut scale(&line)).check_failed(1, &["nothing was measured: 512 cores a side"]);
}

#[test]
fn a_run_that_fails_is_named_and_so_is_one_that_does_not_end() {
    let folder = Folder::new("scale-failed");
    let failing = program(&folder, "echo it broke >&2; exit 3");
    let line = format!("--cores 1 --rounds 1 --bench {failing}");
    let ended = Ended::of(&mut command(SCALE, &line)).with_code(1);
    let reason = "round 1, null, depth 32, 1 a side: exit status 3: it broke";
    ended.check_out(&[&format!("failed: {reason}"), "| null, depth 32 | 1 | –"]);
    ended.check_errors(&["nothing was measured: floor of"]);

    let folder = Folder::new("scale-endless");
    let endless = program(&folder, "exec sleep 1000");
    let line = format!("--cores 1 --rounds 1 --limit 4 --bench {endless}");
    let ended = Ended::of(&mut command(SCALE, &line)).with_code(1);
    ended.check_out(&["the limit of 4 s left no time"]);
}

#[test]
fn an_interrupt_ends_the_runs_and_prints_what_there_is() {
    let folder = Folder::new("scale-interrupted");
    // It leaves its process number where this test finds it.
    let program = program(
        &folder,
        "echo $$ >\"$0.started\"; mv \"$0.started\" \"$0.pid\"; exec sleep 1000",
    );
    let running = Running::start(&mut command(SCALE, &format!("--cores 1 --bench {program}")));
    let pid = rpcrdma_testkit::until("the program runs", || {
        std::fs::read_to_string(folder.path("program.pid")).ok()
    });
    let ended = running.end_by(Signal::INT).with_code(130);
    ended.check_out(&["warning: interrupted", "| null, depth 1 | 1 | –"]);
    // It has a signal to end, and may take a moment longer than the process that sent it.
    let process = std::path::Path::new("/proc").join(pid.trim());
    rpcrdma_testkit::until("the end of its program", || {
        (!process.exists()).then_some(())
    });
}

/// A machine as the kernel describes it below /sys/devices/system/cpu: for each processor the numbers of the threads of its
/// physical core, and those that share its L3.
fn machine(folder: &Folder, processors: &[(&str, &str)]) -> String {
    for (number, (threads, l3)) in processors.iter().enumerate() {
        let write = |file: &str, text: &str| folder.write(&format!("cpu{number}/{file}"), text);
        write("topology/thread_siblings_list", threads);
        write("topology/physical_package_id", "0");
        write("cache/index3/level", "3");
        write("cache/index3/shared_cpu_list", l3);
        write("node0/cpulist", "");
    }
    folder.path("")
}

/// The pairs of processors of a plan, and all that the plan prints.
fn plan(machine: &str, line: &str) -> (Vec<[usize; 2]>, Ended) {
    let mut command = command(SCALE, &format!("--plan {line}"));
    let ended = Ended::of(command.env("SCALE_TOPOLOGY", machine)).with_code(0);
    let rows = table(&ended.out, "Pair");
    let pair = |row: &Vec<String>| [&row[1], &row[2]].map(|cell| cell.parse().unwrap());
    (rows.iter().map(pair).collect(), ended)
}

#[test]
fn pairs_share_no_physical_core_with_others_and_have_one_l3() {
    // 16 physical cores without threads; two L3 have five of them, and one has six.
    let folder = Folder::new("scale-16");
    let cores: Vec<_> = (0..16).map(|it| it.to_string()).collect();
    let l3 = |core| ["0-4", "5-9", "10-15", "10-15"][core / 5];
    let processors = cores.iter().enumerate();
    let processors: Vec<_> = processors.map(|(at, core)| (&core[..], l3(at))).collect();
    let (pairs, ended) = plan(&machine(&folder, &processors), "");
    assert_eq!(pairs.len(), 7, "{ended}");
    for [one, two] in &pairs {
        assert_eq!(l3(*one), l3(*two), "{ended}");
    }
    let mut all = pairs.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 14, "{ended}");
    ended.check_out(&["Placement: apart", "the pairs are in several L3"]);
    assert!(!ended.out.contains("left out"), "{ended}");

    // 8 physical cores of two threads each: processors n and n + 8.
    let folder = Folder::new("scale-threads");
    let threads: Vec<_> = (0..8).map(|it| format!("{it},{}", it + 8)).collect();
    let processors: Vec<_> = (0..16).map(|it| (&threads[it % 8][..], "0-15")).collect();
    let machine = machine(&folder, &processors);
    let (pairs, ended) = plan(&machine, "");
    assert_eq!(pairs.len(), 7, "{ended}");
    assert!(pairs.iter().all(|[one, two]| one + 8 == *two), "{ended}");
    ended.check_out(&["Placement: threads", "threads of one physical core"]);
    let (pairs, ended) = plan(&machine, "--placement apart");
    let mut cores: Vec<_> = pairs.concat().iter().map(|it| it % 8).collect();
    cores.sort_unstable();
    assert_eq!(cores, [0, 1, 2, 3, 4, 5, 6, 7], "{ended}");
    ended.check_out(&[
        "left out: 7 cores a side: needs 7 pairs of two physical cores, and there are 4",
    ]);
    let (pairs, ended) = plan(&machine, "--cores 1,4,9");
    assert_eq!(pairs.len(), 4, "{ended}");
    ended.check_out(&[
        "Placement: apart",
        "left out: 9 cores a side: needs 18 processors",
    ]);
}
