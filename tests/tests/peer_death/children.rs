//! Processes that the tests start, and never leave behind.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A `fabric-peer` process. Dropping it kills it and waits for it.
pub(crate) struct FabricPeer {
    child: Child,
    lines: Receiver<String>,
}

impl FabricPeer {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fabric-peer"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("fabric-peer starts");
        let output = child.stdout.take().expect("its output is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// What it said after "ready", if it has said so.
    pub(crate) fn ready(&mut self) -> Option<String> {
        match self.lines.try_recv() {
            Ok(line) => {
                let said = line.strip_prefix("ready ");
                Some(
                    said.unwrap_or_else(|| panic!("it says {line:?}"))
                        .to_owned(),
                )
            }
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("fabric-peer ended before its time"),
        }
    }

    /// Lets so many of its threads go on.
    pub(crate) fn release(&mut self, threads: usize) {
        let mut input = self.child.stdin.as_ref().expect("its input is piped");
        input
            .write_all(&vec![b'\n'; threads])
            .expect("fabric-peer reads");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("process ids are positive");
        kill(Pid::from_raw(id), signal).expect("the process is ours and not waited for");
    }

    /// Waits for the process that was killed.
    pub(crate) fn wait(mut self) {
        self.child.wait().expect("the process is ours");
    }
}

impl Drop for FabricPeer {
    fn drop(&mut self) {
        // Of a process that has ended and was waited for, both are harmless.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}
