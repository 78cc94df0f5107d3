//! Child processes: which program they run, and waits for them, each of which has a limit.

use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::exit::Failure;
use crate::threads;

/// This program, for its children: the file that is running, even if its path has got another version or none meanwhile.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// How often to look whether a process has ended.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// How long a killed process may take to end. Only the kernel can delay it.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// A command that runs a program, which is perhaps [`OWN_PROGRAM`].
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    if program == OWN_PROGRAM {
        // Lists of processes show this.
        command.arg0("bench-tool");
    }
    command
}

/// Waits for the end of a child until `deadline`; `None` if it has not ended.
///
/// # Errors
/// If the child cannot be waited for.
pub(crate) fn wait_until(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        match child.try_wait()? {
            None if Instant::now() < deadline => {
                // WAIT: until `deadline`.
                thread::sleep(LOOK_PERIOD);
            }
            ended => return Ok(ended),
        }
    }
}

/// Waits for the end of a child for at most `time`; see [`wait_until`].
///
/// # Errors
/// Those of [`wait_until`].
pub(crate) fn wait_for(child: &mut Child, time: Duration) -> io::Result<Option<ExitStatus>> {
    wait_until(child, Instant::now() + time)
}

/// Kills a child that has not ended.
pub(crate) fn kill(child: &mut Child) {
    let _ = child.kill();
    let _ = wait_for(child, KILL_TIMEOUT);
}

/// Terminates a child that has not ended, and kills it if it takes longer than `time` for its end.
pub(crate) fn terminate(child: &mut Child, time: Duration) {
    if matches!(child.try_wait(), Ok(None)) {
        // Fails if the process has just ended, which is the goal.
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
        if !matches!(wait_for(child, time), Ok(Some(_))) {
            kill(child);
        }
    }
}

/// What a child's lines say, as `read` understands them; it passes over the others. All lines are read until their end: a
/// full pipe would block the child. The channel closes then.
///
/// # Errors
/// If the thread that reads them cannot be started.
pub(crate) fn lines<T: Send + 'static>(
    output: impl Read + Send + 'static,
    read: impl Fn(&str) -> Option<T> + Send + 'static,
) -> Result<Receiver<T>, Failure> {
    let (said, heard) = mpsc::channel();
    let follow = move || {
        let mut output = BufReader::new(output);
        let mut line = String::new();
        // WAIT: for the end of the child, in a separate thread that nobody waits for.
        while matches!(output.read_line(&mut line), Ok(bytes) if bytes > 0) {
            if let Some(it) = read(line.trim_end()) {
                let _ = said.send(it);
            }
            line.clear();
        }
    };
    threads::start("lines", follow).map(|_| heard)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Stdio;

    #[test]
    fn child_that_ignores_the_request_is_killed() {
        let mut child = Command::new("sh")
            .args([
                "-c",
                "trap '' TERM; echo ready; while :; do sleep 1000; done",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = lines(child.stdout.take().unwrap(), |line| Some(line.to_owned())).unwrap();
        assert_eq!(said.recv().unwrap(), "ready");
        terminate(&mut child, Duration::from_millis(20));
        let status = child.try_wait().unwrap().expect("it has ended");
        assert_eq!(status.signal(), Some(9));
    }
}
