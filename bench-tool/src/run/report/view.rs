//! The view of a run's report that pages and charts use.

use super::{Report, table};
use crate::record;
use crate::report::view::{LoadReport, LoadView, machine_facts, missing};
use rpcrdma_doctor::format_cores;
use rpcrdma_units::{nanoseconds, size, text_of};

impl LoadReport for Report {
    fn view(&self) -> LoadView<'_> {
        LoadView {
            title: format!(
                "{}, depth {}, RPC-over-RDMA {} over {}",
                table::work(self),
                self.load.depth,
                self.protocol,
                self.fabric
            ),
            heading: text_of(|text| table::write_heading(text, self)),
            origin: &self.origin,
            load: &self.load,
            bandwidth_bytes_per_s: (self.size_bytes > 0).then_some(self.load.bandwidth_bytes_per_s),
            per_core: &self.per_core,
            floor_ratio: self.floor.as_ref().and_then(|floor| floor.p50_ratio),
            floor: text_of(|text| table::write_floor(text, self)),
            warnings: &self.warnings,
            disturbed: self.disturbed,
            facts: self.facts(),
            missing: missing(&self.load, self.client.is_some()),
        }
    }
}

impl Report {
    fn facts(&self) -> Vec<(&'static str, String)> {
        let server = match (&self.server_cores, &self.connect) {
            (Some(cores), _) => format!("a second process, core {}", format_cores(cores)),
            (None, address) => address.clone().unwrap_or_else(|| "unknown".to_owned()),
        };
        let floor = self.floor.as_ref().map_or_else(
            || "not measured".to_owned(),
            |floor| {
                let [first, second] = floor.cores;
                let p50 = nanoseconds(floor.round_trip_ns);
                format!("{p50} (p50, between cores {first} and {second})")
            },
        );
        let mut facts = vec![
            ("load", self.load.shape()),
            ("client", format!("core {}", format_cores(&self.load.cores))),
            ("server", server),
            (
                "fabric",
                self.device.as_ref().map_or_else(
                    || self.fabric.clone(),
                    |device| format!("{} ({device})", self.fabric),
                ),
            ),
            ("profile", self.profile.clone()),
            ("placement", self.placement.clone()),
            ("floor", floor),
        ];
        facts.extend(machine_facts(&self.machine));
        facts.extend(record::facts(record::OF_CLIENT, &self.client));
        facts.extend(record::facts(record::OF_SERVER, &self.server));
        facts.extend(self.load.began_fact());
        facts.extend(self.load.paths_fact());
        facts.extend([
            (
                "clock",
                format!("{}, {:.1} ns a reading", self.clock, self.clock_read_ns),
            ),
            (
                "registered memory",
                format!(
                    "{} in {} pages of {}",
                    size(self.memory.registered_bytes),
                    self.memory.kind,
                    size(self.memory.page_bytes)
                ),
            ),
        ]);
        facts
    }
}
