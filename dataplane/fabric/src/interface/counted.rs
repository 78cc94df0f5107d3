//! The counters of a provider: what its ports and its manager count, with the meaning of each.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter of a provider. It begins at zero and only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Its name, in lower case with underscores.
    pub name: &'static str,
    /// What it counts, in a sentence.
    pub meaning: &'static str,
    /// Its value.
    pub value: u64,
}

/// Counters that their owner publishes now and then, for any thread to read. Publishing allocates nothing and takes no
/// lock.
#[derive(Debug)]
pub struct PublishedCounters(Box<[(&'static str, &'static str, AtomicU64)]>);

impl PublishedCounters {
    /// The counters that `owner` reports: always the same ones, in the same order.
    #[must_use]
    pub fn of(owner: impl FnOnce(&mut dyn FnMut(Counted))) -> Self {
        let mut all = Vec::new();
        owner(&mut |it: Counted| all.push((it.name, it.meaning, AtomicU64::new(it.value))));
        Self(all.into())
    }

    /// Publishes the present values of the owner.
    pub fn publish(&self, owner: impl FnOnce(&mut dyn FnMut(Counted))) {
        let mut places = self.0.iter();
        owner(&mut |it: Counted| {
            if let Some((_, _, place)) = places.next() {
                place.store(it.value, Ordering::Relaxed);
            }
        });
    }

    /// The values that were published last.
    #[must_use]
    pub fn snapshot(&self) -> Vec<Counted> {
        let places = self.0.iter();
        places
            .map(|(name, meaning, value)| Counted {
                name,
                meaning,
                value: value.load(Ordering::Relaxed),
            })
            .collect()
    }
}

/// Declares a structure of counters and the function that reports them, from one list with their meanings.
macro_rules! counters {
    ($(#[$about:meta])* $visible:vis struct $name:ident {
        $( $(#[doc = $meaning:literal])+ $counter:ident, )*
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default)]
        $visible struct $name {
            $( $(#[doc = $meaning])+ $visible $counter: u64, )*
        }

        impl $name {
            /// Reports each counter.
            $visible fn each(&self, each: &mut dyn FnMut($crate::interface::Counted)) {
                $(each($crate::interface::Counted {
                    name: stringify!($counter),
                    meaning: concat!($($meaning),+).trim_ascii(),
                    value: self.$counter,
                });)*
            }
        }
    };
}
pub(crate) use counters;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    counters! {
        /// Two counters.
        struct Two {
            /// What came in.
            received,
            /// What went
            /// out.
            sent,
        }
    }

    #[test]
    fn published_counters_have_their_names_meanings_and_last_values() {
        let mut two = Two {
            received: 1,
            sent: 2,
        };
        let published = PublishedCounters::of(|each| two.each(each));
        two.sent = 5;
        published.publish(|each| two.each(each));
        let counted = published.snapshot();
        let read = |it: &Counted| (it.name, it.meaning, it.value);
        assert_eq!(
            counted.iter().map(read).collect::<Vec<_>>(),
            [
                ("received", "What came in.", 1),
                ("sent", "What went out.", 5)
            ]
        );
    }
}
