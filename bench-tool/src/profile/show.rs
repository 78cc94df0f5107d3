//! `bench-tool profile show`: every knob with its value, the layer that set it, and the source.

use std::fmt::Write as _;
use std::path::Path;

use rpcrdma_tuning::{Clamp, EnvironmentValue, Layers, Loaded, Value};
use serde::Serialize;

use super::{cannot_be_used, own_variable, put};
use crate::exit::Failure;
use crate::sizing::settings_of;
use rpcrdma_doctor::{Complaint, complaints};

/// The `schema` of the JSON report. The keys of a schema never change their meaning.
const SCHEMA: &str = "rpcrdma.bench-tool.profile-show/1";

/// The JSON report.
#[derive(Serialize)]
struct Report {
    schema: &'static str,
    profile: String,
    knobs: Vec<KnobLine>,
    clamps: Vec<ClampLine>,
    environment: Vec<Variable>,
    complaints: Vec<Complaint>,
    sizes: Sizes,
}

#[derive(Serialize)]
struct KnobLine {
    name: &'static str,
    value: Value,
    /// Unit of the number; empty for a choice between words.
    unit: &'static str,
    /// The allowed values.
    range: String,
    meaning: String,
    /// The layer that set it.
    origin: String,
    /// The source of the value; null if its layer gives none.
    source: Option<String>,
}

/// A value that was reduced to what the device can do.
#[derive(Serialize)]
struct ClampLine {
    knob: &'static str,
    asked: String,
    origin: String,
    used: String,
    of: String,
}

#[derive(Serialize)]
struct Variable {
    name: String,
    /// The required value; null if a value must be avoided instead.
    set: Option<String>,
    avoid: Option<String>,
    why: String,
    source: String,
}

/// Sizes that follow from the knobs, for one core.
#[derive(Serialize)]
struct Sizes {
    receives_posted: u64,
    registered_bytes: u64,
    connection_bytes: u64,
    reassembly_bytes: u64,
    reassembly_guaranteed_bytes: u64,
}

/// Shows every knob of a profile, after the assignments of `set`.
///
/// # Errors
/// If the profile cannot be used, or the output cannot be written.
pub(crate) fn show(profile: &str, set: &[String], json: Option<&Path>) -> Result<(), Failure> {
    let settings = settings_of(set)?;
    let loaded = Layers::choose(profile)
        .and_then(|layers| layers.overrides(&settings).build())
        .map_err(cannot_be_used)?;
    let report = report(&loaded);
    put(&text(&report, &loaded.clamps), &report, json)
}

fn report(loaded: &Loaded) -> Report {
    let knobs = loaded.profile.values().map(|(knob, value)| KnobLine {
        name: knob.name,
        value,
        unit: knob.unit,
        range: knob.values.to_string(),
        meaning: knob.meaning(),
        origin: loaded.origin(knob.name).to_string(),
        source: loaded.source(knob.name).map(str::to_owned),
    });
    let clamps = loaded.clamps.iter().map(|clamp| ClampLine {
        knob: clamp.asked.name,
        asked: clamp.asked.value.clone(),
        origin: clamp.asked.origin.to_string(),
        used: clamp.used.clone(),
        of: clamp.of.clone(),
    });
    let environment = loaded.environment.iter().cloned().map(|rule| {
        let (set, avoid) = match rule.value {
            EnvironmentValue::Set(value) => (Some(value), None),
            EnvironmentValue::Avoid(value) => (None, Some(value)),
        };
        Variable {
            name: rule.name,
            set,
            avoid,
            why: rule.why,
            source: rule.source,
        }
    });
    let profile = &loaded.profile;
    Report {
        schema: SCHEMA,
        profile: loaded.name.clone(),
        knobs: knobs.collect(),
        clamps: clamps.collect(),
        environment: environment.collect(),
        complaints: complaints(loaded, own_variable),
        sizes: Sizes {
            receives_posted: profile.receives_posted(),
            registered_bytes: profile.registered_bytes(),
            connection_bytes: profile.connection_bytes(),
            reassembly_bytes: profile.reassembly_pool_bytes(),
            reassembly_guaranteed_bytes: profile.reassembly_guaranteed_bytes(),
        },
    }
}

fn text(report: &Report, clamps: &[Clamp]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "profile {}\n", report.profile);
    let line = |name: &str, value: &str, range: &str, source: &str| {
        format!("{name:<28} {value:<18} {range:<36} {source}\n")
    };
    text += &line("KNOB", "VALUE", "RANGE", "LAYER: SOURCE");
    for knob in &report.knobs {
        let KnobLine {
            name,
            value,
            unit,
            range,
            origin,
            ..
        } = knob;
        let source = knob.source.as_deref().unwrap_or("no source is given");
        text += &line(
            name,
            &format!("{value} {unit}"),
            range,
            &format!("{origin}: {source}"),
        );
    }
    let Sizes {
        receives_posted,
        registered_bytes,
        connection_bytes,
        reassembly_bytes,
        reassembly_guaranteed_bytes,
    } = &report.sizes;
    let _ = writeln!(
        text,
        "\nfor each core {receives_posted} receives and {registered_bytes} bytes of registered memory \
         ({connection_bytes} for each connection), and {reassembly_bytes} of ordinary memory, to which \
         {reassembly_guaranteed_bytes} come when peers use all that their connections are guaranteed"
    );
    for variable in &report.environment {
        let Variable {
            name, why, source, ..
        } = variable;
        let rule = match (&variable.set, &variable.avoid) {
            (Some(value), _) => format!("{name}={value}"),
            (None, value) => format!("{name} not {}", value.as_deref().unwrap_or_default()),
        };
        let _ = writeln!(text, "\nenvironment: {rule}\n  {why}\n  {source}");
    }
    for clamp in clamps {
        let _ = writeln!(text, "\nwarning: {clamp}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_testkit::CheckWords;
    use rpcrdma_tuning::Profile;

    fn loaded(name: &str, assignments: &[&str]) -> Loaded {
        let assignments: Vec<String> = assignments.iter().copied().map(str::to_owned).collect();
        let settings = settings_of(&assignments).unwrap();
        Layers::named(name)
            .unwrap()
            .overrides(&settings)
            .build()
            .unwrap()
    }

    #[test]
    fn every_knob_has_value_origin_and_source() {
        let loaded = loaded("irdma/x722", &["reap_batch=4", "read_depth_max=9"]);
        let report = report(&loaded);
        let text = text(&report, &loaded.clamps);
        assert_eq!(report.knobs.len(), Profile::KNOBS.len());
        for KnobLine {
            name,
            range,
            meaning,
            ..
        } in &report.knobs
        {
            let line = text.lines().find(|it| it.starts_with(&format!("{name} ")));
            assert!(line.is_some_and(|it| it.contains(range)), "{name}: {text}");
            assert!(!meaning.is_empty(), "{name}");
        }
        text.check_words(&[
            "profile irdma/x722",
            " 48 bytes           0 to 4096 ",
            " profile irdma/x722: irdma driver",
            " 4 completions      1 to 64 ",
            " command line: no source is given",
            "built-in default: inferred",
            "warning: read_depth_max = 9 (command line) is beyond what irdma can do: 8 is used",
            "2112 receives",
        ]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["schema"], SCHEMA);
        let place = |name| report.knobs.iter().position(|knob| knob.name == name);
        let inline = &json["knobs"][place("device_inline_bytes_max").unwrap()];
        assert_eq!(inline["value"], 48);
        assert_eq!(
            (&inline["unit"], &inline["range"]),
            (&"bytes".into(), &"0 to 4096".into())
        );
        let idle = &json["knobs"][place("idle").unwrap()];
        assert_eq!(idle["value"], "spin");
        assert_eq!(inline["origin"], "profile irdma/x722");
        assert!(inline["source"].as_str().unwrap().contains("generation 1"));
        assert_eq!(json["clamps"][0]["used"], "8");
    }

    #[test]
    fn the_environment_is_shown_with_reason_and_source() {
        let report = report(&loaded("mlx5", &[]));
        let text = text(&report, &[]);
        text.check_words(&[
            "environment: MLX5_TOTAL_UUARS=64",
            "environment: MLX5_SINGLE_THREADED not 1",
            "rdma-core, providers/mlx5",
        ]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["environment"][0]["avoid"], "1");
        assert!(json["environment"][0]["set"].is_null());
    }
}
