//! The targets of a connection: the one that it has, and the one by which it goes back to its first address.
//!
//! A connection that was lost goes on at another address of its server. Then a second target tries the first address. When it is
//! connected there, the core moves the calls ([`crate::exchange`] has how), and closes the old connection. By that end the control
//! thread, which takes the events of both targets, learns that the calls have moved.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rpcrdma_control::{ConnectOptions, GivenUp, NodeHandle, Reconnect, Target, TargetEvent};
use rpcrdma_protocol::v2::ApplicationProperties;

use super::builder::Changes;
use crate::error::sentence;
use crate::exchange::{CoreShared, PeerConnection};
use crate::trace;

/// The longest time before a connection goes back, if none longer was asked for.
const RETURN_AFTER_MAX: Duration = Duration::from_secs(5 * 60);
/// The shortest after one that led to nothing.
const RETURN_AGAIN_AFTER_MIN: Duration = Duration::from_millis(10);
/// A connection at the first address that is lost before so many times of that wait was lost soon.
const LASTS: u32 = 4;

/// What is needed to make a connection, and to go back.
pub(super) struct Plan {
    pub(super) control: Arc<NodeHandle>,
    /// The names by which servers know the client, of which a connection and the one that takes its place have each another: a server
    /// takes the last connection of a name for the only one. No call is under way when they change, so that none is sent again by the
    /// other.
    pub(super) names: [ApplicationProperties; 2],
    /// The one that is tried first, before the others.
    pub(super) addresses: String,
    pub(super) options: ConnectOptions,
    pub(super) reconnect: Reconnect,
    pub(super) returns: Returns,
}

/// The targets of one connection.
pub(super) struct Home {
    plan: Plan,
    peer: Arc<PeerConnection>,
    core: Arc<CoreShared>,
    changes: Arc<Changes>,
    targets: Mutex<Targets>,
}

#[derive(Default)]
struct Targets {
    /// That of the connection.
    current: Option<Numbered>,
    /// That by which it goes back.
    returning: Option<Numbered>,
    made: u32,
    /// The place of the current target's name.
    name: usize,
    waits: Waits,
    is_closed: bool,
}

/// A target, and the number that its events have.
struct Numbered {
    number: u32,
    /// Dropping it closes its connection, also one that is only being made.
    _target: Target,
}

/// What a tool that traces learns, when no lock is held: it may do anything.
type News = Vec<(String, Option<String>)>;

impl Home {
    /// Begins to connect.
    pub(super) fn open(
        plan: Plan,
        peer: Arc<PeerConnection>,
        core: Arc<CoreShared>,
        changes: Arc<Changes>,
    ) -> Arc<Self> {
        let home = Arc::new(Self {
            plan,
            peer,
            core,
            changes,
            targets: Mutex::default(),
        });
        // The first event may come before this thread goes on: it waits for the lock.
        let mut targets = home.targets();
        let number = targets.next_number();
        let (sink, plan) = (home.sink(number), &home.plan);
        let (addresses, options) = (&*plan.addresses, plan.options(targets.name));
        let control = &plan.control;
        targets.current = Some(Numbered {
            number,
            _target: control.keep_connected_with(addresses, options, plan.reconnect, sink),
        });
        drop(targets);
        home
    }

    /// Closes the connections, also those that are only being made.
    pub(super) fn close(&self) {
        let mut targets = self.targets();
        targets.is_closed = true;
        targets.returning = None;
        targets.current = None;
    }

    fn sink(self: &Arc<Self>, number: u32) -> impl FnMut(TargetEvent) + Send + use<> {
        let home = Arc::clone(self);
        move |event| {
            let news = home.take_event(number, event);
            home.changes.tell();
            // Calls wait for the connection, or for the end of it.
            home.core.wake();
            for (address, why) in news {
                trace::connection(&address, why.as_deref());
            }
        }
    }

    fn targets(&self) -> MutexGuard<'_, Targets> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_event(self: &Arc<Self>, number: u32, event: TargetEvent) -> News {
        let mut news = News::new();
        let mut targets = self.targets();
        if !targets.has(number) {
            return news;
        }
        // While nothing has ended, nothing has moved: the core closes the old connection when it moves calls.
        let has_ended = matches!(event, TargetEvent::Lost { .. } | TargetEvent::GivenUp(_));
        if has_ended && self.peer.settle() {
            // The connection of the other target is the one now.
            targets.current = targets.returning.take();
            targets.name = 1 - targets.name;
            targets.waits.is_at_first(Instant::now());
            news.push((self.connected_at(), None));
        }
        if is(targets.current.as_ref(), number) {
            news.push(self.take_event_of_current(&mut targets, event));
        } else if is(targets.returning.as_ref(), number) {
            self.take_event_of_returning(&mut targets, event);
        }
        news
    }

    fn take_event_of_current(
        self: &Arc<Self>,
        targets: &mut Targets,
        event: TargetEvent,
    ) -> (String, Option<String>) {
        let (why, is_given_up) = match event {
            TargetEvent::Established { connection } => {
                self.peer.set_connected(&connection);
                if self.peer.is_first(&connection) {
                    targets.waits.is_at_first(Instant::now());
                } else {
                    self.go_back(targets);
                }
                return (connection.address, None);
            }
            TargetEvent::Lost { reason, .. } => (reason.to_string(), false),
            TargetEvent::Failed { error, .. } => (sentence(&error), false),
            TargetEvent::GivenUp(GivenUp::Failed(error)) => (sentence(&error), true),
            TargetEvent::GivenUp(GivenUp::Closed(reason)) => (reason.to_string(), true),
        };
        // There is nothing to go back from until it is connected again.
        targets.returning = None;
        targets.waits.is_lost(&self.plan.returns, Instant::now());
        let at = self.connected_at();
        self.peer.set_lost(why.clone(), is_given_up);
        (at, Some(why))
    }

    fn take_event_of_returning(self: &Arc<Self>, targets: &mut Targets, event: TargetEvent) {
        match event {
            TargetEvent::Established { connection } => {
                self.peer.offer(&connection);
                self.core.ask_for_rare_work();
            }
            // It is tried again.
            TargetEvent::Failed { .. } => {}
            // The core refused it, since calls were under way for too long; or it was lost; or it cannot be made.
            TargetEvent::Lost { .. } | TargetEvent::GivenUp(_) => {
                targets.waits.led_to_nothing();
                self.go_back(targets);
            }
        }
    }

    /// Begins to go back.
    fn go_back(self: &Arc<Self>, targets: &mut Targets) {
        targets.returning = None;
        let Some(after) = targets.waits.next(&self.plan.returns) else {
            return;
        };
        if targets.is_closed {
            return;
        }
        let number = targets.next_number();
        let (sink, plan) = (self.sink(number), &self.plan);
        let (addresses, options) = (&*plan.addresses, plan.options(1 - targets.name));
        let (control, reconnect) = (&plan.control, plan.reconnect);
        targets.returning = Some(Numbered {
            number,
            _target: control.keep_connected_at_first(addresses, options, reconnect, after, sink),
        });
    }

    /// The address of the connection, or those that are tried.
    fn connected_at(&self) -> String {
        let at = self.peer.connected_at();
        at.unwrap_or(&self.peer.address).to_owned()
    }
}

impl Plan {
    fn options(&self, name: usize) -> ConnectOptions {
        ConnectOptions {
            application_properties: Some(self.names[name]),
            ..self.options.clone()
        }
    }
}

impl Targets {
    fn next_number(&mut self) -> u32 {
        self.made = self.made.wrapping_add(1);
        self.made
    }

    /// Whether a number is that of one of them. Events of one that was dropped may come late.
    fn has(&self, number: u32) -> bool {
        is(self.current.as_ref(), number) || is(self.returning.as_ref(), number)
    }
}

fn is(target: Option<&Numbered>, number: u32) -> bool {
    target.is_some_and(|it| it.number == number)
}

/// Whether a connection goes back, and how long it stays at another address before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Returns(pub(super) Option<Duration>);

/// How long a connection stays at another address: longer each time that the way back led to nothing.
#[derive(Debug, Default)]
struct Waits {
    /// How often in a row it did.
    failed: u32,
    /// Since when the connection is at the first address.
    at_first: Option<Instant>,
}

impl Waits {
    fn is_at_first(&mut self, now: Instant) {
        self.at_first = Some(now);
    }

    fn led_to_nothing(&mut self) {
        self.failed = self.failed.saturating_add(1);
    }

    /// The connection is lost, or still away.
    fn is_lost(&mut self, returns: &Returns, now: Instant) {
        let (Some(since), Some(wait)) = (self.at_first.take(), self.next(returns)) else {
            return;
        };
        if now.duration_since(since) >= wait.saturating_mul(LASTS) {
            self.failed = 0;
        } else {
            self.led_to_nothing();
        }
    }

    /// How long it stays at another address now, if it goes back at all.
    fn next(&self, returns: &Returns) -> Option<Duration> {
        let first = returns.0?;
        Some(match self.failed {
            0 => first,
            failed => first
                .max(RETURN_AGAIN_AFTER_MIN)
                .saturating_mul(1 << failed.min(16))
                .min(RETURN_AFTER_MAX.max(first)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn way_back_that_leads_to_nothing_is_tried_ever_later() {
        let returns = Returns(Some(2 * SECOND));
        let mut waits = Waits::default();
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.push(waits.next(&returns).unwrap().as_secs());
            waits.led_to_nothing();
        }
        assert_eq!(seen, [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(waits.next(&Returns(None)), None);
        let long = Duration::MAX;
        assert_eq!(waits.next(&Returns(Some(long))), Some(long));
        assert!(waits.next(&Returns(Some(Duration::ZERO))).unwrap() > SECOND);
    }

    #[test]
    fn connection_that_lasts_at_its_first_address_is_waited_for_as_at_the_beginning() {
        let returns = Returns(Some(2 * SECOND));
        let mut waits = Waits::default();
        // TIME: a beginning, to which the test itself adds what passes.
        let now = Instant::now();
        for (lasts_s, next_s) in [(7, 4), (15, 8), (31, 16), (64, 2), (8, 2), (7, 4)] {
            waits.is_at_first(now);
            waits.is_lost(&returns, now + lasts_s * SECOND);
            assert_eq!(waits.next(&returns), Some(next_s * SECOND));
            // Attempts to connect again fail.
            waits.is_lost(&returns, now + lasts_s * SECOND);
            assert_eq!(waits.next(&returns), Some(next_s * SECOND));
        }
    }
}
