//! The agent: runs the load of one client of a fleet, in its own process, and follows the coordinator's messages.

use std::io::{BufRead, Write};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::clock::FleetClock;
use super::protocol::{self, BytesMax, FromAgent, Share, ToAgent, Versions};
use crate::exit::Failure;
use crate::load::gate::Gate;
use crate::progress::Progress;
use crate::signals::Stop;
use crate::threads;

/// Time between two signs of life.
const PROGRESS_PERIOD: Duration = Duration::from_secs(1);

/// How often a waiting load looks for a stop request.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// The report of a round, and why the command would have failed after it.
pub(crate) type Done = (Value, Option<String>);

/// Runs the load of a round. It passes the gate when it has its connections.
pub(crate) type Execute<'a> = &'a mut dyn FnMut(&Share, &Stop, &Gate) -> Result<Done, Failure>;

type Output = Box<dyn Write + Send>;

/// What the threads of an agent share.
struct Shared {
    clock: FleetClock,
    output: Mutex<Output>,
    stop: Stop,
    round: Mutex<Round>,
    /// Notified when the start is known.
    start: Condvar,
}

/// The state of the current round.
#[derive(Default)]
struct Round {
    /// When the calls are to begin.
    start_ns: Option<u64>,
    /// When they began.
    started_ns: Option<u64>,
    /// Counts the calls of the running load.
    progress: Option<Progress>,
    /// Whether the coordinator wants the latencies of the running load.
    shows_latency: bool,
}

impl Shared {
    /// Sends a message. A coordinator that cannot be reached any more wants no more calls.
    fn say(&self, message: &FromAgent) {
        self.write(&mut self.output(), message);
    }

    fn output(&self) -> MutexGuard<'_, Output> {
        // WAIT: for a message of another thread, and so for the coordinator: it reads, or its end closes the pipe.
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, output: &mut Output, message: &FromAgent) {
        if protocol::write(output, message).is_err() {
            self.stop.ask();
        }
    }

    fn round(&self) -> MutexGuard<'_, Round> {
        // WAIT: for threads that hold this lock for some instructions.
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gate: says that the connections are made, and waits for the start.
    fn wait_for_start(&self, progress: &Progress, stop: &Stop) {
        let mut round = self.round();
        if round.shows_latency {
            progress.keep_latency();
        }
        round.progress = Some(progress.clone());
        drop(round);
        self.say(&FromAgent::Ready);
        let mut round = self.round();
        while round.start_ns.is_none() && !stop.is_asked() {
            // WAIT: `LOOK_PERIOD`; the whole until the coordinator gives the start, ends the input, or asks for a stop.
            let waited = self.start.wait_timeout(round, LOOK_PERIOD);
            round = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let Some(start_ns) = round.start_ns else {
            return;
        };
        drop(round);
        loop {
            let left = Duration::from_nanos(start_ns.saturating_sub(self.clock.now()));
            if left.is_zero() || stop.is_asked() {
                break;
            }
            // WAIT: `LOOK_PERIOD`; the whole until the start, or a stop request.
            thread::sleep(left.min(LOOK_PERIOD));
        }
        self.round().started_ns = Some(self.clock.now());
    }

    /// Follows a message; returns the share of a round that is to run.
    fn follow(&self, message: ToAgent) -> Result<Option<Share>, Failure> {
        match message {
            ToAgent::Hello(versions) => {
                let refused = Versions::own().refuses("the coordinator", &versions);
                return refused.map_or(Ok(None), |why| Err(Failure::failed(why)));
            }
            ToAgent::Prepare(share) => {
                *self.round() = Round {
                    shows_latency: share.shows_latency,
                    ..Round::default()
                };
                return Ok(Some(share));
            }
            ToAgent::Clock { number } => {
                let agent_ns = self.clock.now();
                self.say(&FromAgent::Clock { number, agent_ns });
            }
            ToAgent::Start { agent_ns } => {
                self.round().start_ns = Some(agent_ns);
                self.start.notify_all();
            }
            ToAgent::Stop => self.stop.ask(),
        }
        Ok(None)
    }

    fn say_progress(&self) {
        // Before the figures are read: what another thread writes first must not have newer ones.
        let mut output = self.output();
        let progress = self.round().progress.clone();
        let figures = progress.map(|progress| progress.figures());
        let message = FromAgent::Progress(figures.unwrap_or_default());
        self.write(&mut output, &message);
    }
}

/// The ends of an agent.
pub(crate) struct Ends<I, O> {
    /// Messages of the coordinator.
    pub(crate) input: I,
    /// Messages to it.
    pub(crate) output: O,
}

/// Follows the coordinator until its messages end. `execute` runs the load of a round; `on_end` is called in another
/// thread when the messages end, while a load may still run.
///
/// # Errors
/// A coordinator of another version, and one that sends something else than messages.
pub(crate) fn serve<I, O>(
    ends: Ends<I, O>,
    stop: &Stop,
    on_end: impl FnOnce() + Send + 'static,
    execute: Execute<'_>,
) -> Result<(), Failure>
where
    I: BufRead + Send + 'static,
    O: Write + Send + 'static,
{
    let Ends { mut input, output } = ends;
    let shared = Arc::new(Shared {
        clock: FleetClock::start(),
        output: Mutex::new(Box::new(output)),
        stop: stop.clone(),
        round: Mutex::default(),
        start: Condvar::new(),
    });
    let node = rustix::system::uname();
    shared.say(&FromAgent::Hello {
        versions: Versions::own(),
        process_id: std::process::id(),
        node: node.nodename().to_string_lossy().into_owned(),
    });
    let (shares, rounds) = mpsc::channel();
    let reader = Arc::clone(&shared);
    let follow = move || {
        let ended = follow_all(&reader, &mut input, &shares);
        // Nobody waits for the results of the load that may run now.
        reader.stop.ask();
        let _ = shares.send(ended.map(|()| None));
        drop(shares);
        on_end();
    };
    threads::start("coordinator", follow)?;
    let (alive, ended) = mpsc::channel::<()>();
    let ticker = Arc::clone(&shared);
    let tick = move || {
        // WAIT: `PROGRESS_PERIOD`, in a thread that nobody waits for.
        while ended.recv_timeout(PROGRESS_PERIOD) == Err(RecvTimeoutError::Timeout) {
            ticker.say_progress();
        }
    };
    threads::start("progress", tick)?;
    let gate = Gate::new({
        let shared = Arc::clone(&shared);
        move |progress: &Progress, stop: &Stop| shared.wait_for_start(progress, stop)
    });
    let mut outcome = Ok(());
    // WAIT: for the next round: the coordinator sends one, or ends the input, and the second signal ends this process.
    for share in rounds {
        match share {
            Ok(Some(share)) => {
                let done = execute(&share, stop, &gate);
                shared.say_progress();
                shared.say(&answer(done, &shared));
            }
            Ok(None) => break,
            Err(failure) => {
                let why = failure.to_string();
                shared.say(&FromAgent::Failed { why });
                outcome = Err(failure);
                break;
            }
        }
    }
    drop(alive);
    outcome
}

/// The message that ends a round.
fn answer(done: Result<Done, Failure>, shared: &Shared) -> FromAgent {
    match done {
        Ok((report, failure)) => FromAgent::Report {
            report,
            started_ns: shared.round().started_ns,
            failure,
        },
        Err(failure) => FromAgent::Failed {
            why: failure.to_string(),
        },
    }
}

/// Follows messages until they end, and passes the shares on.
fn follow_all(
    shared: &Shared,
    input: &mut impl BufRead,
    shares: &mpsc::Sender<Result<Option<Share>, Failure>>,
) -> Result<(), Failure> {
    while let Some(message) =
        protocol::read(input, BytesMax::OF_COORDINATOR).map_err(no_coordinator)?
    {
        if let Some(share) = shared.follow(message)? {
            let _ = shares.send(Ok(Some(share)));
        }
    }
    Ok(())
}

fn no_coordinator(error: protocol::ReadError) -> Failure {
    let text = match error {
        protocol::ReadError::NoMessage(line) => format!("`{line}` is no message of a coordinator"),
        error => error.to_string(),
    };
    Failure::failed(text).advice("`bench-tool fleet` starts agents, and speaks with them")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_testkit::CheckWords;
    use serde_json::json;
    use std::io::{BufReader, PipeReader, PipeWriter, pipe};

    /// A coordinator by hand.
    struct Coordinator {
        to: Option<PipeWriter>,
        from: BufReader<PipeReader>,
        agent: thread::JoinHandle<Result<(), Failure>>,
        stop: Stop,
    }

    impl Coordinator {
        /// With an agent whose load passes the gate and reports its arguments.
        fn start() -> Self {
            let (input, to) = pipe().unwrap();
            let (from, output) = pipe().unwrap();
            let stop = Stop::new();
            let agents = stop.clone();
            let agent = thread::spawn(move || {
                let input = BufReader::new(input);
                serve(Ends { input, output }, &agents, || (), &mut load)
            });
            Self {
                to: Some(to),
                from: BufReader::new(from),
                agent,
                stop,
            }
        }

        fn say(&mut self, message: &ToAgent) {
            protocol::write(self.to.as_mut().unwrap(), message).unwrap();
        }

        /// The next message that is no sign of life.
        fn hear(&mut self) -> Option<FromAgent> {
            loop {
                match protocol::read(&mut self.from, BytesMax::of_agent(1 << 20)).unwrap() {
                    Some(FromAgent::Progress(_)) => {}
                    message => return message,
                }
            }
        }

        fn clock(&mut self, number: u32) -> u64 {
            self.say(&ToAgent::Clock { number });
            match self.hear() {
                Some(FromAgent::Clock {
                    number: heard,
                    agent_ns,
                }) if heard == number => agent_ns,
                other => panic!("{other:?}"),
            }
        }

        fn end(mut self) -> Result<(), Failure> {
            drop(self.to.take());
            while self.hear().is_some() {}
            self.agent.join().unwrap()
        }
    }

    fn load(share: &Share, stop: &Stop, gate: &Gate) -> Result<Done, Failure> {
        if share.arguments.is_empty() {
            return Err(Failure::failed("there is nothing to run"));
        }
        gate.pass(&Progress::new(1), stop);
        Ok((json!({"command": share.arguments}), None))
    }

    fn share(arguments: &[&str]) -> ToAgent {
        ToAgent::Prepare(Share {
            arguments: arguments.iter().map(ToString::to_string).collect(),
            rate_per_s: None,
            seed_offset: 0,
            place: 0,
            places: 1,
            shows_latency: false,
        })
    }

    #[test]
    fn an_agent_runs_its_rounds_at_the_given_times_until_its_input_ends() {
        let mut coordinator = Coordinator::start();
        let hello = coordinator.hear();
        let own = std::process::id();
        assert!(
            matches!(&hello, Some(FromAgent::Hello { versions, process_id, .. })
                if *versions == Versions::own() && *process_id == own),
            "{hello:?}"
        );
        coordinator.say(&ToAgent::Hello(Versions::own()));
        for round in 0..2 {
            coordinator.say(&share(&["run"]));
            assert_eq!(coordinator.hear(), Some(FromAgent::Ready));
            // It answers while its load waits for the start.
            let now = coordinator.clock(round);
            let agent_ns = now + 30_000_000;
            coordinator.say(&ToAgent::Start { agent_ns });
            let Some(FromAgent::Report {
                report, started_ns, ..
            }) = coordinator.hear()
            else {
                panic!("no report");
            };
            assert_eq!(report["command"][0], "run");
            assert!(started_ns.unwrap() >= agent_ns, "never early");
        }
        coordinator.say(&share(&[]));
        let failed = coordinator.hear();
        assert!(
            matches!(&failed, Some(FromAgent::Failed { why }) if why.contains("nothing to run")),
            "{failed:?}"
        );
        let stop = coordinator.stop.clone();
        coordinator.end().unwrap();
        assert!(stop.is_asked(), "by the end of the input");
    }

    #[test]
    fn figures_that_wait_for_the_output_are_not_older_than_what_is_written_before_them() {
        let (from, output) = pipe().unwrap();
        let progress = Progress::new(1);
        let shared = Shared {
            clock: FleetClock::start(),
            output: Mutex::new(Box::new(output)),
            stop: Stop::new(),
            round: Mutex::new(Round {
                progress: Some(progress.clone()),
                ..Round::default()
            }),
            start: Condvar::new(),
        };
        thread::scope(|scope| {
            let held = shared.output();
            scope.spawn(|| shared.say_progress());
            // TIME: a thread that waits for a lock tells nobody. Where the other one does not get there within this time, the
            // test misses the fault, and passes.
            thread::sleep(Duration::from_millis(100));
            progress.core(0).unwrap().publish(7, 0);
            drop(held);
        });
        let message =
            protocol::read(&mut BufReader::new(from), BytesMax::of_agent(1 << 20)).unwrap();
        assert!(
            matches!(&message, Some(FromAgent::Progress(figures)) if figures.calls == 7),
            "{message:?}"
        );
    }

    #[test]
    fn a_stop_lets_a_waiting_load_report() {
        let mut coordinator = Coordinator::start();
        coordinator.hear();
        coordinator.say(&share(&["run"]));
        assert_eq!(coordinator.hear(), Some(FromAgent::Ready));
        coordinator.say(&ToAgent::Stop);
        let told = coordinator.hear();
        assert!(
            matches!(
                told,
                Some(FromAgent::Report {
                    started_ns: None,
                    ..
                })
            ),
            "{told:?}"
        );
        coordinator.end().unwrap();
    }

    #[test]
    fn a_coordinator_of_another_version_is_an_error_at_both_ends() {
        let mut coordinator = Coordinator::start();
        coordinator.hear();
        let other = Versions {
            version: "0.0.7".to_owned(),
            ..Versions::own()
        };
        coordinator.say(&ToAgent::Hello(other));
        let told = coordinator.hear();
        assert!(
            matches!(&told, Some(FromAgent::Failed { why }) if why.contains("0.0.7")),
            "{told:?}"
        );
        let failure = coordinator.end().unwrap_err();
        failure.check_words(&["the coordinator has", "0.0.7", crate::VERSION]);
    }

    #[test]
    fn agent_refuses_input_that_is_no_message() {
        let mut coordinator = Coordinator::start();
        let to = coordinator.to.as_mut().unwrap();
        to.write_all(b"run --connect shm:x\n").unwrap();
        let failure = coordinator.end().unwrap_err();
        failure.check_words(&["`run --connect shm:x`", "bench-tool fleet"]);
    }
}
