//! Which core takes a new connection, and how many a peer may have.

use std::collections::HashMap;

/// How the core of a connection is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoreChoice {
    /// The core with the fewest connections; the first of several.
    #[default]
    FewestConnections,
    /// This core, by its number within the node.
    Core(usize),
}

/// Connections of each core, limited to those with reserved receive memory.
#[derive(Debug)]
pub struct Occupancy {
    taken: Vec<u32>,
    limit: u32,
}

impl Occupancy {
    /// `cores` cores with room for `limit` connections each.
    #[must_use]
    pub fn new(cores: usize, limit: u32) -> Self {
        Self {
            taken: vec![0; cores],
            limit,
        }
    }

    /// Takes no more than `limit` connections for each core from now on; those that are open stay.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Takes a place according to `choice`; `None` when there is none, or no such core.
    pub fn take(&mut self, choice: CoreChoice) -> Option<usize> {
        let core = match choice {
            CoreChoice::Core(core) => core,
            CoreChoice::FewestConnections => {
                let (core, _) = self
                    .taken
                    .iter()
                    .enumerate()
                    .min_by_key(|(_, taken)| **taken)?;
                core
            }
        };
        let taken = self.taken.get_mut(core)?;
        if *taken >= self.limit {
            return None;
        }
        *taken += 1;
        Some(core)
    }

    /// Gives a place back.
    pub fn release(&mut self, core: usize) {
        if let Some(taken) = self.taken.get_mut(core) {
            *taken = taken.saturating_sub(1);
        }
    }

    /// Gives no more places of a core, which is no more.
    pub fn retire(&mut self, core: usize) {
        if let Some(taken) = self.taken.get_mut(core) {
            *taken = u32::MAX;
        }
    }

    /// The connections of one core.
    #[must_use]
    pub fn taken(&self, core: usize) -> u32 {
        self.taken.get(core).copied().unwrap_or(0)
    }

    /// The connections that all cores can hold together.
    #[must_use]
    pub fn limit_of_all(&self) -> u32 {
        let cores = u32::try_from(self.taken.len()).unwrap_or(u32::MAX);
        self.limit.saturating_mul(cores)
    }
}

/// Connections of each peer against its limit.
#[derive(Debug)]
pub struct PeerLimits {
    taken: HashMap<u64, u32>,
    limit: u32,
}

impl PeerLimits {
    /// At most `limit` connections for each peer.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self {
            taken: HashMap::new(),
            limit,
        }
    }

    /// Takes no more than `limit` connections of each peer from now on; those that are open stay.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Takes a place for the peer; false when it has as many as it may.
    pub fn take(&mut self, peer: u64) -> bool {
        let taken = self.taken.entry(peer).or_insert(0);
        if *taken >= self.limit {
            return false;
        }
        *taken += 1;
        true
    }

    /// Gives a place of the peer back.
    pub fn release(&mut self, peer: u64) {
        if let Some(taken) = self.taken.get_mut(&peer) {
            *taken -= 1;
            if *taken == 0 {
                self.taken.remove(&peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewest_connections_first() {
        let mut cores = Occupancy::new(3, 2);
        let order: Vec<_> = (0..7)
            .map(|_| cores.take(CoreChoice::FewestConnections))
            .collect();
        assert_eq!(
            order,
            [Some(0), Some(1), Some(2), Some(0), Some(1), Some(2), None]
        );
        cores.release(1);
        assert_eq!(cores.take(CoreChoice::FewestConnections), Some(1));
        assert_eq!(cores.limit_of_all(), 6);
    }

    #[test]
    fn a_core_by_its_number() {
        let mut cores = Occupancy::new(2, 1);
        assert_eq!(cores.take(CoreChoice::Core(1)), Some(1));
        assert_eq!(cores.take(CoreChoice::Core(1)), None, "it is full");
        assert_eq!(
            cores.take(CoreChoice::Core(2)),
            None,
            "there is no such core"
        );
        assert_eq!(cores.take(CoreChoice::FewestConnections), Some(0));
        assert_eq!((cores.taken(0), cores.taken(1), cores.taken(2)), (1, 1, 0));
    }

    #[test]
    fn a_core_that_is_no_more_is_never_chosen() {
        let mut cores = Occupancy::new(2, 2);
        cores.retire(0);
        assert_eq!(cores.take(CoreChoice::Core(0)), None);
        let order = [(); 3].map(|()| cores.take(CoreChoice::FewestConnections));
        assert_eq!(order, [Some(1), Some(1), None]);
    }

    #[test]
    fn a_peer_has_at_most_its_limit() {
        let mut peers = PeerLimits::new(2);
        assert!(peers.take(7) && peers.take(7) && !peers.take(7));
        assert!(peers.take(8), "another peer has its own");
        peers.release(7);
        assert!(peers.take(7));
        peers.release(8);
        peers.release(8);
        assert!(peers.take(8) && peers.take(8) && !peers.take(8));
    }

    #[test]
    fn a_limit_of_zero_admits_nobody() {
        assert!(!PeerLimits::new(0).take(1));
        assert_eq!(
            Occupancy::new(1, 0).take(CoreChoice::FewestConnections),
            None
        );
        assert_eq!(
            Occupancy::new(0, 5).take(CoreChoice::FewestConnections),
            None
        );
    }
}
