//! The program `ledger` between processes on the shm fabric: whatever happens to a process, no call
//! is executed or answered twice, and none is lost without an error.
#![forbid(unsafe_code)]

use std::process::{Command, Stdio};
use std::time::Duration;

use rpcrdma_testkit::{Ended, Folder, PATIENCE, Running, command, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

fn ledger(line: &str) -> Command {
    command(env!("CARGO_BIN_EXE_ledger"), line)
}

/// A folder, an address and a book of one test.
struct Place {
    folder: Folder,
    address: String,
}

impl Place {
    fn new() -> Self {
        let folder = Folder::new("ledger");
        let name = folder.file_name().and_then(|name| name.to_str());
        Self {
            address: format!("shm:{}", name.expect("a folder of our own")),
            folder,
        }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path(name)
    }

    fn serve(&self, options: &str) -> Running {
        let (address, book) = (&self.address, self.path("book"));
        let line = format!("serve {address} --book {book} {options}");
        Running::listening(&mut ledger(&line)).0
    }

    /// A requester that makes calls until it is told to end.
    fn call(&self, log: &str, options: &str) -> Running {
        let (address, log) = (&self.address, self.path(log));
        let line = format!("call {address} --log {log} {options}");
        Running::start(ledger(&line).stdin(Stdio::piped()))
    }

    fn entries(&self) -> u64 {
        std::fs::metadata(self.folder.join("book")).map_or(0, |book| book.len() / 34)
    }

    /// Waits for the responder to execute more calls.
    fn executes(&self, more: u64) {
        let wanted = self.entries() + more;
        until("calls are executed", || {
            (self.entries() >= wanted).then_some(())
        });
    }

    /// Holds the book against the log of the requester.
    fn checked(&self) -> Ended {
        let [book, log] = ["book", "log"].map(|name| self.path(name));
        Ended::of(&mut ledger(&format!("check --book {book} --log {log}")))
    }

    fn check(&self) -> String {
        self.checked().with_code(0).out
    }
}

/// The option of a requester that connects again, with far more time for it than a server takes to start.
const RECONNECTS: &str = "--reconnect-within 300";

/// Reads what a requester prints until a line is the one that is waited for. A requester that ends before fails the test, and
/// one that says nothing for as long as tests wait.
#[track_caller]
fn line_of(requester: &mut Running, what: &str, is_it: impl Fn(&str) -> bool) -> String {
    let mut before = Vec::new();
    loop {
        let out = requester.out.as_ref().expect("standard output is a pipe");
        if out.buffer().is_empty() {
            let limit = Timespec::try_from(PATIENCE).expect("two minutes");
            let mut ready = [PollFd::new(out.get_ref(), PollFlags::IN)];
            let count = poll(&mut ready, Some(&limit)).expect("a pipe can be waited for");
            assert!(count > 0, "{what} did not come: {before:#?}");
        }
        let Some(line) = requester.line() else {
            break;
        };
        if is_it(&line) {
            return line;
        }
        before.push(line);
    }
    panic!("the requester ended, and {what} did not come: {before:#?}");
}

/// Waits until the requester says that it has another connection.
#[track_caller]
fn connects_again(requester: &mut Running) {
    line_of(requester, "another connection", |line| {
        line.starts_with("connected again")
    });
}

/// Tells a requester to make no more calls, and gives what it printed.
fn end(requester: Running) -> String {
    requester.end().with_code(0).out
}

#[test]
fn every_call_is_executed_and_answered_once() {
    let place = Place::new();
    let _responder = place.serve("");
    let out = end(place.call("log", "--count 3000"));
    assert!(out.contains("3000 calls: 3000 answered, 0 failed"), "{out}");
    let out = place.check();
    assert!(out.contains("3000 calls: 3000 answered"), "{out}");
    assert_eq!(place.entries(), 3000);
}

#[test]
fn many_connections_at_once_and_again_and_again() {
    let place = Place::new();
    let _responder = place.serve("");
    let out = end(place.call("log", "--connections 20 --rounds 5 --count 40"));
    assert!(out.contains("5 rounds\n200 calls: 200 answered"), "{out}");
    place.check();
    // Of another responder: this one may still learn that the connections of the last round have ended.
    let place = Place::new();
    let _responder = place.serve("");
    let too_many = place.call("refused", "--connections 100 --count 1").end();
    assert_ne!(too_many.code, Some(0));
    too_many.check_errors(&["64 of 100 connections were made"]);
}

#[test]
fn a_responder_that_is_killed_and_started_again_loses_no_call_in_silence() {
    let place = Place::new();
    let mut responder = place.serve("");
    let mut requester = place.call("log", RECONNECTS);
    for _ in 0..3 {
        place.executes(300);
        drop(responder);
        responder = place.serve("");
        connects_again(&mut requester);
    }
    place.executes(300);
    end(requester);
    let out = place.check();
    assert!(!out.contains(" 0 answered"), "{out}");
}

#[test]
fn a_responder_that_stops_for_longer_than_calls_wait_answers_none_twice() {
    let place = Place::new();
    let responder = place.serve("");
    let options = format!("{RECONNECTS} --call-timeout-ms 300");
    let mut requester = place.call("log", &options);
    place.executes(300);
    responder.signal(Signal::STOP);
    // Of calls that the responder has not executed, the number is that of its entries at least.
    let executed = place.entries();
    line_of(&mut requester, "the end of a call's time", |line| {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        matches!(words[..], ["call", number, "failed: no reply came in time"]
            if number.parse().is_ok_and(|number: u64| number >= executed))
    });
    // The responder executes the calls that timed out afterwards.
    responder.signal(Signal::CONT);
    place.executes(300);
    let out = end(requester);
    assert!(!out.contains(" 0 failed"), "{out}");
    place.check();
}

#[test]
fn a_responder_that_is_stopped_for_longer_than_it_may_be_silent_is_left() {
    let place = Place::new();
    let responder = place.serve("");
    // The responder has far more patience: it does not leave a requester that stands still.
    let options = format!("{RECONNECTS} --silent-ms-max 5000");
    let mut requester = place.call("log", &options);
    place.executes(300);
    responder.signal(Signal::STOP);
    // Where the responder stood still before, this is its first silence. It is for the same reason.
    let end = line_of(&mut requester, "the end of the connection", |line| {
        line.starts_with("connection ended")
    });
    assert_eq!(end, "connection ended: the peer was silent for 5000 ms");
    responder.signal(Signal::CONT);
    connects_again(&mut requester);
    place.executes(300);
    requester.end().check_code(0);
    place.check();
}

#[test]
fn a_responder_that_is_stopped_for_less_than_it_may_be_silent_is_kept() {
    let place = Place::new();
    let responder = place.serve("");
    let requester = place.call("log", "");
    place.executes(300);
    responder.signal(Signal::STOP);
    // TIME: two of the ticks after which a peer would speak, of the 120 in which it may be silent. No machine makes two
    // minutes of two seconds.
    std::thread::sleep(Duration::from_secs(2));
    responder.signal(Signal::CONT);
    place.executes(300);
    let out = end(requester);
    assert!(!out.contains("connection ended"), "{out}");
    assert!(out.contains(" 0 failed"), "{out}");
    place.check();
}

#[test]
fn a_requester_that_is_killed_leaves_others_their_calls() {
    let place = Place::new();
    let _responder = place.serve("");
    let killed = place.call("killed", "");
    let other = place.call("log", "");
    place.executes(300);
    killed.end_by(Signal::KILL);
    place.executes(300);
    let out = end(other);
    assert!(out.contains(" 0 failed"), "{out}");
    place.check();
}

#[test]
fn without_reconnecting_the_calls_of_a_lost_connection_fail() {
    let place = Place::new();
    let responder = place.serve("");
    let mut requester = place.call("log", "");
    // Kept open, so that it is the loss of the connection that ends it.
    let _input = requester.input.take();
    place.executes(300);
    drop(responder);
    let out = end(requester);
    assert!(out.contains("connection ended"), "{out}");
    place.check();
}

#[test]
fn a_book_that_was_tampered_with_is_found_out() {
    let place = Place::new();
    let responder = place.serve("");
    end(place.call("log", "--count 100"));
    drop(responder);
    let book = place.folder.read("book");
    let without_the_first = book.split_once('\n').expect("lines").1;
    place.folder.write("book", without_the_first);
    let checked = place.checked();
    assert_ne!(checked.code, Some(0));
    checked.check_errors(&["the book says"]);
}

#[test]
fn invalid_ledger_command_fails_with_its_reason() {
    for (line, words) in [
        ("frobnicate", "usage:"),
        ("call shm:x", "--log is missing"),
        ("call nonsense --log x --count 1", "is no address"),
        ("call shm:x --log x --count many", "is not a number"),
        ("call shm:x --log x --count", "needs a value"),
        ("check --book no-such-book --log x", "no-such-book"),
        ("serve shm:x --book b more", "`more` is not understood"),
    ] {
        let output = Ended::of(&mut ledger(line));
        assert_ne!(output.code, Some(0), "{output}");
        output.check_errors(&[words]);
    }
}
