//! `bench-tool doctor`: examines this machine, and prints the report.

use rpcrdma_doctor::{Needs, Report, Severity, System};
use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::exit::{Failure, Status};
use crate::fabric::Fabric;
use crate::report::origin::Origin;
use crate::report::output::{Output, put_report};
use crate::sizing::Need;

/// The `schema` of the JSON report; the meaning of its keys does not change under one.
const SCHEMA: &str = "rpcrdma.bench-tool.doctor/1";

/// The JSON report.
#[derive(Serialize)]
struct Json<'a> {
    #[serde(flatten)]
    origin: Origin,
    #[serde(flatten)]
    report: &'a Report,
}

/// Runs the command. It fails when something cannot work, or numbers suffer.
///
/// # Errors
/// When the profile does not exist, or the report cannot be written.
pub fn execute(args: &DoctorArgs, command: String) -> Result<Status, Failure> {
    let output = args
        .json
        .as_deref()
        .map(|path| Output::check("--json", path))
        .transpose()?;
    let profile = Need::default().profile(&args.profile, &Fabric::SHM)?;
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
