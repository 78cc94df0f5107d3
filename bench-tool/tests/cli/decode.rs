//! `decode`, as a user meets it.

use super::*;

const CALL: &str = "d7811d8b000000010000008000000000000000000000000000000000d7811d8b0000000000000002000186a3000000030000000000000000000000000000000000000000";

#[test]
fn decode_explains_a_message() {
    let output = bench_tool(&["decode"], CALL);
    assert_eq!(code(&output), 0);
    assert!(
        stdout(&output).contains("call of NFS version 3 NULL"),
        "{}",
        stdout(&output)
    );
    assert!(output.stderr.is_empty());
}

#[test]
fn decode_gives_one_object_a_line_and_1_when_any_was_wrong() {
    let input = format!(
        "{CALL}\n{{\"hex\": \"{CALL}\"}}\n0x{}\nnonsense\n",
        &CALL[..20]
    );
    let output = bench_tool(&["decode", "--json"], &input);
    assert_eq!(code(&output), 1);
    let objects: Vec<serde_json::Value> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(objects.len(), 4);
    assert_eq!(objects[0], objects[1]);
    assert_eq!(objects[0]["rpc"]["program"], 100_003);
    assert_eq!(
        (&objects[2]["error_at"], &objects[2]["line"]),
        (&10.into(), &3.into())
    );
    assert!(objects[3]["reason"].as_str().unwrap().contains("hex"));
    let nothing = bench_tool(&["decode"], "");
    assert_eq!(code(&nothing), 1);
    assert!(stderr(&nothing).contains("what to do"));
}

#[test]
fn decode_to_a_full_device_fails_with_advice() {
    let status = Command::new("/bin/sh")
        .arg("-c")
        .arg(format!(
            "echo {CALL} | '{}' decode > /dev/full",
            env!("CARGO_BIN_EXE_bench-tool")
        ))
        .output()
        .unwrap();
    assert_eq!(code(&status), 1);
    assert!(
        stderr(&status).contains("standard output"),
        "{}",
        stderr(&status)
    );
}
