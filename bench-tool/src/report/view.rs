//! What the report of every load shows, in tables, on pages and on the way to the knee.

use serde::Serialize;

use super::figures::LoadFigures;
use super::timeline::CoreFigures;
use super::{Report, table};
use crate::machine::Machine;
use rpcrdma_doctor::format_cores;
use rpcrdma_units::{nanoseconds, size, text_of};

/// A report of a load.
pub(crate) trait LoadReport: Serialize {
    /// What it shows.
    fn view(&self) -> LoadView<'_>;
}

/// What is shown of a load.
#[derive(Clone, Debug)]
pub(crate) struct LoadView<'a> {
    /// What was measured, in a line.
    pub(crate) title: String,
    /// The same with how and where, in the lines that a table begins with.
    pub(crate) heading: String,
    pub(crate) command: &'a str,
    pub(crate) load: &'a LoadFigures,
    /// `None` where the calls carry no payload.
    pub(crate) bandwidth_bytes_per_s: Option<f64>,
    pub(crate) per_core: &'a [CoreFigures],
    /// The median over the machine's floor.
    pub(crate) floor_ratio: Option<f64>,
    /// The lines about the floor that a table ends with.
    pub(crate) floor: String,
    pub(crate) warnings: &'a [String],
    /// How it was measured, by name.
    pub(crate) facts: Vec<(&'static str, String)>,
}

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
            command: &self.origin.command,
            load: &self.load,
            bandwidth_bytes_per_s: (self.size_bytes > 0).then_some(self.load.bandwidth_bytes_per_s),
            per_core: &self.per_core,
            floor_ratio: self.floor.as_ref().and_then(|floor| floor.p50_ratio),
            floor: text_of(|text| table::write_floor(text, self)),
            warnings: &self.warnings,
            facts: self.facts(),
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

/// What is to be known of the machine, by name.
pub(crate) fn machine_facts(machine: &Machine) -> Vec<(&'static str, String)> {
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    vec![
        ("processor", machine.cpu.clone()),
        ("system", format!("{} on {}", machine.os, machine.arch)),
        (
            "cores",
            format!(
                "{} online, usable {}",
                machine.cores_online,
                format_cores(&machine.cores_usable)
            ),
        ),
        (
            "memory",
            machine
                .memory_bytes
                .map_or_else(|| "unknown".to_owned(), size),
        ),
        (
            "hypervisor",
            if machine.hypervisor { "yes" } else { "no" }.to_owned(),
        ),
        ("frequency governor", known(&machine.frequency_governor)),
    ]
}
