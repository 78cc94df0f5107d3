//! What a node counts, for exporters.

use std::fmt;
use std::sync::Arc;

use rpcrdma_control::NodeSnapshot;

use crate::once::Clients;

/// Reads the counters and levels of a node, from any thread and also after the node has ended. No call waits for that.
#[derive(Clone)]
pub struct Metrics {
    watch: Arc<dyn Fn() -> NodeSnapshot + Send + Sync>,
    once: Option<Arc<Clients>>,
}

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, in lower case with underscores.
    pub name: &'static str,
    /// The core that it is of; `None` for those of the node.
    pub core: Option<usize>,
    /// It only grows (a counter); else it goes up and down (a gauge).
    pub is_counter: bool,
    /// Its value.
    pub value: u64,
}

impl Metrics {
    pub(crate) fn new(
        watch: Arc<dyn Fn() -> NodeSnapshot + Send + Sync>,
        once: Option<Arc<Clients>>,
    ) -> Self {
        Self { watch, once }
    }

    /// All of it as the engine has it, with the distribution of poll times.
    #[must_use]
    pub fn snapshot(&self) -> NodeSnapshot {
        (self.watch)()
    }

    /// All counters and levels.
    #[must_use]
    pub fn values(&self) -> Vec<Metric> {
        let snapshot = self.snapshot();
        let node = snapshot.control.iter().map(|&(name, value)| Metric {
            name,
            core: None,
            is_counter: true,
            value,
        });
        // Calls of procedures that must not run twice which came again, and did not run.
        let repeated = self.once.iter().map(|clients| Metric {
            name: "calls_repeated",
            core: None,
            is_counter: true,
            value: clients.repeated(),
        });
        let cores = snapshot.cores.iter().enumerate();
        let cores = cores.flat_map(|(core, values)| {
            let counters = values
                .counters
                .iter()
                .map(|(name, value)| (name, true, value));
            let levels = values
                .levels
                .iter()
                .map(|(name, value)| (name, false, value));
            counters
                .chain(levels)
                .map(move |(name, is_counter, value)| Metric {
                    name,
                    core: Some(core),
                    is_counter,
                    value,
                })
        });
        node.chain(repeated).chain(cores).collect()
    }

    /// The sum of a counter or level over all cores. `None` when there is none of that name.
    #[must_use]
    pub fn total(&self, name: &str) -> Option<u64> {
        let values = self.values().into_iter();
        let of_name = values.filter(|metric| metric.name == name);
        of_name
            .map(|metric| metric.value)
            .reduce(|sum, value| sum + value)
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}
