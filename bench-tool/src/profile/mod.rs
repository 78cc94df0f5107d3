//! `bench-tool profile`: shows tuning profiles, and which of them fit this machine's devices.
//!
//! | module | contents |
//! |---|---|
//! | `show` | `show`: every knob of a profile, with origin and source |
//! | `detect` | `detect`: the profile of each device, and the environment that it needs |
//! | this module | `list` and `check` |

mod detect;
mod show;

pub(crate) use self::detect::detect;
pub(crate) use self::show::show;

use std::fmt::Write as _;
use std::path::Path;

use rpcrdma::Node;
use rpcrdma_doctor::{Complaint, complaints};
use rpcrdma_tuning::{Error, Layers, Loaded, Origin};
use serde::Serialize;

use crate::exit::Failure;
use crate::report::output::{Output, print, put_report};

/// Advice for a profile that cannot be used.
const LOOK_AT_KNOBS: &str =
    "`bench-tool profile show shm` has all knobs, docs/tuning.md what they mean and their ranges";

/// Prints the profiles with their descriptions.
///
/// # Errors
/// If standard output cannot be written.
pub(crate) fn list() -> Result<(), Failure> {
    print(&listed())
}

/// Warnings about values that the device reduces, what it lacks, and the environment, one sentence each. `variable` reads an
/// environment variable.
#[must_use]
pub(crate) fn warnings(loaded: &Loaded, variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let clamps = loaded.clamps.iter().map(ToString::to_string);
    let lacks = loaded.lacks.iter().cloned();
    let environment = complaints(loaded, variable)
        .into_iter()
        .map(|Complaint { what, fix, .. }| format!("{what} (before the start: {fix})"));
    clamps.chain(lacks).chain(environment).collect()
}

/// What a node warns of, without what its device lacks, which [`warnings`] has.
pub(crate) fn warnings_of_node<'a>(
    node: &'a Node,
    loaded: &'a Loaded,
) -> impl Iterator<Item = &'a String> {
    let warnings = node.warnings().iter();
    warnings.filter(|it| !loaded.lacks.contains(it))
}

/// [`warnings`] with the environment of this process.
#[must_use]
pub(crate) fn warnings_here(loaded: &Loaded) -> Vec<String> {
    warnings(loaded, own_variable)
}

/// An environment variable of this process.
fn own_variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The failure for a profile from the command line: a usage failure if its name is wrong or it is refused.
fn cannot_be_used(error: Error) -> Failure {
    let status = match error {
        Error::UnknownProfile { .. } | Error::Refused { .. } => Failure::usage,
        _ => Failure::failed,
    };
    status("the profile cannot be used".to_owned())
        .because(error)
        .advice(LOOK_AT_KNOBS)
}

fn listed() -> String {
    let mut text = String::new();
    for family in rpcrdma_tuning::list() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:<16}{}", family.name, family.description);
        if let Some(reason) = family.refused {
            let _ = writeln!(text, "{:<16}{reason}", "");
        }
        for device in family.devices {
            let name = format!("{}/{}", family.name, device.name);
            let _ = writeln!(text, "{name:<16}{}", device.description);
        }
    }
    text
}

/// Prints the values that a file sets, or fails with what is wrong in it.
///
/// # Errors
/// If the file cannot be used, or standard output cannot be written.
pub(crate) fn check(file: &Path) -> Result<(), Failure> {
    let loaded = checked(file).map_err(|error| {
        let file = file.display();
        Failure::failed(format!("{file} cannot be used"))
            .because(error)
            .advice(LOOK_AT_KNOBS)
    })?;
    print(&checked_text(file, &loaded))
}

fn checked(file: &Path) -> Result<Loaded, Error> {
    Layers::file(file)?.build()
}

fn checked_text(file: &Path, loaded: &Loaded) -> String {
    let mut text = format!("{} can be used\n", file.display());
    for (knob, value) in loaded.profile.values() {
        if loaded.origin(knob.name) == Origin::File(file.to_owned()) {
            let _ = writeln!(text, "  {} = {value}", knob.name);
        }
    }
    for clamp in &loaded.clamps {
        let _ = writeln!(text, "warning: {clamp}");
    }
    let is_own = loaded.origin("bulk_buffers") == Origin::File(file.to_owned());
    if is_own && loaded.profile.bulk_buffers == 0 {
        text.push_str(
            "warning: bulk_buffers = 0: a node with this profile makes no calls with bulk data, and `run --op write`, `read` and \
             `mix` and `nfs` refuse it; leave it out, and they size it\n",
        );
    }
    text
}

/// Prints `text`, and writes `report` as JSON to `json`, if given. If `json` is standard output, the JSON replaces
/// the text.
fn put(text: &str, report: &impl Serialize, json: Option<&Path>) -> Result<(), Failure> {
    put_report(text, report, Output::check_json(json)?.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_testkit::CheckWords;
    use rpcrdma_tuning::Settings;

    #[test]
    fn every_profile_is_listed_with_what_it_is_for() {
        let text = listed();
        text.check_words(&[
            "shm ",
            "mlx5-connectx7",
            "irdma/x722",
            "ConnectX-3",
            "datagrams only",
        ]);
    }

    #[test]
    fn file_without_bulk_buffers_is_warned_of() {
        let folder = rpcrdma_testkit::Folder::new("profile-check");
        let text_of = |buffers: u32| {
            let file = folder.join("my.toml");
            folder.write("my.toml", format!("[settings]\nbulk_buffers = {buffers}\n"));
            checked_text(&file, &checked(&file).unwrap())
        };
        text_of(0).check_words(&["bulk_buffers = 0", "warning: bulk_buffers = 0: a node"]);
        assert!(!text_of(8).contains("warning: bulk_buffers"));
    }

    #[test]
    fn clamped_knobs_and_wrong_environment_are_warnings() {
        let settings = Settings {
            read_depth_max: Some(64),
            ..Settings::default()
        };
        let loaded = Layers::named("mlx5")
            .unwrap()
            .overrides(&settings)
            .build()
            .unwrap();
        let told = warnings(&loaded, |name| {
            (name == "MLX5_SHUT_UP_BF").then(|| "1".to_owned())
        });
        let told = told.join("\n");
        told.check_words(&[
            "read_depth_max = 64 (command line) is beyond what mlx5 can do: 16 is used",
            "MLX5_SHUT_UP_BF is 1: ",
            "(before the start: unset MLX5_SHUT_UP_BF)",
            "(before the start: export MLX5_TOTAL_UUARS=64)",
        ]);
        let shm = Layers::named("shm").unwrap().build().unwrap();
        assert!(warnings_here(&shm).is_empty());
        let lacking = Layers::named("shm")
            .unwrap()
            .lacking("no windows".to_owned());
        assert_eq!(warnings_here(&lacking.build().unwrap()), ["no windows"]);
    }
}
