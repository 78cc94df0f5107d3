//! `bench-tool report`: the tables and pages of saved reports are those of the commands that wrote them, and several
//! reports are one page.
#![forbid(unsafe_code)]

use std::process::Command;

use rpcrdma_testkit::{CheckWords as _, Ended, Folder, Running, command};
use serde_json::{Value, json};

#[path = "support/earlier.rs"]
mod earlier;
#[path = "support/patient.rs"]
mod patient;

use earlier::earlier;
use patient::PATIENT;

const BENCH_TOOL: &str = env!("CARGO_BIN_EXE_bench-tool");

/// Options of short runs beside other work.
const SHORT: &str = "--set idle=park --warmup 0";

fn tool(line: &str) -> Command {
    command(BENCH_TOOL, line)
}

fn ended(line: &str) -> Ended {
    Ended::of(&mut tool(line))
}

/// Runs a command that writes `NAME.json` and `NAME.html`; what it shows.
fn measured(folder: &Folder, name: &str, head: &str, tail: &str) -> Ended {
    let [json, html] = ["json", "html"].map(|end| folder.path(&format!("{name}.{end}")));
    ended(&format!("{head} --json {json} --html {html} {tail}")).with_code(0)
}

/// Checks that a report that was read again has the table and the page that its command showed.
fn check_again(folder: &Folder, name: &str, shown: &Ended) {
    let (json, html) = (
        folder.path(&format!("{name}.json")),
        folder.path("again.html"),
    );
    let again = ended(&format!("report {json} --html {html}")).with_code(0);
    assert_eq!(again.out, shown.out, "{name}");
    let first = folder.read(&format!("{name}.html"));
    assert!(folder.read("again.html") == first, "{name}: {first}");
}

#[test]
fn the_page_and_the_table_of_a_saved_report_are_those_of_its_command() {
    let folder = Folder::new("report-again");
    let address = format!("shm:report-{}", std::process::id());
    let server = format!("serve --listen {address} {PATIENT} --set idle=park");
    let (_server, _) = Running::listening(&mut tool(&server));
    let client = format!("run --connect {address} {PATIENT} {SHORT}");
    let knee = format!("{client} --to-knee --duration 60ms --depth 2");
    let fleet = "fleet --clients 2";
    for (name, head, tail) in [
        (
            "run",
            format!(
                "run {PATIENT} {SHORT} --op echo --size 5000 --duration 300ms --interval 100ms"
            ),
            String::new(),
        ),
        (
            "open",
            format!("{client} --rate 200 --duration 300ms --set reap_batch=5"),
            String::new(),
        ),
        (
            "mix",
            format!("{client} --op mix --sizes 1000=3,70k=1 --count 60"),
            String::new(),
        ),
        ("knee", knee.clone(), String::new()),
        (
            "fleet",
            fleet.to_owned(),
            format!("-- {client} --count 100"),
        ),
        ("fleet-knee", fleet.to_owned(), format!("-- {knee}")),
        (
            "sweep",
            format!(
                "sweep --connect {address} {PATIENT} {SHORT} --depth 1,2 --repeats 2 --count 60"
            ),
            String::new(),
        ),
        (
            "fleet-sweep",
            fleet.to_owned(),
            format!(
                "-- sweep --connect {address} {PATIENT} {SHORT} --depth 1,2 --repeats 2 --count 60"
            ),
        ),
    ] {
        let shown = measured(&folder, name, &head, &tail);
        check_again(&folder, name, &shown);
    }
    // Several knees are in one chart.
    let html = folder.path("both.html");
    let files = ["knee.json", "fleet-knee.json"].map(|name| folder.path(name));
    let shown = ended(&format!("report {} --html {html}", files.join(" "))).with_code(0);
    assert_eq!(shown.out.matches("       knee ").count(), 2, "{shown}");
    let page = folder.read("both.html");
    page.check_words(&[
        "p99 by offered rate",
        "offered calls per second",
        "<b>Knee</b>",
    ]);
    assert_eq!(page.matches("<figure>").count(), 2);
    folder.read("sweep.html").check_words(&[
        ">sweep of 2 combinations<",
        "Calls per second against depth",
        "Round-trip time (p99) against depth",
        "<th scope=\"row\">depth 2",
        "; of all counted repeats together</p>",
    ]);
    // Beside another report, a sweep is its runs.
    let files = ["fleet.json", "fleet-sweep.json", "sweep.json"].map(|name| folder.path(name));
    let shown = ended(&format!("report {}", files.join(" "))).with_code(0);
    shown.check_out(&[
        "fleet.json (fleet)",
        "fleet-sweep.json (1) (fleet)",
        "sweep.json (4) (run)",
        "\n  depth: ",
    ]);
    for (option, code) in [("--hgrm -", 2), ("--intervals", 2), ("--html -", 0)] {
        for name in ["sweep.json", "fleet-sweep.json"] {
            let sweep = folder.path(name);
            ended(&format!("report {sweep} {option}")).check_code(code);
        }
    }
    let mut report: Value = serde_json::from_str(&folder.read("fleet-sweep.json")).unwrap();
    report["runs"][1]["calls"] = json!(7);
    let wrong = folder.write("wrong.json", report.to_string());
    ended(&format!("report {wrong}")).check_failed(1, &["wrong.json", "it has 7 calls"]);
    report["points"][0]["runs"] = json!([0, 0]);
    let wrong = folder.write("wrong.json", report.to_string());
    ended(&format!("report {wrong}")).check_failed(1, &["wrong.json", "each of its runs once"]);
}

#[test]
fn the_page_of_nfs_is_made_again_too() {
    let folder = Folder::new("report-nfs");
    let line = "serve --service nfs3 --listen tcp:127.0.0.1:0";
    let (_server, line) = Running::listening(&mut tool(line));
    let (_, address) = line.split_once("tcp:").expect(&line);
    let address = address.split([' ', ')']).next().unwrap();
    let nfs = format!("nfs --connect tcp:{address} --export /export --warmup 0");
    let read = format!("{nfs} --op mix --size 4097 --file-size 100kB --count 200");
    check_again(&folder, "read", &measured(&folder, "read", &read, ""));
    let knee = format!("{nfs} --op getattr --to-knee --duration 50ms");
    check_again(&folder, "knee", &measured(&folder, "knee", &knee, ""));
}

#[test]
fn the_histogram_of_a_saved_report_is_whole() {
    let folder = Folder::new("report-histogram");
    let [json, hgrm, again, log] =
        ["a.json", "a.hgrm", "again.hgrm", "a.hlog"].map(|name| folder.path(name));
    ended(&format!(
        "run {PATIENT} {SHORT} --count 500 --json {json} --hgrm {hgrm}"
    ))
    .check_code(0);
    ended(&format!(
        "report --quiet {json} --hgrm {again} --hlog {log}"
    ))
    .check_code(0);
    assert_eq!(folder.read("again.hgrm"), folder.read("a.hgrm"));
    let log = folder.read("a.hlog");
    let lines = log.lines().filter(|it| it.starts_with("0.000,"));
    assert_eq!(lines.count(), 1, "{log}");
    let report: Value = serde_json::from_str(&folder.read("a.json")).unwrap();
    log.check_words(&["[Command: bench-tool run", "#[StartTime: "]);
    assert!(!log.contains("1970"), "{log}, {}", report["began"]);
}

/// Two runs in files, which differ in an option and a knob.
fn two_runs(folder: &Folder) -> [String; 2] {
    let files = ["one.json", "two.json"].map(|name| folder.path(name));
    for (file, options) in files.iter().zip(["", "--depth 3 --set reap_batch=5"]) {
        ended(&format!(
            "run {PATIENT} {SHORT} --count 400 {options} --json {file}"
        ))
        .check_code(0);
    }
    files
}

#[test]
fn several_runs_are_side_by_side_with_what_differs() {
    let folder = Folder::new("report-several");
    let ([one, two], html) = (two_runs(&folder), folder.path("both.html"));
    let shown = ended(&format!("report {one} {two} --html {html}")).with_code(0);
    shown.check_out(&[
        "run   began ",
        "  measured       calls ",
        "\n1     20",
        "\nrun 2  ",
        "two.json (run): ",
        "--depth 3 --set reap_batch=5 --json",
        "\n  depth: 1 (run 1), 3 (run 2)\n",
        "\n  client.knobs.reap_batch: default (run 1), 5 (command line) (run 2)\n",
        "warning: runs 1, 2: this is a debug build",
    ]);
    for same in ["\n  op:", "client.host", "hugepages_2mib_free"] {
        assert!(!shown.out.contains(same), "{same}: {shown}");
    }
    let page = folder.read("both.html");
    page.check_words(&[
        "<h1>2 runs side by side</h1>",
        "<th scope=\"row\">1 one.json</th>",
        "<th scope=\"row\">2 two.json</th>",
        "<th scope=\"row\">client.knobs.reap_batch</th><td>default</td><td>5 (command line)</td>",
        "<th scope=\"row\">depth</th><td>1</td><td>3</td>",
        "<th scope=\"row\">client.host</th>",
    ]);
    assert_eq!(page.matches("<figure>").count(), 1, "one chart of both");
    assert_eq!(page.matches("<table class=\"numbers\">").count(), 2);
    assert_eq!(
        page.matches("<path class=\"curve").count(),
        4,
        "two, with their keys"
    );
    // A file with both, a sweep and a sum are understood as well.
    let both = folder.read("one.json") + &folder.read("two.json");
    let both = folder.write("both.json", both);
    let sum = folder.path("sum.json");
    ended(&format!("merge --quiet {both} --json {sum}")).check_code(0);
    let shown = ended(&format!("report {both} {sum}")).with_code(0);
    shown.check_out(&[
        "both.json (2) (run): ",
        "sum.json (merge): ",
        "        800 ",
    ]);
    ended(&format!("report {sum}")).with_code(0).check_out(&[
        "        800 ",
        "       began 20",
        ", the last part ended 20",
    ]);
    let log = folder.path("sum.hlog");
    ended(&format!("report {sum} --quiet --hlog {log}")).check_code(0);
    let mut report: Value = serde_json::from_str(&folder.read("sum.json")).unwrap();
    assert_ne!(report["began"], report["ended"]);
    report.as_object_mut().unwrap().remove("began");
    let sum = folder.write("undated.json", report.to_string());
    for (line, code, words) in [
        (format!("{sum} --hlog {log}"), 1, "there is no date in"),
        (format!("{sum} --intervals"), 2, "a report of merge"),
        (
            format!("{both} --intervals"),
            2,
            "--intervals takes one report",
        ),
    ] {
        ended(&format!("report {line}")).check_failed(code, &[words]);
    }
}

#[test]
fn control_characters_of_a_file_do_not_reach_the_terminal() {
    let folder = Folder::new("report-control");
    let files = two_runs(&folder);
    for name in ["one.json", "two.json"] {
        let mut report: Value = serde_json::from_str(&folder.read(name)).unwrap();
        let words = format!("\u{1b}]0;{name}\u{7}\u{9b}2J");
        report["warnings"] = json!([words]);
        report["command"] = json!(words);
        report["version"] = json!(words);
        report["client"][&words] = json!(name);
        folder.write(name, report.to_string());
    }
    for line in [files[0].clone(), files.join(" ")] {
        let shown = ended(&format!("report {line}")).with_code(0);
        shown.check_out(&["?]0;one.json??2J"]);
        let both = shown.out.clone() + &shown.errors;
        assert!(
            !both.contains(|it: char| it.is_control() && it != '\n'),
            "{both:?}"
        );
    }
}

#[test]
fn a_report_of_an_earlier_version_says_what_is_missing() {
    let folder = Folder::new("report-earlier");
    let [one, _] = two_runs(&folder);
    let old = folder.write(
        "old.json",
        earlier(&serde_json::from_str(&folder.read("one.json")).unwrap()).to_string(),
    );
    let html = folder.path("old.html");
    ended(&format!("report {old} --html {html}"))
        .with_code(0)
        .check_out(&["p99.99"]);
    let page = folder.read("old.html");
    page.check_words(&[
        "The report is of an earlier version, and does not have: the histogram,",
        "; the date; the records of the ends",
        "<th scope=\"row\">p99.99</th>",
    ]);
    assert_eq!(page.matches("<figure>").count(), 2, "no percentiles");
    let refused = ended(&format!("report {old} --hgrm {}", folder.path("old.hgrm")));
    refused.check_failed(1, &["no histogram in", "old.json", "leave the option out"]);
    ended(&format!("report {old} {one} --html {html}"))
        .with_code(0)
        .check_out(&["old.json (run): no histogram"]);
    let page = folder.read("old.html");
    page.check_words(&["Run 1 old.json is of an earlier version"]);
}

#[test]
fn unusable_report_file_is_named_with_advice() {
    let folder = Folder::new("report-refused");
    let [one, two] = two_runs(&folder);
    let whole: Value = serde_json::from_str(&folder.read("one.json")).unwrap();
    let with = |key: &str, value: Value| {
        let mut report = whole.clone();
        report[key] = value;
        report.to_string()
    };
    for (text, words) in [
        ("{}".to_owned(), "it has no schema"),
        ("no JSON".to_owned(), "there is no JSON in"),
        (String::new(), "it is empty"),
        (
            with("schema", json!("rpcrdma.bench-tool.doctor/1")),
            "doctor/1",
        ),
        (
            with("schema", json!("rpcrdma.bench-tool.run/2")),
            "the version of bench-tool that wrote it",
        ),
        (with("histogram", json!("AAAA")), "HdrHistogram"),
        (with("calls", json!(7)), "it has 7 calls"),
        (with("machine", json!(7)), "no report of a load"),
    ] {
        let file = folder.write("wrong.json", text);
        let refused = ended(&format!("report {one} {file}"));
        if words != "no report of a load" {
            refused.check_failed(1, &["/wrong.json", words]);
        }
        ended(&format!("report {file}")).check_failed(1, &["/wrong.json", words]);
    }
    let gone = folder.path("gone.json");
    ended(&format!("report {gone}"))
        .check_failed(1, &["cannot read", "gone.json", "--json of run"]);
    let several = ended(&format!("report {one} {two} --hgrm -"));
    several.check_failed(2, &["--hgrm takes one report", "bench-tool merge"]);
    ended("report").check_failed(2, &["FILE"]);
}
