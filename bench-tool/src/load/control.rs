//! The mailbox between the command's thread and the generator of a polling core: orders one way, answers the other.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rpcrdma_engine::{Call, CallError, CallRefused, ConnectionKey};
use rpcrdma_protocol::rpc::OpaqueAuth;

use super::intervals::{Exchange, Recorder};
use super::measured::Measured;
use super::workload::Workload;
use super::{Amount, Watch};

/// How often the command's thread looks for the answer to a single call.
const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// One call outside of a load, for set-up and clean-up.
#[derive(Debug)]
pub(crate) struct SingleCall {
    pub(crate) connection: ConnectionKey,
    pub(crate) call: Call,
    /// Flavor and body of the credential.
    pub(crate) credential: (u32, Vec<u8>),
    pub(crate) args: Vec<u8>,
    /// Upper bound of the results in bytes, without bulk data.
    pub(crate) results_bytes_max: usize,
    /// Upper bound of the bulk data in bytes, which is at the end of the results; 0 if there is none.
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
    /// Bulk data that did not arrive in the results.
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
    /// Whether the connection is lost, or is being closed.
    pub(crate) fn is_lost(self) -> bool {
        match self {
            Self::Refused(refused) => is_lost(refused),
            Self::Failed(error) => error == CallError::Disconnected,
            Self::Silent => false,
        }
    }
}

/// Whether this refusal means that the connection is lost, or is being closed.
pub(super) fn is_lost(refused: CallRefused) -> bool {
    matches!(
        refused,
        CallRefused::UnknownConnection | CallRefused::NotReady
    )
}

/// The order to generate a load.
#[derive(Debug)]
pub(crate) struct LoadOrder<W> {
    /// Empty if there are fewer connections than cores.
    pub(crate) connections: Vec<ConnectionKey>,
    pub(crate) workload: W,
    /// This part's share of the load.
    pub(crate) amount: Amount,
    /// The number of this part, from 0.
    pub(crate) part: u32,
    pub(crate) watch: Watch,
}

/// The result of a load on one core.
#[derive(Debug)]
pub(crate) struct LoadAnswer<W> {
    pub(crate) measured: Measured,
    /// The last interval. It does not go through the exchange, because no interval follows it.
    pub(crate) last: Recorder,
    pub(crate) workload: W,
}

/// An order to the generator of a core.
#[derive(Debug)]
pub(crate) enum Order<W> {
    Call(SingleCall),
    Load(Box<LoadOrder<W>>),
}

/// The answer to an order.
#[derive(Debug)]
pub(crate) enum Answer<W> {
    Call(Result<SingleReply, SingleError>),
    Load(Box<LoadAnswer<W>>),
}

/// Passes orders to the generator of one core, and answers back. At most one order is open at a time.
#[derive(Debug)]
pub(crate) struct LoadControl<W> {
    /// Orders given so far.
    asked: AtomicU32,
    /// Orders answered so far.
    answered: AtomicU32,
    /// Passes full histograms to the collector, and empty ones back.
    pub(crate) exchange: Arc<Exchange>,
    order: Mutex<Option<Order<W>>>,
    answer: Mutex<Option<Answer<W>>>,
    /// Pairs of a lost connection and its replacement that the core has not applied yet.
    replaced: Mutex<Vec<(ConnectionKey, ConnectionKey)>>,
    /// Whether the load has to end although calls are outstanding.
    abandoned: AtomicBool,
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
            abandoned: AtomicBool::new(false),
        }
    }
}

impl<W: Workload> LoadControl<W> {
    /// Makes one call and waits for its reply.
    ///
    /// # Errors
    /// If the call is refused or fails, or if there is no reply within `timeout`.
    pub(crate) fn call(
        &self,
        call: SingleCall,
        timeout: Duration,
    ) -> Result<SingleReply, SingleError> {
        self.ask(Order::Call(call));
        let deadline = Instant::now() + timeout;
        // WAIT: `timeout`.
        match self.wait(LOOK_PERIOD, || Instant::now() < deadline) {
            Some(Answer::Call(outcome)) => outcome,
            _ => Err(SingleError::Silent),
        }
    }

    /// Starts a load and returns immediately.
    pub(crate) fn begin(&self, order: LoadOrder<W>) {
        self.abandoned.store(false, Ordering::Relaxed);
        self.ask(Order::Load(Box::new(order)));
    }

    /// Waits for the end of the load. It calls `goes_on` every `period`, and returns `None` when that returns false
    /// first.
    pub(super) fn end(
        &self,
        period: Duration,
        goes_on: impl FnMut() -> bool,
    ) -> Option<Box<LoadAnswer<W>>> {
        // WAIT: as long as the caller says.
        match self.wait(period, goes_on) {
            Some(Answer::Load(answer)) => Some(answer),
            _ => None,
        }
    }

    /// Makes the load end soon, without the calls that are outstanding.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Gives an order. The caller has waited for the answer to the order before: there is one place only.
    fn ask(&self, order: Order<W>) {
        // WAIT: for threads that hold this lock for some instructions.
        if let Ok(mut place) = self.order.lock() {
            *place = Some(order);
        }
        // SYNC POINT load-order: pairs with the Acquire load in `LoadControl::take`.
        self.asked.fetch_add(1, Ordering::Release);
    }

    fn wait(&self, period: Duration, mut goes_on: impl FnMut() -> bool) -> Option<Answer<W>> {
        // Relaxed: only this thread writes `asked`.
        let asked = self.asked.load(Ordering::Relaxed);
        // SYNC POINT load-answer: pairs with the Release in `LoadControl::answer`.
        while self.answered.load(Ordering::Acquire) != asked {
            if !goes_on() {
                return None;
            }
            // WAIT: `period`; the whole as long as the caller says.
            std::thread::sleep(period);
        }
        self.answer.lock().ok()?.take()
    }

    /// The next order, for a core that has taken `taken` orders so far.
    pub(crate) fn take(&self, taken: u32) -> Option<Order<W>> {
        // SYNC POINT load-order: pairs with the Release in `LoadControl::ask`.
        if self.asked.load(Ordering::Acquire) == taken {
            return None;
        }
        // WAIT: for threads that hold this lock for some instructions.
        self.order.lock().ok()?.take()
    }

    pub(crate) fn answer(&self, answer: Answer<W>) {
        // WAIT: for threads that hold this lock for some instructions.
        if let Ok(mut place) = self.answer.lock() {
            *place = Some(answer);
        }
        // SYNC POINT load-answer: pairs with the Acquire load in `LoadControl::wait`.
        self.answered.fetch_add(1, Ordering::Release);
    }

    /// Queues a replacement for the core: `fresh` takes the place of `lost`.
    pub(super) fn replace(&self, lost: ConnectionKey, fresh: ConnectionKey) {
        // WAIT: for threads that hold this lock for some instructions.
        if let Ok(mut replaced) = self.replaced.lock() {
            replaced.push((lost, fresh));
        }
    }

    /// Takes the queued replacements. Returns none while another thread holds the lock: a polling core never blocks,
    /// and it looks again soon.
    pub(super) fn replaced(&self) -> Vec<(ConnectionKey, ConnectionKey)> {
        let replaced = self.replaced.try_lock();
        replaced.map_or_else(|_| Vec::new(), |mut it| std::mem::take(&mut *it))
    }
}
