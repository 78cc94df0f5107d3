//! The embedded profiles: one file per family in `tuning/profiles/`.

use crate::origin::Origin;
use crate::text::ProfileText;

/// Name and text of every family's file.
macro_rules! families {
    ($($name:literal),* $(,)?) => {
        &[$( ($name, include_str!(concat!("../profiles/", $name, ".toml"))) ),*]
    };
}

const FAMILIES: &[(&str, &str)] = families![
    "shm",
    "bnxt_re",
    "cxgb4",
    "efa",
    "erdma",
    "hns",
    "ionic",
    "irdma",
    "mana",
    "mlx4",
    "mlx5",
    "mlx5-connectx7",
    "qedr",
    "rxe",
    "siw",
];

/// What [`list`] says of one embedded profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilySummary {
    /// The name that [`Profile::by_name`](crate::Profile::by_name) takes.
    pub name: &'static str,
    /// One line that says what the profile is for.
    pub description: String,
    /// Why its devices cannot be used at all; the profile cannot be loaded then.
    pub refused: Option<String>,
    /// The devices that have values of their own; each is chosen as `FAMILY/DEVICE`.
    pub devices: Vec<DeviceSummary>,
}

/// A device that has values of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSummary {
    /// The name after the slash.
    pub name: String,
    /// One line that says which it is.
    pub description: String,
}

/// The embedded profiles: shm, then the NIC families by name.
#[must_use]
pub fn list() -> Vec<FamilySummary> {
    texts()
        .map(|(name, text)| FamilySummary {
            name,
            description: text.description.unwrap_or_default(),
            refused: text.refused,
            devices: text
                .device
                .into_iter()
                .map(|(name, device)| DeviceSummary {
                    name,
                    description: device.description,
                })
                .collect(),
        })
        .collect()
}

/// Every family's name and file.
pub(crate) fn texts() -> impl Iterator<Item = (&'static str, ProfileText)> {
    FAMILIES.iter().map(|&(name, text)| {
        let text = ProfileText::parse(text, &Origin::Family(name))
            .expect("the embedded profiles are compiled in, and the tests read every one");
        (name, text)
    })
}

/// The names of the embedded families.
pub(crate) fn names() -> Vec<&'static str> {
    FAMILIES.iter().map(|&(name, _)| name).collect()
}

/// The family of that name and its text.
pub(crate) fn find(name: &str) -> Option<(&'static str, &'static str)> {
    FAMILIES.iter().copied().find(|&(known, _)| known == name)
}
