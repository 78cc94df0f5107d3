//! Targets: servers that the node stays connected to. [`Targets`] decides when to connect; [`Keeper`] knows how, and
//! reports to the application. The control thread makes the attempts.

use std::collections::HashMap;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Instant;

use rpcrdma_engine::CloseReason;

use super::connection::{ConnectionReport, Waiter};
use crate::connection::{ConnectOptions, Connection};
use crate::events::{GivenUp, TargetEvent};
use crate::reconnect::{Step, TargetId, Targets};
use crate::request::{Owner, TargetSink, Wanted};

/// One target.
struct Kept {
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
    targets: Targets,
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

    /// Adds a target. Its first attempt follows in [`Keeper::next_attempt`].
    pub(super) fn add(&mut self, wanted: Wanted, now: Instant) {
        let Wanted {
            id,
            addresses,
            options,
            reconnect,
            first_after,
            events,
        } = wanted;
        let versions = options.permitted();
        let targets = &mut self.targets;
        let added = addresses.and_then(|all| match first_after {
            None => targets.add(id, &all, versions, reconnect, now),
            Some(after) => {
                targets.add_for_first(id, &all, versions, reconnect, after, now);
                Ok(())
            }
        });
        let kept = Kept {
            options,
            events,
            connection: None,
        };
        self.kept.insert(id, kept);
        if let Err(error) = added {
            self.give_up(id, GivenUp::Failed(error));
        }
    }

    /// Removes a target. No event of it follows.
    pub(super) fn remove(&mut self, id: TargetId) {
        self.targets.remove(id);
        self.kept.remove(&id);
    }

    /// Handles the outcomes of attempts and the ends of connections, and returns the next attempt that is due: its
    /// address and options, and who waits for its outcome. The caller makes it and asks again; that ends because every
    /// attempt moves the time of the next.
    pub(super) fn next_attempt(
        &mut self,
        now: Instant,
    ) -> Option<(String, ConnectOptions, Waiter)> {
        loop {
            while let Ok((id, news)) = self.news.try_recv() {
                self.take_news(id, news, now);
            }
            let id = self.targets.poll(now)?;
            if let (Some(kept), Some(address)) = (self.kept.get(&id), self.targets.address(id)) {
                let waiter = Waiter::Target(id, self.tell.clone());
                return Some((address.to_owned(), kept.options.clone(), waiter));
            }
        }
    }

    /// The addresses of a target without `address`, at which it goes on when its connection there is lost; none of another owner.
    pub(super) fn other_addresses<'a>(
        &'a self,
        owner: Option<Owner>,
        address: &'a str,
    ) -> impl Iterator<Item = &'a str> {
        let id = match owner {
            Some(Owner::Target(id)) => Some(id),
            Some(Owner::Connect(_)) | None => None,
        };
        let all = id.into_iter().flat_map(|id| self.targets.addresses(id));
        all.filter(move |other| *other != address)
    }

    /// The time of the next attempt.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.targets.next_due()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reconnect::Reconnect;

    #[test]
    fn target_with_several_addresses_has_another_one_to_go_on_at() {
        let mut keeper = Keeper::new(100, 0);
        // TIME: any moment; no attempt is made.
        let now = Instant::now();
        for (id, addresses) in [(1, &["shm:a", "shm:b"][..]), (2, &["shm:a"])] {
            let wanted = Wanted {
                id: TargetId(id),
                addresses: Ok(addresses.iter().map(ToString::to_string).collect()),
                options: ConnectOptions::default(),
                reconnect: Reconnect::default(),
                first_after: None,
                events: Box::new(|_| {}),
            };
            keeper.add(wanted, now);
        }
        let others = |owner, address| keeper.other_addresses(owner, address).collect::<Vec<_>>();
        let target = |id| Some(Owner::Target(TargetId(id)));
        assert_eq!(others(target(1), "shm:a"), ["shm:b"]);
        assert_eq!(others(target(1), "shm:b"), ["shm:a"]);
        assert_eq!(others(target(2), "shm:a"), [""; 0]);
        assert_eq!(others(target(3), "shm:a"), [""; 0]);
        assert_eq!(others(None, "shm:a"), [""; 0]);
    }
}
