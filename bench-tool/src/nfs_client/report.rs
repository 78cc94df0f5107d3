//! What a run reports: the keys of `run` where they mean the same, and those of NFS.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::Serialize;

use super::config::NfsConfig;
use crate::histogram::LatencySummary;
use crate::load::measured::Measured;
use crate::machine::Machine;
use crate::report::table::{
    plural, write_calls, write_corrected, write_intervals, write_latency, write_warnings,
};
use crate::report::timeline::{IntervalFigures, Timeline};
use crate::report::view::{LoadReport, LoadView, machine_facts};
use crate::report::{CorrectedLatency, LossFigures, few_calls, losses, not_kept_up, stretched};
use crate::workloads::nfs::steps::NfsOp;
use crate::workloads::nfs::steps::StepKind;
use crate::workloads::nfs::tally::Tally;
use rpcrdma_doctor::format_cores;
use rpcrdma_nfs3::wire::results::Fsinfo;
use rpcrdma_units::{self as units, bandwidth, count, duration, rate, size, text_of};

/// Name and number of the layout of the JSON. The number changes only when a key changes meaning or goes away.
pub(crate) const SCHEMA: &str = "rpcrdma.bench-tool.nfs/1";

/// What carried the calls.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    KernelTcp,
    /// A fabric of this project.
    Fabric {
        /// `shm` or `verbs`.
        fabric: &'static str,
        device: Option<String>,
        /// Of RPC-over-RDMA.
        version: u32,
        profile: String,
        /// What is to be said of the profile.
        warnings: Vec<String>,
    },
}

/// What became of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) transport: Transport,
    pub(crate) measured: Measured,
    pub(crate) tally: Tally,
    /// The latencies of all procedures over time.
    pub(crate) timeline: Timeline,
    pub(crate) info: Fsinfo,
    /// Blocks that were read back at the end, and those of them that did not hold what was written.
    pub(crate) blocks_checked: u64,
    pub(crate) blocks_wrong: u64,
    /// The server was restarted while writes were not committed: it may have lost them, and nothing was read back.
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

    /// Calls that ended in an error, and blocks that were written and are not there.
    pub(crate) fn errors(&self) -> u64 {
        self.measured.errors.total() + self.blocks_wrong
    }
}

/// One procedure in a report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ProcedureReport {
    calls: u64,
    payload_bytes: u64,
    latency_ns: LatencySummary,
}

/// What the server said of itself (FSINFO).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ServerReport {
    read_bytes_max: u32,
    read_bytes_preferred: u32,
    write_bytes_max: u32,
    write_bytes_preferred: u32,
    file_bytes_max: u64,
}

/// The report; its serialization is the stable JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    version: &'static str,
    revision: &'static str,
    pub(crate) command: String,
    machine: Machine,
    clock: String,
    connect: String,
    export: String,
    /// `kernel_tcp`, or the fabric: `shm` or `verbs`.
    transport: &'static str,
    device: Option<String>,
    /// `v1` or `v2` of RPC-over-RDMA; `None` on TCP.
    protocol: Option<String>,
    profile: Option<String>,
    nfs_version: u32,
    op: &'static str,
    size_bytes: u32,
    file_bytes: u64,
    files: u32,
    access: Option<&'static str>,
    read_percent: Option<u32>,
    stable: Option<&'static str>,
    seed: u64,
    verify: bool,
    depth: u32,
    connections: u32,
    cores: Vec<usize>,
    #[serde(rename = "loop")]
    load_loop: &'static str,
    offered_rate_per_s: Option<u64>,
    warmup_s: f64,
    duration_s: f64,
    interrupted: bool,
    calls: u64,
    errors: u64,
    errors_by_name: BTreeMap<String, u64>,
    rate_per_s: f64,
    bandwidth_bytes_per_s: f64,
    latency_ns: LatencySummary,
    /// The same, corrected for coordinated omission; `None` in an open loop, which measures it.
    latency_corrected_ns: Option<CorrectedLatency>,
    /// Length of an interval.
    interval_s: f64,
    /// All connections together, interval by interval.
    intervals: Vec<IntervalFigures>,
    procedures: BTreeMap<&'static str, ProcedureReport>,
    /// Calls that moved less than they were asked to.
    short_transfers: u64,
    #[serde(flatten)]
    losses: LossFigures,
    /// How often the server put a call off that was then made again.
    put_off: u64,
    verifier_changes: u64,
    blocks_checked: u64,
    blocks_wrong: u64,
    server: ServerReport,
    pub(crate) warnings: Vec<String>,
}

impl Report {
    /// Joins what was asked for and what was measured.
    pub(crate) fn new(config: &NfsConfig, machine: &Machine, outcome: &Outcome) -> Self {
        let (measured, tally) = (&outcome.measured, &outcome.tally);
        let latency = tally.latency();
        let latency_ns = latency.summary();
        let duration_s = measured.elapsed.as_secs_f64();
        let per_s = |total| units::per_s(total, duration_s);
        let rate_per_s = per_s(latency_ns.count);
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
            Some((kind.name(), report))
        });
        Self {
            schema: SCHEMA,
            version: crate::VERSION,
            revision: crate::REVISION,
            command: config.command.clone(),
            machine: machine.clone(),
            clock: crate::clock::source(),
            connect: config.server.to_string(),
            export: config.export.clone(),
            transport,
            device,
            protocol,
            profile,
            nfs_version: rpcrdma_nfs3::wire::VERSION,
            op: config.op.name(),
            size_bytes: config.size_bytes,
            file_bytes: config.file_bytes,
            files: config.files,
            access: is_bulk.then(|| config.access.name()),
            read_percent: is_bulk.then_some(config.read_percent),
            stable: config.is_written().then(|| config.stable.name()),
            seed: config.seed,
            verify: config.verify,
            depth: config.load.depth,
            connections: config.load.connections,
            cores: config.load.cores.clone(),
            load_loop: if config.load.rate_per_s.is_some() {
                "open"
            } else {
                "closed"
            },
            offered_rate_per_s: config.load.rate_per_s,
            warmup_s: config.load.warmup.as_secs_f64(),
            duration_s,
            interrupted: measured.interrupted,
            calls: latency_ns.count,
            errors: outcome.errors(),
            errors_by_name: measured.errors.by_name.clone(),
            rate_per_s,
            bandwidth_bytes_per_s: per_s(tally.bytes()),
            latency_ns,
            latency_corrected_ns: CorrectedLatency::new(
                &latency,
                measured.elapsed,
                u64::from(config.load.depth) * u64::from(config.load.connections),
                config.load.rate_per_s.is_some(),
            ),
            interval_s: outcome.timeline.interval.as_secs_f64(),
            intervals: outcome.timeline.figures(),
            procedures: procedures.collect(),
            short_transfers: tally.short,
            losses: LossFigures::from(measured.losses),
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
            warnings: warnings(config, machine, outcome, rate_per_s),
        }
    }

    /// The table, for people; `intervals` asks for a line for each of them.
    pub(crate) fn table(&self, intervals: bool) -> String {
        text_of(|text| self.write(text, intervals))
    }

    fn write(&self, text: &mut String, intervals: bool) -> fmt::Result {
        self.write_heading(text)?;
        write_latency(text, &self.latency_ns, self.load_loop == "open")?;
        if let Some(corrected) = &self.latency_corrected_ns {
            write_corrected(text, corrected)?;
        }
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
            write_intervals(text, &self.intervals)?;
        }
        write_warnings(text, &self.warnings)
    }

    /// What a call does, and over what.
    fn work(&self) -> (String, String) {
        let work = match (self.access, self.read_percent) {
            (Some(access), Some(percent)) => {
                let share = match self.op {
                    "mix" => format!(", {percent} % of them reads"),
                    _ => String::new(),
                };
                let stable = self.stable.map_or_else(String::new, |it| format!(", {it}"));
                format!(
                    "{} of {}{share}{stable}, {access} in {} files of {}",
                    self.op,
                    size(self.size_bytes.into()),
                    self.files,
                    size(self.file_bytes)
                )
            }
            _ => self.op.to_owned(),
        };
        let device = self.device.as_deref();
        let device = device.map_or_else(String::new, |device| format!(" ({device})"));
        let transport = match self.transport {
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
        let looped = match self.offered_rate_per_s {
            #[allow(clippy::cast_precision_loss, reason = "a rate")]
            Some(offered) => format!("open loop at {}", rate(offered as f64)),
            None => "closed loop".to_owned(),
        };
        writeln!(text, "{work}, NFS version 3 over {transport}, {looped}")?;
        let cores = match self.cores[..] {
            [] => String::new(),
            _ => format!(" on core {}", format_cores(&self.cores)),
        };
        writeln!(
            text,
            "depth {}, {}{cores}, server at {}, export {}",
            self.depth,
            plural(self.connections, "connection", "connections"),
            self.connect,
            self.export,
        )?;
        let seconds = |seconds: f64| duration(std::time::Duration::from_secs_f64(seconds.max(0.0)));
        writeln!(
            text,
            "measured for {} after {} of warm-up",
            seconds(self.duration_s),
            seconds(self.warmup_s)
        )
    }

    fn write_totals(&self, text: &mut String) -> fmt::Result {
        write_calls(text, self.calls, self.errors, self.rate_per_s)?;
        if self.size_bytes > 0 {
            let moved = bandwidth(self.bandwidth_bytes_per_s);
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
                self.depth
            ),
            heading: text_of(|text| self.write_heading(text)),
            command: &self.command,
            interrupted: self.interrupted,
            is_open: self.load_loop == "open",
            offered_rate_per_s: self.offered_rate_per_s,
            warmup_s: self.warmup_s,
            duration_s: self.duration_s,
            calls: self.calls,
            errors: self.errors,
            rate_per_s: self.rate_per_s,
            bandwidth_bytes_per_s: (self.size_bytes > 0).then_some(self.bandwidth_bytes_per_s),
            latency_ns: self.latency_ns,
            latency_corrected_ns: self.latency_corrected_ns,
            intervals: &self.intervals,
            per_core: &[],
            floor_ratio: None,
            floor: String::new(),
            warnings: &self.warnings,
            facts: self.facts(),
        }
    }
}

impl Report {
    /// How it was measured, by name.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![
            (
                "load",
                format!(
                    "{} loop, depth {}, {}",
                    self.load_loop,
                    self.depth,
                    plural(self.connections, "connection", "connections")
                ),
            ),
            (
                "server",
                format!("{}, export {}", self.connect, self.export),
            ),
            ("transport", self.work().1),
        ];
        facts.extend(self.profile.clone().map(|profile| ("profile", profile)));
        facts.extend(machine_facts(&self.machine));
        facts.push(("clock", self.clock.clone()));
        facts
    }
}

fn warnings(
    config: &NfsConfig,
    machine: &Machine,
    outcome: &Outcome,
    rate_per_s: f64,
) -> Vec<String> {
    let (measured, tally) = (&outcome.measured, &outcome.tally);
    let mut warnings = machine.warnings(&config.load.cores);
    if let Transport::Fabric { warnings: told, .. } = &outcome.transport {
        warnings.extend(told.iter().cloned());
    }
    if let Some(first) = &measured.errors.first {
        warnings.push(format!("the first call that failed: {first}"));
    }
    if outcome.blocks_wrong > 0 {
        warnings.push(format!(
            "{} of {} blocks that the server said were written do not hold what was written",
            count(outcome.blocks_wrong),
            count(outcome.blocks_checked)
        ));
    }
    if tally.short > 0 {
        warnings.push(format!(
            "{} calls moved less than they were asked to: the rate counts them whole, the bandwidth what they moved",
            count(tally.short)
        ));
    }
    warnings.extend(losses(&measured.losses));
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
    if measured.backlog > 0 {
        warnings.push(format!(
            "the server could not keep up: {} calls were due and could not be made before the end; raise --depth or \
             lower --rate",
            count(measured.backlog)
        ));
    }
    if measured.interrupted {
        warnings
            .push("stopped by a signal: the report covers what was measured until then".to_owned());
    }
    warnings.extend(few_calls(tally.calls()));
    warnings.extend(stretched(&outcome.timeline));
    warnings.extend(not_kept_up(config.load.rate_per_s, rate_per_s));
    if config.op == NfsOp::Read && config.file_bytes * u64::from(config.files) <= 1 << 30 {
        warnings.push(
            "the files fit a server's memory: reads show its cache and not its disks".to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests;
