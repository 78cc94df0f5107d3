//! Stopping on request: the first SIGINT or SIGTERM asks for a clean stop with a report, the second ends at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit::Failure;

/// Whether somebody asked for the end. Cloning shares the one answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop {
    asked: Arc<AtomicBool>,
}

impl Stop {
    /// A stop that only [`Stop::ask`] triggers: for tests and for parts that end each other.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// A stop that SIGINT (Ctrl-C) and SIGTERM trigger; a second signal ends the process at once with 128 plus its number.
    ///
    /// # Errors
    /// When the handlers cannot be installed, which a healthy system never refuses.
    pub(crate) fn on_signals() -> Result<Self, Failure> {
        let stop = Self::new();
        stop.install().map_err(|error| {
            Failure::failed("cannot install the handlers of SIGINT and SIGTERM").because(error)
        })?;
        Ok(stop)
    }

    fn install(&self) -> io::Result<()> {
        for signal in [SIGINT, SIGTERM] {
            // Order matters: handlers run in order of registration, so the first signal finds the flag
            // clear (no shutdown), then sets it; the second finds it set and ends the process.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                128 + signal,
                Arc::clone(&self.asked),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&self.asked))?;
        }
        Ok(())
    }

    /// Asks for the end, as the first signal does.
    pub(crate) fn ask(&self) {
        // Relaxed: the flag guards no other data; whoever polls it sees it soon, and order does not matter.
        self.asked.store(true, Ordering::Relaxed);
    }

    /// True once the end was asked for. One relaxed load of a line that is otherwise only read: cheap enough for a polling core.
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
