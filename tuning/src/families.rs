//! The embedded profiles: one file per family in `tuning/profiles/`.

use crate::layers::{Origin, ProfileText};

/// Name and text of every family's file.
const FAMILIES: &[(&str, &str)] = &[
    ("shm", include_str!("../profiles/shm.toml")),
    ("bnxt_re", include_str!("../profiles/bnxt_re.toml")),
    ("irdma", include_str!("../profiles/irdma.toml")),
    ("mlx5", include_str!("../profiles/mlx5.toml")),
    ("rxe", include_str!("../profiles/rxe.toml")),
    ("siw", include_str!("../profiles/siw.toml")),
];

/// What [`list`] says of one embedded profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FamilySummary {
    /// The name that [`Profile::by_name`](crate::Profile::by_name) takes.
    pub name: &'static str,
    /// One line that says what the profile is for.
    pub description: String,
    /// The devices that have values of their own; each is chosen as `FAMILY/DEVICE`.
    pub devices: Vec<String>,
}

/// The embedded profiles: shm, then the NIC families by name.
#[must_use]
pub fn list() -> Vec<FamilySummary> {
    let summary = |&(name, text): &(&'static str, &str)| {
        let text = ProfileText::parse(text, &Origin::Family(name))
            .expect("the embedded profiles are compiled in, and the tests read every one");
        FamilySummary {
            name,
            description: text.description.unwrap_or_default(),
            devices: text.device.into_keys().collect(),
        }
    };
    FAMILIES.iter().map(summary).collect()
}

/// The names of the embedded families.
pub(crate) fn names() -> Vec<&'static str> {
    FAMILIES.iter().map(|&(name, _)| name).collect()
}

/// The family of that name and its text.
pub(crate) fn find(name: &str) -> Option<(&'static str, &'static str)> {
    FAMILIES.iter().copied().find(|&(known, _)| known == name)
}
