//! Stop requests: the first SIGINT or SIGTERM asks for a clean stop with a report, the second ends the process
//! immediately.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::Failure;

/// A stop request. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// A request that only [`Stop::ask`] makes: for tests, and for parts that stop each other.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A request that SIGINT (Ctrl-C) and SIGTERM make. A second signal ends the process immediately with status 128
    /// plus its number.
    ///
    /// # Errors
    /// If the handlers cannot be installed, which does not happen on a healthy system.
    pub(crate) fn on_signals() -> Result<Self, Failure> {
        let stop = Self::new();
        stop.install(&[SIGINT, SIGTERM]).map_err(|error| {
            Failure::failed("cannot install the handlers of SIGINT and SIGTERM").because(error)
        })?;
        Ok(stop)
    }

    /// A request that only SIGINT (Ctrl-C) makes: SIGTERM ends the process. A second SIGINT ends it with status 130.
    ///
    /// # Errors
    /// As [`Stop::on_signals`].
    pub(crate) fn on_interrupt() -> Result<Self, Failure> {
        let stop = Self::new();
        stop.install(&[SIGINT]).map_err(|error| {
            Failure::failed("cannot install the handler of SIGINT").because(error)
        })?;
        Ok(stop)
    }

    fn install(&self, signals: &[i32]) -> io::Result<()> {
        for &signal in signals {
            // The order matters, because handlers run in the order of registration. The first signal finds the flag
            // clear, so nothing is shut down, and then sets it. The second finds it set and ends the process.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + signal,
                Arc::clone(&self.asked),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&self.asked))?;
        }
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

/// Stop requests of a command that ends other processes before it ends itself: a second signal is a request too.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopTwice {
    first: Stop,
    /// The number of the second signal; 0 before it.
    second: Arc<AtomicI32>,
}

impl StopTwice {
    /// Requests that SIGINT (Ctrl-C) and SIGTERM make.
    ///
    /// # Errors
    /// As [`Stop::on_signals`].
    pub(crate) fn on_signals() -> Result<Self, Failure> {
        let it = Self::default();
        let clone = it.clone();
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| {
            Failure::failed("cannot install the handlers of SIGINT and SIGTERM").because(error)
        })?;
        std::thread::spawn(move || signals.forever().for_each(|signal| clone.note(signal)));
        Ok(it)
    }

    fn note(&self, signal: i32) {
        if self.first.is_asked() {
            // Relaxed: the number publishes no other data.
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
        stop.note(SIGINT);
        assert_eq!(stop.second(), Some(SIGINT));
    }

    #[test]
    fn the_first_signal_only_asks() {
        let stop = Stop::on_signals().unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert!(stop.is_asked());
    }
}
