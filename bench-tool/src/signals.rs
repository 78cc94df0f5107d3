//! Stop requests: the first SIGINT or SIGTERM asks for a clean stop with a report, the second ends the process
//! immediately.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

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
        stop.install().map_err(|error| {
            Failure::failed("cannot install the handlers of SIGINT and SIGTERM").because(error)
        })?;
        Ok(stop)
    }

    fn install(&self) -> io::Result<()> {
        for signal in [SIGINT, SIGTERM] {
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
    fn the_first_signal_only_asks() {
        let stop = Stop::on_signals().unwrap();
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert!(stop.is_asked());
    }
}
