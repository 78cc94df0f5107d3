//! `decode`, as a user meets it.

use super::*;

const CALL: &str = "d7811d8b000000010000008000000000000000000000000000000000d7811d8b0000000000000002000186a3000000030000000000000000000000000000000000000000";

fn decode(arguments: &str, input: &str) -> Ended {
    Ended::of_input(
        &mut command(BENCH_TOOL, &format!("decode {arguments}")),
        input,
    )
}

#[test]
fn decode_explains_a_message() {
    let output = decode("", CALL).with_code(0);
    output.check_out(&["call of NFS version 3 NULL"]);
    assert!(output.errors.is_empty(), "{output}");
}

#[test]
fn decode_gives_one_object_a_line_and_1_when_any_was_wrong() {
    let cut = &CALL[..20];
    let input = format!("{CALL}\n{{\"hex\": \"{CALL}\"}}\n0x{cut}\nnonsense\n");
    let output = decode("--json", &input).with_code(1);
    let lines = output.out.lines();
    let objects: Vec<Value> = lines.map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(objects.len(), 4);
    assert_eq!(objects[0], objects[1]);
    assert_eq!(objects[0]["rpc"]["program"], 100_003);
    assert_eq!(objects[2]["error_at"], 10);
    assert_eq!(objects[2]["line"], 3);
    assert!(objects[3]["reason"].as_str().unwrap().contains("hex"));
    let nothing = decode("", "").with_code(1);
    nothing.check_errors(&["what to do"]);
}

#[test]
fn decode_to_a_full_device_fails_with_advice() {
    let line = format!("echo {CALL} | '{BENCH_TOOL}' decode > /dev/full");
    let output = Ended::of(command("/bin/sh", "-c").arg(line)).with_code(1);
    output.check_errors(&["standard output"]);
}

#[test]
fn a_compressed_capture_is_named_with_the_way_to_read_it() {
    let folder = Folder::new("compressed");
    for (start, program) in [
        (&[0x1f, 0x8b, 8, 0][..], "gzip"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh91AY", "bzip2"),
    ] {
        let file = folder.write("capture", start);
        let ended = Ended::of(&mut command(BENCH_TOOL, &format!("decode {file}")));
        ended.check_failed(
            1,
            &[&format!("{file} is compressed by {program}"), "gzip -dc"],
        );
    }
}
