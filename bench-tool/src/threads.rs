//! Threads of this program. One that cannot be started is an error of its command, with the limits that may be the reason.

use std::io;
use std::thread::{Builder, JoinHandle, Scope, ScopedJoinHandle};
use std::time::Duration;

use crate::exit::Failure;

/// Starts a thread with this name, of at most 15 bytes.
///
/// # Errors
/// If the system refuses it.
pub(crate) fn start<T: Send + 'static>(
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Failure> {
    let thread = Builder::new().name(name.into()).spawn(run);
    thread.map_err(refused)
}

/// Starts a thread with this name within a scope.
///
/// # Errors
/// As [`start`]. The caller must see to it that no thread of the scope waits for this one.
pub(crate) fn start_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: impl Into<String>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Failure> {
    let thread = Builder::new().name(name.into()).spawn_scoped(scope, run);
    thread.map_err(refused)
}

/// How often to look whether a thread has ended.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// Waits for the end of a thread while `goes_on` returns true. Returns whether it has ended.
pub(crate) fn ended_while<T>(thread: &JoinHandle<T>, mut goes_on: impl FnMut() -> bool) -> bool {
    while !thread.is_finished() {
        if !goes_on() {
            return false;
        }
        // WAIT: as long as the caller says.
        std::thread::sleep(LOOK_PERIOD);
    }
    true
}

/// What a thread returns, if it ends while `goes_on` returns true.
///
/// # Panics
/// If the thread did.
pub(crate) fn join_while<T>(thread: JoinHandle<T>, goes_on: impl FnMut() -> bool) -> Option<T> {
    let has_ended = ended_while(&thread, goes_on);
    // WAIT: it has ended.
    has_ended.then(|| {
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn refused(error: io::Error) -> Failure {
    Failure::failed("a thread cannot be started")
        .because(error)
        .advice("raise the limit of processes (ulimit -u, pids.max of the control group), or free memory")
}
