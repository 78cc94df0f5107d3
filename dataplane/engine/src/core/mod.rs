//! The core: one thread, one poll loop, and everything that it owns.

mod application;
mod application_messages;
mod by_connection;
mod close;
mod context;
mod control_message;
mod deadlines;
mod dispatch;
mod group;
mod incoming;
mod iterate;
mod keep_alive;
mod lending;
mod mailbox;
mod outbox;
mod outgoing;
mod paths;
mod publish;
mod receives;
mod resources;
mod route;
mod slots;
mod state;
mod step;
mod sweep;
#[cfg(test)]
mod tests;
mod transmit;
mod waiting_receives;
#[cfg(test)]
mod whole;

pub use application::Application;
pub use context::Context;
pub use iterate::{pin_current_thread, processors};

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::{CompletionBatch, Port, REAP_MAX, SetupError};
use rpcrdma_protocol::v2::connection::CreditView;

use self::state::State;
use crate::config::CoreConfig;
use crate::handle::CoreHandle;
use crate::idle::Idle;
use crate::rpc::ConnectionKey;

/// One core with its application. See the [crate] for what it does.
///
/// # Example
/// ```
/// use rpcrdma_engine::{Application, Core, CoreConfig};
/// use rpcrdma_fabric::clock::Clock;
/// use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages};
/// use rpcrdma_fabric::shm;
///
/// /// Serves no program, and calls nobody.
/// struct Nothing;
///
/// impl Application for Nothing {}
///
/// let (config, clock) = (CoreConfig::default(), Clock::new());
/// let bytes = config.arena_bytes();
/// let arena = Arena::shared(&ArenaOptions { bytes, huge_pages: HugePages::Prefer })?;
/// let (port, _) = shm::Port::new(shm::PortConfig::new(0, arena, clock.clone()))?;
/// let (core, handle) = Core::new(port, &config, clock, Nothing)?;
/// let thread = std::thread::spawn(move || core.run());
/// // From any thread, while the core runs and after.
/// handle.stop();
/// thread.join().expect("it does not panic")?;
/// assert!(handle.has_ended());
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct Core<P: Port, A: Application> {
    state: State<P>,
    application: A,
    /// Empty between iterations. A field, so that it is not created in each.
    batch: CompletionBatch,
    clock: Clock,
    idle: Idle,
    cpu: Option<usize>,
}

/// Why a core did not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The thread could not be pinned.
    #[error(
        "the core could not be pinned to processor {cpu}: it does not exist or this process may \
         not use it; the processors that it may use are {allowed:?}"
    )]
    Pin {
        /// The processor asked for.
        cpu: usize,
        /// The processors that this process may use.
        allowed: Vec<usize>,
    },
}

impl<P: Port, A: Application> Core<P, A> {
    /// Makes a core on `port`: carves the pools, makes the shared receive queue, or one for each
    /// connection where the device has no shared ones, and posts all its Receives.
    ///
    /// # Errors
    /// When the configuration does not fit the port or its arena, which must have at least
    /// [`CoreConfig::arena_bytes`].
    pub fn new(
        port: P,
        config: &CoreConfig,
        clock: Clock,
        application: A,
    ) -> Result<(Self, CoreHandle<P>), SetupError> {
        let (mut state, handle) = State::new(port, config, &clock)?;
        state.resources.programs = application.programs();
        let core = Self {
            state,
            application,
            batch: CompletionBatch::with_limit(
                usize::try_from(config.reap_batch).unwrap_or(REAP_MAX),
            ),
            idle: Idle::new(config.idle, &clock),
            clock,
            cpu: config.cpu,
        };
        Ok((core, handle))
    }

    /// The port, for reports.
    pub fn port(&self) -> &P {
        &self.state.resources.port
    }

    /// The credit counters of a connection, for reports.
    pub fn credits(&self, connection: ConnectionKey) -> Option<CreditView> {
        let connection = self.state.resources.connections.get(connection)?;
        Some(connection.protocol.credits())
    }

    /// Message buffers that are in use. They serve messages in parts and queued replies.
    pub fn message_buffers_in_use(&self) -> usize {
        let all = usize::try_from(self.state.resources.config.message_buffers_total())
            .unwrap_or(usize::MAX);
        all.saturating_sub(self.state.resources.messages.available())
    }

    /// Bulk buffers that are free, with those of leases that were dropped.
    pub fn bulk_buffers_free(&mut self) -> usize {
        self.state.resources.reply.pool.available()
    }

    /// Placement segments that applications keep.
    pub fn placement_segments_leased(&mut self) -> usize {
        self.state.resources.placement.reclaim();
        self.state.resources.placement.leased()
    }

    /// The application.
    pub fn application(&self) -> &A {
        &self.application
    }

    /// The application, to be changed between iterations.
    pub fn application_mut(&mut self) -> &mut A {
        &mut self.application
    }
}
