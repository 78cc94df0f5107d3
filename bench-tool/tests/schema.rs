//! The published schemas of the JSON reports: each report that a command writes follows its schema, which describes every
//! key of it.
#![forbid(unsafe_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use rpcrdma_testkit::{Ended, Folder, Running, command};
use serde_json::{Value, json};

#[path = "support/earlier.rs"]
mod earlier;
#[path = "support/patient.rs"]
mod patient;
#[path = "support/schema.rs"]
mod schema;

use earlier::earlier;
use patient::PATIENT;

const BENCH_TOOL: &str = env!("CARGO_BIN_EXE_bench-tool");

/// Options of short runs beside other work.
const SHORT: &str = "--set idle=park --warmup 0";

fn tool(line: &str) -> Command {
    command(BENCH_TOOL, line)
}

/// The report that a command writes to standard output, whatever its exit status; it must follow its schema.
#[track_caller]
fn followed(line: &str) -> Value {
    let ended = Ended::of(&mut tool(line));
    let report: Value = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{ended}"));
    check(&report, line);
    report
}

#[track_caller]
fn check(report: &Value, what: &str) {
    if let Err(error) = schema::check(&file_of(report), report) {
        panic!("{what}: {error}");
    }
}

/// `rpcrdma.bench-tool.run/1` is in `run-1.json`.
fn file_of(report: &Value) -> String {
    let name = report["schema"].as_str().expect("a report");
    let name = name.strip_prefix("rpcrdma.bench-tool.").expect(name);
    format!("{}.json", name.replace('/', "-"))
}

#[test]
fn runs_follow_their_schema() {
    let folder = Folder::new("schema-run");
    let sweep = "sweep --json - --quiet --depth 1,2 --count 50 --repeats 1 --repeat-disturbed 0";
    let sweep = followed(&format!("{sweep} {PATIENT} {SHORT}"));
    assert_eq!(sweep["runs"].as_array().unwrap().len(), 2);
    followed(&format!(
        "run --json - --op mix --sizes 1000=3,70k=1 --count 60 {PATIENT} {SHORT}"
    ));
    let files = ["a.json", "b.json"].map(|name| folder.path(name));
    for file in &files {
        let line = format!("run --json {file} --op echo --size 5000 --count 60 {PATIENT} {SHORT}");
        Ended::of(&mut tool(&line)).check_code(0);
    }
    let files = files.join(" ");
    followed(&format!("compare {files} --fail-if p99+900% --json -"));
    followed(&format!("merge {files} --json -"));
    let knee = followed(&format!(
        "run --to-knee --json - --depth 2 --duration 60ms {PATIENT} {SHORT}"
    ));
    assert_eq!(knee["closed_loop"]["schema"], "rpcrdma.bench-tool.run/1");
}

#[test]
fn fleets_follow_their_schema_also_those_of_which_a_client_fails() {
    let address = format!("shm:schema-{}", std::process::id());
    let line = format!("serve --listen {address} {PATIENT} --set idle=park");
    let (_server, _) = Running::listening(&mut tool(&line));
    let run = format!("run --connect {address} {PATIENT} {SHORT}");
    let knee = "--to-knee --duration 60ms --depth 2";
    followed(&format!(
        "fleet --clients 2 --json - --quiet -- {run} {knee}"
    ));
    let sweep =
        format!("sweep --connect {address} {PATIENT} {SHORT} --repeat-disturbed 0 --repeats 2");
    let sweep = format!("{sweep} --op echo --size 100,8MiB --rate 1k,2k --count 60");
    let swept = followed(&format!("fleet --clients 2 --json - --quiet -- {sweep}"));
    assert_eq!(swept["points"].as_array().unwrap().len(), 4);
    assert_eq!(swept["failures"].as_array().unwrap().len(), 2);
    let folder = Folder::new("schema-fleet-sweep");
    let file = folder.write("a.json", swept.to_string());
    let compare = format!("compare {file} {file} --fail-if p99+900% --json -");
    let compared = followed(&compare);
    assert_eq!(compared["points"].as_array().unwrap().len(), 2);
    // Nothing is known of the others.
    Ended::of(&mut tool(&compare)).check_code(1);
    for (path, unknown) in [
        ("", true),
        ("/points/0", true),
        ("/runs/1", true),
        ("/points/0", false),
    ] {
        let mut wrong = swept.clone();
        let place = wrong.pointer_mut(path).unwrap().as_object_mut().unwrap();
        match unknown {
            true => drop(place.insert("unheard_of".to_owned(), 1.into())),
            false => drop(place.remove("depth")),
        }
        schema::check(&file_of(&swept), &wrong).expect_err(path);
    }
    let script = format!("sh -c 'test $0 = 0 || exec {BENCH_TOOL} agent' {{index}}");
    let mut fleet = tool("fleet --hosts a,b --json - --quiet --launch");
    fleet.arg(script).arg("--");
    let ended = Ended::of(fleet.args(format!("{run} --count 60").split(' '))).with_code(1);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["failures"][0]["host"], "a");
    assert_eq!(report["clients"].as_array().unwrap().len(), 1);
    check(&report, "a fleet with a client that failed");
    let script = format!("sh -c 'test $0 = 0 || exec {BENCH_TOOL} agent' {{index}}");
    let mut fleet = tool("fleet --hosts a,b --json - --quiet --launch");
    fleet.arg(script).arg("--");
    let sweep = format!("sweep --connect {address} {PATIENT} {SHORT} --repeats 1 --count 60");
    let ended = Ended::of(fleet.args(sweep.split(' '))).with_code(1);
    let report: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(report["client_failures"][0]["point"], "null");
    check(&report, "a sweep with a client that failed");
}

#[test]
fn nfs_follows_its_schema() {
    let line = "serve --service nfs3 --listen tcp:127.0.0.1:0";
    let (_server, line) = Running::listening(&mut tool(line));
    let (_, address) = line.split_once("tcp:").expect(&line);
    let address = address.split([' ', ')']).next().unwrap();
    let nfs = format!("nfs --connect tcp:{address} --export /export --warmup 0 --json -");
    followed(&format!(
        "{nfs} --op mix --size 4097 --file-size 100kB --count 200 --verify"
    ));
    followed(&format!("{nfs} --op getattr --to-knee --duration 50ms"));
}

/// The files of a machine with a RoCE device: on each line a path, and what the file holds.
const MACHINE: &str = "\
proc/sys/kernel/osrelease 6.12.3
proc/stat cpu  1000 0 1000 98000 0 0 0 0 0 0
proc/self/status Cpus_allowed_list:\t0-3
proc/meminfo MemAvailable: 12000000 kB
proc/cmdline iommu=pt isolcpus=2-3
sys/fs/cgroup/cpu.max 200000 100000
proc/self/cgroup 0::/
sys/devices/system/cpu/online 0-3
sys/devices/system/cpu/isolated 2-3
sys/devices/system/cpu/cpu0/cpufreq/scaling_governor schedutil
sys/devices/system/cpu/cpu0/cpuidle/state0/name C6
sys/devices/system/cpu/cpu0/cpuidle/state0/latency 133
sys/devices/system/cpu/cpu0/topology/thread_siblings_list 0-1
sys/devices/system/node/online 0-1
sys/devices/system/node/node1/distance 21 10
sys/devices/system/clocksource/clocksource0/current_clocksource tsc
sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages 4096
sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages 4096
sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages 0
sys/class/infiniband/mlx5_0/fw_ver 22.31.1014
sys/class/infiniband/mlx5_0/node_type 1: CA
sys/class/infiniband/mlx5_0/device/numa_node 1
sys/class/infiniband/mlx5_0/device/local_cpulist 0-3
sys/class/infiniband/mlx5_0/device/config x
sys/class/infiniband/mlx5_0/device/vendor 0x15b3
sys/class/infiniband/mlx5_0/device/device 0x101b
sys/class/infiniband/mlx5_0/device/current_link_speed 16.0 GT/s PCIe
sys/class/infiniband/mlx5_0/device/max_link_speed 16.0 GT/s PCIe
sys/class/infiniband/mlx5_0/device/iommu_group/type DMA
sys/class/infiniband/mlx5_0/ports/1/state 4: ACTIVE
sys/class/infiniband/mlx5_0/ports/1/phys_state 5: LinkUp
sys/class/infiniband/mlx5_0/ports/1/link_layer Ethernet
sys/class/infiniband/mlx5_0/ports/1/rate 100 Gb/sec (4X EDR)
sys/class/infiniband/mlx5_0/ports/1/gids/0 0000:0000:0000:0000:0000:ffff:c000:0207
sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0 RoCE v2
sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0 eth2
sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_packets 5000000
sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_packets 5000000
sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error 7
sys/class/infiniband/mlx5_0/ports/1/hw_counters/rnr_nak_retry_err 4000
sys/class/net/eth2/mtu 9000
sys/class/net/eth2/ecn/roce_rp/enable/3 1
sys/class/infiniband_verbs/uverbs0/ibdev mlx5_0";

#[test]
fn doctor_profile_and_floor_output_follows_its_schema() {
    let folder = Folder::new("schema-machine");
    for line in MACHINE.lines() {
        let (path, text) = line.split_once(' ').unwrap();
        folder.write(path, format!("{text}\n"));
    }
    let driver = folder.path("sys/class/infiniband/mlx5_0/device/driver");
    std::os::unix::fs::symlink("../../mlx5_core", driver).unwrap();
    let root = folder.display();
    followed("doctor --json -");
    let doctor = followed(&format!("doctor --root {root} --json -"));
    let port = &doctor["devices"][0]["ports"][0];
    assert_eq!(port["counters"]["events"]["rnr_nak_retry_err"], 4000);
    assert_eq!(port["congestion"]["ecn_reaction"], json!([3]));
    let slot = &doctor["devices"][0]["pcie"];
    assert_eq!(slot["speed_mtps"], 16_000);
    let processors = &doctor["processors"];
    assert_eq!(processors["idle_states"][0]["name"], "C6");
    followed("profile detect --json -");
    let detect = followed(&format!("profile detect --root {root} --json -"));
    assert_eq!(detect["devices"][0]["part"], "15b3:101b");
    for profile in ["rxe", "shm", "mlx5"] {
        let show = followed(&format!(
            "profile show {profile} --set reap_batch=5 --json -"
        ));
        assert!(!show["knobs"].as_array().unwrap().is_empty(), "{profile}");
    }
    followed("floor --quick --size 4096 --json -");
}

#[test]
fn a_wrong_report_does_not_follow_and_one_of_an_earlier_version_does() {
    let whole = followed(&format!("run --json - --count 60 {PATIENT} {SHORT}"));
    check(&earlier(&whole), "an earlier report");
    for (path, wrong) in [
        ("/schema", json!("rpcrdma.bench-tool.run/2")),
        ("/calls", json!("many")),
        ("/calls", json!(-1)),
        ("/loop", json!("round")),
        ("/latency_ns", json!({"p50": 1})),
        ("/intervals", json!([{"start_s": 0}])),
        ("/client/knobs/idle", json!({"value": 5, "origin": "x"})),
        ("/client/machine/os", Value::Null),
        ("/floor", json!(5)),
    ] {
        let mut report = whole.clone();
        *report.pointer_mut(path).expect(path) = wrong;
        let error = schema::check("run-1.json", &report).expect_err(path);
        let key = path.rsplit('/').next().unwrap();
        assert!(error.contains(key), "{path}: {error}");
    }
    // A key that no schema describes, at any depth.
    for path in [
        "",
        "/latency_ns",
        "/latency_corrected_ns",
        "/client",
        "/client/machine",
        "/memory",
        "/per_call/client",
    ] {
        let mut report = whole.clone();
        report.pointer_mut(path).expect(path)["unheard_of"] = 1.into();
        let error = schema::check("run-1.json", &report).expect_err(path);
        assert!(error.contains("unheard_of"), "{path}: {error}");
        let object = whole.pointer(path).unwrap().as_object().unwrap();
        assert!(!object.is_empty());
    }
}

/// The texts of all source files below a folder.
fn sources(folder: &Path, all: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, all);
        } else if path.extension().is_some_and(|it| it == "rs") {
            all.push(fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_schema_of_the_sources_has_a_file_and_the_other_way_round() {
    let mut texts = Vec::new();
    sources(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut texts,
    );
    let constants = texts.iter().flat_map(|it| it.lines()).filter_map(|line| {
        let (_, value) = line.split_once("SCHEMA: &str = \"rpcrdma.bench-tool.")?;
        Some(value.split('"').next()?.replace('/', "-") + ".json")
    });
    let mut expected: BTreeSet<String> = constants.collect();
    assert!(expected.len() >= 10, "{expected:?}");
    expected.insert("common-1.json".to_owned());
    let all = schema::all();
    let files: BTreeSet<String> = all.keys().cloned().collect();
    assert_eq!(files, expected);
    for (name, schema) in all.iter().filter(|(name, _)| *name != "common-1.json") {
        let constant = schema["properties"]["schema"]["const"].as_str().unwrap();
        assert_eq!(&file_of(&json!({"schema": constant})), name);
    }
}

/// Checks that each key below has a description.
fn check_described(place: &str, schema: &Value) {
    match schema {
        Value::Object(object) => {
            for (key, value) in object {
                let place = format!("{place}/{key}");
                if key == "properties" || key == "$defs" {
                    for (name, value) in value.as_object().unwrap() {
                        let text = value["description"].as_str().unwrap_or_default();
                        assert!(text.ends_with('.'), "{place}/{name}: {text:?}");
                    }
                }
                check_described(&place, value);
            }
        }
        Value::Array(list) => list.iter().for_each(|it| check_described(place, it)),
        _ => {}
    }
}

#[test]
fn every_key_is_described() {
    for (name, schema) in schema::all() {
        check_described(&name, &schema);
    }
}
