//! Several devices as a provider.

use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{ChoosePort, ManagerError, SetupError};
use rpcrdma_fabric::memory::Arena;
use rpcrdma_fabric::rails::{RAILS_MAX, Rails, RailsHandle, RailsManager};

use super::{PortAndHandle, PortNeed, Provider};

/// A node on several devices: each core has a rail on each of them ([`rpcrdma_fabric::rails`]). The node listens on all of them,
/// and connects from the one that leads to the server.
///
/// Memory, queue pairs and Receives are those of one device, times their number; the arena is one, and registered with each.
///
/// # Example
///
/// Two nodes of one process, each with two rails: on shared memory, each name is of one of them.
///
/// ```
/// use rpcrdma_control::{
///     ConnectOptions, ListenOptions, Node, NodeConfig, RailsProvider, ShmProvider,
/// };
/// use rpcrdma_tuning::{Idle, Profile};
///
/// /// It serves no program.
/// struct Nothing;
/// impl rpcrdma_engine::Application for Nothing {}
///
/// let profile = Profile { connections_max: 4, idle: Idle::Park, ..Profile::default() };
/// let config = NodeConfig::from_profile(&profile, vec![None]);
/// let rail = || ShmProvider::from_profile(&profile);
/// let node = || Node::start(RailsProvider::new(vec![rail(), rail()]).unwrap(), &config, |_core| Nothing);
/// let (server, client) = (node()?, node()?);
/// for name in ["a", "b"] {
///     let address = format!("shm:rails-{}-{name}", std::process::id());
///     server.listen(&address, ListenOptions::default())?;
///     client.connect(&address, ConnectOptions::default())?;
/// }
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RailsProvider<V> {
    first: V,
    others: Vec<V>,
}

impl<V: Provider> RailsProvider<V> {
    /// The rails of each core, one for each provider, of which each is of another device. The manager is that of the first.
    ///
    /// # Errors
    ///
    /// [`SetupError::Limit`] without a provider, and with more than [`RAILS_MAX`].
    pub fn new(rails: Vec<V>) -> Result<Self, SetupError> {
        let asked = rails.len() as u64;
        let limit = RAILS_MAX as u64;
        let mut rails = rails.into_iter();
        match rails.next().filter(|_| asked <= limit) {
            Some(first) => Ok(Self {
                first,
                others: rails.collect(),
            }),
            None => Err(SetupError::Limit {
                what: "devices of a node (`--device` names fewer)",
                asked,
                limit,
            }),
        }
    }
}

impl<V: Provider> Provider for RailsProvider<V>
where
    V::Manager: ChoosePort,
{
    const VOUCHES_FOR_PEERS: bool = V::VOUCHES_FOR_PEERS;

    type Port = Rails<V::Port>;
    type Manager = RailsManager<V::Manager>;

    fn manager(&self) -> Result<Self::Manager, ManagerError> {
        Ok(RailsManager::new(self.first.manager()?))
    }

    fn rails(&self) -> u32 {
        u32::try_from(1 + self.others.len()).unwrap_or(u32::MAX)
    }

    fn arena(&self, need: &PortNeed) -> Result<Arena, SetupError> {
        self.first.arena(need)
    }

    fn port_in(
        &self,
        arena: Arena,
        need: &PortNeed,
        clock: &Clock,
    ) -> Result<PortAndHandle<Self>, SetupError> {
        let same = self.others.iter().map(|_| arena.for_another_port());
        let same = same.collect::<Result<Vec<_>, _>>()?;
        let arenas = std::iter::once(arena).chain(same);
        let rails = std::iter::once(&self.first).chain(&self.others);
        let (mut ports, mut handles) = (Vec::new(), Vec::new());
        for (rail, arena) in rails.zip(arenas) {
            let (port, handle) = rail.port_in(arena, need, clock)?;
            // When the others fail, all connections come to this one.
            let (asked, limit) = (need.queue_pairs_max, port.attributes().queue_pairs_max);
            if asked > limit {
                return Err(SetupError::Limit {
                    what: "connections of a core (connections_max) on each of several devices",
                    asked: asked.into(),
                    limit: limit.into(),
                });
            }
            ports.push(port);
            handles.push(handle);
        }
        Ok((Rails::new(ports)?, RailsHandle::new(handles)))
    }
}
