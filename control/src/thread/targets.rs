//! Targets: addresses that the node stays connected to. [`Targets`] decides when to connect; this module connects, and
//! reports to the application.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use rpcrdma_engine::CloseReason;

use super::{ControlThread, negotiate};
use crate::connection::{ConnectionReport, Waiter};
use crate::counters::ControlCounters;
use crate::error::ConnectError;
use crate::node::{ConnectOptions, Connection};
use crate::provider::Provider;
use crate::reconnect::{Reconnect, Step, TargetId, Targets};
use crate::target::{GivenUp, TargetEvent};

/// A target as the application asked for it.
pub(crate) struct Wanted {
    pub(crate) id: TargetId,
    pub(crate) address: String,
    pub(crate) options: ConnectOptions,
    pub(crate) reconnect: Reconnect,
    pub(crate) events: TargetSink,
}

/// Receives the events of a target. It runs on the control thread, and must not block.
pub(crate) type TargetSink = Box<dyn FnMut(TargetEvent) + Send>;

/// One target.
struct Kept {
    address: String,
    options: ConnectOptions,
    events: TargetSink,
    connection: Option<Connection>,
}

impl Kept {
    fn tell(&mut self, event: TargetEvent) {
        (self.events)(event);
    }
}

/// The targets of a node, and the outcomes of their attempts.
pub(super) struct Keeper {
    pub(super) targets: Targets,
    kept: HashMap<TargetId, Kept>,
    news: Receiver<(TargetId, ConnectionReport)>,
    /// Attempts report their outcome with it.
    tell: Sender<(TargetId, ConnectionReport)>,
}

impl Keeper {
    pub(super) fn new(per_second_max: u32, seed: u64) -> Self {
        let (tell, news) = mpsc::channel();
        Self {
            targets: Targets::new(per_second_max, seed),
            kept: HashMap::new(),
            news,
            tell,
        }
    }

    /// A target's connection has ended.
    pub(super) fn lost(&self, id: TargetId, reason: CloseReason) {
        // This cannot fail: the receiver is in `self`.
        let _ = self.tell.send((id, ConnectionReport::Lost(reason)));
    }

    fn waiter(&self, id: TargetId) -> Waiter {
        Waiter::Target(id, self.tell.clone())
    }

    fn take_news(&mut self, id: TargetId, news: ConnectionReport, now: Instant) {
        let Some(kept) = self.kept.get_mut(&id) else {
            return;
        };
        match news {
            ConnectionReport::Outcome(Ok(connection)) => {
                self.targets.handle_established(id, now);
                kept.connection = Some(connection.clone());
                kept.tell(TargetEvent::Established { connection });
            }
            ConnectionReport::Outcome(Err(error)) => {
                match self.targets.handle_failed(id, &error, now) {
                    Step::Retry { after } => kept.tell(TargetEvent::Failed {
                        error,
                        retry_after: after,
                    }),
                    Step::GiveUp => self.give_up(id, GivenUp::Failed(error)),
                }
            }
            ConnectionReport::Lost(reason) => {
                let Some(connection) = kept.connection.take() else {
                    return;
                };
                match self.targets.handle_lost(id, reason, now) {
                    Step::Retry { after } => kept.tell(TargetEvent::Lost {
                        connection,
                        reason,
                        retry_after: after,
                    }),
                    Step::GiveUp => self.give_up(id, GivenUp::Closed(reason)),
                }
            }
        }
    }

    fn give_up(&mut self, id: TargetId, why: GivenUp) {
        if let Some(mut kept) = self.kept.remove(&id) {
            kept.tell(TargetEvent::GivenUp(why));
        }
    }
}

impl<V: Provider> ControlThread<V> {
    /// Adds a target. Its first attempt follows in [`ControlThread::serve_targets`].
    pub(super) fn keep_connected(&mut self, wanted: Wanted, now: Instant) {
        let Wanted {
            id,
            address,
            options,
            reconnect,
            events,
        } = wanted;
        let versions = negotiate::permitted(&options);
        let added = self
            .keeper
            .targets
            .add(id, &address, versions, reconnect, now);
        let kept = Kept {
            address,
            options,
            events,
            connection: None,
        };
        self.keeper.kept.insert(id, kept);
        if let Err(error) = added {
            self.keeper.give_up(id, GivenUp::Failed(error));
        }
    }

    /// Removes a target. Its connection stays open; an attempt under way is given up.
    pub(super) fn cancel_target(&mut self, id: TargetId) {
        self.keeper.targets.remove(id);
        self.keeper.kept.remove(&id);
        let attempt = self
            .connections
            .values_mut()
            .find(|tracked| tracked.is_attempt_for(id));
        if let Some(tracked) = attempt {
            tracked.fail(|_, _| ConnectError::ShuttingDown);
            let connection = tracked.id;
            self.end(connection, CloseReason::Local);
        }
    }

    /// Handles the outcomes of attempts and the ends of connections, and makes the attempts that are due. The loop ends
    /// because every attempt moves the time of the next.
    pub(super) fn serve_targets(&mut self, now: Instant) {
        loop {
            while let Ok((id, news)) = self.keeper.news.try_recv() {
                self.keeper.take_news(id, news, now);
            }
            let Some(id) = self.keeper.targets.poll(now) else {
                return;
            };
            let waiter = self.keeper.waiter(id);
            if let Some(kept) = self.keeper.kept.get(&id) {
                ControlCounters::add(&self.counters.target_attempts);
                let (address, options) = (kept.address.clone(), kept.options.clone());
                self.connect(address, options, waiter);
            }
        }
    }
}
