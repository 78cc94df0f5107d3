//! What the application asks for: listening, connecting, targets, limits and drains.

use std::sync::mpsc::{Sender, TryRecvError};
use std::time::{Duration, Instant};

use rpcrdma_engine::{CloseReason, Command};
use rpcrdma_fabric::interface::{ConnectionId, Manager};
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::v2::ApplicationProperties;

use super::ControlThread;
use super::connection::{Attempt, End, Tracked, Waiter};
use super::drain::{Drain, DrainStep};
use crate::authentication::{Authentication, Session};
use crate::connection::{ConnectOptions, DrainReport, Listening};
use crate::core_choice::CoreChoice;
use crate::counters::ControlCounters;
use crate::error::{ConnectError, Stage};
use crate::limits::NodeLimits;
use crate::link::CoreLink;
use crate::provider::Provider;
use crate::request::{Owner, Request};

impl<V: Provider> ControlThread<V> {
    /// Takes all requests; false when the thread has to end.
    pub(super) fn take_requests(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(Request::Listen {
                    address,
                    options,
                    answer,
                }) => {
                    let outcome = self.manager.listen(&address).map(|listener| {
                        let chosen = self.manager.listener_address(listener);
                        let address = chosen.unwrap_or(address);
                        let listener_of = (address.clone(), options);
                        self.listeners.insert(listener, listener_of);
                        Listening { listener, address }
                    });
                    let _ = answer.send(outcome);
                }
                Ok(Request::StopListening { address, answer }) => {
                    let _ = answer.send(self.stop_listening(&address));
                }
                Ok(Request::Connect {
                    id,
                    address,
                    options,
                    answer,
                }) => {
                    self.connect(address, options, Waiter::Application(id, answer));
                }
                Ok(Request::Close { core, key }) => self.close(core, key, CloseReason::Local),
                Ok(Request::SetLimits(limits)) => self.set_limits(limits),
                Ok(Request::KeepConnected(wanted)) => {
                    self.keeper.add(wanted, Instant::now());
                }
                Ok(Request::Cancel(owner)) => self.cancel(owner),
                Ok(Request::Drain { timeout, answer }) => self.start_draining(timeout, answer),
                Ok(Request::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// Returns whether there was a listener at `address`.
    fn stop_listening(&mut self, address: &str) -> bool {
        let mut listeners = self.listeners.iter();
        let found = listeners.find(|(_, (at, _))| at == address);
        let Some(listener) = found.map(|(listener, _)| *listener) else {
            return false;
        };
        self.listeners.remove(&listener);
        self.manager.close_listener(listener);
        true
    }

    fn connect(&mut self, address: String, options: ConnectOptions, waiter: Waiter) {
        let permitted = options.permitted();
        let versions = self.versions.choose(&address, permitted, Instant::now());
        let attempt = Attempt::new(address, options.timeout, waiter);
        let session = Session::client(options.authentication);
        let announces = options.application_properties;
        self.begin_attempt(attempt, options.core, versions, session, announces);
    }

    /// Makes an attempt with version 1, which neither authenticates nor announces anything.
    pub(super) fn connect_version_1(&mut self, attempt: Attempt, core: CoreChoice) {
        let session = Session::client(Authentication::None);
        self.begin_attempt(attempt, core, Versions::One, session, None);
    }

    fn begin_attempt(
        &mut self,
        mut attempt: Attempt,
        core: CoreChoice,
        versions: Versions,
        session: Session,
        announces: Option<ApplicationProperties>,
    ) {
        match self.start_connect(&attempt.address, core) {
            Ok((id, core)) => {
                ControlCounters::add(&self.counters.connects_sent);
                if let Some(deadline) = attempt.deadline {
                    self.deadlines.add(deadline);
                }
                self.owned.insert(attempt.owner, id);
                let tracked = Tracked {
                    id,
                    end: End::Client(attempt),
                    core,
                    key: None,
                    stage: Stage::Requesting,
                    peer: None,
                    versions,
                    peer_data: PrivateData::default(),
                    session,
                    announces,
                    name: None,
                    ending: None,
                };
                self.connections.insert(id, tracked);
            }
            Err(error) => {
                ControlCounters::add(&self.counters.connects_failed);
                if versions == Versions::One {
                    self.versions.doubt(&attempt.address);
                }
                attempt.answer(Err(error));
            }
        }
    }

    fn start_connect(
        &mut self,
        address: &str,
        choice: CoreChoice,
    ) -> Result<(ConnectionId, usize), ConnectError> {
        if self.draining || self.cores.iter().all(CoreLink::has_ended) {
            return Err(ConnectError::ShuttingDown);
        }
        if let CoreChoice::Core(asked) = choice {
            let core = self.cores.get(asked).ok_or(ConnectError::NoSuchCore {
                asked,
                cores: self.cores.len(),
            })?;
            if core.has_ended() {
                return Err(ConnectError::ShuttingDown);
            }
        }
        let limit = self.occupancy.limit_of_all();
        let core = self
            .occupancy
            .take(choice)
            .ok_or(ConnectError::NoRoom { limit })?;
        let private_data = self.private_data();
        match self
            .manager
            .connect(address, &self.cores[core].port, &private_data)
        {
            Ok(id) => Ok((id, core)),
            Err(error) => {
                self.occupancy.release(core);
                Err(error.into())
            }
        }
    }

    fn set_limits(&mut self, limits: NodeLimits) {
        self.settings.limits = limits;
        self.occupancy.set_limit(limits.connections_per_core);
        self.peers.set_limit(limits.peer_connections_max);
    }

    /// Ends the connection of `owner`, which nobody wants any more, at any stage. No other one is made for it.
    fn cancel(&mut self, owner: Owner) {
        if let Owner::Target(id) = owner {
            self.keeper.remove(id);
        }
        if let Some(id) = self.owned.get(&owner).copied() {
            self.abandon(id);
        }
    }

    /// Ends a connection that is ready, or being made, from this side.
    fn abandon(&mut self, id: ConnectionId) {
        self.fail_attempt(id, |_, _| ConnectError::ShuttingDown);
        self.end(id, CloseReason::Local);
    }

    /// Makes the attempts of targets that are due.
    pub(super) fn serve_targets(&mut self, now: Instant) {
        while let Some((address, options, waiter)) = self.keeper.next_attempt(now) {
            ControlCounters::add(&self.counters.target_attempts);
            self.connect(address, options, waiter);
        }
    }

    fn start_draining(&mut self, timeout: Duration, answer: Sender<DrainReport>) {
        // Closing the listeners is not enough: the fabric may have queued connection requests already.
        self.draining = true;
        for (listener, _) in self.listeners.drain() {
            self.manager.close_listener(listener);
        }
        for core in &mut self.cores {
            core.send(Command::Drain);
        }
        let deadline = Instant::now().checked_add(timeout);
        // A core says once that it has drained, so a second drain does not wait for it.
        let cores = self
            .cores
            .iter()
            .filter(|core| !core.has_ended() && !core.is_drained)
            .count();
        let drain = Drain::new(deadline, cores, self.keys.len(), answer);
        self.drain = Some(drain);
    }

    pub(super) fn go_on_draining(&mut self, now: Instant) {
        let Some(drain) = &mut self.drain else {
            return;
        };
        match drain.step(self.connections.len(), now) {
            DrainStep::Wait => {}
            DrainStep::Close => {
                // With those that no core has yet: nobody would close them later.
                let ids: Vec<_> = self.connections.keys().copied().collect();
                ids.into_iter().for_each(|id| self.abandon(id));
            }
            DrainStep::Answer => {
                if let Some(drain) = self.drain.take() {
                    drain.answer();
                }
            }
        }
    }
}
