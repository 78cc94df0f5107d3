//! `bench-tool doctor`: examines this machine and prints a report.

use std::path::PathBuf;

use clap::Args;
use rpcrdma_control::Fabric;
use rpcrdma_doctor::{Needs, Report, Severity, System};
use serde::Serialize;

use super::profile::ProfileChoiceArgs;
use crate::exit::{Failure, Status};
use crate::report::origin::Origin;
use crate::report::output::{Output, put_report};
use crate::sizing::Need;

/// The `schema` of the JSON report. The keys of a schema never change their meaning.
const SCHEMA: &str = "rpcrdma.bench-tool.doctor/1";

/// The JSON report.
#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    origin: Origin,
    #[serde(flatten)]
    report: &'a Report,
}

/// `bench-tool doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Compares this machine with what a run needs. Needs no privilege, and changes nothing:
  providers   what carries shm: and rdma: addresses, and why
  devices     RDMA devices: permissions, firmware and driver, tuning profile, PCIe slot, NUMA
              node, ports, MTU, retransmissions, PFC, ECN and DSCP, limits
  memory      locked memory, hugepages, open files, against what the profile needs
  processors  cores allowed, isolated, throttled; frequency governor; idle states
  kernel      its command line, NUMA balancing, RDMA namespaces
  clock       clock source, TSC, steal time

Each finding is one of
  ok          as it should be
  hint        it works; something could be better, or is good to know
  warning     it works, but results suffer or a limit will be reached
  problem     something cannot work
and, if it is not ok, a line `costs` (the consequence) and, if possible, a line `what to do` (the command that fixes \
it). Commands that change the system need root. What cannot be read is reported and is not a finding; root can read \
more.\n\n\
Exit status: 0 only ok and hint, 1 a warning or a problem, 2 the command line is wrong.\n\n\
Examples:
  bench-tool doctor
  bench-tool doctor --profile my.toml    checks for the needs of that profile
  bench-tool doctor --json - | jq '.findings[] | select(.severity != \"ok\")'")]
pub(crate) struct DoctorArgs {
    /// The profile whose needs are checked
    #[command(flatten)]
    pub profile: ProfileChoiceArgs,

    /// Write the report as JSON; `-` is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Look at a copy of /proc, /sys and /dev: for tests, and for machines that sent theirs
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
}

/// Runs the command. The status is [`Status::Failure`] if there is a warning or a problem.
///
/// # Errors
/// If the profile does not exist, or the report cannot be written.
pub(crate) fn execute(args: &DoctorArgs, command: String) -> Result<Status, Failure> {
    let output = Output::check_json(args.json.as_deref())?;
    let profile = Need::default().profile(&args.profile.choice(), &Fabric::SHM)?;
    let report = Report::of(&System::below(&args.root), &Needs::of(&profile));
    let json = Json {
        origin: Origin::new(SCHEMA, command),
        report: &report,
    };
    put_report(&report.text(), &json, output.as_ref())?;
    Ok(if report.severity() >= Severity::Warning {
        Status::Failure
    } else {
        Status::Success
    })
}
