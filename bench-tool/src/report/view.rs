//! The view of a report that pages and `--to-knee` use, independent of the kind of load.

use std::fmt;

use serde::Serialize;

use super::figures::LoadFigures;
use super::origin::Origin;
use crate::load::timeline::CoreFigures;
use crate::machine::Machine;
use rpcrdma_doctor::format_cores;
use rpcrdma_units::size;

/// A report of a load.
pub(crate) trait LoadReport: Serialize {
    /// The view of this report.
    fn view(&self) -> LoadView<'_>;

    /// Writes the sections of a page that only this kind of report has.
    ///
    /// # Errors
    /// None from a string.
    fn write_sections(&self, _page: &mut String) -> fmt::Result {
        Ok(())
    }
}

/// The common contents of the reports of loads.
#[derive(Clone, Debug)]
pub(crate) struct LoadView<'a> {
    /// One line about the measured calls.
    pub(crate) title: String,
    /// The first lines of a table: what was measured, how and where.
    pub(crate) heading: String,
    pub(crate) origin: &'a Origin,
    pub(crate) load: &'a LoadFigures,
    /// `None` for calls without payload.
    pub(crate) bandwidth_bytes_per_s: Option<f64>,
    pub(crate) per_core: &'a [CoreFigures],
    /// The median divided by the machine's floor.
    pub(crate) floor_ratio: Option<f64>,
    /// The last lines of a table, about the floor; empty if there is none.
    pub(crate) floor: String,
    pub(crate) warnings: &'a [String],
    /// Whether other work, stolen time or the frequency disturbed it. Only `run` detects it, also as a client of a fleet.
    pub(crate) disturbed: bool,
    /// Facts about the measurement, as pairs of name and text.
    pub(crate) facts: Vec<(&'static str, String)>,
    /// What the report does not have, because an earlier version wrote it.
    pub(crate) missing: Vec<&'static str>,
}

/// What a report does not have of what reports of this version have. `is_recorded` says whether it has the record of its
/// end.
pub(crate) fn missing(load: &LoadFigures, is_recorded: bool) -> Vec<&'static str> {
    let all = [
        (
            load.histogram.is_empty() && load.calls > 0,
            "the histogram, so there is no curve of its percentiles",
        ),
        (load.began.is_empty(), "the date"),
        (
            !is_recorded,
            "the records of the ends: host, program, knobs and device",
        ),
    ];
    let missing = all.into_iter().filter(|(is_missing, _)| *is_missing);
    missing.map(|(_, what)| what).collect()
}

/// Facts about the machine, as pairs of name and text.
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
