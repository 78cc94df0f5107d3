//! The program `ledger` between processes on the shm fabric: whatever happens to a process, no call
//! is executed or answered twice, and none is lost without an error.
#![forbid(unsafe_code)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const LEDGER: &str = env!("CARGO_BIN_EXE_ledger");

/// How long anything may take before the test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder, an address and a book of one test.
struct Place {
    folder: PathBuf,
    address: String,
}

impl Place {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ledger-test-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(&name);
        std::fs::create_dir(&folder).expect("a folder of our own");
        Self {
            folder,
            address: format!("shm:{name}"),
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn serve(&self) -> Responder {
        self.serve_with(&[])
    }

    fn serve_with(&self, options: &[&str]) -> Responder {
        let mut process = Command::new(LEDGER)
            .args(["serve", &self.address, "--book", &self.path("book")])
            .args(options)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut ready = String::new();
        let out = process.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut ready).expect("it tells");
        assert!(ready.starts_with("listening on "), "{ready}");
        Responder { process }
    }

    /// A requester that makes calls until it is told to end.
    fn call(&self, log: &str, options: &[&str]) -> Child {
        Command::new(LEDGER)
            .args(["call", &self.address, "--log", &self.path(log)])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts")
    }

    fn entries(&self) -> u64 {
        std::fs::metadata(self.folder.join("book")).map_or(0, |book| book.len() / 34)
    }

    /// Waits for the responder to execute more calls.
    fn executes(&self, more: u64) {
        let (start, wanted) = (Instant::now(), self.entries() + more);
        while self.entries() < wanted {
            assert!(start.elapsed() < PATIENCE, "no calls are executed");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn check(&self, logs: &[&str]) -> String {
        let mut command = Command::new(LEDGER);
        command.args(["check", "--book", &self.path("book")]);
        for log in logs {
            command.args(["--log", &self.path(log)]);
        }
        let output = command.output().expect("the program starts");
        succeeded(&output)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(Path::new(&self.folder));
    }
}

struct Responder {
    process: Child,
}

impl Responder {
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).expect("a process id");
        kill(Pid::from_raw(pid), signal).expect("it is there");
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn succeeded(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{out}{errors}");
    out
}

/// Tells a requester to make no more calls, and gives what it printed.
fn end(mut requester: Child) -> String {
    drop(requester.stdin.take());
    let output = requester.wait_with_output().expect("it ends");
    succeeded(&output)
}

#[test]
fn every_call_is_executed_and_answered_once() {
    let place = Place::new();
    let _responder = place.serve();
    let out = end(place.call("log", &["--count", "3000"]));
    assert!(out.contains("3000 calls: 3000 answered, 0 failed"), "{out}");
    let out = place.check(&["log"]);
    assert!(out.contains("3000 calls: 3000 answered"), "{out}");
    assert_eq!(place.entries(), 3000);
}

#[test]
fn many_connections_at_once_and_again_and_again() {
    let place = Place::new();
    let _responder = place.serve();
    let options = ["--connections", "20", "--rounds", "5", "--count", "40"];
    let out = end(place.call("log", &options));
    assert!(out.contains("5 rounds\n200 calls: 200 answered"), "{out}");
    place.check(&["log"]);
    let too_many = place.call("refused", &["--connections", "100", "--count", "1"]);
    let output = too_many.wait_with_output().expect("it ends by itself");
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("64 of 100 connections were made"),
        "{errors}"
    );
}

#[test]
fn a_responder_that_is_killed_and_started_again_loses_no_call_in_silence() {
    let place = Place::new();
    let mut responder = place.serve();
    let requester = place.call("log", &["--reconnect-within", "100"]);
    for _ in 0..3 {
        place.executes(300);
        drop(responder);
        responder = place.serve();
    }
    place.executes(300);
    let out = end(requester);
    assert_eq!(out.matches("connected again").count(), 3, "{out}");
    let out = place.check(&["log"]);
    assert!(!out.contains(" 0 answered"), "{out}");
}

#[test]
fn a_responder_that_stops_for_longer_than_calls_wait_answers_none_twice() {
    let place = Place::new();
    let responder = place.serve();
    let options = ["--reconnect-within", "100", "--call-timeout-ms", "300"];
    let requester = place.call("log", &options);
    place.executes(300);
    responder.signal(Signal::SIGSTOP);
    // Long enough for the calls in flight to time out; the responder executes them afterwards.
    std::thread::sleep(Duration::from_secs(2));
    responder.signal(Signal::SIGCONT);
    place.executes(300);
    let out = end(requester);
    assert!(!out.contains(" 0 failed"), "{out}");
    place.check(&["log"]);
}

#[test]
fn a_responder_that_is_stopped_for_longer_than_it_may_be_silent_is_left() {
    let place = Place::new();
    let silence = ["--silent-ms-max", "2000"];
    let responder = place.serve_with(&silence);
    let options = [&["--reconnect-within", "100"][..], &silence].concat();
    let mut requester = place.call("log", &options);
    place.executes(300);
    responder.signal(Signal::SIGSTOP);
    let out = requester.stdout.take().expect("it is piped");
    let mut lines = BufReader::new(out).lines();
    let end = lines.find_map(|line| {
        let line = line.expect("it tells");
        line.starts_with("connection ended").then_some(line)
    });
    let end = end.expect("it learns that the responder is silent");
    assert_eq!(end, "connection ended: the peer was silent for 2000 ms");
    responder.signal(Signal::SIGCONT);
    let again = lines.next().expect("more is told").expect("it tells");
    assert!(again.starts_with("connected again"), "{again}");
    place.executes(300);
    drop(requester.stdin.take());
    let rest: Vec<String> = lines.map(|line| line.expect("it tells")).collect();
    let status = requester.wait().expect("it ends");
    assert!(status.success(), "{rest:?}");
    place.check(&["log"]);
}

#[test]
fn a_responder_that_is_stopped_for_less_than_it_may_be_silent_is_kept() {
    let place = Place::new();
    let silence = ["--silent-ms-max", "60000"];
    let responder = place.serve_with(&silence);
    let requester = place.call("log", &silence);
    place.executes(300);
    responder.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(2));
    responder.signal(Signal::SIGCONT);
    place.executes(300);
    let out = end(requester);
    assert!(!out.contains("connection ended"), "{out}");
    assert!(out.contains(" 0 failed"), "{out}");
    place.check(&["log"]);
}

#[test]
fn a_requester_that_is_killed_leaves_others_their_calls() {
    let place = Place::new();
    let _responder = place.serve();
    let mut killed = place.call("killed", &[]);
    let other = place.call("log", &[]);
    place.executes(300);
    killed.kill().expect("it is there");
    let _ = killed.wait();
    place.executes(300);
    let out = end(other);
    assert!(out.contains(" 0 failed"), "{out}");
    place.check(&["log"]);
}

#[test]
fn without_reconnecting_the_calls_of_a_lost_connection_fail() {
    let place = Place::new();
    let responder = place.serve();
    let mut requester = place.call("log", &[]);
    // Kept open, so that it is the loss of the connection that ends it.
    let _input = requester.stdin.take();
    place.executes(300);
    drop(responder);
    let output = requester.wait_with_output().expect("it ends by itself");
    let out = succeeded(&output);
    assert!(out.contains("connection ended"), "{out}");
    place.check(&["log"]);
}

#[test]
fn a_book_that_was_tampered_with_is_found_out() {
    let place = Place::new();
    let responder = place.serve();
    end(place.call("log", &["--count", "100"]));
    drop(responder);
    let book = std::fs::read_to_string(place.path("book")).expect("a book");
    let without_the_first = book.split_once('\n').expect("lines").1;
    std::fs::write(place.path("book"), without_the_first).expect("it is ours");
    let output = Command::new(LEDGER)
        .args(["check", "--book", &place.path("book")])
        .args(["--log", &place.path("log")])
        .output()
        .expect("the program starts");
    assert!(!output.status.success());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("the book says"), "{errors}");
}

#[test]
fn what_cannot_be_done_says_why() {
    #[rustfmt::skip]
    let cases = [
        (&["frobnicate"][..], "usage:"),
        (&["call", "shm:x"], "--log is missing"),
        (&["call", "nonsense", "--log", "x", "--count", "1"], "is no address"),
        (&["call", "shm:x", "--log", "x", "--count", "many"], "is not a number"),
        (&["call", "shm:x", "--log", "x", "--count"], "needs a value"),
        (&["check", "--book", "no-such-book", "--log", "x"], "no-such-book"),
        (&["serve", "shm:x", "--book", "b", "more"], "`more` is not understood"),
    ];
    for (arguments, wanted) in cases {
        let output = Command::new(LEDGER)
            .args(arguments)
            .output()
            .expect("the program starts");
        assert!(!output.status.success(), "{arguments:?}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(errors.contains(wanted), "{arguments:?}: {errors}");
    }
}
