//! The types of the knobs that are choices between words.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

use crate::values::{KnobValue, Value};

/// Declares the types, each variant with its word.
macro_rules! choices {
    ($(
        $(#[$doc:meta])*
        $name:ident $(($taken_away:ident where the limit is $left:ident))? {
            $( $(#[$variant_doc:meta])* $variant:ident = $word:literal, )*
        }
    )*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $( $(#[$variant_doc])* $variant, )*
        }

        impl $name {
            pub(crate) const WORDS: &[&str] = &[$( $word ),*];
        }

        impl KnobValue for $name {
            fn value(self) -> Value {
                Value::Word(match self { $( Self::$variant => $word, )* })
            }

            fn cut_to(self, limit: Self) -> Option<Self> {
                match (self, limit) {
                    $( (Self::$taken_away, Self::$left) => Some(limit), )?
                    // No device takes the others away.
                    _ => None,
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let place = deserializer.deserialize_str(Word(Self::WORDS))?;
                Ok([$( Self::$variant ),*][place])
            }
        }
    )* };
}

/// Reads one of the words, and returns its place.
struct Word(&'static [&'static str]);

impl Visitor<'_> for Word {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "one of {}", self.0.join(", "))
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<usize, E> {
        let place = self.0.iter().position(|it| *it == word);
        place.ok_or_else(|| E::unknown_variant(word, self.0))
    }
}

choices! {
    /// What to do about hugepages when an arena of registered memory is made.
    Hugepages {
        /// Take hugepages; where there are none, take transparent or ordinary pages and say so in the
        /// report.
        Prefer = "prefer",
        /// Take hugepages; where there are none, refuse to start.
        Require = "require",
        /// Take ordinary pages.
        Never = "never",
    }

    /// What a core does when a poll found nothing to do.
    Idle {
        /// Poll again immediately. Lowest latency; the core is always busy.
        Spin = "spin",
        /// Issue the processor's pause instruction between polls, which leaves more to a sibling
        /// hyper-thread.
        Pause = "pause",
        /// Spin, then pause, and after `idle_park_after_us` without work sleep on the fabric's event
        /// descriptor. The first message after a sleep pays for a wake-up by the kernel.
        Park = "park",
    }

    /// Where the receives of a core are posted.
    ReceiveQueues (Shared where the limit is Own) {
        /// In one queue that all connections of the core share, where the device has such.
        Shared = "shared",
        /// In a queue for each connection.
        Own = "own",
    }

    /// Whether a device may write incoming data in any order.
    RelaxedOrdering {
        /// Where the device and the machine can.
        Allow = "allow",
        /// In the order in which it came.
        Refuse = "refuse",
    }

    /// Whether the queue pairs of a core are in a thread domain of the device.
    ThreadDomains {
        /// Each post takes the lock of the device's library.
        Never = "never",
        /// Take one for each core; where there are none, keep the locks and say so.
        Prefer = "prefer",
    }

    /// What becomes of explicit RDMA where the device has no memory windows of type 2.
    WithoutWindows {
        /// No memory is exposed: bulk data stays in messages, or is placed by Sends.
        Refuse = "refuse",
        /// Memory is registered for each call: two system calls, and a key that opens the buffer to every
        /// peer of the core, not to one alone.
        Register = "register",
    }
}
