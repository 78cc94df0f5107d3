//! The NUMA place of a device, and the distance of cores and hugepages from it.

use serde::Serialize;

use super::super::Needs;
use super::super::finding::{Findings, Severity};
use super::super::memory;
use super::super::system::System;
use crate::cores::format_cores;
use rpcrdma_units::size;

const NODES: &str = "/sys/devices/system/node";

/// The NUMA place of a device in the JSON report. `None` if the system does not give the value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Place {
    /// The NUMA node of the device.
    pub numa_node: Option<u32>,
    /// The cores of that node.
    pub local_cores: Option<Vec<usize>>,
    /// The distances from that node to all nodes, in node order; 10 is the node itself.
    pub numa_distances: Option<Vec<u32>>,
    /// The number of free hugepages on that node, of the size in the profile.
    pub local_hugepages_free: Option<u64>,
}

/// Reads the place of the device with the folder `device`.
pub(crate) fn read(system: &System, needs: &Needs, device: &str) -> Place {
    // The file holds -1 on a machine without NUMA, or if the firmware does not give the node.
    let numa_node = system
        .number(&format!("{device}/device/numa_node"))
        .and_then(|node| u32::try_from(node).ok());
    let of_node = |file: &str| numa_node.map(|node| format!("{NODES}/node{node}/{file}"));
    Place {
        numa_node,
        local_cores: system.cores(&format!("{device}/device/local_cpulist")),
        numa_distances: of_node("distance")
            .and_then(|file| system.text(&file))
            .and_then(|text| {
                text.split_whitespace()
                    .map(|word| word.parse().ok())
                    .collect()
            }),
        local_hugepages_free: of_node(&format!("{}/free_hugepages", memory::pool(needs)))
            .and_then(|file| system.number(&file)),
    }
}

impl Place {
    /// The distance to the farthest node.
    fn farthest(&self) -> Option<u32> {
        self.numa_distances.as_ref()?.iter().max().copied()
    }
}

/// Judges the place of the device of that name.
pub(crate) fn judge(
    system: &System,
    needs: &Needs,
    (name, place): (&str, &Place),
    findings: &mut Findings<'_>,
) {
    judge_cores(system.cores_allowed().as_deref(), name, place, findings);
    judge_hugepages(needs, name, place, findings);
}

/// Whether cores near the device can poll it.
fn judge_cores(allowed: Option<&[usize]>, name: &str, place: &Place, findings: &mut Findings<'_>) {
    let (Some(local), Some(allowed)) = (&place.local_cores, allowed) else {
        return;
    };
    if local.is_empty() {
        return;
    }
    let node = place.numa_node.map_or_else(
        || "a NUMA node".to_owned(),
        |node| format!("NUMA node {node}"),
    );
    let near: Vec<usize> = local
        .iter()
        .copied()
        .filter(|core| allowed.contains(core))
        .collect();
    let far: Vec<usize> = allowed
        .iter()
        .copied()
        .filter(|core| !local.contains(core))
        .collect();
    let distance = place.farthest().map_or_else(String::new, |far| {
        format!(" (at a distance of up to {far}, where 10 means local)")
    });
    if near.is_empty() {
        let local = format_cores(local);
        findings.note(
            Severity::Warning,
            format!("{name} is attached to {node}, and no core of it may be used by this process{distance}"),
            "each access to the device and to its completions crosses between the nodes",
            format!("taskset -c {local} bench-tool run   # or --cores with two among {local}"),
        );
    } else if far.is_empty() {
        findings.ok(format!(
            "{name} is attached to {node}, as every core that this process may use"
        ));
    } else {
        let near = format_cores(&near);
        findings.note(
            Severity::Hint,
            format!(
                "{name} is attached to {node}, with cores {near}; cores {} are on others{distance}",
                format_cores(&far)
            ),
            "on those each access to the device and to its completions crosses between the nodes",
            format!("taskset -c {near} bench-tool run   # or --cores with two among {near}"),
        );
    }
}

/// Whether arenas of cores near the device find hugepages near it.
fn judge_hugepages(needs: &Needs, name: &str, place: &Place, findings: &mut Findings<'_>) {
    let (Some(node), Some(free)) = (place.numa_node, place.local_hugepages_free) else {
        return;
    };
    let Some(pages) = memory::pages_needed(needs) else {
        return;
    };
    let what = format!(
        "{name}: {free} hugepages of {} are free on its NUMA node {node}, two cores take {pages}",
        size(needs.hugepage_bytes)
    );
    if free >= pages {
        return findings.ok(what);
    }
    findings.note(
        Severity::Warning,
        what,
        "registered memory comes from another node or of ordinary pages, and the device reaches it late",
        format!(
            "f={NODES}/node{node}/{}/nr_hugepages; echo $(($(cat $f) + {})) > $f",
            memory::pool(needs),
            pages - free
        ),
    );
}
