//! The faults of a node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::fault::Fault;

/// The faults that a node injects, and how often each has struck. Cloning shares the counts.
///
/// A node that is started with [`Node::start`](crate::Node::start) has no fault code on the path of its calls:
/// [`Node::start_with_faults`](crate::Node::start_with_faults) wraps the port of each core and the application in other
/// types.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    planned: Arc<[Planned]>,
}

#[derive(Debug)]
struct Planned {
    fault: Fault,
    injected: AtomicU64,
}

impl FaultPlan {
    /// These faults, none of which has struck.
    #[must_use]
    pub fn new(faults: impl IntoIterator<Item = Fault>) -> Self {
        let planned = |fault| Planned {
            fault,
            injected: AtomicU64::new(0),
        };
        Self {
            planned: faults.into_iter().map(planned).collect(),
        }
    }

    /// Whether there are no faults.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    /// The faults, in order.
    pub fn faults(&self) -> impl Iterator<Item = Fault> + '_ {
        self.planned.iter().map(|planned| planned.fault)
    }

    /// The faults, and how often each has struck until now, on all cores together.
    pub fn injected(&self) -> impl Iterator<Item = (Fault, u64)> + '_ {
        // Relaxed: no other memory depends on this count.
        let of = |it: &Planned| (it.fault, it.injected.load(Ordering::Relaxed));
        self.planned.iter().map(of)
    }

    pub(super) fn count(&self, index: usize) {
        if let Some(planned) = self.planned.get(index) {
            planned.injected.fetch_add(1, Ordering::Relaxed);
        }
    }
}
