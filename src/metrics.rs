//! What a node counts, for exporters.

use std::fmt;
use std::sync::Arc;

use rpcrdma_control::{ControlCounters, NodeSnapshot};
use rpcrdma_engine::{CounterSnapshot, LevelSnapshot};

use crate::once::{Clients, Waiter};
use crate::tcp::Counters;

/// Reads the counters and levels of a node, from any thread and also after the node has ended. No call waits for that.
#[derive(Clone)]
pub struct Metrics {
    watch: Arc<dyn Fn() -> NodeSnapshot + Send + Sync>,
    once: Option<Arc<Clients<Waiter>>>,
    tcp: Arc<Counters>,
}

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, in lower case with underscores.
    pub name: &'static str,
    /// What it says, in a sentence or two.
    pub meaning: &'static str,
    /// The core that it is of; `None` for those of the node.
    pub core: Option<usize>,
    /// It is of the fabric: of the port of the core or, without a core, of the manager of connections, which counts the
    /// events of devices. Its name may be that of another metric.
    pub is_of_fabric: bool,
    /// It only grows (a counter); else it goes up and down (a gauge).
    pub is_counter: bool,
    /// Its value.
    pub value: u64,
}

impl Metrics {
    pub(crate) fn new(
        watch: Arc<dyn Fn() -> NodeSnapshot + Send + Sync>,
        once: Option<Arc<Clients<Waiter>>>,
        tcp: Arc<Counters>,
    ) -> Self {
        Self { watch, once, tcp }
    }

    /// All of it as the engine has it, with the distribution of poll times. What is counted of TCP is among the counters of the
    /// control thread.
    #[must_use]
    pub fn snapshot(&self) -> NodeSnapshot {
        let mut snapshot = (self.watch)();
        snapshot.control.extend(self.tcp.values());
        snapshot
    }

    /// All counters and levels.
    #[must_use]
    pub fn values(&self) -> Vec<Metric> {
        let snapshot = self.snapshot();
        let mut values = Vec::new();
        let mut add = |core, is_counter, (name, value), meaning: &&'static str| {
            values.push(Metric {
                name,
                meaning: meaning.trim(),
                core,
                is_of_fabric: false,
                is_counter,
                value,
            });
        };
        let meanings = ControlCounters::MEANINGS.iter().chain(&Counters::MEANINGS);
        for (counter, meaning) in snapshot.control.iter().zip(meanings) {
            add(None, true, *counter, meaning);
        }
        if let Some(clients) = &self.once {
            let meaning =
                "Calls of procedures that must not run twice which came again, and did not run.";
            add(None, true, ("calls_repeated", clients.repeated()), &meaning);
        }
        for (core, of_core) in snapshot.cores.iter().enumerate() {
            let counters = of_core.counters.iter().zip(CounterSnapshot::MEANINGS);
            counters.for_each(|(counter, meaning)| add(Some(core), true, counter, meaning));
            let levels = of_core.levels.iter().zip(LevelSnapshot::MEANINGS);
            levels.for_each(|(level, meaning)| add(Some(core), false, level, meaning));
        }
        let of_cores = snapshot.cores.iter().enumerate();
        let of_cores =
            of_cores.flat_map(|(core, it)| it.fabric.iter().map(move |it| (Some(core), it)));
        let of_manager = snapshot.fabric.iter().map(|it| (None, it));
        values.extend(of_manager.chain(of_cores).map(|(core, it)| Metric {
            name: it.name,
            meaning: it.meaning,
            core,
            is_of_fabric: true,
            is_counter: true,
            value: it.value,
        }));
        values
    }

    /// The sum of a counter over all cores; without one of that name in the cores, the counter of the control thread; without
    /// a counter, the level ([`Metrics::level`]); without a level, the sum of the counters of the fabric. `None` when there is
    /// none of that name.
    #[must_use]
    pub fn total(&self, name: &str) -> Option<u64> {
        let mut values = self.values();
        values.retain(|metric| metric.name == name);
        let sum = |is_of_core, is_counter| {
            let of_kind = |metric: &&Metric| {
                (metric.core.is_some(), metric.is_counter) == (is_of_core, is_counter)
                    && !metric.is_of_fabric
            };
            let values = values.iter().filter(of_kind).map(|metric| metric.value);
            values.reduce(|sum, value| sum + value)
        };
        sum(true, true)
            .or_else(|| sum(false, true))
            .or_else(|| sum(true, false))
            .or_else(|| {
                let values = values.iter().map(|metric| metric.value);
                values.reduce(|sum, value| sum + value)
            })
    }

    /// The sum of a level over all cores, also where a counter has its name (`receives_posted`: how many are posted now, and
    /// how many were). `None` when there is none of that name.
    #[must_use]
    pub fn level(&self, name: &str) -> Option<u64> {
        let values = self.values().into_iter();
        let of_name = values.filter(|metric| !metric.is_counter && metric.name == name);
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

/// Registers with any registry of `prometheus-client`. Counters of cores are `rpcrdma_NAME` and levels `rpcrdma_level_NAME`,
/// with the label `core`; the counters of the control thread are `rpcrdma_control_NAME`, those of ports `rpcrdma_port_NAME`, and those
/// of the manager of connections `rpcrdma_manager_NAME`. Of each device there are the levels `rpcrdma_device_links_up`,
/// `rpcrdma_device_links` and `rpcrdma_device_connections`, with the label `device`.
#[cfg(feature = "prometheus")]
impl prometheus_client::collector::Collector for Metrics {
    fn encode(
        &self,
        mut encoder: prometheus_client::encoding::DescriptorEncoder<'_>,
    ) -> fmt::Result {
        use std::collections::BTreeMap;

        use prometheus_client::encoding::EncodeMetric;
        use prometheus_client::metrics::MetricType;
        use prometheus_client::metrics::counter::ConstCounter;
        use prometheus_client::metrics::gauge::ConstGauge;

        let devices = self.snapshot().devices;
        for (name, meaning, level) in crate::DeviceLevels::ALL {
            let name = format!("rpcrdma_device_{name}");
            let gauge = MetricType::Gauge;
            let mut family = encoder.encode_descriptor(&name, meaning, None, gauge)?;
            for device in &devices {
                let value = i64::try_from(level(device)).unwrap_or(i64::MAX);
                let labels = [("device", device.name.as_str())];
                let encoder = family.encode_family(&labels)?;
                ConstGauge::new(value).encode(encoder)?;
            }
        }
        let values = self.values();
        let family_of = |metric: &Metric| match (metric.core, metric.is_counter) {
            (None, _) if metric.is_of_fabric => format!("rpcrdma_manager_{}", metric.name),
            (Some(_), _) if metric.is_of_fabric => format!("rpcrdma_port_{}", metric.name),
            (None, _) => format!("rpcrdma_control_{}", metric.name),
            (Some(_), true) => format!("rpcrdma_{}", metric.name),
            // Some counters have the same name.
            (Some(_), false) => format!("rpcrdma_level_{}", metric.name),
        };
        let mut families = BTreeMap::<_, Vec<_>>::new();
        for metric in &values {
            families.entry(family_of(metric)).or_default().push(metric);
        }
        for (name, metrics) in families {
            let Some(first) = metrics.first() else {
                continue;
            };
            let kind = match first.is_counter {
                true => MetricType::Counter,
                false => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(&name, first.meaning, None, kind)?;
            for metric in metrics {
                let labels: Vec<_> = metric
                    .core
                    .map(|core| ("core", core.to_string()))
                    .into_iter()
                    .collect();
                let encoder = family.encode_family(&labels)?;
                match metric.is_counter {
                    true => ConstCounter::new(metric.value).encode(encoder)?,
                    // Levels are counts of what a node has: they fit.
                    false => ConstGauge::new(i64::try_from(metric.value).unwrap_or(i64::MAX))
                        .encode(encoder)?,
                }
            }
        }
        Ok(())
    }
}
