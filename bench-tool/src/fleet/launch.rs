//! Starts agents, and ends them: each is a child process in its own process group, whose standard input and output
//! carry the messages.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write as _};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, setrlimit};

use super::protocol::{self, BytesMax, FromAgent, ReadError, ToAgent};
use crate::children;
use crate::exit::Failure;
use crate::progress::say;
use crate::report::escape::plain_text;
use crate::threads;

/// Upper bound of a line of an agent's standard error that is passed on.
const ERROR_LINE_BYTES_MAX: u64 = 4 << 10;

/// Open files that an agent takes here while it is started: both ends of three pipes, and one for errors of the start.
const FILES_PER_AGENT: u64 = 8;

/// Open files of everything else.
const OTHER_FILES: u64 = 64;

/// Raises this process's limit of open files so that `agents` agents can be started, as far as the system allows. One
/// that exceeds what it allows does not start, and its client is named.
pub(crate) fn allow_open_files(agents: usize) {
    if let Some(raised) = raised(getrlimit(Resource::Nofile), agents) {
        let _refused = setrlimit(Resource::Nofile, raised);
    }
}

/// The limit for so many agents; `None` if it is high enough.
fn raised(limit: Rlimit, agents: usize) -> Option<Rlimit> {
    let agents = u64::try_from(agents).unwrap_or(u64::MAX);
    let needed = agents
        .saturating_mul(FILES_PER_AGENT)
        .saturating_add(OTHER_FILES);
    let is_low = limit.current.is_some_and(|current| current < needed);
    is_low.then(|| Rlimit {
        current: Some(limit.maximum.map_or(needed, |maximum| needed.min(maximum))),
        ..limit
    })
}

/// The command that launches an agent: its words, in which `{host}` and `{index}` stand for those of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    words: Vec<String>,
}

impl Launch {
    /// Splits a command line into words as a shell does, with its quotes; nothing else of a shell.
    ///
    /// # Errors
    /// A usage failure for a quote without an end, and for no words.
    pub(crate) fn parse(line: &str) -> Result<Self, Failure> {
        match shlex::split(line) {
            Some(words) if !words.is_empty() => Ok(Self { words }),
            Some(_) => Err(Failure::usage("--launch has no command")
                .advice("write it as in --launch 'ssh {host} bench-tool agent'")),
            None => Err(Failure::usage(format!(
                "--launch `{line}` has a quote without an end, or ends with a backslash"
            ))
            .advice("write it as in --launch 'ssh {host} bench-tool agent'")),
        }
    }

    /// A program and its argument.
    pub(crate) fn program(program: &str, argument: &str) -> Self {
        Self {
            words: vec![program.to_owned(), argument.to_owned()],
        }
    }

    /// Whether the command differs from client to client.
    pub(crate) fn names_client(&self) -> bool {
        let names = |word: &String| word.contains("{host}") || word.contains("{index}");
        self.words.iter().any(names)
    }

    /// The words of a client's command. A host with spaces or quotes stays within its word.
    pub(crate) fn words_for(&self, host: &str, index: usize) -> Vec<String> {
        let index = index.to_string();
        let replaced = |word: &String| replace(word, &[("{host}", host), ("{index}", &index)]);
        self.words.iter().map(replaced).collect()
    }
}

/// Replaces every name by its value, in one pass: a value is never searched for names.
pub(crate) fn replace(text: &str, values: &[(&str, &str)]) -> String {
    let mut replaced = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find('{') {
        let (before, from) = rest.split_at(place);
        replaced.push_str(before);
        let found = values.iter().find(|(name, _)| from.starts_with(name));
        let (length, value) = found.map_or((1, "{"), |(name, value)| (name.len(), *value));
        replaced.push_str(value);
        rest = from.get(length..).unwrap_or_default();
    }
    replaced.push_str(rest);
    replaced
}

/// What an agent's process did.
#[derive(Debug)]
pub(crate) enum Told {
    /// It sent a message.
    Message(FromAgent),
    /// It wrote something else to its standard output, or the output could not be read.
    Rubbish(String),
    /// Its standard output ended.
    End,
}

/// An event of a client's process.
#[derive(Debug)]
pub(crate) struct Event {
    /// The index of the client.
    pub(crate) client: usize,
    /// When it was received.
    pub(crate) at: Instant,
    pub(crate) told: Told,
}

/// The standard input of an agent. The coordinator never waits until an agent reads: what its pipe does not take stays here.
#[derive(Debug)]
struct Input {
    pipe: ChildStdin,
    unread: VecDeque<u8>,
    /// When the agent last read something, or since when there is something to read.
    moved: Instant,
}

impl Input {
    fn new(pipe: ChildStdin) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Self {
            pipe,
            unread: VecDeque::new(),
            moved: Instant::now(),
        })
    }

    fn add(&mut self, message: &ToAgent) {
        if self.unread.is_empty() {
            self.moved = Instant::now();
        }
        // A message is plain data, and is always written to a queue.
        let _ = protocol::write(&mut self.unread, message);
        self.go_on();
    }

    /// Writes what the pipe takes.
    fn go_on(&mut self) {
        while !self.unread.is_empty() {
            // WAIT: never, since the pipe does not block.
            match self.pipe.write(self.unread.as_slices().0) {
                Ok(bytes) => {
                    self.unread.drain(..bytes);
                    self.moved = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // An agent that cannot be reached ends soon, and its end is an event.
                Err(_) => self.unread.clear(),
            }
        }
    }
}

/// A running agent. The drop kills it, and waits for its end.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    // Closing it makes the agent end.
    stdin: Option<Input>,
    /// When it last wrote something to its standard output.
    heard: Arc<Mutex<Instant>>,
    /// The last line of its standard error.
    last_error: Arc<Mutex<String>>,
    /// Passes on its standard error.
    errors: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts the process of client number `client`. Its events go to `events`; its standard error to this process's,
    /// each line behind `name`. Its messages have at most `bytes_max`.
    ///
    /// # Errors
    /// Why it does not start.
    pub(crate) fn start(
        words: &[String],
        (client, name): (usize, &str),
        events: &SyncSender<Event>,
        bytes_max: BytesMax,
    ) -> io::Result<Self> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut child = children::command(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // In its own process group: Ctrl-C on the terminal reaches the coordinator only, which lets the agents
            // report. And a launcher is killed together with what it started.
            .process_group(0)
            // WAIT: for the start of the program (exec), which needs no event.
            .spawn()?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        // From here on a failure drops the process, and so ends it.
        let mut process = Self {
            child,
            stdin: None,
            heard: Arc::new(Mutex::new(Instant::now())),
            last_error: Arc::default(),
            errors: None,
        };
        process.stdin = stdin.map(Input::new).transpose()?;
        if let Some(stdout) = stdout {
            let (events, heard) = (events.clone(), Arc::clone(&process.heard));
            let stdout = BufReader::new(Heard { stdout, heard });
            let read = move || read_messages(client, stdout, &events, bytes_max);
            threads::start("agent", read).map_err(io::Error::other)?;
        }
        if let Some(stderr) = stderr {
            let (name, last) = (name.to_owned(), Arc::clone(&process.last_error));
            let read = move || pass_on(&name, BufReader::new(stderr), &last);
            let errors = threads::start("agent-errors", read).map_err(io::Error::other)?;
            process.errors = Some(errors);
        }
        Ok(process)
    }

    /// Sends a message as soon as the agent reads.
    pub(crate) fn say(&mut self, message: &ToAgent) {
        if let Some(stdin) = &mut self.stdin {
            stdin.add(message);
        }
    }

    /// Goes on with messages that the agent has not read. Returns since when it reads nothing, if there are some.
    pub(crate) fn go_on(&mut self) -> Option<Instant> {
        let stdin = self.stdin.as_mut()?;
        stdin.go_on();
        (!stdin.unread.is_empty()).then_some(stdin.moved)
    }

    /// When it last wrote something to its standard output: a long message arrives in many pieces.
    pub(crate) fn heard(&self) -> Instant {
        // WAIT: for threads that hold this lock for some instructions.
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the standard input of the agent, which ends it.
    pub(crate) fn close(&mut self) {
        drop(self.stdin.take());
    }

    /// Waits for its end until `deadline`; `None` if it has not ended.
    pub(crate) fn wait_until(&mut self, deadline: Instant) -> Option<ExitStatus> {
        children::wait_until(&mut self.child, deadline)
            .ok()
            .flatten()
    }

    /// The last line of its standard error, when its process has ended and all of them are passed on.
    pub(crate) fn last_error(&mut self, deadline: Instant) -> Option<String> {
        // A process that it started may keep the pipe open: the join must not wait for that.
        let errors = self.errors.take();
        errors.and_then(|it| threads::join_while(it, || Instant::now() < deadline));
        // WAIT: for threads that hold this lock for some instructions.
        let last = self.last_error.lock();
        let last = last.unwrap_or_else(PoisonError::into_inner).clone();
        (!last.is_empty()).then_some(last)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        // KILL ends a stopped process too. The group may have been left by the child itself: kill that as well.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        children::kill(&mut self.child);
    }
}

/// Notes when bytes arrive.
struct Heard<R> {
    stdout: R,
    heard: Arc<Mutex<Instant>>,
}

impl<R: Read> Read for Heard<R> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let bytes = self.stdout.read(space)?;
        // WAIT: for threads that hold this lock for some instructions.
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(bytes)
    }
}

/// Reads the messages of an agent until the end, or until something that is none.
fn read_messages(
    client: usize,
    mut stdout: impl BufRead,
    events: &SyncSender<Event>,
    bytes_max: BytesMax,
) {
    let mut of_next = BytesMax::HELLO;
    loop {
        let read = protocol::read::<FromAgent>(&mut stdout, of_next);
        of_next = bytes_max;
        let told = match read {
            Ok(Some(message)) => Told::Message(message.plain()),
            Ok(None) => Told::End,
            Err(error @ ReadError::NoMessage(_)) => Told::Rubbish(format!(
                "{error}; the launch command must print nothing else (see .bashrc and the like)"
            )),
            Err(error) => Told::Rubbish(error.to_string()),
        };
        let is_last = !matches!(told, Told::Message(_));
        let event = Event {
            client,
            at: Instant::now(),
            told,
        };
        // WAIT: for the coordinator, in a separate thread; it ends with it.
        if events.send(event).is_err() || is_last {
            break;
        }
    }
    // A launcher that writes on would block when the pipe is full, and not see the end of its input.
    // WAIT: for the end of the agent, in a separate thread.
    let _ = io::copy(&mut stdout, &mut io::sink());
}

/// Writes each line of an agent's standard error, behind its name, to this process's.
fn pass_on(name: &str, mut stderr: impl BufRead, last: &Mutex<String>) {
    loop {
        let mut line = Vec::new();
        // WAIT: for the agent, in a separate thread, which its end ends.
        let read = (&mut stderr)
            .take(ERROR_LINE_BYTES_MAX)
            .read_until(b'\n', &mut line);
        if !matches!(read, Ok(bytes) if bytes > 0) {
            return;
        }
        let line = String::from_utf8_lossy(&line);
        let line = plain_text(line.trim_end().to_owned());
        say(&format!("[{name}] {line}"));
        // WAIT: for threads that hold this lock for some instructions.
        if !line.is_empty()
            && let Ok(mut last) = last.lock()
        {
            *last = line;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::protocol::Share;
    use crate::progress::Figures;
    use rpcrdma_testkit::CheckWords;
    use std::path::Path;
    use std::sync::mpsc;

    #[test]
    fn a_launch_command_is_split_into_words_and_hosts_stay_within_theirs() {
        let launch = Launch::parse("ssh -o 'BatchMode yes' {host} bench-tool agent").unwrap();
        assert!(launch.names_client());
        let words = launch.words_for("b; rm -rf {index}", 7);
        assert_eq!(
            words,
            [
                "ssh",
                "-o",
                "BatchMode yes",
                "b; rm -rf {index}",
                "bench-tool",
                "agent"
            ]
        );
        let launch = Launch::parse("run-{index} '{' {other} {host}{index}").unwrap();
        let expected = ["run-7", "{", "{other}", "b7"];
        assert_eq!(launch.words_for("b", 7), expected);
        for (line, words) in [("ssh 'a", "without an end"), ("  ", "no command")] {
            Launch::parse(line).unwrap_err().check_words(&[words]);
        }
    }

    fn shell(script: &str) -> (Process, mpsc::Receiver<Event>) {
        let (events, received) = mpsc::sync_channel(64);
        let words = ["/bin/sh", "-c", script].map(str::to_owned);
        let max = BytesMax::of_agent(1 << 20);
        let process = Process::start(&words, (3, "b"), &events, max).unwrap();
        (process, received)
    }

    /// The limit of a wait for what must come.
    fn soon() -> Instant {
        // TIME: the wait ends with what comes, and no machine meets the limit.
        Instant::now() + rpcrdma_testkit::PATIENCE
    }

    #[test]
    fn messages_rubbish_and_the_end_are_events() {
        let script =
            r#"echo '{"message":"ready"}'; echo Welcome; echo; printf '\033why\n' >&2; exit 3"#;
        let (mut process, events) = shell(script);
        let told: Vec<Event> = events.iter().collect();
        assert!(told.iter().all(|it| it.client == 3));
        let [
            Event {
                told: Told::Message(FromAgent::Ready),
                ..
            },
            Event {
                told: Told::Rubbish(words),
                ..
            },
        ] = &told[..]
        else {
            panic!("{told:?}");
        };
        assert!(words.contains("`Welcome`"), "{words}");
        let status = process.wait_until(soon()).unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(process.last_error(soon()).unwrap(), "?why");
        let (_process, events) = shell("exit 0");
        assert!(matches!(events.recv().unwrap().told, Told::End));
    }

    #[test]
    fn messages_wait_for_an_agent_that_reads_later_and_nobody_waits_for_it() {
        let folder = rpcrdma_testkit::Folder::new("later");
        let cue = folder.path("cue");
        let script = format!("until [ -e {cue} ]; do sleep 0.01; done; wc -c");
        let (mut process, events) = shell(&script);
        let message = ToAgent::Prepare(Share {
            arguments: vec!["x".repeat(1000); 1000],
            rate_per_s: None,
            seed_offset: 0,
            place: 0,
            places: 1,
            shows_latency: false,
        });
        let mut line = Vec::new();
        protocol::write(&mut line, &message).unwrap();
        process.say(&message);
        assert!(process.go_on().is_some(), "no pipe takes so much");
        folder.write("cue", "");
        rpcrdma_testkit::until("all is read", || process.go_on().is_none().then_some(()));
        process.close();
        // The number of bytes is no message.
        let event = format!("{:?}", events.recv().unwrap());
        assert!(event.contains(&format!("`{}`", line.len())), "{event}");
    }

    #[test]
    fn a_closed_input_ends_an_agent_and_the_drop_kills_what_is_left() {
        let (mut process, _events) = shell("cat");
        // TIME: it is one look: the process does not end before its input does.
        assert!(process.wait_until(Instant::now()).is_none());
        process.close();
        assert!(process.wait_until(soon()).unwrap().success());
        // A launcher with a child, which does not read its input.
        let (process, events) = shell(
            r#"sleep 1000 & echo "{\"message\":\"progress\",\"calls\":$!,\"errors\":0}"; wait"#,
        );
        let launcher = process.child.id();
        let Told::Message(FromAgent::Progress(Figures { calls, .. })) = events.recv().unwrap().told
        else {
            panic!("no process");
        };
        drop(process);
        rpcrdma_testkit::until("both processes are gone", || {
            let is_gone = |id: u64| {
                let state = std::fs::read_to_string(format!("/proc/{id}/stat"));
                state.map_or(true, |state| state.contains(") Z "))
            };
            (is_gone(calls) && is_gone(launcher.into())).then_some(())
        });
        assert!(!Path::new(&format!("/proc/{launcher}")).exists());
    }

    #[test]
    fn the_limit_of_open_files_is_raised_as_far_as_it_may() {
        let raised = |current, maximum, agents| {
            let raised = raised(Rlimit { current, maximum }, agents)?;
            assert_eq!(raised.maximum, maximum);
            raised.current
        };
        assert_eq!(raised(Some(80), Some(500), 1), None, "enough");
        assert_eq!(raised(Some(80), Some(500), 10), Some(144));
        assert_eq!(raised(Some(80), Some(500), 4096), Some(500));
        assert_eq!(raised(Some(80), None, 100), Some(864));
        assert_eq!(raised(None, None, 4096), None);
    }

    #[test]
    fn a_program_that_is_not_there_does_not_start() {
        let (events, _) = mpsc::sync_channel(64);
        let words = ["/nonexistent/launcher".to_owned()];
        let start = |words: &[String]| Process::start(words, (0, "a"), &events, BytesMax::HELLO);
        assert!(start(&words).is_err() && start(&[]).is_err());
    }
}
