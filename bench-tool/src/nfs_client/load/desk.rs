//! Between the application of a polling core and the thread that has it work.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rpcrdma_engine::ConnectionKey;

use super::{Amount, Measured};
use crate::load::intervals::{Exchange, Recorder};
use crate::nfs_client::workload::Work;
use crate::run::Watch;
use rpcrdma_nfs3::client::caller::{CallFailed, Results};

/// How soon an answer is noticed.
const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// A call that is no part of a load.
#[derive(Debug)]
pub(crate) struct Single {
    pub(crate) connection: ConnectionKey,
    pub(crate) procedure: u32,
    pub(crate) args: Vec<u8>,
    /// The most bytes of data that its results end with; 0 for those that have none.
    pub(crate) data_bytes_max: u32,
}

/// What the application of a core is asked to do.
#[derive(Debug)]
pub(crate) enum Order {
    /// Make one call.
    Call(Single),
    /// Make a load, on these connections, as part `part` of `parts`.
    Load {
        connections: Vec<ConnectionKey>,
        work: Arc<Work>,
        amount: Amount,
        part: u32,
        parts: u32,
        watch: Watch,
        /// Connections that are lost are made again, and calls that fail with them are too.
        goes_on: bool,
    },
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Answer {
    Results(Result<Results, CallFailed>),
    /// A load, and its last interval.
    Measured(Box<Measured>, Box<Recorder>),
}

/// Between the application of a core and the thread that has it work.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    /// Orders given so far.
    asked: AtomicU32,
    /// Orders answered so far.
    answered: AtomicU32,
    /// Where the histograms of intervals go.
    pub(crate) exchange: Arc<Exchange>,
    order: Mutex<Option<Order>>,
    answer: Mutex<Option<Answer>>,
    /// Connections that were lost, and those that took their places, which the core has not taken note of.
    replaced: Mutex<Vec<(ConnectionKey, ConnectionKey)>>,
}

impl Desk {
    /// Gives an order; the one before is answered.
    pub(crate) fn ask(&self, order: Order) {
        if let Ok(mut place) = self.order.lock() {
            *place = Some(order);
        }
        // SYNC POINT nfs-order: pairs with the Acquire load in `Desk::take`.
        self.asked.fetch_add(1, Ordering::Release);
    }

    /// Waits for the answer for as long as `goes_on`; `None` when that was not long enough.
    pub(crate) fn wait(&self, mut goes_on: impl FnMut() -> bool) -> Option<Answer> {
        // Relaxed: this thread gives the orders.
        let asked = self.asked.load(Ordering::Relaxed);
        // SYNC POINT nfs-answer: pairs with the Release in `Desk::answer`.
        while self.answered.load(Ordering::Acquire) != asked {
            if !goes_on() {
                return None;
            }
            std::thread::sleep(LOOK_PERIOD);
        }
        self.answer.lock().ok()?.take()
    }

    /// The next order after `taken` of them, for the core.
    #[inline]
    pub(super) fn take(&self, taken: u32) -> Option<Order> {
        // SYNC POINT nfs-order: pairs with the Release in `Desk::ask`.
        if self.asked.load(Ordering::Acquire) == taken {
            return None;
        }
        self.order.lock().ok()?.take()
    }

    pub(super) fn answer(&self, answer: Answer) {
        if let Ok(mut place) = self.answer.lock() {
            *place = Some(answer);
        }
        // SYNC POINT nfs-answer: pairs with the Acquire load in `Desk::wait`.
        self.answered.fetch_add(1, Ordering::Release);
    }

    /// Tells that a connection was lost, and another took its place.
    pub(crate) fn replace(&self, lost: ConnectionKey, fresh: ConnectionKey) {
        if let Ok(mut replaced) = self.replaced.lock() {
            replaced.push((lost, fresh));
        }
    }

    /// What [`Desk::replace`] told since it was asked last; does not wait for who is telling something just now.
    pub(super) fn replaced(&self) -> Vec<(ConnectionKey, ConnectionKey)> {
        let replaced = self.replaced.try_lock();
        replaced.map_or_else(|_| Vec::new(), |mut it| std::mem::take(&mut *it))
    }
}
