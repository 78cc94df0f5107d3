//! The machine's own limits, measured without any transport: a lower bound for the cost of a call.
//!
//! Everything runs on two pinned threads of this process, in safe Rust. No transport between two processes can be
//! faster than two threads that share memory.

pub(crate) mod clock_cost;
pub(crate) mod command;
pub(crate) mod copy;
pub(crate) mod gaps;
pub(crate) mod round_trip;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

pub(crate) use self::clock_cost::{ClockCost, clock_cost, clock_read_ns};
pub(crate) use self::copy::{CopyBandwidth, CopyShape, copy};
pub(crate) use self::gaps::{Gaps, gaps};
pub(crate) use self::round_trip::{FloorSummary, RoundTrip, round_trip};

use crate::exit::Failure;
use crate::threads::start_scoped;

/// Runs `first` and `second` at the same time, each on a thread pinned to its core. Both start when both are pinned.
///
/// # Errors
/// If a thread cannot be started, or a core cannot be pinned to; then neither runs.
fn on_cores<A: Send, B: Send>(
    cores: [usize; 2],
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B + Send,
) -> Result<(A, B), Failure> {
    const NONE: usize = usize::MAX;
    // Calibrate the clock before the threads start: otherwise they would spend 0.2 s of the measurement on it.
    let _ = crate::clock::clock();
    let refused = &AtomicUsize::new(NONE);
    // Each thread tells the other one that it is pinned. If it never is, or never starts, its end of the channel closes.
    let (first_ready, of_first) = mpsc::channel();
    let (second_ready, of_second) = mpsc::channel();
    let start = move |core: usize, ready: mpsc::Sender<()>, other: mpsc::Receiver<()>| {
        if core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
            let _ = ready.send(());
        } else {
            // Relaxed: read when the thread has ended.
            refused.store(core, Ordering::Relaxed);
            drop(ready);
        }
        // WAIT: for a thread that only pins itself; its end of the channel closes if it does not start.
        other.recv().is_ok() && refused.load(Ordering::Relaxed) != core
    };
    let (first, second) = thread::scope(|scope| {
        let run = move || start(cores[0], first_ready, of_second).then(first);
        let first = start_scoped(scope, "floor-1", run)?;
        let run = move || start(cores[1], second_ready, of_first).then(second);
        let second = start_scoped(scope, "floor-2", run)?;
        // WAIT: for two measurements, each of which has its duration.
        Ok::<_, Failure>((first.join(), second.join()))
    })?;
    match (first, second) {
        (Ok(Some(first)), Ok(Some(second))) => Ok((first, second)),
        (Err(panic), _) | (_, Err(panic)) => std::panic::resume_unwind(panic),
        _ => Err(Failure::failed(format!(
            "cannot pin a thread to core {}",
            refused.load(Ordering::Relaxed)
        ))
        .advice(format!(
            "give --cores two of {}; taskset and the container's cpuset decide which these are",
            rpcrdma_doctor::format_cores(&crate::machine::cores_usable())
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_that_does_not_exist_is_an_error_and_nothing_runs() {
        let core = crate::machine::cores_usable()[0];
        let ran = AtomicUsize::new(0);
        let count = || ran.fetch_add(1, Ordering::Relaxed);
        let failure = on_cores([core, 1023], count, count).unwrap_err();
        assert!(failure.to_string().contains("core 1023"), "{failure}");
        assert_eq!(ran.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn each_side_runs_on_its_core() {
        let core = crate::machine::cores_usable()[0];
        let here = crate::machine::cores_usable;
        let (first, second) = on_cores([core, core], here, here).unwrap();
        assert_eq!((first, second), (vec![core], vec![core]));
    }
}
