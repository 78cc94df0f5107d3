//! The command line of `bench-tool profile`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use rpcrdma_tuning::Settings;

use crate::exit::Failure;

/// The options of every command that needs a profile.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProfileChoice {
    /// Tuning profile: a name or a TOML file [default: the one for the device; `bench-tool profile list` has all]
    #[arg(long, value_name = "NAME|FILE")]
    pub profile: Option<String>,

    /// A knob of the profile to set, over all else; may be repeated
    #[arg(long, value_name = "KNOB=VALUE", value_parser = assignment)]
    pub set: Vec<String>,
}

impl ProfileChoice {
    /// The option that was given, for messages.
    #[must_use]
    pub(crate) fn given(&self) -> Option<&'static str> {
        let named = self.profile.as_ref().map(|_| "--profile");
        named.or_else(|| (!self.set.is_empty()).then_some("--set"))
    }

    /// The knobs that are set.
    ///
    /// # Errors
    /// A usage failure for one that does not exist or does not take the value.
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        settings_of(&self.set)
    }

    /// The same choice, as another process of this program takes it.
    #[must_use]
    pub(crate) fn arguments(&self) -> Vec<String> {
        let option = |name: &str, value: &String| [name.to_owned(), value.clone()];
        let named = self
            .profile
            .iter()
            .flat_map(|name| option("--profile", name));
        let set = self.set.iter().flat_map(|knob| option("--set", knob));
        named.chain(set).collect()
    }
}

/// The knobs that assignments set, the last one of each.
///
/// # Errors
/// A usage failure for one that does not exist or does not take the value.
pub(crate) fn settings_of(assignments: &[String]) -> Result<Settings, Failure> {
    let mut settings = Settings::default();
    for assignment in assignments {
        settings
            .assign(assignment)
            .map_err(|error| Failure::usage("the tuning profile cannot be used").because(error))?;
    }
    Ok(settings)
}

/// An assignment that can be made.
fn assignment(text: &str) -> Result<String, String> {
    let made = Settings::default().assign(text);
    made.map(|()| text.to_owned())
        .map_err(|error| error.to_string())
}

/// `bench-tool profile`.
#[derive(Args, Debug)]
#[command(after_help = "\
A profile is every knob of a process with its value. It is put together from layers, each over the one before: \
built-in defaults, the family of the device, the device, a file of yours, the command line. What a device \
cannot do is cut down, with a warning. docs/tuning.md explains each knob.\n\n\
Exit status: 0 done, 1 a file that cannot be used or a device that is not there, 2 the command line cannot be obeyed.\n\n\
Examples:
  bench-tool profile list
  bench-tool profile detect                     which of them the devices of this machine take
  bench-tool profile show mlx5                  every knob: its value, range, layer and source
  bench-tool profile show my.toml --set read_depth_max=8
  bench-tool profile check my.toml              before it is used")]
pub(crate) struct ProfileArgs {
    /// What to do
    #[command(subcommand)]
    pub action: ProfileAction,
}

/// What `bench-tool profile` does.
#[derive(Debug, Subcommand)]
pub(crate) enum ProfileAction {
    /// Name the built-in profiles, and what each is for
    List,
    /// Show every knob of a profile: its value, its range, the layer that set it, and why
    Show(ProfileShowArgs),
    /// Say which profile each RDMA device of this machine takes, and what of the environment is wrong for it
    Detect(ProfileDetectArgs),
    /// Say whether a file can be used, and what of it will be cut down
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

    /// A knob to set on top, as runs take it; may be repeated
    #[arg(long, value_name = "KNOB=VALUE", value_parser = assignment)]
    pub set: Vec<String>,

    /// Write it as JSON; `-` is standard output, in place of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// `bench-tool profile detect`.
#[derive(Args, Debug)]
#[command(after_help = "\
Devices are told apart by the driver of the PCI function beneath, by its vendor and part, and software devices by \
their names; all of it stands in /sys/class/infiniband, so that neither privilege nor library is needed. A device of an \
unknown kind takes the built-in defaults. Runs do the same for the device that they use.\n\n\
Variables of the environment that a library reads when it opens a device are looked at, and the command is shown that \
mends what is wrong.\n\n\
Examples:
  bench-tool profile detect
  bench-tool profile detect --device mlx5_0
  bench-tool profile detect --json - | jq -r '.devices[].profile'")]
pub(crate) struct ProfileDetectArgs {
    /// One device alone, as `rdma link` names it
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Write it as JSON; `-` is standard output, in place of the table
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
It is refused when it has an unknown knob, a value out of range, or two values that cannot be used together. What is \
beyond the limits of the devices of its base is cut down: a warning, and no failure.\n\n\
Examples:
  bench-tool profile check my.toml && bench-tool run --profile my.toml")]
pub(crate) struct ProfileCheckArgs {
    /// The file
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}
