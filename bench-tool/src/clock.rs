//! The tool's clock: the CPU's time-stamp counter if it is reliable, read without a system call.

use std::sync::OnceLock;

use quanta::Clock;

/// The calibrated clock. The first call measures the counter's frequency, which takes up to 0.2 s; later calls cost
/// nothing.
#[must_use]
pub(crate) fn clock() -> &'static Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(Clock::new)
}

/// The clock's source, for reports: `tsc 2.445 GHz`, or `monotonic` if the counter is not reliable and the system's
/// clock replaces it.
#[must_use]
pub(crate) fn source() -> String {
    const TICKS: u64 = 1_000_000_000_000;
    let nanoseconds = clock().delta_as_nanos(0, TICKS);
    if nanoseconds == TICKS || nanoseconds == 0 {
        return "monotonic".to_owned();
    }
    let counter = match std::env::consts::ARCH {
        "x86_64" => "tsc",
        "aarch64" => "cntvct",
        _ => "counter",
    };
    #[allow(clippy::cast_precision_loss, reason = "a frequency to three decimals")]
    let frequency_ghz = TICKS as f64 / nanoseconds as f64;
    format!("{counter} {frequency_ghz:.3} GHz")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn agrees(clock: &Clock) -> bool {
        // TIME: each counter reading is between two readings of the system's clock: a pause only widens this bracket, so a
        // loaded machine does not fail the test.
        let (outer_start, start) = (Instant::now(), clock.raw());
        let inner_start = Instant::now();
        std::thread::sleep(Duration::from_millis(50));
        let inner = inner_start.elapsed();
        // TIME: as above.
        let measured = Duration::from_nanos(clock.delta_as_nanos(start, clock.raw()));
        let outer = outer_start.elapsed();
        // Accept 10 %: a wrong unit would be off by far more.
        measured >= inner * 9 / 10 && measured <= outer * 11 / 10
    }

    #[test]
    fn it_agrees_with_the_system() {
        // A pause between the two readings of a calibration makes it wrong. Five in a row are not disturbed, and a wrong unit
        // is in each of them.
        let mut clocks = std::iter::once(clock().clone()).chain(std::iter::repeat_with(Clock::new));
        assert!(clocks.by_ref().take(5).any(|clock| agrees(&clock)));
    }

    #[test]
    fn its_source_has_a_name() {
        assert!(
            ["tsc ", "cntvct ", "counter ", "monotonic"]
                .iter()
                .any(|n| source().starts_with(n))
        );
    }
}
