//! Watching a node from any thread, while it lives and after.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rpcrdma_engine::{CoreHandle, CounterSnapshot, LevelSnapshot, PollTimeSnapshot};
use rpcrdma_fabric::interface::{Counted, DeviceLevels, Port, PublishedCounters};

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
    /// What its port counted.
    pub fabric: Vec<Counted>,
}

/// Counters and levels of a node.
#[derive(Clone, Debug, Default)]
pub struct NodeSnapshot {
    /// Its cores, in order.
    pub cores: Vec<CoreSnapshot>,
    /// The control thread's counters, by name.
    pub control: Vec<(&'static str, u64)>,
    /// What the manager of connections counted, events of devices included.
    pub fabric: Vec<Counted>,
    /// The devices of the manager, as they were within some five seconds.
    pub devices: Vec<DeviceLevels>,
}

/// The devices of a node, as they were when its control thread looked last.
#[derive(Clone, Debug, Default)]
pub(crate) struct PublishedDevices(Arc<Mutex<Vec<DeviceLevels>>>);

impl PublishedDevices {
    pub(crate) fn publish(&self, devices: Vec<DeviceLevels>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = devices;
    }

    fn snapshot(&self) -> Vec<DeviceLevels> {
        let devices = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        devices.clone()
    }
}

/// A core, of whichever fabric, as any thread may see it: while it runs and after it has ended.
#[derive(Clone)]
pub struct CoreView(Arc<dyn Observed>);

/// What every core shows.
trait Observed: Send + Sync {
    fn counters(&self) -> CounterSnapshot;
    fn levels(&self) -> LevelSnapshot;
    fn poll_times(&self) -> PollTimeSnapshot;
    fn fabric_counters(&self) -> Vec<Counted>;
    fn wake(&self);
}

impl<P: Port> Observed for CoreHandle<P> {
    fn counters(&self) -> CounterSnapshot {
        Self::counters(self)
    }

    fn levels(&self) -> LevelSnapshot {
        Self::levels(self)
    }

    fn poll_times(&self) -> PollTimeSnapshot {
        Self::poll_times(self)
    }

    fn fabric_counters(&self) -> Vec<Counted> {
        Self::fabric_counters(self)
    }

    fn wake(&self) {
        Self::wake(self);
    }
}

impl CoreView {
    pub(crate) fn new<P: Port>(handle: CoreHandle<P>) -> Self {
        Self(Arc::new(handle))
    }

    /// The present values of its counters.
    #[must_use]
    pub fn counters(&self) -> CounterSnapshot {
        self.0.counters()
    }

    /// The levels that it published last.
    #[must_use]
    pub fn levels(&self) -> LevelSnapshot {
        self.0.levels()
    }

    /// How long its polls took.
    #[must_use]
    pub fn poll_times(&self) -> PollTimeSnapshot {
        self.0.poll_times()
    }

    /// What its port counted, as it published it last.
    #[must_use]
    pub fn fabric_counters(&self) -> Vec<Counted> {
        self.0.fabric_counters()
    }

    /// Wakes it if it is parked, so that its application is polled.
    pub fn wake(&self) {
        self.0.wake();
    }
}

impl fmt::Debug for CoreView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CoreView").field(&self.levels()).finish()
    }
}

/// Returns a function that reads the counters and levels. Reading does not involve the cores' threads.
pub(crate) fn watch(
    cores: Vec<CoreView>,
    control: Arc<ControlCounters>,
    fabric: Arc<PublishedCounters>,
    devices: PublishedDevices,
) -> impl Fn() -> NodeSnapshot + Send + Sync + 'static {
    move || NodeSnapshot {
        cores: cores
            .iter()
            .map(|core| CoreSnapshot {
                counters: core.counters(),
                levels: core.levels(),
                poll_times: core.poll_times(),
                fabric: core.fabric_counters(),
            })
            .collect(),
        control: control.snapshot(),
        fabric: fabric.snapshot(),
        devices: devices.snapshot(),
    }
}
