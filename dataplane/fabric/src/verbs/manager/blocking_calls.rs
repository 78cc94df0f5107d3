//! Calls of RDMA-CM that wait, in threads of their own: on iWARP a connect waits for TCP within the
//! call, and the end of an identifier for what is under way on it. The control thread has others to
//! serve.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::Builder;

use super::ManagerOptions;
use super::connection::QueuePairFacts;
use super::negotiate::ReadDepths;
use crate::verbs::cm::id::Id;
use crate::verbs::queue_pair::QueuePair;

/// A request to be sent.
pub(super) struct Request {
    pub(super) connection: u64,
    pub(super) id: Id,
    pub(super) facts: QueuePairFacts,
    pub(super) depths: ReadDepths,
    pub(super) options: ManagerOptions,
    pub(super) private_data: Vec<u8>,
}

/// A request that was sent, or was not. The identifier comes back with it.
pub(super) struct Sent {
    pub(super) connection: u64,
    pub(super) id: Id,
    pub(super) result: io::Result<()>,
}

/// A thread for each request that is being sent.
pub(super) struct BlockingCalls {
    wake: Arc<dyn Fn() + Send + Sync>,
    tell: Sender<Sent>,
    told: Receiver<Sent>,
}

impl BlockingCalls {
    /// `wake` is called when a request has been sent, or could not be.
    pub(super) fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let (tell, told) = mpsc::channel();
        Self { wake, tell, told }
    }

    /// Sends a request; [`BlockingCalls::sent`] reports the outcome.
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
            // Without the manager the identifier ends here.
            let _ = tell.send(Sent {
                connection,
                id,
                result,
            });
            wake();
        })?;
        Ok(())
    }

    /// The next request that was sent, or was not.
    pub(super) fn sent(&self) -> Option<Sent> {
        self.told.try_recv().ok()
    }
}

/// Lets go of what a connect that is under way holds.
pub(super) fn let_go(id: Option<Id>, queue_pair: Option<QueuePair>) {
    let thread = Builder::new().name("rpcrdma-let-go".to_owned());
    // Where no thread can be had they end here, and this one waits.
    let _ = thread.spawn(move || {
        drop(id);
        drop(queue_pair);
    });
}
