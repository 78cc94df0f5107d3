//! What a server says of itself: its limits, and its record in the reports of clients.

use rpcrdma_testkit::Folder;

use crate::json::Json as _;
use crate::{Server, address, run, serve};

#[test]
fn a_payload_beyond_the_limit_of_the_server_is_refused_with_the_limit_and_the_option() {
    let address = address("payload");
    let server = Server::start(&mut serve(
        &address,
        "--set message_bytes_max=20480 --max-operations 2",
    ));
    let words = [
        "the server takes at most 16 KiB of payload in one call, and the calls of this run have 64 KiB",
        "`bench-tool serve --max-payload 64KiB`, or give --size 16KiB at most",
    ];
    run(&address, "--op write --size 64KiB --count 10").check_failed(2, &words);
    let words = ["--max-payload 16KiB --max-operations 2`, or give --size 8KiB at most"];
    let compound = "--op write --size 16KiB --operations 2 --count 10";
    run(&address, compound).check_failed(2, &words);
    // The largest that it takes. What is longer, it would not answer.
    for op in ["write", "read"] {
        let load = format!("--op {op} --size 16KiB --count 10 --json -");
        assert_eq!(run(&address, &load).json()["calls"], 10);
    }
    server.end();
}

#[test]
fn a_report_has_the_records_of_both_ends() {
    let address = address("records");
    let folder = Folder::new("records");
    let server = Server::start(&mut serve(&address, "--set reap_batch=7"));
    let html = folder.path("html");
    let load = format!("--count 100 --set reap_batch=5 --json - --html {html}");
    let report = run(&address, &load).json();
    for (end, reap_batch) in [("client", "5"), ("server", "7")] {
        let record = &report[end];
        let knob = &record["knobs"]["reap_batch"];
        assert_eq!(
            (&knob["value"], &knob["origin"]),
            (&reap_batch.into(), &"command line".into())
        );
        assert_eq!(record["profile"], "shm", "{record}");
        assert!(record["device"].is_null(), "shm has no device: {record}");
        let program = record["program"].as_str().unwrap();
        assert!(program.starts_with(env!("CARGO_PKG_VERSION")), "{record}");
        assert!(
            record["machine"]["os"]
                .as_str()
                .unwrap()
                .starts_with("Linux "),
            "{record}"
        );
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(record["host"], host.trim());
        assert_eq!(record["cores"].as_array().unwrap().len(), 1);
    }
    let began = report["began"].as_str().unwrap();
    assert!(
        began.len() == 24 && began.starts_with("20") && began.ends_with('Z'),
        "{began}"
    );
    let page = folder.read("html");
    for words in [began, "reap_batch = 7 (command line)", "server knobs"] {
        assert!(page.contains(words), "{words}");
    }
    server.end();
}
