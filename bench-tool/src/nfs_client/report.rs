//! The report of `bench-tool nfs`: the keys of `run` where they mean the same, and keys of NFS.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::config::NfsConfig;
use crate::histogram::{LatencySummary, null_without_calls};
use crate::load::measured::Measured;
use crate::load::timeline::Timeline;
use crate::machine::Machine;
use crate::record::{self, Record};
use crate::report::Word;
use crate::report::figures::{LoadFigures, Totals, plural};
use crate::report::origin::Origin;
use crate::report::table::{write_calls, write_intervals, write_latencies, write_warnings};
use crate::report::view::{LoadReport, LoadView, machine_facts, missing};
use crate::workloads::nfs::steps::{NfsOp, StepKind};
use crate::workloads::nfs::tally::Tally;
use rpcrdma_doctor::format_cores;
use rpcrdma_nfs3::wire::results::Fsinfo;
use rpcrdma_units::{self as units, bandwidth, count, size, text_of};

/// Name and version of the JSON layout. The version changes only if a key changes its meaning or is removed.
pub(crate) const SCHEMA: &str = "rpcrdma.bench-tool.nfs/1";

/// The transport of the calls.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    KernelTcp,
    /// RPC-over-RDMA on a fabric.
    Fabric {
        /// `shm` or `verbs`.
        fabric: &'static str,
        device: Option<String>,
        /// Version of RPC-over-RDMA.
        version: u32,
        profile: String,
        /// Warnings about the profile, and about what the devices lack of it.
        warnings: Vec<String>,
        client: Box<Record>,
    },
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) transport: Transport,
    pub(crate) measured: Measured,
    pub(crate) tally: Tally,
    /// The latencies of all procedures over time.
    pub(crate) timeline: Timeline,
    pub(crate) info: Fsinfo,
    /// Blocks read back at the end, and how many of them had wrong content.
    pub(crate) blocks_checked: u64,
    pub(crate) blocks_wrong: u64,
    /// The server restarted with uncommitted writes. It may have lost them, so nothing was read back.
    pub(crate) is_lost_by_right: bool,
}

impl Outcome {
    pub(crate) fn new(
        (measured, tally): (Measured, Tally),
        timeline: Timeline,
        info: Fsinfo,
        transport: Transport,
    ) -> Self {
        Self {
            transport,
            measured,
            tally,
            timeline,
            info,
            blocks_checked: 0,
            blocks_wrong: 0,
            is_lost_by_right: false,
        }
    }

    /// Failed calls and wrong blocks.
    pub(crate) fn errors(&self) -> u64 {
        self.measured.errors.total() + self.blocks_wrong
    }
}

/// One procedure in the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProcedureReport {
    calls: u64,
    payload_bytes: u64,
    #[serde(with = "null_without_calls")]
    latency_ns: LatencySummary,
}

/// The server's limits (FSINFO).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ServerReport {
    read_bytes_max: u32,
    read_bytes_preferred: u32,
    write_bytes_max: u32,
    write_bytes_preferred: u32,
    file_bytes_max: u64,
}

/// The report. Its serialization is the JSON report, whose layout is stable.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) origin: Origin,
    machine: Machine,
    clock: String,
    connect: String,
    export: String,
    /// `kernel_tcp`, or the fabric: `shm` or `verbs`.
    transport: Word,
    device: Option<String>,
    /// `v1` or `v2` of RPC-over-RDMA; `None` on TCP.
    protocol: Option<String>,
    profile: Option<String>,
    nfs_version: u32,
    op: Word,
    size_bytes: u32,
    file_bytes: u64,
    files: u32,
    access: Option<Word>,
    read_percent: Option<u32>,
    stable: Option<Word>,
    seed: u64,
    verify: bool,
    #[serde(flatten)]
    load: LoadFigures,
    errors_by_name: BTreeMap<String, u64>,
    procedures: BTreeMap<Word, ProcedureReport>,
    /// Calls that moved less data than requested.
    short_transfers: u64,
    /// How often the server deferred a call (NFS3ERR_JUKEBOX) and the call was repeated.
    put_off: u64,
    verifier_changes: u64,
    blocks_checked: u64,
    blocks_wrong: u64,
    server: ServerReport,
    /// The record of this end.
    #[serde(default)]
    client: Option<Value>,
    pub(crate) warnings: Vec<String>,
}

impl Report {
    /// Combines configuration and results.
    pub(crate) fn new(config: &NfsConfig, machine: &Machine, outcome: &Outcome) -> Self {
        let (measured, tally) = (&outcome.measured, &outcome.tally);
        let totals = Totals {
            elapsed: measured.elapsed,
            interrupted: measured.interrupted,
            failure: measured.failure.clone(),
            due: measured.calls_due,
            errors: outcome.errors(),
            losses: measured.losses.clone(),
            paths: measured.paths.clone(),
            payload_bytes: tally.bytes(),
        };
        let timeline = &outcome.timeline;
        let load = LoadFigures::new(&config.load, &timeline.latency(), timeline, &totals);
        let is_bulk = config.op.is_bulk();
        let (transport, device, protocol, profile) = match &outcome.transport {
            Transport::KernelTcp => ("kernel_tcp", None, None, None),
            Transport::Fabric {
                fabric,
                device,
                version,
                profile,
                ..
            } => (
                *fabric,
                device.clone(),
                Some(format!("v{version}")),
                Some(profile.clone()),
            ),
        };
        let procedures = StepKind::ALL.iter().zip(&tally.procedures);
        let procedures = procedures.filter_map(|(kind, procedure)| {
            let procedure = procedure.as_ref()?;
            let latency_ns = procedure.latency.summary();
            let report = ProcedureReport {
                calls: latency_ns.count,
                payload_bytes: procedure.bytes,
                latency_ns,
            };
            Some((kind.name().into(), report))
        });
        Self {
            origin: Origin::new(SCHEMA, config.command.clone()),
            machine: machine.clone(),
            clock: crate::clock::source(),
            connect: config.server.to_string(),
            export: config.export.clone(),
            transport: transport.into(),
            device,
            protocol,
            profile,
            nfs_version: rpcrdma_nfs3::wire::VERSION,
            op: config.op.name().into(),
            size_bytes: config.size_bytes,
            file_bytes: config.file_bytes,
            files: config.files,
            access: is_bulk.then(|| config.access.name().into()),
            read_percent: is_bulk.then_some(config.read_percent),
            stable: config.is_written().then(|| config.stable.name().into()),
            seed: config.seed,
            verify: config.verify,
            errors_by_name: measured.errors.by_name.clone(),
            procedures: procedures.collect(),
            short_transfers: tally.short,
            put_off: measured.retried_later,
            verifier_changes: tally.verifier_changes,
            blocks_checked: outcome.blocks_checked,
            blocks_wrong: outcome.blocks_wrong,
            server: ServerReport {
                read_bytes_max: outcome.info.read_bytes_max,
                read_bytes_preferred: outcome.info.read_bytes_preferred,
                write_bytes_max: outcome.info.write_bytes_max,
                write_bytes_preferred: outcome.info.write_bytes_preferred,
                file_bytes_max: outcome.info.file_bytes_max,
            },
            client: match &outcome.transport {
                Transport::KernelTcp => {
                    serde_json::to_value(Record::of_tcp(machine, &config.load.cores)).ok()
                }
                Transport::Fabric { client, .. } => serde_json::to_value(client).ok(),
            },
            warnings: {
                let mut warnings = warnings(config, machine, outcome);
                warnings.extend(load.warnings(&totals, timeline));
                warnings
            },
            load,
        }
    }

    /// The table for the terminal; with `intervals`, one line for each interval.
    pub(crate) fn table(&self, intervals: bool) -> String {
        text_of(|text| self.write(text, intervals))
    }

    fn write(&self, text: &mut String, intervals: bool) -> fmt::Result {
        self.write_heading(text)?;
        write_latencies(text, &self.load)?;
        if self.procedures.len() > 1 {
            for (name, procedure) in &self.procedures {
                let latency = &procedure.latency_ns;
                writeln!(
                    text,
                    "  {name}: {} calls, p50 {}, p99 {}, max {}",
                    count(procedure.calls),
                    units::nanoseconds(latency.p50),
                    units::nanoseconds(latency.p99),
                    units::nanoseconds(latency.max),
                )?;
            }
        }
        self.write_totals(text)?;
        if intervals {
            write_intervals(text, &self.load.intervals)?;
        }
        write_warnings(text, &self.warnings)
    }

    /// Descriptions of the calls and of the transport.
    fn work(&self) -> (String, String) {
        let work = match (&self.access, self.read_percent) {
            (Some(access), Some(percent)) => {
                let share = match &*self.op {
                    "mix" => format!(", {percent} % of them reads"),
                    _ => String::new(),
                };
                let stable = self.stable.as_ref();
                let stable = stable.map_or_else(String::new, |it| format!(", {it}"));
                format!(
                    "{} of {}{share}{stable}, {access} in {} files of {}",
                    self.op,
                    size(self.size_bytes.into()),
                    self.files,
                    size(self.file_bytes)
                )
            }
            _ => self.op.to_string(),
        };
        let device = self.device.as_deref();
        let device = device.map_or_else(String::new, |device| format!(" ({device})"));
        let transport = match &*self.transport {
            "kernel_tcp" => "the kernel's TCP".to_owned(),
            fabric => {
                let version = self.protocol.as_deref().unwrap_or_default();
                format!("RPC-over-RDMA {version} on {fabric}{device}")
            }
        };
        (work, transport)
    }

    fn write_heading(&self, text: &mut String) -> fmt::Result {
        let (work, transport) = self.work();
        let looped = self.load.loop_text();
        writeln!(text, "{work}, NFS version 3 over {transport}, {looped}")?;
        let cores = match self.load.cores[..] {
            [] => String::new(),
            _ => format!(" on core {}", format_cores(&self.load.cores)),
        };
        writeln!(
            text,
            "depth {}, {}{cores}, server at {}, export {}",
            self.load.depth,
            plural(self.load.connections, "connection", "connections"),
            self.connect,
            self.export,
        )?;
        self.load.write_paths(text)?;
        writeln!(text, "measured for {}", self.load.time_text())
    }

    fn write_totals(&self, text: &mut String) -> fmt::Result {
        write_calls(text, &self.load)?;
        if self.size_bytes > 0 {
            let moved = bandwidth(self.load.bandwidth_bytes_per_s);
            writeln!(text, "bandwidth {moved} of payload")?;
        }
        if self.blocks_checked > 0 {
            writeln!(
                text,
                "read back {} blocks that were written, {} of them wrong",
                count(self.blocks_checked),
                count(self.blocks_wrong)
            )?;
        }
        for (name, errors) in &self.errors_by_name {
            writeln!(text, "errors    {name} {}", count(*errors))?;
        }
        writeln!(
            text,
            "server    READ up to {}, WRITE up to {}",
            size(self.server.read_bytes_max.into()),
            size(self.server.write_bytes_max.into())
        )
    }
}

impl LoadReport for Report {
    fn view(&self) -> LoadView<'_> {
        let (work, transport) = self.work();
        LoadView {
            title: format!(
                "{work}, depth {}, NFS version 3 over {transport}",
                self.load.depth
            ),
            heading: text_of(|text| self.write_heading(text)),
            origin: &self.origin,
            load: &self.load,
            bandwidth_bytes_per_s: (self.size_bytes > 0).then_some(self.load.bandwidth_bytes_per_s),
            per_core: &[],
            floor_ratio: None,
            floor: String::new(),
            warnings: &self.warnings,
            disturbed: false,
            facts: self.facts(),
            missing: missing(&self.load, self.client.is_some()),
        }
    }
}

impl Report {
    /// Facts about the measurement, as pairs of name and text.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![
            ("load", self.load.shape()),
            (
                "server",
                format!("{}, export {}", self.connect, self.export),
            ),
            ("transport", self.work().1),
        ];
        facts.extend(self.profile.clone().map(|profile| ("profile", profile)));
        facts.extend(machine_facts(&self.machine));
        facts.extend(record::facts(record::OF_CLIENT, &self.client));
        facts.extend(self.load.began_fact());
        facts.extend(self.load.paths_fact());
        facts.push(("clock", self.clock.clone()));
        facts
    }
}

fn warnings(config: &NfsConfig, machine: &Machine, outcome: &Outcome) -> Vec<String> {
    let (measured, tally) = (&outcome.measured, &outcome.tally);
    let mut warnings = machine.warnings(&config.load.cores);
    if let Transport::Fabric { warnings: told, .. } = &outcome.transport {
        warnings.extend(told.iter().cloned());
    }
    warnings.extend(measured.warnings());
    if outcome.blocks_wrong > 0 {
        warnings.push(format!(
            "{} of {} blocks that the server said were written do not hold what was written",
            count(outcome.blocks_wrong),
            count(outcome.blocks_checked)
        ));
    }
    if tally.short > 0 {
        warnings.push(format!(
            "{} calls moved less data than requested: the rate counts them as whole calls, the bandwidth counts the bytes moved",
            count(tally.short)
        ));
    }
    if measured.retried_later > 0 {
        warnings.push(format!(
            "the server put calls off {} times (NFS3ERR_JUKEBOX), and they were made again: their waits are in the latencies",
            count(measured.retried_later)
        ));
    }
    if tally.verifier_changes > 0 {
        warnings.push(if outcome.is_lost_by_right {
            "the write verifier changed: the server was restarted, and may have lost what was not committed; nothing \
             was read back (--stable file makes it promise more)"
                .to_owned()
        } else {
            "the write verifier changed: the server was restarted meanwhile".to_owned()
        });
    }
    if config.op == NfsOp::Read && config.file_bytes * u64::from(config.files) <= 1 << 30 {
        warnings.push(
            "the files fit a server's memory: reads show its cache and not its disks".to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests;
