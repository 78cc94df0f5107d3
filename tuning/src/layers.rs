//! Layers of settings, put on top of each other: built-in defaults, family, device, the user's
//! file, the command line.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::{Error, Knob};
use crate::families;
use crate::profile::{Profile, Settings};

/// The layer that a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The built-in defaults.
    Defaults,
    /// The embedded file of a family, by its name.
    Family(&'static str),
    /// A device's section of a family's file.
    Device {
        /// The family's name.
        family: &'static str,
        /// The device's name.
        device: String,
    },
    /// The user's file.
    File(PathBuf),
    /// The command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Defaults => f.write_str("built-in default"),
            Self::Family(family) => write!(f, "profile {family}"),
            Self::Device { family, device } => write!(f, "profile {family}/{device}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// The text of a profile file, of a family or of a user.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProfileText {
    /// One line for people; families must have it.
    pub(crate) description: Option<String>,
    /// In a user's file: the embedded profile that it builds on.
    pub(crate) base: Option<String>,
    /// The knobs that the file sets.
    #[serde(default)]
    pub(crate) settings: Settings,
    /// In a family's file: the knobs that single devices of the family need otherwise.
    #[serde(default)]
    pub(crate) device: BTreeMap<String, Settings>,
}

impl ProfileText {
    pub(crate) fn parse(text: &str, origin: &Origin) -> Result<Self, Error> {
        toml::from_str(text).map_err(|error| Error::Parse {
            origin: origin.clone(),
            source: Box::new(error),
        })
    }
}

/// A checked profile, with the name that it goes by and the origin of every value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// The knobs.
    pub profile: Profile,
    /// The name or the path that the profile was chosen by, for reports.
    pub name: String,
    origins: BTreeMap<&'static str, Origin>,
}

impl Loaded {
    /// The layer that set the knob of that name.
    #[must_use]
    pub fn origin(&self, knob: &str) -> Origin {
        self.origins.get(knob).cloned().unwrap_or(Origin::Defaults)
    }
}

/// A profile in the making: layers are added from below, and [`build`](Layers::build) checks the
/// result.
#[derive(Debug, Clone)]
pub struct Layers {
    profile: Profile,
    name: String,
    origins: BTreeMap<&'static str, Origin>,
}

impl Layers {
    /// The built-in defaults alone.
    #[must_use]
    pub fn defaults() -> Self {
        Self {
            profile: Profile::default(),
            name: "defaults".to_owned(),
            origins: BTreeMap::new(),
        }
    }

    /// The built-in defaults, and on them an embedded family (`FAMILY`), and on that one of its
    /// devices where the name says so (`FAMILY/DEVICE`).
    ///
    /// # Errors
    /// [`Error::UnknownProfile`] when there is none of that name.
    pub fn named(name: &str) -> Result<Self, Error> {
        let (family_name, device_name) = match name.split_once('/') {
            Some((family, device)) => (family, Some(device)),
            None => (name, None),
        };
        let unknown = || Error::UnknownProfile {
            name: name.to_owned(),
            known: families::names().join(", "),
        };
        let (family, text) = families::find(family_name).ok_or_else(unknown)?;
        let origin = Origin::Family(family);
        let text = ProfileText::parse(text, &origin)?;

        let mut layers = Self {
            name: name.to_owned(),
            ..Self::defaults()
        };
        layers.put(&text.settings, &origin);
        if let Some(device) = device_name {
            let settings = text.device.get(device).ok_or_else(unknown)?;
            layers.put(
                settings,
                &Origin::Device {
                    family,
                    device: device.to_owned(),
                },
            );
        }
        Ok(layers)
    }

    /// The built-in defaults, the embedded profile that the file's `base` names, if it names one,
    /// and on them the file's settings.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Parse`] or [`Error::Misplaced`] when the file cannot be read or
    /// understood, [`Error::UnknownProfile`] when its base does not exist.
    pub fn file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let origin = Origin::File(path.to_owned());
        let text = std::fs::read_to_string(path).map_err(|source| Error::Read {
            path: path.to_owned(),
            source,
        })?;
        let text = ProfileText::parse(&text, &origin)?;
        if !text.device.is_empty() {
            return Err(Error::Misplaced {
                origin,
                reason: "only the built-in families have device sections; put the values under \
                         [settings], and name the device by base = \"FAMILY/DEVICE\"",
            });
        }
        let below = match &text.base {
            Some(base) => Self::named(base)?,
            None => Self::defaults(),
        };
        let mut layers = Self {
            name: path.display().to_string(),
            ..below
        };
        layers.put(&text.settings, &origin);
        Ok(layers)
    }

    /// What `--profile NAME|FILE` means: a path that ends in `.toml` is a file, all else the name
    /// of an embedded profile.
    ///
    /// # Errors
    /// Those of [`file`](Layers::file) and of [`named`](Layers::named).
    pub fn choose(name_or_path: &str) -> Result<Self, Error> {
        if Path::new(name_or_path)
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            Self::file(name_or_path)
        } else {
            Self::named(name_or_path)
        }
    }

    /// Adds the top layer, the command line.
    #[must_use]
    pub fn overrides(mut self, settings: &Settings) -> Self {
        self.put(settings, &Origin::CommandLine);
        self
    }

    /// Checks the values, alone and against each other, and hands out the profile.
    ///
    /// # Errors
    /// [`Error::Range`], [`Error::Form`] or [`Error::Relation`] for the first value that cannot be
    /// used; the error names the layer that set it.
    pub fn build(self) -> Result<Loaded, Error> {
        self.profile.validate_with(&|name| self.knob(name))?;
        Ok(Loaded {
            profile: self.profile,
            name: self.name,
            origins: self.origins,
        })
    }

    fn put(&mut self, settings: &Settings, origin: &Origin) {
        self.profile.apply(settings, origin, &mut self.origins);
    }

    fn knob(&self, name: &'static str) -> Knob {
        Knob {
            name,
            value: self.profile.value_text(name).unwrap_or_default(),
            origin: self.origins.get(name).cloned().unwrap_or(Origin::Defaults),
        }
    }
}
