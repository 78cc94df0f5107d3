//! What the Rust programs of the peers share: two processes, cores, clock, payload, result.
//!
//! A program is called as `PROGRAM [WAY] CORE_PING CORE_PONG WARM_UP_MS MEASURE_MS`, and prints one
//! line: `p50_ns=N round_trips=N elapsed_ns=N`. It starts itself again as
//! `PROGRAM [WAY] --pong CORE NAME`; that process says one line when it is ready.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What every error becomes: these programs only print it.
pub type Failure = Box<dyn Error + Send + Sync>;

/// Words of a message.
pub const WORDS: usize = 8;

/// A message of 64 bytes.
pub type Message = [u64; WORDS];

/// The message that ends the other side.
pub const STOP: Message = [0; WORDS];

const BUCKETS: usize = 1 << 24;

/// Other bytes in each message, none of them zero.
pub fn message(serial: u64) -> Message {
    let mut words = STOP;
    for (index, word) in (0_u64..).zip(&mut words) {
        *word = serial
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(index)
            | 0x0101_0101_0101_0101;
    }
    words
}

/// The bytes of a message.
pub fn to_bytes(message: &Message) -> [u8; 8 * WORDS] {
    let mut bytes = [0; 8 * WORDS];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(message) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// The message of these bytes; none when they have another length.
pub fn from_bytes(bytes: &[u8]) -> Option<Message> {
    let bytes: &[u8; 8 * WORDS] = bytes.try_into().ok()?;
    let mut message = STOP;
    for (word, chunk) in message.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(chunk.try_into().ok()?);
    }
    Some(message)
}

/// Keeps this thread on one core. Threads that it starts later are kept there too.
pub fn pin(core: usize) -> Result<(), Failure> {
    if core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
        Ok(())
    } else {
        Err(format!("core {core} cannot be used").into())
    }
}

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Core of the side that measures.
    pub ping: usize,
    /// Core of the side that answers.
    pub pong: usize,
    /// Time before measuring.
    pub warm_up: Duration,
    /// Time of measuring.
    pub measure: Duration,
}

/// Which of the two processes this is.
#[derive(Debug)]
pub enum Side {
    /// The one that measures.
    Ping(Options),
    /// The one that answers.
    Pong {
        /// Core to answer on.
        core: usize,
        /// Name of what to answer on.
        name: String,
    },
}

/// The side that the arguments after the first `skip` ones name.
pub fn side(skip: usize) -> Result<Side, Failure> {
    let arguments: Vec<String> = std::env::args().skip(1 + skip).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["--pong", core, name] => Ok(Side::Pong {
            core: core.parse()?,
            name: name.to_owned(),
        }),
        [ping, pong, warm_up, measure] => Ok(Side::Ping(Options {
            ping: ping.parse()?,
            pong: pong.parse()?,
            warm_up: Duration::from_millis(warm_up.parse()?),
            measure: Duration::from_millis(measure.parse()?),
        })),
        _ => Err("usage: [WAY] CORE_PING CORE_PONG WARM_UP_MS MEASURE_MS".into()),
    }
}

/// The process that answers. It ends with this value.
#[derive(Debug)]
pub struct Pong {
    child: Child,
    /// What it said when it was ready.
    pub ready: String,
}

impl Pong {
    /// Starts it, and waits until it is ready. `way` are the arguments before `--pong`.
    pub fn start(way: &[&str], core: usize, name: &str) -> Result<Self, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(way)
            .args(["--pong", &core.to_string(), name])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut ready = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut ready)?;
        }
        let pong = Self {
            child,
            ready: ready.trim().to_owned(),
        };
        if pong.ready.is_empty() {
            return Err("the second process ended before it was ready".into());
        }
        Ok(pong)
    }

    /// Waits until it has ended by itself.
    pub fn finish(mut self) -> Result<(), Failure> {
        let status = self.child.wait()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the second process failed: {status}").into())
        }
    }
}

impl Drop for Pong {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says that this process answers from now on.
pub fn ready(what: &str) {
    println!("{what}");
}

/// Measures round trips until the time is over, and prints the result.
pub fn measure(
    options: &Options,
    mut round_trip: impl FnMut(&Message) -> Result<Message, Failure>,
) -> Result<(), Failure> {
    let clock = quanta::Clock::new();
    let mut histogram = vec![0_u32; BUCKETS];
    let mut serial = 0;
    let (mut count, mut elapsed, mut p50_ticks) = (0_u64, Duration::ZERO, 0);
    let (mut first, mut last) = (0, 0);
    for is_measured in [false, true] {
        let time = if is_measured {
            options.measure
        } else {
            options.warm_up
        };
        let start = Instant::now();
        count = 0;
        first = clock.raw();
        last = first;
        // The clock of the system is read seldom.
        while start.elapsed() < time {
            for _ in 0..64 {
                serial += 1;
                let sent = message(serial);
                if round_trip(&sent)? != sent {
                    return Err("the payload did not come back as it was sent".into());
                }
                let now = clock.raw();
                let took = usize::try_from(now - last).unwrap_or(BUCKETS);
                last = now;
                if is_measured {
                    histogram[took.min(BUCKETS - 1)] += 1;
                }
            }
            count += 64;
        }
        elapsed = start.elapsed();
    }
    let mut seen = 0;
    for (ticks, &times) in (0_u64..).zip(&histogram) {
        seen += u64::from(times);
        if seen > count / 2 {
            p50_ticks = ticks;
            break;
        }
    }
    // The unit of the ticks, from the whole time.
    let all_ns = elapsed.as_nanos();
    let p50_ns = u128::from(p50_ticks) * all_ns / u128::from((last - first).max(1));
    println!("p50_ns={p50_ns} round_trips={count} elapsed_ns={all_ns}");
    Ok(())
}
