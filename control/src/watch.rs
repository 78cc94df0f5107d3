//! Watching a node from any thread, while it lives and after.

use std::sync::Arc;

use rpcrdma_engine::{CoreHandle, CounterSnapshot, LevelSnapshot, PollTimeSnapshot};
use rpcrdma_fabric::interface::Port;

use crate::counters::ControlCounters;

/// Counters and levels of a core.
#[derive(Clone, Debug, Default)]
pub struct CoreSnapshot {
    /// What it counted.
    pub counters: CounterSnapshot,
    /// How full it is.
    pub levels: LevelSnapshot,
    /// How long its polls took.
    pub poll_times: PollTimeSnapshot,
}

/// Counters and levels of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeSnapshot {
    /// Its cores, in order.
    pub cores: Vec<CoreSnapshot>,
    /// The control thread's counters, by name.
    pub control: Vec<(&'static str, u64)>,
}

/// Returns a function that reads the counters and levels. Reading does not involve the cores' threads.
pub(crate) fn watch<P: Port>(
    cores: Vec<CoreHandle<P>>,
    control: Arc<ControlCounters>,
) -> impl Fn() -> NodeSnapshot + Send + Sync + 'static {
    move || NodeSnapshot {
        cores: cores
            .iter()
            .map(|core| CoreSnapshot {
                counters: core.counters(),
                levels: core.levels(),
                poll_times: core.poll_times(),
            })
            .collect(),
        control: control.snapshot(),
    }
}
