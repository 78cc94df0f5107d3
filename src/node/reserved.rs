//! Processors that a node has for itself.

use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Failure};

/// Processors that nodes of this process have for themselves ([`NodeBuilder::low_latency`](super::NodeBuilder::low_latency)).
static RESERVED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// A node's part of [`RESERVED`].
pub(super) struct Reserved(Vec<usize>);

impl Reserved {
    /// Pins each core that has no processor to one that nothing in this process has. The last ones come first: interrupts
    /// and the threads of the program are more often on the others.
    pub(super) fn take(cores: &mut [Option<usize>]) -> Result<Self, Error> {
        let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = rpcrdma_engine::processors();
        free.retain(|cpu| !cores.contains(&Some(*cpu)) && !reserved.contains(cpu));
        let wanted = cores.iter().filter(|core| core.is_none()).count();
        if wanted > free.len() {
            return Err(Failure::Processors { wanted }.into());
        }
        for core in &mut *cores {
            *core = core.or_else(|| free.pop());
        }
        let taken: Vec<usize> = cores.iter().copied().flatten().collect();
        reserved.extend(&taken);
        Ok(Self(taken))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
        for cpu in &self.0 {
            if let Some(place) = reserved.iter().position(|it| it == cpu) {
                reserved.swap_remove(place);
            }
        }
    }
}
