//! Model checks of the publication protocol: every interleaving of the accesses to the words of the ring and the doorbell
//! that the memory model allows.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p rpcrdma-fabric --release loom`

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;

use super::doorbell::{self, BellMemory, Pending};
use super::ring::{Consumer, Producer, RingMemory, sequence_of};

/// The payload value that stands for a pad.
const PAD: u32 = u32::MAX;

/// A ring whose units hold one word of payload each.
struct Cells {
    sequences: Vec<AtomicU32>,
    payloads: Vec<UnsafeCell<u32>>,
    /// The control line: the number of units that may be used again.
    freed: AtomicU64,
}

#[derive(Clone)]
struct Ring(Arc<Cells>);

impl Ring {
    fn new(units: usize) -> Self {
        Self(Arc::new(Cells {
            sequences: (0..units).map(|_| AtomicU32::new(0)).collect(),
            payloads: (0..units).map(|_| UnsafeCell::new(0)).collect(),
            freed: AtomicU64::new(0),
        }))
    }

    fn write(&self, index: u32, value: u32) {
        // SAFETY: loom reports an access that is not ordered with an access of another thread.
        self.0.payloads[index as usize].with_mut(|cell| unsafe { *cell = value });
    }

    fn read(&self, index: u32) -> u32 {
        // SAFETY: as in `write`.
        self.0.payloads[index as usize].with(|cell| unsafe { *cell })
    }
}

impl RingMemory for Ring {
    fn units(&self) -> u32 {
        u32::try_from(self.0.sequences.len()).unwrap()
    }

    fn load_sequence(&self, index: u32) -> u32 {
        self.0.sequences[index as usize].load(Ordering::Relaxed)
    }

    fn acquire_record(&self, _index: u32) {
        // SYNC POINT record.
        fence(Ordering::Acquire);
    }

    fn publish(&self, index: u32, sequence: u32) {
        // SYNC POINT record.
        self.0.sequences[index as usize].store(sequence, Ordering::Release);
    }

    fn clear_sequence(&self, index: u32) {
        self.0.sequences[index as usize].store(0, Ordering::Relaxed);
    }

    fn write_pad(&self, index: u32) {
        self.write(index, PAD);
    }
}

/// Sends a record of `units` units; false if there is no room. At the position of a header, each unit but the first holds the
/// number that a record there would have in some lap.
fn send(producer: &mut Producer<Ring>, units: u32, value: u32) -> bool {
    let freed = producer.memory().0.freed.load(Ordering::Relaxed);
    // SYNC POINT control.
    fence(Ordering::Acquire);
    let _ = producer.set_freed(u32::try_from(freed).unwrap());
    let Some(index) = producer.reserve(units) else {
        return false;
    };
    let (tail, capacity) = (producer.tail(), producer.memory().units());
    let ring = producer.memory().clone();
    for unit in 0..units {
        ring.write(index + unit, value);
        if unit > 0 {
            let looks_real = sequence_of(tail + unit + capacity);
            ring.0.sequences[(index + unit) as usize].store(looks_real, Ordering::Relaxed);
        }
    }
    producer.publish(units);
    true
}

/// Takes a record, if there is one. `units_of` gives its number of units from its value.
fn take(consumer: &mut Consumer<Ring>, units_of: impl Fn(u32) -> u32) -> Option<u32> {
    let index = consumer.peek()?;
    let value = consumer.memory().read(index);
    let units = if value == PAD {
        consumer.to_end(index)
    } else {
        let units = units_of(value);
        assert!(units <= consumer.to_end(index));
        for unit in 1..units {
            assert_eq!(consumer.memory().read(index + unit), value);
        }
        units
    };
    consumer.advance(units);
    // SYNC POINT control.
    let freed = u64::from(consumer.head());
    consumer.memory().0.freed.store(freed, Ordering::Release);
    Some(value)
}

fn records_arrive_once_and_in_order(units: &'static [u32]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let ring = Ring::new(4);
        let mut producer = Producer::new(ring.clone());
        let mut consumer = Consumer::new(ring);
        let sender = thread::spawn(move || {
            for (value, units) in units.iter().enumerate() {
                let value = u32::try_from(value).unwrap();
                while !send(&mut producer, *units, value) {
                    thread::yield_now();
                }
            }
        });
        let units_of = |value: u32| units[value as usize];
        let mut expected = 0;
        while (expected as usize) < units.len() {
            match take(&mut consumer, units_of) {
                Some(PAD) => {}
                Some(value) => {
                    assert_eq!(value, expected);
                    expected += 1;
                }
                None => thread::yield_now(),
            }
        }
        sender.join().unwrap();
        assert_eq!(consumer.peek(), None, "nothing but what was sent");
    });
}

#[test]
fn loom_records_of_one_unit_over_two_laps() {
    records_arrive_once_and_in_order(&[1, 1, 1, 1, 1, 1]);
}

#[test]
fn loom_records_of_two_units_with_payload_that_looks_like_headers() {
    // The fifth record starts at the second unit of the first record.
    records_arrive_once_and_in_order(&[2, 1, 1, 1, 1]);
}

#[test]
fn loom_records_with_pads() {
    records_arrive_once_and_in_order(&[1, 2, 2, 1]);
}

/// A doorbell with one leaf, which is enough for the channels of one word.
struct Bell {
    summary: AtomicU64,
    leaf: AtomicU64,
}

impl BellMemory for Bell {
    fn rung(&self) -> bool {
        self.summary.load(Ordering::Relaxed) != 0
    }

    fn take_summary(&self) -> u64 {
        // SYNC POINT doorbell.
        self.summary.swap(0, Ordering::Acquire)
    }

    fn take_leaf(&self, _leaf: u32) -> u64 {
        // SYNC POINT leaf.
        self.leaf.swap(0, Ordering::Acquire)
    }

    fn set_summary(&self, bits: u64) {
        // SYNC POINT doorbell.
        self.summary.fetch_or(bits, Ordering::Release);
    }

    fn set_leaf(&self, _leaf: u32, bits: u64) {
        // SYNC POINT leaf.
        self.leaf.fetch_or(bits, Ordering::Release);
    }
}

#[test]
fn loom_a_doorbell_is_never_lost_and_its_record_is_there() {
    loom::model(|| {
        let bell = Arc::new(Bell {
            summary: AtomicU64::new(0),
            leaf: AtomicU64::new(0),
        });
        let rings: Vec<Ring> = (0..2).map(|_| Ring::new(4)).collect();
        let senders: Vec<_> = rings
            .iter()
            .cloned()
            .enumerate()
            .map(|(number, ring)| {
                let bell = Arc::clone(&bell);
                thread::spawn(move || {
                    assert!(send(&mut Producer::new(ring), 1, 7));
                    doorbell::ring(&*bell, u32::try_from(number).unwrap());
                })
            })
            .collect();
        let mut consumers: Vec<_> = rings.into_iter().map(Consumer::new).collect();
        let mut pending = Pending::new();
        let mut seen = [false; 2];
        let mut look = || {
            if bell.rung() {
                pending.collect(&*bell);
            }
            while let Some(number) = pending.take_next(0) {
                let taken = take(&mut consumers[number as usize], |_| 1);
                assert!(taken.is_some() || seen[number as usize]);
                seen[number as usize] = true;
            }
            seen
        };
        look();
        for sender in senders {
            sender.join().unwrap();
        }
        assert_eq!(look(), [true, true]);
    });
}

/// The check after a copy, which revoked records and generations of windows share: a copy that has a byte of the next use
/// of the memory finds the mark.
#[test]
fn loom_a_copy_of_memory_that_is_used_again_is_found_out() {
    loom::model(|| {
        let mark = Arc::new(AtomicU32::new(0));
        let byte = Arc::new(AtomicU32::new(1));
        let owner = {
            let (mark, byte) = (Arc::clone(&mark), Arc::clone(&byte));
            thread::spawn(move || {
                mark.store(1, Ordering::Relaxed);
                // SYNC POINT revoke, SYNC POINT window end.
                fence(Ordering::Release);
                byte.store(2, Ordering::Relaxed);
            })
        };
        let copied = byte.load(Ordering::Relaxed);
        // SYNC POINT revoke, SYNC POINT window end.
        fence(Ordering::Acquire);
        if mark.load(Ordering::Relaxed) == 0 {
            assert_eq!(copied, 1);
        }
        owner.join().unwrap();
    });
}
