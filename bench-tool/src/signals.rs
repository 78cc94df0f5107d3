//! Stop requests: the first SIGINT, SIGTERM or SIGHUP asks for a clean stop with a report, a second SIGINT or SIGTERM ends
//! the process immediately. Here is decided which signals a command follows, and how.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::Failure;
use crate::threads;

/// Signals of which the second one ends the process. SIGHUP is none of them: a shell and the kernel both send one when a
/// terminal or an ssh connection is lost.
const ENDING: [i32; 2] = [SIGINT, SIGTERM];

/// How long a command that ends other processes may take for that after the second signal.
const SECOND_TIMEOUT: Duration = Duration::from_secs(5);

/// A stop request. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
    /// By a signal of [`ENDING`]: the next one ends the process.
    is_ending: Arc<AtomicBool>,
}

impl Stop {
    /// A request that only [`Stop::ask`] makes: for tests, and for parts that stop each other.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A request that SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal or the ssh connection is lost) make. A second
    /// SIGINT or SIGTERM ends the process immediately with status 128 plus its number. A SIGHUP that is ignored, as under
    /// nohup, stays so.
    ///
    /// # Errors
    /// If the handlers cannot be installed, which does not happen on a healthy system.
    pub(crate) fn on_signals() -> Result<Self, Failure> {
        let stop = Self::new();
        for signal in followed() {
            stop.follow(signal)?;
        }
        Ok(stop)
    }

    /// As [`Stop::on_signals`] for a command that reads its settings again at SIGHUP: that sets the flag.
    ///
    /// # Errors
    /// As [`Stop::on_signals`].
    pub(crate) fn on_signals_with_reload() -> Result<(Self, Arc<AtomicBool>), Failure> {
        let (stop, reload) = (Self::new(), Arc::default());
        for signal in ENDING {
            stop.follow(signal)?;
        }
        signal_hook::flag::register(SIGHUP, Arc::clone(&reload)).map_err(not_installed)?;
        Ok((stop, reload))
    }

    /// A request that only SIGINT (Ctrl-C) makes: SIGTERM ends the process. A second SIGINT ends it with status 130.
    ///
    /// # Errors
    /// As [`Stop::on_signals`].
    pub(crate) fn on_interrupt() -> Result<Self, Failure> {
        let stop = Self::new();
        stop.follow(SIGINT)?;
        Ok(stop)
    }

    fn follow(&self, signal: i32) -> Result<(), Failure> {
        self.install(signal).map_err(not_installed)
    }

    fn install(&self, signal: i32) -> io::Result<()> {
        if ENDING.contains(&signal) {
            // The order matters, because handlers run in the order of registration. The first signal finds the flag
            // clear, so nothing is shut down, and then sets it. The second finds it set and ends the process.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + signal,
                Arc::clone(&self.is_ending),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&self.is_ending))?;
        }
        signal_hook::flag::register(signal, Arc::clone(&self.asked))?;
        Ok(())
    }

    /// Requests the stop, as the first signal does.
    pub(crate) fn ask(&self) {
        // Relaxed: the flag publishes no other data, and readers that poll it see it soon.
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was requested. One relaxed load of a cache line that all cores share for reading: cheap enough
    /// for a polling core.
    #[must_use]
    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}

fn not_installed(error: io::Error) -> Failure {
    Failure::failed("cannot install the handlers of signals").because(error)
}

/// The signals that ask for a stop.
fn followed() -> Vec<i32> {
    let hangs_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    ENDING.into_iter().chain(hangs_up).collect()
}

/// Whether this process ignores a signal, which it then inherited.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|it| it.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|it| u64::from_str_radix(it.trim(), 16).ok());
    ignored.unwrap_or(0) >> (signal - 1) & 1 == 1
}

/// Stop requests of a command that ends other processes before it ends itself: a second SIGINT or SIGTERM is a request too.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopTwice {
    first: Stop,
    /// The number of the second signal; 0 before it.
    second: Arc<AtomicI32>,
}

impl StopTwice {
    /// Requests that SIGINT (Ctrl-C), SIGTERM and SIGHUP make. [`SECOND_TIMEOUT`] after the second one the process ends,
    /// also if it waits for something.
    ///
    /// # Errors
    /// As [`Stop::on_signals`]; and if their thread cannot be started.
    pub(crate) fn on_signals() -> Result<Self, Failure> {
        let it = Self::default();
        let clone = it.clone();
        let mut signals = Signals::new(followed()).map_err(not_installed)?;
        let follow = move || {
            // WAIT: for signals, in a separate thread that ends with the process.
            for signal in signals.forever() {
                clone.note(signal);
                if let Some(second) = clone.second() {
                    // WAIT: what the second signal leaves to the rest of the process.
                    std::thread::sleep(SECOND_TIMEOUT);
                    std::process::exit(128 + second);
                }
            }
        };
        threads::start("signals", follow)?;
        Ok(it)
    }

    fn note(&self, signal: i32) {
        // Relaxed: neither publishes other data, and only one thread follows signals.
        if ENDING.contains(&signal) && self.first.is_ending.swap(true, Ordering::Relaxed) {
            self.second.store(signal, Ordering::Relaxed);
        }
        self.first.ask();
    }

    /// The first request.
    pub(crate) fn stop(&self) -> &Stop {
        &self.first
    }

    /// Whether a stop was requested.
    pub(crate) fn is_asked(&self) -> bool {
        self.first.is_asked()
    }

    /// The number of the second signal.
    pub(crate) fn second(&self) -> Option<i32> {
        let signal = self.second.load(Ordering::Relaxed);
        (signal != 0).then_some(signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_answer() {
        let stop = Stop::new();
        let other = stop.clone();
        assert!(!other.is_asked());
        stop.ask();
        assert!(other.is_asked());
    }

    #[test]
    fn the_second_of_two_signals_is_a_request_too() {
        let stop = StopTwice::default();
        stop.note(SIGTERM);
        assert!(stop.is_asked() && stop.second().is_none());
        // A lost terminal is said twice: by the shell, and by the kernel.
        stop.note(SIGHUP);
        assert_eq!(stop.second(), None);
        stop.note(SIGINT);
        assert_eq!(stop.second(), Some(SIGINT));
        // Who ends a session sends SIGTERM behind SIGHUP: the report is still written.
        let stop = StopTwice::default();
        stop.note(SIGHUP);
        stop.note(SIGTERM);
        assert!(stop.is_asked() && stop.second().is_none());
    }

    #[test]
    fn the_first_signal_only_asks() {
        let stop = Stop::on_signals().unwrap();
        // Under nohup it is ignored, and stays so.
        stop.follow(SIGHUP).unwrap();
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert!(stop.is_asked());
        // It would end this process if it counted as a second one.
        signal_hook::low_level::raise(SIGHUP).unwrap();
    }
}
