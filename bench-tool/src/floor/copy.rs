//! The floor of bulk data: one core rewrites a payload and hands it over, the other copies it into its own buffers.
//!
//! A plain copy would measure too much: a payload that never changes stays in the reader's cache, and copies at
//! several times the rate of a payload from another core.

use std::hint;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;

use super::on_cores;
use crate::clock::clock;
use crate::exit::Failure;

/// Length of one window. The result is the median of the windows, so a stolen time slice spoils only one.
const WINDOW: Duration = Duration::from_millis(50);

/// The parameters of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyShape {
    /// Payload in bytes, at least 1.
    pub size_bytes: usize,
    /// Payloads in flight, at least 1.
    pub depth: usize,
    /// Buffers that the receiver rotates through, at least 1.
    pub buffers: usize,
}

/// Bandwidth of the hand-off copy.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct CopyBandwidth {
    /// Payload.
    pub size_bytes: usize,
    /// Payloads in flight.
    pub depth: usize,
    /// Buffers that the receiver rotated through.
    pub buffers: usize,
    /// Median over the windows, in bytes per second.
    pub bandwidth_bytes_per_s: f64,
    /// The slowest window.
    pub bandwidth_bytes_per_s_min: f64,
    /// The fastest window.
    pub bandwidth_bytes_per_s_max: f64,
}

type Payload = Box<[u8]>;

/// Measures the hand-off copy from the first core to the second for about `duration`, after one window of warm-up.
///
/// # Errors
/// If a core cannot be pinned to, or the buffers need more than half of the free memory.
pub(crate) fn copy(
    cores: [usize; 2],
    shape: CopyShape,
    duration: Duration,
) -> Result<CopyBandwidth, Failure> {
    check_memory(shape)?;
    let filled = ArrayQueue::<Payload>::new(shape.depth);
    let emptied = ArrayQueue::<Payload>::new(shape.depth);
    let ((), mut rates) = on_cores(
        cores,
        || rewrite(shape, &filled, &emptied),
        || receive(shape, &filled, &emptied, duration),
    )?;
    rates.sort_unstable_by(f64::total_cmp);
    let at = |index: usize| rates.get(index).copied().unwrap_or(0.0);
    Ok(CopyBandwidth {
        size_bytes: shape.size_bytes,
        depth: shape.depth,
        buffers: shape.buffers,
        bandwidth_bytes_per_s: at(rates.len() / 2),
        bandwidth_bytes_per_s_min: at(0),
        bandwidth_bytes_per_s_max: at(rates.len().saturating_sub(1)),
    })
}

fn check_memory(shape: CopyShape) -> Result<(), Failure> {
    let needed = shape
        .size_bytes
        .checked_mul(shape.depth + shape.buffers)
        .and_then(|bytes| u64::try_from(bytes).ok());
    let available = crate::machine::memory_available_bytes().unwrap_or(u64::MAX);
    match needed {
        Some(needed) if needed <= available / 2 => Ok(()),
        _ => Err(Failure::failed(format!(
            "the copy of {} needs {} buffers of this size, which is more than half of the free memory",
            rpcrdma_units::size(u64::try_from(shape.size_bytes).unwrap_or(u64::MAX)),
            shape.depth + shape.buffers,
        ))
        .advice("lower --size, --depth or --buffers")),
    }
}

/// The sender: rewrites each payload that comes back and hands it over, until the receiver sends the end mark.
///
/// Each side allocates the buffers that it writes, so that their pages are on its core's NUMA node.
fn rewrite(shape: CopyShape, filled: &ArrayQueue<Payload>, emptied: &ArrayQueue<Payload>) {
    let mut generation: u8 = 0;
    let mut send = |mut payload: Payload| {
        generation = generation.wrapping_add(1);
        payload.fill(generation);
        let mut held = payload;
        // Never full: as many payloads exist as it has places.
        while let Err(back) = filled.push(held) {
            held = back;
        }
    };
    for _ in 0..shape.depth {
        send(vec![1; shape.size_bytes].into_boxed_slice());
    }
    loop {
        match emptied.pop() {
            // An empty payload is the receiver's end mark.
            Some(payload) if payload.is_empty() => return,
            Some(payload) => send(payload),
            None => hint::spin_loop(),
        }
    }
}

/// The receiver: copies each payload into the next buffer and returns it to the sender. Returns the bandwidth of
/// every window.
fn receive(
    shape: CopyShape,
    filled: &ArrayQueue<Payload>,
    emptied: &ArrayQueue<Payload>,
    duration: Duration,
) -> Vec<f64> {
    let clock = clock();
    let window_ns = u64::try_from(WINDOW.as_nanos()).unwrap_or(u64::MAX);
    let windows = usize::try_from(duration.as_nanos() / WINDOW.as_nanos())
        .unwrap_or(1)
        .max(1);
    let mut buffers: Vec<Payload> = (0..shape.buffers)
        .map(|_| vec![1; shape.size_bytes].into_boxed_slice())
        .collect();
    // The first window is the warm-up: page faults, and the sender's first fills.
    let mut rates = Vec::with_capacity(windows + 1);
    let (mut next, mut bytes, mut begin) = (0, 0_u64, clock.raw());
    loop {
        let Some(payload) = filled.pop() else {
            hint::spin_loop();
            continue;
        };
        buffers[next].copy_from_slice(&payload);
        hint::black_box(&buffers[next]);
        next = if next + 1 == buffers.len() {
            0
        } else {
            next + 1
        };
        bytes += payload.len() as u64;
        let now = clock.raw();
        let elapsed_ns = clock.delta_as_nanos(begin, now);
        if elapsed_ns >= window_ns {
            #[allow(clippy::cast_precision_loss, reason = "a rate")]
            rates.push(bytes as f64 * 1e9 / elapsed_ns as f64);
            if rates.len() > windows {
                let _ = emptied.push(Box::default());
                rates.remove(0);
                return rates;
            }
            (bytes, begin) = (0, now);
        }
        // Never full: as many payloads exist as it has places.
        let _ = emptied.push(payload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_copies_and_ends() {
        let Ok(cores) = crate::machine::Machine::detect().default_pair() else {
            return;
        };
        for shape in [
            CopyShape {
                size_bytes: 4096,
                depth: 1,
                buffers: 3,
            },
            CopyShape {
                size_bytes: 65_536,
                depth: 8,
                buffers: 8,
            },
        ] {
            let result = copy(cores, shape, WINDOW * 2).unwrap();
            assert!(result.bandwidth_bytes_per_s > 0.0);
            assert!(result.bandwidth_bytes_per_s_min <= result.bandwidth_bytes_per_s);
            assert!(result.bandwidth_bytes_per_s <= result.bandwidth_bytes_per_s_max);
        }
    }

    #[test]
    fn more_than_the_memory_is_refused() {
        for size_bytes in [usize::MAX / 4, usize::MAX] {
            let shape = CopyShape {
                size_bytes,
                depth: 8,
                buffers: 8,
            };
            let failure = copy([0, 1], shape, WINDOW).unwrap_err();
            assert!(failure.to_string().contains("--size"), "{failure}");
        }
    }
}
