//! What the report of every load shows, in tables, on pages and on the way to the knee.

use serde::Serialize;

use super::figures::LoadFigures;
use crate::load::timeline::CoreFigures;
use crate::machine::Machine;
use rpcrdma_doctor::format_cores;
use rpcrdma_units::size;

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
