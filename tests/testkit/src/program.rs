//! Child processes of tests: run to their end, or for as long as a test needs them.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{PATIENCE, PAUSE, Wait};

/// A command with the words of `line` as its arguments, no standard input, and pipes for standard output and error.
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

/// The exit status and the output of a program.
#[derive(Clone, Debug)]
pub struct Ended {
    /// The exit status; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// The standard output.
    pub out: String,
    /// The standard error.
    pub errors: String,
    words: String,
}

impl Ended {
    /// Runs a program to its end.
    ///
    /// # Panics
    ///
    /// The program cannot be started, or its output is not UTF-8.
    #[track_caller]
    pub fn of(command: &mut Command) -> Self {
        Self::new(
            words(command),
            command.output().expect("the program starts"),
        )
    }

    /// Runs a program to its end with `input` on its standard input. The input must fit into a pipe: it is written
    /// before the output is read, so a longer one can block both processes.
    ///
    /// # Panics
    ///
    /// As [`Ended::of`].
    #[track_caller]
    pub fn of_input(command: &mut Command, input: &str) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut stdin = child.stdin.take().expect("standard input is a pipe");
        // The write fails if the program ended without reading its input, which a test may expect.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        Self::new(
            words(command),
            child
                .wait_with_output()
                .expect("the child was not waited for"),
        )
    }

    fn new(words: String, output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
        Self {
            code: output.status.code(),
            out: text(output.stdout),
            errors: text(output.stderr),
            words,
        }
    }

    /// Returns itself if the exit status is `code`.
    ///
    /// # Panics
    ///
    /// The exit status is another one; the message has the output of the program.
    #[track_caller]
    #[must_use = "`check_code` checks the status without a result"]
    pub fn with_code(self, code: i32) -> Self {
        self.check_code(code);
        self
    }

    /// Checks the exit status.
    ///
    /// # Panics
    ///
    /// As [`Ended::with_code`].
    #[track_caller]
    pub fn check_code(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{self}");
    }

    /// Checks that standard output contains all `words`.
    ///
    /// # Panics
    ///
    /// At least one is missing.
    #[track_caller]
    pub fn check_out(&self, words: &[&str]) {
        for words in words {
            assert!(self.out.contains(words), "no {words:?} on stdout: {self}");
        }
    }

    /// Checks that standard error contains all `words`.
    ///
    /// # Panics
    ///
    /// At least one is missing.
    #[track_caller]
    pub fn check_errors(&self, words: &[&str]) {
        for words in words {
            assert!(
                self.errors.contains(words),
                "no {words:?} on stderr: {self}"
            );
        }
    }

    /// Checks that the program failed with this exit status, these words on standard error and no standard output.
    ///
    /// # Panics
    ///
    /// One of these checks fails.
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

/// A running program. The drop kills it and waits for its end.
#[derive(Debug)]
pub struct Running {
    child: Child,
    words: String,
    /// The standard input, if it is a pipe.
    pub input: Option<ChildStdin>,
    /// The standard output, if it is a pipe.
    pub out: Option<BufReader<ChildStdout>>,
    /// The standard error, if it is a pipe.
    pub errors: Option<BufReader<ChildStderr>>,
}

impl Running {
    /// Starts a program.
    ///
    /// # Panics
    ///
    /// The program does not start.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().expect("the program starts");
        Self {
            words: words(command),
            input: child.stdin.take(),
            out: child.stdout.take().map(BufReader::new),
            errors: child.stderr.take().map(BufReader::new),
            child,
        }
    }

    /// Starts a server. Returns it with the line that names its address.
    ///
    /// # Panics
    ///
    /// The first line of output is another one.
    #[track_caller]
    pub fn listening(command: &mut Command) -> (Self, String) {
        let mut server = Self::start(command);
        let line = server.line().unwrap_or_default();
        assert!(line.starts_with("listening on "), "{line:?}");
        (server, line)
    }

    /// The next line of standard output; `None` at its end.
    ///
    /// # Panics
    ///
    /// Standard output is no pipe, or the line is not UTF-8.
    #[track_caller]
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let out = self.out.as_mut().expect("standard output is a pipe");
        let bytes = out.read_line(&mut line).expect("the line is UTF-8");
        (bytes > 0).then(|| line.trim_end_matches('\n').to_owned())
    }

    /// The process ID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the program.
    ///
    /// # Panics
    ///
    /// The program was waited for.
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the child was not waited for");
    }

    /// Sends a signal to the program, and waits for its end.
    ///
    /// # Panics
    ///
    /// As [`Running::end`].
    #[track_caller]
    pub fn end_by(self, signal: Signal) -> Ended {
        self.signal(signal);
        self.end()
    }

    /// Closes the standard input, waits for the end of the program, and returns the output that was not yet read.
    ///
    /// # Panics
    ///
    /// The program does not end within [`PATIENCE`].
    #[track_caller]
    pub fn end(mut self) -> Ended {
        drop(self.input.take());
        // Threads read both pipes, because a program that has filled a pipe blocks until somebody reads it.
        let (out, errors) = (
            self.out.take().map(read_in_thread),
            self.errors.take().map(read_in_thread),
        );
        let words = std::mem::take(&mut self.words);
        let wait = Wait::begin(&words);
        let mut is_late = false;
        let status = loop {
            match self.child.try_wait().expect("a child can be waited for") {
                Some(status) => break status,
                // What it wrote shows why. Only a program that has ended has written all.
                None if wait.is_over() => {
                    is_late = true;
                    self.child.kill().expect("the child was not waited for");
                }
                None => {}
            }
            std::thread::sleep(PAUSE);
        };
        let bytes = |reader: Option<JoinHandle<Vec<u8>>>| {
            let bytes = reader.map(|reader| reader.join().expect("the reader does not panic"));
            bytes.unwrap_or_default()
        };
        let output = Output {
            status,
            stdout: bytes(out),
            stderr: bytes(errors),
        };
        let ended = Ended::new(words, output);
        assert!(!is_late, "not ended in {PATIENCE:?}: {ended}");
        ended
    }
}

/// Reads a pipe to its end in a thread.
fn read_in_thread(mut pipe: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).expect("a pipe can be read");
        bytes
    })
}

impl Drop for Running {
    fn drop(&mut self) {
        // `end` may have waited for the child. Then both calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks the text of a value, for example of an error or a report.
pub trait CheckWords: std::fmt::Display {
    /// Checks that the text contains all `words`.
    ///
    /// # Panics
    ///
    /// At least one is missing; the message has the first missing one and the text.
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
