//! Programs that a test runs: to their end, or as long as it needs them.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take before a test fails: far longer than it takes on a machine with other work.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Asks `done` every few milliseconds until it yields something.
///
/// # Panics
///
/// When it has not within [`PATIENCE`]; the message says `what`.
#[track_caller]
pub fn until<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(result) = done() {
            return result;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A program with the words of `line` as its arguments, and with pipes in place of standard output and error.
#[must_use]
pub fn command(program: &str, line: &str) -> Command {
    let mut command = Command::new(program);
    command
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// How a program ended, and what it wrote.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit status; `None` where a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub out: String,
    /// What it wrote to standard error.
    pub errors: String,
    words: String,
}

impl Ended {
    /// Runs a program to its end.
    ///
    /// # Panics
    ///
    /// When it cannot be started, or writes what is no text.
    #[track_caller]
    pub fn of(command: &mut Command) -> Self {
        Self::new(words(command), command.output().expect("it starts"))
    }

    /// The same with `input`, which fits in a pipe, on its standard input.
    ///
    /// # Panics
    ///
    /// As [`Ended::of`].
    #[track_caller]
    pub fn of_input(command: &mut Command, input: &str) -> Self {
        let mut child = command.stdin(Stdio::piped()).spawn().expect("it starts");
        let mut stdin = child.stdin.take().expect("it is piped");
        // A program that does not read its input may have ended already.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        Self::new(
            words(command),
            child.wait_with_output().expect("it is ours"),
        )
    }

    fn new(words: String, output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("programs write text");
        Self {
            code: output.status.code(),
            out: text(output.stdout),
            errors: text(output.stderr),
            words,
        }
    }

    /// Itself, if it ended with this status.
    ///
    /// # Panics
    ///
    /// When it did not; the message has all that it wrote.
    #[track_caller]
    #[must_use = "with `check_code` it is only looked at"]
    pub fn with_code(self, code: i32) -> Self {
        self.check_code(code);
        self
    }

    /// Looks at its status.
    ///
    /// # Panics
    ///
    /// As [`Ended::with_code`].
    #[track_caller]
    pub fn check_code(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{self}");
    }

    /// Looks for all these words in what it wrote to standard output.
    ///
    /// # Panics
    ///
    /// When some are missing.
    #[track_caller]
    pub fn check_out(&self, words: &[&str]) {
        for words in words {
            assert!(self.out.contains(words), "no {words:?} on stdout: {self}");
        }
    }

    /// Looks for all these words in what it wrote to standard error.
    ///
    /// # Panics
    ///
    /// When some are missing.
    #[track_caller]
    pub fn check_errors(&self, words: &[&str]) {
        for words in words {
            assert!(
                self.errors.contains(words),
                "no {words:?} on stderr: {self}"
            );
        }
    }

    /// It failed with this status, these words on standard error, and nothing on standard output.
    ///
    /// # Panics
    ///
    /// When it did otherwise.
    #[track_caller]
    pub fn check_failed(&self, code: i32, words: &[&str]) {
        self.check_code(code);
        self.check_errors(words);
        assert!(self.out.is_empty(), "{self}");
    }
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            words,
            code,
            out,
            errors,
        } = self;
        write!(f, "{words} ended with {code:?}\n{out}\n{errors}")
    }
}

fn words(command: &Command) -> String {
    let mut words = command.get_program().to_string_lossy().into_owned();
    for word in command.get_args() {
        let _ = write!(words, " {}", word.to_string_lossy());
    }
    words
}

/// A program that runs. It is killed and waited for when this is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    words: String,
    /// Its standard input, where that is a pipe.
    pub input: Option<ChildStdin>,
    /// Its standard output, where that is a pipe.
    pub out: Option<BufReader<ChildStdout>>,
    /// Its standard error, where that is a pipe.
    pub errors: Option<BufReader<ChildStderr>>,
}

impl Running {
    /// Starts a program.
    ///
    /// # Panics
    ///
    /// When it does not start.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("it starts");
        Self {
            words: words(command),
            input: child.stdin.take(),
            out: child.stdout.take().map(BufReader::new),
            errors: child.stderr.take().map(BufReader::new),
            child,
        }
    }

    /// Starts a server; returns it, and the line that says where it listens.
    ///
    /// # Panics
    ///
    /// When its first line begins otherwise.
    #[track_caller]
    pub fn listening(command: &mut Command) -> (Self, String) {
        let mut server = Self::start(command);
        let line = server.line().unwrap_or_default();
        assert!(line.starts_with("listening on "), "{line:?}");
        (server, line)
    }

    /// The next line of its standard output, which is a pipe; `None` when there is no more.
    ///
    /// # Panics
    ///
    /// When it is no text.
    #[track_caller]
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let out = self.out.as_mut().expect("it is piped");
        let bytes = out.read_line(&mut line).expect("a line of text");
        (bytes > 0).then(|| line.trim_end_matches('\n').to_owned())
    }

    /// Its number among the processes.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    ///
    /// When it was waited for.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is ours");
    }

    /// Sends it a signal, and waits for its end.
    ///
    /// # Panics
    ///
    /// As [`Running::end`].
    #[track_caller]
    pub fn end_by(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.end()
    }

    /// Closes its standard input, waits for its end, and takes what it wrote that nobody has read.
    ///
    /// # Panics
    ///
    /// When it does not end within [`PATIENCE`].
    #[track_caller]
    pub fn end(mut self) -> Ended {
        drop(self.input.take());
        // In threads, because a program that has filled a pipe does not end before it is read.
        let (out, errors) = (
            self.out.take().map(read_in_thread),
            self.errors.take().map(read_in_thread),
        );
        let status = until(&self.words, || self.child.try_wait().expect("it is ours"));
        let bytes = |reader: Option<JoinHandle<Vec<u8>>>| {
            let bytes = reader.map(|reader| reader.join().expect("the pipe is read"));
            bytes.unwrap_or_default()
        };
        let output = Output {
            status,
            stdout: bytes(out),
            stderr: bytes(errors),
        };
        Ended::new(std::mem::take(&mut self.words), output)
    }
}

/// All that comes out of a pipe until it is closed.
fn read_in_thread(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
}

impl Drop for Running {
    fn drop(&mut self) {
        // Of a process that was waited for, both are harmless.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What shows itself as text: an error, a report, what a program wrote.
pub trait CheckWords: std::fmt::Display {
    /// Looks for all these words in the text.
    ///
    /// # Panics
    ///
    /// When some are missing; the message has them and the text.
    #[track_caller]
    fn check_words(&self, words: &[&str]) {
        let text = self.to_string();
        for words in words {
            assert!(text.contains(words), "no {words:?} in:\n{text}");
        }
    }
}

impl<T: std::fmt::Display + ?Sized> CheckWords for T {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fills_both_pipes_ends_with_all_that_it_wrote() {
        let line = "head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2";
        let mut program = command("sh", "-c");
        let ended = Running::start(program.arg(line)).end().with_code(0);
        assert_eq!((ended.out.len(), ended.errors.len()), (300_000, 200_000));
    }
}
