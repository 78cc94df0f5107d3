//! The text of a profile file, of a family or of a user.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::environment::EnvironmentRule;
use crate::error::Error;
use crate::origin::Origin;
use crate::table::Table;

/// A file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProfileText {
    /// One line for people; families must have it.
    pub(crate) description: Option<String>,
    /// In a user's file: the embedded profile that it builds on.
    pub(crate) base: Option<String>,
    /// In a family's file: why its devices cannot be used at all.
    pub(crate) refused: Option<String>,
    /// In a family's file: which devices it is for.
    #[serde(default, rename = "match")]
    pub(crate) matches: Match,
    /// The knobs that the file sets.
    #[serde(default)]
    pub(crate) settings: Table,
    /// The most that the devices take, by the knob that it limits.
    #[serde(default)]
    pub(crate) limits: Table,
    /// What the environment should hold before a device is opened.
    #[serde(default)]
    pub(crate) environment: Vec<EnvironmentRule>,
    /// In a family's file: what single devices of the family need otherwise.
    #[serde(default)]
    pub(crate) device: BTreeMap<String, DeviceText>,
}

/// Which devices a family is for.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Match {
    /// Kernel drivers of the PCI function that the devices sit on.
    pub(crate) drivers: Vec<String>,
    /// PCI identifiers, `VENDOR:PART` in hexadecimal digits. A family that has some is for these alone,
    /// and comes before one of the same driver that has none.
    pub(crate) parts: Vec<String>,
    /// How the names of devices begin that no hardware is behind.
    pub(crate) names: Vec<String>,
}

/// A device of a family that has values of its own.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceText {
    /// One line for people.
    pub(crate) description: String,
    /// Its PCI identifiers, as in [`Match`].
    pub(crate) parts: Vec<String>,
    #[serde(default)]
    pub(crate) settings: Table,
    #[serde(default)]
    pub(crate) limits: Table,
}

impl ProfileText {
    pub(crate) fn parse(text: &str, origin: &Origin) -> Result<Self, Error> {
        toml::from_str(text).map_err(|error| Error::Parse {
            origin: origin.clone(),
            source: Box::new(error),
        })
    }

    /// A section of it that only families may have, and where to put it instead.
    pub(crate) fn misplaced_in_a_file(&self) -> Option<&'static str> {
        let Match {
            drivers,
            parts,
            names,
        } = &self.matches;
        if !self.device.is_empty() {
            Some(
                "only the built-in families have device sections; put the values under [settings], \
                 and name the device by base = \"FAMILY/DEVICE\"",
            )
        } else if self.refused.is_some()
            || !(drivers.is_empty() && parts.is_empty() && names.is_empty())
        {
            Some(
                "only the built-in families say which devices they are for; leave out [match] and \
                 refused, and name the file by --profile",
            )
        } else {
            None
        }
    }
}
