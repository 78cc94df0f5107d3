//! The command line of `bench-tool profile`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rpcrdma_tuning::Settings;

use crate::exit::Failure;
use crate::profile::{check, detect, list, show};
use crate::sizing::ProfileChoice;

/// The options of all commands that need a profile.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProfileChoiceArgs {
    /// Tuning profile: a name or a TOML file [default: the one for the device; `bench-tool profile list` has all]
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,

    /// Set a knob; overrides the profile; may be repeated
    #[arg(long, value_name = "KNOB=VALUE", value_parser = assignment)]
    pub set: Vec<String>,
}

impl ProfileChoiceArgs {
    pub(crate) fn choice(&self) -> ProfileChoice {
        ProfileChoice {
            profile: self.profile.clone(),
            set: self.set.clone(),
        }
    }
}

/// Checks an assignment and returns it.
fn assignment(text: &str) -> Result<String, String> {
    let made = Settings::default().assign(text);
    made.map(|()| text.to_owned())
        .map_err(|error| error.to_string())
}

/// `bench-tool profile`.
#[derive(Args, Debug)]
#[command(after_help = "\
A profile gives every knob of a process a value. It has layers, each overriding the one before: \
built-in defaults, the family of the device, the device, your file, the command line. Values beyond the limits of a \
device are reduced, with a warning. docs/tuning.md explains each knob.\n\n\
Exit status: 0 success, 1 an unusable file or a missing device, 2 the command line is wrong.\n\n\
Examples:
  bench-tool profile list
  bench-tool profile detect                     the profiles for the devices of this machine
  bench-tool profile show mlx5                  every knob: its value, range, layer and source
  bench-tool profile show my.toml --set read_depth_max=8
  bench-tool profile check my.toml              before it is used")]
pub(crate) struct ProfileArgs {
    /// What to do
    #[command(subcommand)]
    pub action: ProfileAction,
}

/// The actions of `bench-tool profile`.
#[derive(Debug, Subcommand)]
pub(crate) enum ProfileAction {
    /// List the built-in profiles, and what each is for
    List,
    /// Show every knob of a profile: its value, its range, the layer that set it, and why
    Show(ProfileShowArgs),
    /// Show the profile for each RDMA device of this machine, and what is wrong in the environment
    Detect(ProfileDetectArgs),
    /// Check whether a file can be used, and which values will be reduced
    Check(ProfileCheckArgs),
}

/// `bench-tool profile show`.
#[derive(Args, Debug)]
#[command(after_help = "\
Each line of the table is a knob: its value with its unit, its range, the layer that set it, and the source of the \
value: a document, a driver, a measurement, or `inferred` with the thought behind it. JSON has its meaning too. Below are what was cut down to the limits of the \
device, and the variables that the environment should hold.\n\n\
Examples:
  bench-tool profile show irdma/x722
  bench-tool profile show my.toml --json - | jq '.knobs[] | select(.origin != \"built-in default\")'")]
pub(crate) struct ProfileShowArgs {
    /// A built-in profile, as `mlx5` or `irdma/x722`, or a file that ends in .toml
    #[arg(value_name = "NAME|FILE")]
    pub profile: String,

    /// Set a knob, as for a run; may be repeated
    #[arg(long, value_name = "KNOB=VALUE", value_parser = assignment)]
    pub set: Vec<String>,

    /// Write JSON; `-` is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// `bench-tool profile detect`.
#[derive(Args, Debug)]
#[command(after_help = "\
Devices are identified by the driver, vendor and part of their PCI function, software devices by \
their names, all from /sys/class/infiniband, without privilege or library. An \
unknown device uses the built-in defaults. Runs do the same for their device.\n\n\
Environment variables that a library reads when it opens a device are checked; the output has the command that \
fixes them.\n\n\
Examples:
  bench-tool profile detect
  bench-tool profile detect --device mlx5_0
  bench-tool profile detect --json - | jq -r '.devices[].profile'")]
pub(crate) struct ProfileDetectArgs {
    /// Only this device, as `rdma link` names it
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Write JSON; `-` is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Look at a copy of /sys: for tests, and for machines that sent theirs
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
}

/// `bench-tool profile check`.
#[derive(Args, Debug)]
#[command(after_help = "\
A file sets knobs under [settings], on top of the profile that `base` names:
  base = \"mlx5\"
  [settings]
  credits_per_connection = 64
  read_depth_max = { value = 8, source = \"tried in May\" }
An unknown knob, a value out of range, or two contradictory values make it unusable. Values beyond the limits of the \
base's devices are reduced, with a warning.\n\n\
Examples:
  bench-tool profile check my.toml && bench-tool run --profile my.toml")]
pub(crate) struct ProfileCheckArgs {
    /// The file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// Runs the action.
///
/// # Errors
/// If a profile cannot be used, a device does not exist, or the output cannot be written.
pub(super) fn execute(args: &ProfileArgs) -> Result<(), Failure> {
    match &args.action {
        ProfileAction::List => list(),
        ProfileAction::Show(args) => show(&args.profile, &args.set, args.json.as_deref()),
        ProfileAction::Detect(args) => {
            detect(&args.root, args.device.as_deref(), args.json.as_deref())
        }
        ProfileAction::Check(args) => check(&args.file),
    }
}
