//! Generator and service of null calls, for programs that drive a core themselves (benchmarks).

use std::sync::Arc;
use std::time::Duration;

use rpcrdma_control::{Fabric, NodeConfig};
use rpcrdma_engine::{Application, ConnectionKey, CoreConfig};
use rpcrdma_tuning::Profile;

use super::{BenchPlan, BenchWorkload};
use crate::bench_program::{self, BenchService, NULL};
use crate::load::control::{LoadControl, LoadOrder};
use crate::load::gate::Gate;
use crate::load::generator::Generator;
use crate::load::{Amount, Limit, Watch};
use crate::progress::Progress;
use crate::signals::Stop;
use crate::sizing::Need;
use crate::sizing::ProfileChoice;

/// The load that `bench-tool run` puts on a core for null calls: a closed loop with `depth` calls outstanding on each
/// connection, recorded per interval. It never ends.
#[derive(Debug)]
pub struct NullCalls {
    depth: u32,
    control: Arc<LoadControl<BenchWorkload>>,
}

impl NullCalls {
    /// A load with `depth` calls outstanding on each connection.
    #[must_use]
    pub fn new(depth: u32) -> Self {
        Self {
            depth,
            control: Arc::default(),
        }
    }

    /// The configuration that `bench-tool` derives from the shm profile for a core with one connection.
    ///
    /// # Panics
    /// If the profile does not allow `depth` calls.
    #[must_use]
    pub fn core(&self) -> CoreConfig {
        NodeConfig::from_profile(&self.profile(), Vec::new()).core
    }

    /// The profile of that core.
    ///
    /// # Panics
    /// As [`NullCalls::core`].
    #[must_use]
    pub fn profile(&self) -> Profile {
        let need = Need {
            connections_per_core: Some(1),
            credits: Some(self.depth),
            calls_per_core: Some(self.depth),
            cores: 1,
            ..Need::default()
        };
        let loaded = need.profile(&ProfileChoice::default(), &Fabric::SHM);
        loaded.expect("the profile of shm").profile
    }

    /// The generator, as the application of a core.
    #[must_use]
    pub fn generator(&self) -> impl Application + use<> {
        Generator::new(Arc::clone(&self.control))
    }

    /// The service, as the application of another core.
    #[must_use]
    pub fn service(&self) -> impl Application + use<> {
        BenchService::default()
    }

    /// Starts the calls on `connections`, which belong to the generator's core, and the recording in intervals of
    /// length `interval`.
    pub fn start(&self, connections: Vec<ConnectionKey>, interval: Duration) {
        self.control.begin(self.order(connections, interval));
    }

    pub(crate) fn order(
        &self,
        connections: Vec<ConnectionKey>,
        interval: Duration,
    ) -> LoadOrder<BenchWorkload> {
        LoadOrder {
            connections,
            workload: BenchWorkload::new(BenchPlan::Message {
                call: bench_program::call(NULL),
                payload_bytes: None,
            }),
            amount: Amount {
                depth: self.depth,
                warmup: Duration::ZERO,
                limit: Limit::Count(u64::MAX),
                rate: None,
                retry: Duration::ZERO,
                interval,
            },
            part: 0,
            watch: Watch {
                stop: Stop::new(),
                progress: Progress::new(1),
                server_process: None,
                gate: Gate::default(),
            },
        }
    }
}
