//! Watching a node from any thread, while it lives and after.

use std::sync::Arc;

use rpcrdma_engine::{CoreHandle, CounterSnapshot, LevelSnapshot, PollTimeSnapshot};
use rpcrdma_fabric::interface::Port;

use crate::counters::ControlCounters;

/// What a core shows of itself.
///
/// # Example
/// ```
/// # mod nodes { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/nodes/documented.rs")); }
/// # use nodes::*;
/// # use rpcrdma_control::CoreSnapshot;
/// # let node = start(&config());
/// let CoreSnapshot { counters, levels, .. } = node.watch()().cores.remove(0);
/// assert_eq!((counters.calls_received, levels.calls_deferred), (0, 0));
/// // Four connections of eight credits, with a Receive more for each.
/// assert_eq!(counters.receives_posted, 4 * (8 + 1));
/// ```
#[derive(Clone, Debug, Default)]
pub struct CoreSnapshot {
    /// What it counted.
    pub counters: CounterSnapshot,
    /// How full it is.
    pub levels: LevelSnapshot,
    /// How long its polls took.
    pub poll_times: PollTimeSnapshot,
}

/// What a node shows of itself.
///
/// # Example
/// ```
/// # mod nodes { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/nodes/documented.rs")); }
/// # use nodes::*;
/// # let node = start(&config());
/// let watch = node.watch();
/// // On whatever thread serves the numbers, while the node lives and after.
/// let watcher = std::thread::spawn(move || watch());
/// # let snapshot = watcher.join().unwrap();
/// assert_eq!(snapshot.cores.len(), 1);
/// assert!(snapshot.control.contains(&("connections_ready", 0)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct NodeSnapshot {
    /// Its cores, in order.
    pub cores: Vec<CoreSnapshot>,
    /// The control thread's counters, by name.
    pub control: Vec<(&'static str, u64)>,
}

/// Reads what a node shows of itself. Nothing on the path of a call takes part in that.
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
