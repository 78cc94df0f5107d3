//! Metrics, health and readiness by HTTP.

use rpcrdma_testkit::{Ended, until};

use crate::prometheus::Page;
use crate::{Server, address, load, run, serve};

fn metrics(server: &Server) -> Page {
    let (head, body) = server.page("/metrics");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let content_type = "Content-Type: text/plain; version=0.0.4; charset=utf-8";
    assert!(head.lines().any(|line| line == content_type), "{head}");
    Page::parse(&body)
}

/// The metrics, once a sample of this name is above `least`: levels are published some times a second.
fn metrics_above(server: &Server, name: &str, label: &str, least: f64) -> Page {
    until(name, || {
        let page = metrics(server);
        (page.sum(name, label) > least).then_some(page)
    })
}

#[test]
fn metrics_follow_the_calls_and_never_go_back() {
    let address = address("metrics");
    let server = Server::start(&mut serve(&address, "--metrics 127.0.0.1:0"));
    let before = metrics_above(&server, "rpcrdma_pool_free_buffers", "pool=\"send\"", 0.0);
    assert_eq!(before.sum("rpcrdma_ready", ""), 1.0);
    assert_eq!(
        before.sum("rpcrdma_server_info", &format!("address={address:?}")),
        1.0
    );
    assert_eq!(before.sum("rpcrdma_calls_total", "core="), 0.0);
    assert!(before.sum("rpcrdma_polls_total", "") > 0.0);

    run(&address, "--count 500 --op echo --size 1KiB").check_code(0);
    let read = "--count 100 --op read --size 64KiB --placement rdma";
    run(&address, read).check_code(0);
    // Messages are counted some times a second, and the time of a reply is counted after the reply.
    let after = until("all calls are counted", || {
        let page = metrics(&server);
        let replies = page.sum("rpcrdma_replies_total", "");
        let messages = page.sum("rpcrdma_messages_total", "version=\"2\"");
        let is_whole = messages >= 1200.0 && page.sum("rpcrdma_reply_seconds_count", "") >= replies;
        is_whole.then_some(page)
    });
    // A run asks for the server's counters as well.
    assert!(after.sum("rpcrdma_calls_total", "") >= 600.0);
    let replies = after.sum("rpcrdma_replies_total", "");
    assert_eq!(after.sum("rpcrdma_calls_total", ""), replies);
    assert_eq!(after.sum("rpcrdma_reply_seconds_count", ""), replies);
    assert!(after.sum("rpcrdma_message_bytes_total", "direction=\"received\"") > 500.0 * 1024.0);
    assert!(after.sum("rpcrdma_message_bytes_total", "direction=\"sent\"") > 500.0 * 1024.0);
    // So does it make a call of its kind before the first.
    let written = after.sum("rpcrdma_bulk_bytes_total", "by=\"rdma_write\"") / 65_536.0;
    assert!((100.0..=110.0).contains(&written), "{written}");
    assert!(after.sum("rpcrdma_busy_seconds_total", "") > 0.0);
    assert_eq!(after.sum("rpcrdma_receiver_not_ready_total", ""), 0.0);
    assert!(after.sum("rpcrdma_connections_opened_total", "") >= 2.0);
    assert!(
        after.sum(
            "rpcrdma_control_events_total",
            "event=\"connections_ready\""
        ) >= 2.0
    );
    before.check_growth(&after);
    server.end();
}

/// Alerts and dashboard ask for metrics that there are, with labels and values that there are.
#[test]
fn the_files_for_prometheus_and_grafana_ask_for_what_there_is() {
    let address = address("alerts");
    let server = Server::start(&mut serve(
        &address,
        "--metrics 127.0.0.1:0 --set idle=park",
    ));
    let page = metrics_above(&server, "rpcrdma_pool_free_buffers", "pool=\"send\"", 0.0);
    let load = load::page_of_a_fleet(&address);
    let samples = page.samples.keys().chain(load.samples.keys());
    let samples: Vec<&str> = samples.map(String::as_str).collect();
    let mut asked = 0;
    for file in ["alerts.yml", "dashboard.json"] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/prometheus");
        let text = std::fs::read_to_string(format!("{folder}/{file}")).unwrap();
        for (at, _) in text.match_indices("rpcrdma_") {
            let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
            let (name, rest) = text[at..].split_at(text[at..].find(|it| !is_name(it)).unwrap());
            let mut of_name = samples
                .iter()
                .filter(|it| it.split('{').next() == Some(name));
            assert!(of_name.next().is_some(), "{file}: {name}");
            asked += 1;
            // The values of a label that a rule lists, as in {state=~"a|b"}.
            let listed = rest.strip_prefix('{').and_then(|it| it.split_once("=~\""));
            let Some((label, rest)) = listed.filter(|_| file == "alerts.yml") else {
                continue;
            };
            let (values, _) = rest.split_once('"').unwrap();
            for value in values.split('|') {
                let pair = format!("{label}=\"{value}\"");
                let has = |it: &&str| it.starts_with(name) && it.contains(&pair);
                assert!(samples.iter().any(has), "{file}: {name} {pair}");
            }
        }
    }
    assert!(asked >= 30, "{asked}");
    server.end();
}

#[test]
fn health_and_readiness_are_pages() {
    let address = address("health");
    let server = Server::start(&mut serve(&address, "--metrics 127.0.0.1:0"));
    for (path, status, body) in [
        ("/healthz", "200 OK", "alive\n"),
        ("/ready", "200 OK", "ready\n"),
        ("/", "404 Not Found", "there is no such page\n"),
        ("/metrics/", "404 Not Found", "there is no such page\n"),
    ] {
        let (head, told) = server.page(path);
        assert!(
            head.starts_with(&format!("HTTP/1.1 {status}\r\n")),
            "{path}: {head}"
        );
        assert_eq!(told, body, "{path}");
    }
    server.end();
}

/// A server on TCP has no cores to tell of, and tells the rest.
#[test]
fn an_nfs_server_has_metrics() {
    for listen in ["tcp:127.0.0.1:0", &address("nfs")] {
        let arguments = "--service nfs3 --metrics 127.0.0.1:0";
        let server = Server::start(&mut serve(listen, arguments));
        let page = metrics(&server);
        assert_eq!(page.sum("rpcrdma_server_info", "service=\"nfs3\""), 1.0);
        let has_cores = page.kinds.contains_key("rpcrdma_calls_total");
        assert_eq!(has_cores, listen.starts_with("shm:"));
        server.end();
    }
}

#[test]
fn taken_address_is_reported_before_anything_is_served() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let arguments = format!("--metrics {at}");
    Ended::of(&mut serve(&address("taken"), &arguments)).check_failed(1, &[&at, "what to do"]);
}
