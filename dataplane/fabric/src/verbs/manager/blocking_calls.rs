//! Runs blocking calls of RDMA-CM in separate threads, because the control thread serves all
//! connections. On iWARP a connect waits for TCP within the call, and destroying an identifier waits
//! for the call in progress.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Builder;

use super::negotiate::{QueuePairFacts, ReadDepths};
use super::options::ManagerOptions;
use crate::verbs::cm::id::Id;
use crate::verbs::queue_pair::QueuePair;

/// A request to send.
pub(super) struct Request {
    pub(super) connection: u64,
    pub(super) id: Id,
    pub(super) facts: QueuePairFacts,
    pub(super) depths: ReadDepths,
    pub(super) options: ManagerOptions,
    pub(super) private_data: Vec<u8>,
}

/// The outcome of a request, with its identifier.
pub(super) struct Sent {
    pub(super) connection: u64,
    pub(super) id: Id,
    pub(super) result: io::Result<()>,
}

/// Starts one thread for each request and collects the outcomes.
pub(super) struct BlockingCalls {
    wake: Arc<dyn Fn() + Send + Sync>,
    tell: Sender<Sent>,
    told: Receiver<Sent>,
}

impl BlockingCalls {
    /// Each thread calls `wake` when its request was sent or failed.
    pub(super) fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let (tell, told) = mpsc::channel();
        Self { wake, tell, told }
    }

    /// Sends a request on a separate thread; [`BlockingCalls::sent`] returns the outcome.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn send(&self, request: Request) -> io::Result<()> {
        let (tell, wake) = (self.tell.clone(), Arc::clone(&self.wake));
        let thread = Builder::new().name("rpcrdma-connect".to_owned());
        thread.spawn(move || {
            let Request {
                connection,
                mut id,
                facts,
                depths,
                options,
                private_data,
            } = request;
            let result = id.connect(facts.parameters(depths, &options, &private_data));
            // This fails only when the manager was dropped: then the identifier is destroyed here.
            let _ = tell.send(Sent {
                connection,
                id,
                result,
            });
            wake();
        })?;
        Ok(())
    }

    /// The next outcome, if there is one.
    pub(super) fn sent(&self) -> Option<Sent> {
        self.told.try_recv().ok()
    }
}

/// Drops the objects of a connect in progress, in a separate thread.
pub(super) fn let_go(id: Option<Id>, queue_pair: Option<QueuePair>) {
    let thread = Builder::new().name("rpcrdma-let-go".to_owned());
    // If no thread can be started, both are dropped here and the caller waits.
    let _ = thread.spawn(move || {
        drop(id);
        drop(queue_pair);
    });
}
