//! What a report keeps of an end, so that it means something after a year: program, machine, profile, and device.

use std::collections::BTreeMap;

use rpcrdma_control::{Devices, Fabric};
use rpcrdma_doctor::{DeviceRecord, Needs, System};
use rpcrdma_tuning::{Loaded, Profile};
use serde::Serialize;
use serde_json::Value;

use crate::machine::Machine;

/// One end of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Record {
    /// The machine's name on its network.
    pub host: String,
    /// The tool's version, as `--version` prints it: with revision, kind of build, and how it uses rdma-core.
    pub program: &'static str,
    /// The machine.
    pub machine: Machine,
    /// The CPUs of the polling cores.
    pub cores: Vec<usize>,
    /// The name or the file of the tuning profile; `None` over the kernel's TCP.
    pub profile: Option<String>,
    /// The knobs that differ from the built-in defaults.
    pub knobs: BTreeMap<&'static str, KnobRecord>,
    /// What `doctor` reports about the RDMA device; `None` on shm, and for a device that the kernel does not list.
    pub device: Option<DeviceRecord>,
    /// Bounds that a server has for its clients; `None` for a client.
    pub limits: Option<Limits>,
}

/// A knob that differs from the built-in default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct KnobRecord {
    /// Its value, as in a profile file.
    pub value: String,
    /// What set it, such as `command line`.
    pub origin: String,
}

/// Bounds that a server has for its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Limits {
    /// Payload of one call in bytes, over all of its operations.
    pub call_payload_bytes_max: u64,
}

impl Record {
    /// The record of this process without a profile, for a load over the kernel's TCP.
    pub(crate) fn of_tcp(machine: &Machine, cores: &[usize]) -> Self {
        let name = rustix::system::uname();
        Self {
            host: name.nodename().to_string_lossy().into_owned(),
            program: crate::VERSION_LINE,
            machine: machine.clone(),
            cores: cores.to_vec(),
            profile: None,
            knobs: BTreeMap::new(),
            device: None,
            limits: None,
        }
    }

    /// The record of this process.
    pub(crate) fn new(
        machine: &Machine,
        cores: &[usize],
        loaded: &Loaded,
        fabric: &Fabric,
    ) -> Self {
        // The first of several: they are of one profile, and the report names all of them.
        let device = fabric.devices().map(Devices::first);
        let device = device.and_then(|name| {
            DeviceRecord::read(&System::below("/".as_ref()), &Needs::of(loaded), name)
        });
        Self {
            profile: Some(loaded.name.clone()),
            knobs: knobs(loaded),
            device,
            ..Self::of_tcp(machine, cores)
        }
    }

    /// The same record with these limits.
    pub(crate) fn with_limits(self, limits: Limits) -> Self {
        Self {
            limits: Some(limits),
            ..self
        }
    }
}

/// The names of an end's host, program, system, knobs and device on a page.
type Names = [&'static str; 5];

pub(crate) const OF_CLIENT: Names = [
    "client host",
    "client program",
    "client system",
    "client knobs",
    "client device",
];

pub(crate) const OF_SERVER: Names = [
    "server host",
    "server program",
    "server system",
    "server knobs",
    "server device",
];

/// The facts of a record for a page, as pairs of name and text.
pub(crate) fn facts(names: Names, record: &impl Serialize) -> Vec<(&'static str, String)> {
    let Ok(record) = serde_json::to_value(record) else {
        return Vec::new();
    };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let knobs = record["knobs"].as_object().map(|knobs| {
        let knob = |(name, it): (&String, &Value)| {
            let (value, origin) = (text(&it["value"])?, text(&it["origin"])?);
            Some(format!("{name} = {value} ({origin})"))
        };
        knobs.iter().filter_map(knob).collect::<Vec<_>>().join(", ")
    });
    let mut device = Vec::new();
    leaves("", &record["device"], &mut device);
    let texts = [
        text(&record["host"]),
        text(&record["program"]),
        text(&record["machine"]["os"]),
        knobs,
        Some(device.join(", ")),
    ];
    let facts = names.into_iter().zip(texts);
    facts
        .filter_map(|(name, text)| Some((name, text.filter(|text| !text.is_empty())?)))
        .collect()
}

/// Keys of a device that a page leaves out: the JSON has them.
const LEFT_OUT: [&str; 3] = ["limits", "counters", "profile"];

/// All values below `value` that are known, each with its path.
fn leaves(path: &str, value: &Value, all: &mut Vec<String>) {
    let below = |key: &str| match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    };
    match value {
        Value::Null => {}
        Value::Object(object) => {
            for (key, value) in object
                .iter()
                .filter(|(key, _)| !LEFT_OUT.contains(&key.as_str()))
            {
                leaves(&below(key), value, all);
            }
        }
        Value::Array(values) => {
            for (number, value) in values.iter().enumerate() {
                leaves(&below(&number.to_string()), value, all);
            }
        }
        Value::String(text) => all.push(format!("{path} {text}")),
        other => all.push(format!("{path} {other}")),
    }
}

fn knobs(loaded: &Loaded) -> BTreeMap<&'static str, KnobRecord> {
    let default = Profile::default();
    let differing = Profile::KNOBS.iter().filter_map(|knob| {
        let value = loaded.profile.value_text(knob.name)?;
        (default.value_text(knob.name).as_ref() != Some(&value)).then(|| {
            let origin = loaded.origin(knob.name).to_string();
            (knob.name, KnobRecord { value, origin })
        })
    });
    differing.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_tuning::{Layers, Settings};

    #[test]
    fn it_has_every_knob_that_differs_and_what_set_it() {
        let mut set = Settings::default();
        set.assign("reap_batch=5").unwrap();
        let loaded = Layers::named("shm")
            .unwrap()
            .overrides(&set)
            .build()
            .unwrap();
        let knobs = knobs(&loaded);
        let chosen = KnobRecord {
            value: "5".to_owned(),
            origin: "command line".to_owned(),
        };
        assert_eq!(knobs.get("reap_batch"), Some(&chosen));
        for (name, knob) in &knobs {
            assert_ne!(
                Profile::default().value_text(name).as_ref(),
                Some(&knob.value)
            );
            assert_eq!(loaded.profile.value_text(name).as_ref(), Some(&knob.value));
        }
        let device = serde_json::json!({
            "device": {"name": "mlx5_0", "firmware": null, "limits": {"segments": 1},
                "ports": [{"number": 1, "mtu_bytes": 4096}]},
            "knobs": {"reap_batch": {"value": "5", "origin": "command line"}},
        });
        let facts = facts(["host", "program", "system", "knobs", "device"], &device);
        let texts = [
            ("knobs", "reap_batch = 5 (command line)"),
            (
                "device",
                "name mlx5_0, ports.0.mtu_bytes 4096, ports.0.number 1",
            ),
        ];
        assert_eq!(facts, texts.map(|(name, text)| (name, text.to_owned())));
        let plain = super::knobs(&Layers::defaults().build().unwrap());
        assert!(plain.is_empty(), "{plain:?}");
    }
}
