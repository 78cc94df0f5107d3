//! The systemd unit: that it starts what there is, and asks for no more than that needs.

use std::process::{Command, Output};

use rpcrdma_testkit::{Ended, Folder};

use crate::{BENCH_TOOL, serve};

const UNIT: &str = include_str!("../../../packaging/rpcrdma-serve.service");

/// The most that `systemd-analyze security` may find exposed, of 100: what it finds are sockets and
/// devices, which a server of RDMA is for.
const EXPOSURE_MAX: &str = "20";

/// The value of a setting of the unit that stands there once.
fn setting(name: &str) -> &'static str {
    let mut values = UNIT
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let value = values.next().unwrap_or_else(|| panic!("{name} is not set"));
    assert_eq!(values.next(), None, "{name} is set twice");
    value
}

#[test]
fn the_unit_waits_for_readiness_and_has_no_privilege() {
    for (name, value) in [
        ("Type", "notify"),
        ("CapabilityBoundingSet", ""),
        ("AmbientCapabilities", ""),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("DevicePolicy", "closed"),
        ("DynamicUser", "yes"),
        ("LimitMEMLOCK", "infinity"),
        ("KillSignal", "SIGTERM"),
    ] {
        assert_eq!(setting(name), value, "{name}");
    }
    let drain_ms = rpcrdma_tuning::Profile::by_name("shm")
        .unwrap()
        .drain_timeout_ms;
    let stop_s: u32 = setting("TimeoutStopSec").parse().unwrap();
    assert!(
        stop_s * 1000 > 2 * drain_ms,
        "a drain of {drain_ms} ms has its time"
    );
}

#[test]
fn the_options_of_the_unit_are_those_of_the_program() {
    let help = Ended::of(&mut serve("shm:x", "--help")).out;
    let words = setting("ExecStart").split_whitespace();
    let options: Vec<&str> = words.filter(|word| word.starts_with("--")).collect();
    assert!(options.len() >= 2, "{options:?}");
    for option in options {
        assert!(help.contains(&format!("{option} <")), "{option}");
    }
}

/// systemd's own opinion, where systemd is installed.
#[test]
fn systemd_takes_the_unit_and_finds_little_exposed() {
    let folder = Folder::new("unit");
    let unit = UNIT.replace("/usr/bin/bench-tool", BENCH_TOOL);
    let unit = folder.write("rpcrdma-serve.service", unit);
    let analyze = |arguments: &[&str]| -> std::io::Result<Output> {
        Command::new("systemd-analyze")
            .args(arguments)
            .arg(&unit)
            .output()
    };
    let verified = analyze(&["verify", "--recursive-errors=no"]);
    let threshold = format!("--threshold={EXPOSURE_MAX}");
    let exposed = analyze(&["security", "--offline=true", "--no-pager", &threshold]);
    let (verified, exposed) = match (verified, exposed) {
        (Ok(verified), Ok(exposed)) => (verified, exposed),
        (Err(error), _) | (_, Err(error)) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
            eprintln!(
                "systemd-analyze is not installed: what systemd thinks of the unit was not tried"
            );
            return;
        }
    };
    let told = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && told.is_empty(), "{told}");
    let told = String::from_utf8_lossy(&exposed.stdout);
    assert!(exposed.status.success(), "{told}");
    println!("{}", told.lines().last().unwrap_or_default());
}
