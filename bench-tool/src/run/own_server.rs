//! The run's own server: a second process of this program that never outlives the run.
//!
//! Three mechanisms end it, so that one works in every case. Its standard input closes when this process ends in any
//! way, even by `kill -9`. Dropping [`OwnServer`] closes it in an orderly end. A server that does not end within
//! [`STOP_TIMEOUT`] is killed.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use crate::children::{command, kill, lines, wait_for};
use crate::exit::Failure;

/// Time limit for the server to reserve memory and listen. It is long, because a server that fails ends, and that is seen
/// without a limit.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for the server to end after its input closes: far longer than the five seconds by default in which it waits
/// for outstanding calls (`drain_timeout_ms`), on a busy machine too.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for the exit status of a server that has closed its output.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// The line that a ready server prints starts with this; the address follows.
pub(crate) const READY_PREFIX: &str = "listening on ";

/// The server process, stopped when this is dropped.
#[derive(Debug)]
pub(crate) struct OwnServer {
    child: Child,
    // Closing it makes the server end.
    stdin: Option<ChildStdin>,
    address: String,
    is_killed_here: bool,
}

/// How the end of a server failed.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub(crate) failure: Failure,
    /// Whether a signal from elsewhere had ended it: then a failure of the load is only a consequence.
    pub(crate) is_cause: bool,
}

/// Advice if a signal ended the process, which then had no chance to say why.
fn of_kill(status: &ExitStatus) -> Option<String> {
    let signal = status.signal()?;
    Some(match signal {
        9 => "something killed it, mostly the kernel for want of memory: `dmesg` and the limit of the control group \
              (`memory.max`) tell; lower --connections, --depth or --size"
            .to_owned(),
        other => format!("the signal {other} ended it before it could say why: `dmesg` may tell"),
    })
}

impl OwnServer {
    /// Starts `program` with `arguments` and waits for its line `listening on ADDR`.
    ///
    /// # Errors
    /// If it cannot be started, ends before it is ready (its own message is on standard error), or is not ready
    /// within `timeout`.
    pub(crate) fn start(
        program: &str,
        arguments: &[String],
        timeout: Duration,
    ) -> Result<Self, Failure> {
        let mut child = command(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // In its own process group: Ctrl-C on the terminal reaches the client only, which ends its calls before
            // it stops the server.
            .process_group(0)
            // WAIT: for the start of the program (exec), which needs no event.
            .spawn()
            .map_err(|error| {
                Failure::failed(format!("cannot start the run's own server, {}", program))
                    .because(error)
                    .advice("check the limit of processes (ulimit -u), or start `bench-tool serve` yourself and use --connect")
            })?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let mut server = Self {
            child,
            stdin,
            address: String::new(),
            is_killed_here: false,
        };
        server.address = server.wait_ready(stdout, timeout)?;
        Ok(server)
    }

    fn wait_ready(
        &mut self,
        stdout: Option<impl Read + Send + 'static>,
        timeout: Duration,
    ) -> Result<String, Failure> {
        let address = stdout.map(|it| lines(it, address_of)).transpose()?;
        // WAIT: `timeout`.
        match address.map_or(Err(RecvTimeoutError::Disconnected), |it| it.recv_timeout(timeout)) {
            Ok(address) => Ok(address),
            Err(RecvTimeoutError::Disconnected) => {
                // Its output has closed, so the process is ending.
                let ended = wait_for(&mut self.child, STATUS_TIMEOUT);
                let advice = ended.as_ref().ok().and_then(|it| it.as_ref()).and_then(of_kill);
                let status = match ended {
                    Ok(Some(status)) => status.to_string(),
                    Ok(None) => "its output was closed".to_owned(),
                    Err(error) => error.to_string(),
                };
                Err(Failure::failed(format!("the run's own server ended before it was ready ({status})"))
                    .advice(advice.unwrap_or_else(|| "its own message, above, says why".to_owned())))
            }
            Err(RecvTimeoutError::Timeout) => Err(Failure::failed(format!(
                "the run's own server was not ready within {}",
                rpcrdma_units::duration(timeout)
            ))
            .advice("the machine may be overloaded or short of memory; lower --connections and --idle-connections")),
        }
    }

    /// The address that it listens on, as printed by the server.
    #[must_use]
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The process id.
    #[must_use]
    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Asks the server to end and waits for it; kills it after [`STOP_TIMEOUT`].
    ///
    /// # Errors
    /// If it had to be killed, or had ended with an error: the results are then in doubt.
    pub(crate) fn stop(mut self) -> Result<(), Stopped> {
        let result = self.end(STOP_TIMEOUT);
        let status = self.child.try_wait().ok().flatten();
        let is_cause = status.is_some_and(|it| of_kill(&it).is_some()) && !self.is_killed_here;
        result.map_err(|failure| Stopped { failure, is_cause })
    }

    fn end(&mut self, timeout: Duration) -> Result<(), Failure> {
        drop(self.stdin.take());
        match wait_for(&mut self.child, timeout) {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => {
                let why = of_kill(&status);
                let why = why.unwrap_or_else(|| "its own message, above, says why".to_owned());
                Err(
                    Failure::failed(format!("the run's own server failed ({status})"))
                        .advice(format!("{why}; the numbers are in doubt")),
                )
            }
            Ok(None) => {
                self.is_killed_here = true;
                kill(&mut self.child);
                Err(Failure::failed(format!(
                    "the run's own server did not end within {} and was killed",
                    rpcrdma_units::duration(timeout)
                ))
                .advice("its messages, above, may say why; the calls are reported as they were measured"))
            }
            Err(error) => {
                Err(Failure::failed("cannot wait for the run's own server").because(error))
            }
        }
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // After `stop` the process has already ended, and `stop` has reported its failure.
        let _ = self.end(STOP_TIMEOUT);
    }
}

/// The address of the ready line: the first word, behind which more text may follow.
fn address_of(line: &str) -> Option<String> {
    let rest = line.strip_prefix(READY_PREFIX)?;
    Some(rest.split_whitespace().next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_testkit::{CheckWords, PATIENCE};
    use std::path::Path;

    fn shell(script: &str, timeout: Duration) -> Result<OwnServer, Failure> {
        OwnServer::start("/bin/sh", &["-c".to_owned(), script.to_owned()], timeout)
    }

    fn is_alive(process_id: u32) -> bool {
        Path::new(&format!("/proc/{process_id}")).exists()
    }

    #[test]
    fn it_is_ready_by_its_line_and_ends_with_its_input() {
        let server = shell(
            "echo noise; echo listening on shm:x with care; cat",
            PATIENCE,
        )
        .unwrap();
        assert_eq!(server.address(), "shm:x");
        let process_id = server.process_id();
        assert!(is_alive(process_id));
        server.stop().unwrap();
        assert!(!is_alive(process_id));
    }

    #[test]
    fn dropping_it_ends_it() {
        let server = shell("echo listening on shm:x; cat", PATIENCE).unwrap();
        let process_id = server.process_id();
        drop(server);
        assert!(!is_alive(process_id));
    }

    #[test]
    fn a_server_that_dies_early_is_an_error_at_once() {
        // One that is waited for until the time is over is another error.
        let failure = shell("exit 3", PATIENCE).unwrap_err();
        failure.check_words(&["ended before it was ready (exit status: 3)"]);
    }

    #[test]
    fn a_server_that_is_never_ready_is_given_up_and_ended() {
        let failure = shell("cat", Duration::from_millis(50)).unwrap_err();
        failure.check_words(&["not ready within 50 ms"]);
    }

    #[test]
    fn a_server_that_fails_later_puts_the_run_in_doubt() {
        let server = shell("echo listening on shm:x; cat; exit 1", PATIENCE).unwrap();
        let stopped = server.stop().unwrap_err();
        stopped
            .failure
            .check_words(&["in doubt", "its own message, above"]);
        assert!(!stopped.is_cause);
    }

    #[test]
    fn killed_server_has_no_message_and_is_the_cause() {
        for (script, words) in [
            ("kill -9 $$", "`memory.max`"),
            ("kill -8 $$", "the signal 8 ended it"),
        ] {
            let failure = shell(script, PATIENCE).unwrap_err();
            failure.check_words(&["ended before it was ready", words]);
            let script = format!("echo listening on shm:x; cat; {script}");
            let stopped = shell(&script, PATIENCE).unwrap().stop().unwrap_err();
            stopped.failure.check_words(&[words, "in doubt"]);
            assert!(stopped.is_cause);
            assert!(
                !stopped.failure.to_string().contains("above"),
                "it said nothing"
            );
        }
    }

    #[test]
    fn a_server_that_does_not_end_is_killed() {
        let mut server = shell("echo listening on shm:x; exec sleep 1000", PATIENCE).unwrap();
        let process_id = server.process_id();
        let failure = server.end(Duration::from_millis(50)).unwrap_err();
        assert!(failure.to_string().contains("was killed"), "{failure}");
        assert!(!is_alive(process_id));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let failure = OwnServer::start("/nonexistent/bench-tool", &[], PATIENCE).unwrap_err();
        failure.check_words(&["/nonexistent/bench-tool"]);
    }
}
