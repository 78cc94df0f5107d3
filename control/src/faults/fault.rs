//! One fault: what it does, and at which of its occasions. As a value, and as text.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

/// What a fault does. An occasion is an event at which it may strike. Each kind names its occasions; they are counted
/// on each core over all its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// A message that arrived reaches the core [`Fault::time`] later, and later messages of its connection stay behind
    /// it. Its Receive is not posted again before that, so that a peer without further credits waits. Occasion: a
    /// message that arrived, of any kind.
    DelayMessage,
    /// A Receive is posted again [`Fault::time`] late, after its credit has been granted. A message without a Receive
    /// waits in the ring on `shm`; on verbs the device answers receiver-not-ready, and the connection lasts only if the
    /// peer's device retries long enough. Occasion: a Receive that is posted again.
    LateReceive,
    /// The connection is lost before a Send. Occasion: a Send, of any message.
    Disconnect,
    /// A connect is rejected, with the reason of a server whose connections are all taken. Occasion: a connection
    /// request; these are counted for the whole node.
    RefuseConnect,
    /// A call is accepted and never answered; the application does not see it. It occupies a deferred call until its
    /// connection ends. When no more calls can be deferred, none is dropped. Occasion: a call that can be deferred.
    DropReply,
    /// A call is answered with SYSTEM_ERR (RFC 5531 section 9); the application does not see it. Occasion: a call.
    ErrorReply,
    /// An RDMA Read is posted for memory outside of what the peer exposed, so that the peer's device refuses it and
    /// the connection is lost. Occasion: an RDMA Read.
    FailRead,
    /// As `FailRead`, for an RDMA Write. No memory is written. Occasion: an RDMA Write.
    FailWrite,
}

impl FaultKind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::DelayMessage,
        Self::LateReceive,
        Self::Disconnect,
        Self::RefuseConnect,
        Self::DropReply,
        Self::ErrorReply,
        Self::FailRead,
        Self::FailWrite,
    ];

    /// Its name in the text of a [`Fault`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::DelayMessage => "delay-message",
            Self::LateReceive => "late-receive",
            Self::Disconnect => "disconnect",
            Self::RefuseConnect => "refuse-connect",
            Self::DropReply => "drop-reply",
            Self::ErrorReply => "error-reply",
            Self::FailRead => "fail-read",
            Self::FailWrite => "fail-write",
        }
    }

    /// Whether [`Fault::time`] says how late something is.
    #[must_use]
    pub const fn takes_time(self) -> bool {
        matches!(self, Self::DelayMessage | Self::LateReceive)
    }
}

/// Which occasions a fault strikes, of those behind [`Fault::after`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Often {
    /// Every Nth; every one with N = 1.
    Every(NonZeroU64),
    /// Each with a probability of 1/N. Only [`Fault::seed`] decides which.
    OneIn(NonZeroU64),
}

/// A fault, and when it strikes. The choice of occasions depends only on this value, the number of the core and the
/// index of the fault in its plan: with the same messages in the same order, the same ones are struck.
///
/// As text it is `KIND` or `KIND:OPTION=VALUE,...`:
///
/// | Option | Meaning | Without it |
/// |---|---|---|
/// | `every=N` | each Nth occasion | every one |
/// | `one-in=N` | each occasion with a chance of one in N | |
/// | `after=N` | the first N occasions pass | none does |
/// | `times=N` | at most N strikes, on each core | no limit |
/// | `seed=N` | seed of `one-in` | 1 |
/// | `for=TIME` | how late, as in `10ms`, `50us` or `2s`, at most 60 s: of [`FaultKind::takes_time`] alone | is needed there |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// What it does.
    pub kind: FaultKind,
    /// Which occasions it strikes.
    pub often: Often,
    /// Occasions that pass first.
    pub after: u64,
    /// The most strikes on one core; `None` is no limit.
    pub times: Option<u64>,
    /// Seed of [`Often::OneIn`].
    pub seed: u64,
    /// How late, for the kinds that [take a time](FaultKind::takes_time).
    pub time: Duration,
}

/// The longest [`Fault::time`] that text may ask for.
const TIME_MAX: Duration = Duration::from_secs(60);

/// Units of times, the largest first, in nanoseconds.
const UNITS: [(&str, u64); 4] = [
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1000),
    ("ns", 1),
];

impl Fault {
    /// The fault at every occasion, with a time of 0.
    #[must_use]
    pub const fn new(kind: FaultKind) -> Self {
        Self {
            kind,
            often: Often::Every(NonZeroU64::MIN),
            after: 0,
            times: None,
            seed: 1,
            time: Duration::ZERO,
        }
    }

    /// Applies one option. The error says what is wrong with it.
    fn take(&mut self, name: &str, value: &str) -> Result<(), String> {
        let wrong = |wanted: &str| format!("{name} is {wanted}, and not `{value}`");
        let count =
            || -> Result<u64, String> { value.parse().map_err(|_| wrong("a number, as in 100")) };
        let above_0 = || NonZeroU64::new(count()?).ok_or_else(|| wrong("at least 1"));
        match name {
            "every" => self.often = Often::Every(above_0()?),
            "one-in" => self.often = Often::OneIn(above_0()?),
            "after" => self.after = count()?,
            "times" => self.times = Some(above_0()?.get()),
            "seed" => self.seed = count()?,
            "for" if self.kind.takes_time() => {
                self.time = time(value)
                    .filter(|time| (Duration::from_nanos(1)..=TIME_MAX).contains(time))
                    .ok_or_else(|| wrong("a time above 0 of at most 60s, as in 10ms or 50us"))?;
            }
            _ => {
                return Err(format!(
                    "`{name}` is no option of {}, which takes {}",
                    self.kind.name(),
                    options(self.kind)
                ));
            }
        }
        Ok(())
    }
}

/// The options of a kind, for people.
fn options(kind: FaultKind) -> &'static str {
    if kind.takes_time() {
        "for=TIME, every=N or one-in=N, after=N, times=N and seed=N"
    } else {
        "every=N or one-in=N, after=N, times=N and seed=N"
    }
}

fn time(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(end)?;
    let (_, scale_ns) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let number: u64 = number.parse().ok()?;
    number.checked_mul(*scale_ns).map(Duration::from_nanos)
}

/// A text that is not a fault. The message says what is wrong, and lists what is valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FaultError(String);

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (name, list) = match text.split_once(':') {
            Some((name, list)) => (name, Some(list)),
            None => (text, None),
        };
        let kinds = FaultKind::ALL;
        let Some(kind) = kinds.into_iter().find(|kind| kind.name() == name) else {
            let names = kinds.map(FaultKind::name).join(", ");
            return Err(FaultError(format!(
                "there is no fault `{name}`: write one of {names}"
            )));
        };
        let mut fault = Self::new(kind);
        let mut given: Vec<&str> = Vec::new();
        for option in list.iter().flat_map(|list| list.split(',')) {
            let Some((name, value)) = option.split_once('=') else {
                return Err(FaultError(format!(
                    "`{option}` is no OPTION=VALUE: {} takes {}",
                    kind.name(),
                    options(kind)
                )));
            };
            if given.contains(&name) {
                return Err(FaultError(format!("{name} is given twice")));
            }
            given.push(name);
            fault.take(name, value).map_err(FaultError)?;
        }
        if given.contains(&"every") && given.contains(&"one-in") {
            let what = "every and one-in exclude each other: give the one or the other";
            return Err(FaultError(what.to_owned()));
        }
        if kind.takes_time() && fault.time.is_zero() {
            return Err(FaultError(format!(
                "{name} needs to know how late: write it as {name}:for=10ms"
            )));
        }
        Ok(fault)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::new(self.kind);
        let mut options = Vec::new();
        if self.kind.takes_time() {
            let ns = u64::try_from(self.time.as_nanos()).unwrap_or(u64::MAX);
            let whole = UNITS.iter().find(|(_, scale_ns)| ns % scale_ns == 0);
            let (unit, scale_ns) = whole.unwrap_or(&("ns", 1));
            options.push(format!("for={}{unit}", ns / scale_ns));
        }
        match self.often {
            often if often == usual.often => {}
            Often::Every(count) => options.push(format!("every={count}")),
            Often::OneIn(count) => options.push(format!("one-in={count}")),
        }
        if self.after != usual.after {
            options.push(format!("after={}", self.after));
        }
        if let Some(times) = self.times {
            options.push(format!("times={times}"));
        }
        if self.seed != usual.seed {
            options.push(format!("seed={}", self.seed));
        }
        f.write_str(self.kind.name())?;
        if !options.is_empty() {
            write!(f, ":{}", options.join(","))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_value_are_the_same() {
        for text in [
            "disconnect",
            "drop-reply:every=3",
            "error-reply:one-in=1000,seed=7",
            "refuse-connect:after=2,times=1",
            "fail-read:every=2,after=4,times=9,seed=18446744073709551615",
            "fail-write",
            "delay-message:for=10ms,every=100",
            "late-receive:for=1500us",
            "late-receive:for=60s,times=1",
        ] {
            let fault: Fault = text.parse().expect(text);
            assert_eq!(fault.to_string(), text);
        }
        // Every occasion is the same as what is not said.
        let fault: Fault = "drop-reply:every=1,after=0,seed=1"
            .parse()
            .expect("a fault");
        assert_eq!(fault, Fault::new(FaultKind::DropReply));
    }

    #[test]
    fn invalid_fault_specification_is_refused_with_advice() {
        for (text, words) in [
            ("", "delay-message, late-receive, disconnect"),
            ("drop", "there is no fault `drop`"),
            ("drop-reply:", "every=N or one-in=N"),
            ("drop-reply:every", "`every` is no OPTION=VALUE"),
            ("drop-reply:every=3,", "`` is no OPTION=VALUE"),
            ("drop-reply:every=0", "at least 1"),
            ("drop-reply:times=0", "at least 1"),
            ("drop-reply:every=-1", "a number, as in 100"),
            ("drop-reply:every=3,every=4", "given twice"),
            ("drop-reply:every=3,one-in=4", "exclude each other"),
            ("drop-reply:for=10ms", "`for` is no option of drop-reply"),
            ("drop-reply:rate=1", "every=N or one-in=N"),
            ("delay-message", "delay-message:for=10ms"),
            ("delay-message:every=2", "delay-message:for=10ms"),
            ("delay-message:for=10", "10ms or 50us"),
            ("delay-message:for=0ms", "above 0"),
            ("delay-message:for=61s", "at most 60s"),
            ("delay-message:for=ms", "10ms or 50us"),
            ("delay-message:for=1h", "10ms or 50us"),
            ("delay-message:for=99999999999999s", "at most 60s"),
            ("delay-message:for=é", "10ms or 50us"),
        ] {
            let error = text.parse::<Fault>().expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
