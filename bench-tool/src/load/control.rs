//! Orders to the generator of a polling core, and its answers.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rpcrdma_engine::{Call, CallError, CallRefused, ConnectionKey};
use rpcrdma_protocol::rpc::OpaqueAuth;

use super::intervals::{Exchange, Recorder};
use super::measured::Measured;
use super::workload::Workload;
use super::{Amount, Watch};

/// How soon the answer to a single call is noticed.
const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// A call that is no part of a load.
#[derive(Debug)]
pub(crate) struct SingleCall {
    pub(crate) connection: ConnectionKey,
    pub(crate) call: Call,
    /// Flavor and body of the credential.
    pub(crate) credential: (u32, Vec<u8>),
    pub(crate) args: Vec<u8>,
    /// The most bytes of results, without data.
    pub(crate) results_bytes_max: usize,
    /// The most bytes of data that its results end with; 0 for those that have none.
    pub(crate) data_bytes_max: u32,
}

impl SingleCall {
    pub(super) fn auth(&self) -> OpaqueAuth<'_> {
        OpaqueAuth {
            flavor: self.credential.0,
            body: &self.credential.1,
        }
    }
}

/// The reply to a single call.
#[derive(Debug, Default)]
pub(crate) struct SingleReply {
    pub(crate) results: Vec<u8>,
    /// Data that came outside the results.
    pub(crate) bulk: Vec<u8>,
}

/// Why a single call has no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SingleError {
    #[error(transparent)]
    Refused(CallRefused),
    #[error(transparent)]
    Failed(CallError),
    #[error("no answer came in time")]
    Silent,
}

impl SingleError {
    /// Whether the reason is that the connection is lost, or about to be.
    pub(crate) fn is_lost(self) -> bool {
        match self {
            Self::Refused(refused) => is_lost(refused),
            Self::Failed(error) => error == CallError::Disconnected,
            Self::Silent => false,
        }
    }
}

/// Whether a connection that refuses so is lost, or about to be.
pub(super) fn is_lost(refused: CallRefused) -> bool {
    matches!(
        refused,
        CallRefused::UnknownConnection | CallRefused::NotReady
    )
}

/// A load to make.
#[derive(Debug)]
pub(crate) struct LoadOrder<W> {
    /// None on a core that has nothing to call.
    pub(crate) connections: Vec<ConnectionKey>,
    pub(crate) workload: W,
    /// The share of this part.
    pub(crate) amount: Amount,
    /// Number of this part.
    pub(crate) part: u32,
    pub(crate) watch: Watch,
}

/// A load that was made.
#[derive(Debug)]
pub(crate) struct LoadAnswer<W> {
    pub(crate) measured: Measured,
    /// The last interval, which is not in the exchange.
    pub(crate) last: Recorder,
    pub(crate) workload: W,
}

/// What the generator of a core is asked to do.
#[derive(Debug)]
pub(super) enum Order<W> {
    Call(SingleCall),
    Load(Box<LoadOrder<W>>),
}

/// What came of it.
#[derive(Debug)]
pub(super) enum Answer<W> {
    Call(Result<SingleReply, SingleError>),
    Load(Box<LoadAnswer<W>>),
}

/// Orders to the generator of a core, and its answers.
#[derive(Debug)]
pub(crate) struct LoadControl<W> {
    /// Orders given so far.
    asked: AtomicU32,
    /// Orders answered so far.
    answered: AtomicU32,
    /// Where the histograms of intervals go.
    pub(super) exchange: Arc<Exchange>,
    order: Mutex<Option<Order<W>>>,
    answer: Mutex<Option<Answer<W>>>,
    /// Connections that were lost, and those that took their places, which the core has not taken note of.
    replaced: Mutex<Vec<(ConnectionKey, ConnectionKey)>>,
}

impl<W> Default for LoadControl<W> {
    fn default() -> Self {
        Self {
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            exchange: Arc::default(),
            order: Mutex::default(),
            answer: Mutex::default(),
            replaced: Mutex::default(),
        }
    }
}

impl<W: Workload> LoadControl<W> {
    /// Makes one call, and waits for its reply.
    ///
    /// # Errors
    /// When it was refused, failed, or was not answered within `timeout`.
    pub(crate) fn call(
        &self,
        call: SingleCall,
        timeout: Duration,
    ) -> Result<SingleReply, SingleError> {
        self.ask(Order::Call(call));
        let deadline = Instant::now() + timeout;
        match self.wait(LOOK_PERIOD, || Instant::now() < deadline) {
            Some(Answer::Call(outcome)) => outcome,
            _ => Err(SingleError::Silent),
        }
    }

    /// Begins a load.
    pub(crate) fn begin(&self, order: LoadOrder<W>) {
        self.ask(Order::Load(Box::new(order)));
    }

    /// Waits for the end of the load for as long as `goes_on`, which is asked every `period`; `None` when that was not
    /// long enough.
    pub(super) fn end(
        &self,
        period: Duration,
        goes_on: impl FnMut() -> bool,
    ) -> Option<Box<LoadAnswer<W>>> {
        match self.wait(period, goes_on) {
            Some(Answer::Load(answer)) => Some(answer),
            _ => None,
        }
    }

    /// Gives an order; the one before is answered.
    fn ask(&self, order: Order<W>) {
        if let Ok(mut place) = self.order.lock() {
            *place = Some(order);
        }
        // SYNC POINT load-order: pairs with the Acquire load in `LoadControl::take`.
        self.asked.fetch_add(1, Ordering::Release);
    }

    fn wait(&self, period: Duration, mut goes_on: impl FnMut() -> bool) -> Option<Answer<W>> {
        // Relaxed: this thread gives the orders.
        let asked = self.asked.load(Ordering::Relaxed);
        // SYNC POINT load-answer: pairs with the Release in `LoadControl::answer`.
        while self.answered.load(Ordering::Acquire) != asked {
            if !goes_on() {
                return None;
            }
            std::thread::sleep(period);
        }
        self.answer.lock().ok()?.take()
    }

    /// The next order after `taken` of them, for the core.
    pub(super) fn take(&self, taken: u32) -> Option<Order<W>> {
        // SYNC POINT load-order: pairs with the Release in `LoadControl::ask`.
        if self.asked.load(Ordering::Acquire) == taken {
            return None;
        }
        self.order.lock().ok()?.take()
    }

    pub(super) fn answer(&self, answer: Answer<W>) {
        if let Ok(mut place) = self.answer.lock() {
            *place = Some(answer);
        }
        // SYNC POINT load-answer: pairs with the Acquire load in `LoadControl::wait`.
        self.answered.fetch_add(1, Ordering::Release);
    }

    /// A connection was lost, and another took its place.
    pub(super) fn replace(&self, lost: ConnectionKey, fresh: ConnectionKey) {
        if let Ok(mut replaced) = self.replaced.lock() {
            replaced.push((lost, fresh));
        }
    }

    /// The replacements since the last look, or none while another thread adds one: the core never waits for the lock.
    pub(super) fn replaced(&self) -> Vec<(ConnectionKey, ConnectionKey)> {
        let replaced = self.replaced.try_lock();
        replaced.map_or_else(|_| Vec::new(), |mut it| std::mem::take(&mut *it))
    }
}
