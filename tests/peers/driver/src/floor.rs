//! The floor of the machine: a cache line each way, through a ring of 64.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use peer_common::{Failure, pin};

const SLOTS: usize = 64;
const ROUNDS_MAX: u64 = 100_000;

/// After this time fewer rounds are enough: a busy machine runs both threads together seldom.
const TIME_MAX: Duration = Duration::from_millis(200);
const ROUNDS_MIN: u64 = 2_000;

/// In place of a round: there is no other.
const END: u64 = u64::MAX;

#[repr(align(128))]
struct Line(AtomicU64);

fn lines() -> Vec<Line> {
    (0..SLOTS).map(|_| Line(AtomicU64::new(0))).collect()
}

fn at(lines: &[Line], round: u64) -> &AtomicU64 {
    &lines[usize::try_from(round).unwrap_or(0) % SLOTS].0
}

/// The median round trip between two cores, in nanoseconds.
///
/// The same measurement as that of the example `null_call`.
pub(crate) fn floor_ns(cores: [usize; 2]) -> Result<u64, Failure> {
    let clock = quanta::Clock::new();
    let (there, back) = (lines(), lines());
    // No core is waited for that cannot be used.
    for core in cores {
        std::thread::scope(|scope| scope.spawn(|| pin(core)).join()).map_err(|_| "a panic")??;
    }
    let mut took: Vec<u64> = std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = pin(cores[1]);
            for round in 1.. {
                loop {
                    match at(&there, round).load(Ordering::Acquire) {
                        END => return,
                        found if found == round => break,
                        _ => std::hint::spin_loop(),
                    }
                }
                at(&back, round).store(round, Ordering::Release);
            }
        });
        let ping = scope.spawn(|| {
            let _ = pin(cores[0]);
            let begin = Instant::now();
            let mut took = Vec::with_capacity(usize::try_from(ROUNDS_MAX).unwrap_or(0));
            for round in 1..=ROUNDS_MAX {
                let start = clock.raw();
                at(&there, round).store(round, Ordering::Release);
                while at(&back, round).load(Ordering::Acquire) != round {
                    std::hint::spin_loop();
                }
                took.push(clock.raw() - start);
                if round >= ROUNDS_MIN && round % 64 == 0 && begin.elapsed() > TIME_MAX {
                    break;
                }
            }
            let last = u64::try_from(took.len()).unwrap_or(ROUNDS_MAX);
            at(&there, last + 1).store(END, Ordering::Release);
            took
        });
        ping.join().map_err(|_| "a panic")
    })?;
    took.sort_unstable();
    Ok(clock.delta_as_nanos(0, took[took.len() / 2]))
}
