//! Where the values of knobs came from.

use std::fmt;
use std::path::PathBuf;

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
    /// The program that embeds the library.
    Program,
    /// What a device can do: a layer above asked for more. Names the device with the limit.
    Limit(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Defaults => f.write_str("built-in default"),
            Self::Family(family) => write!(f, "profile {family}"),
            Self::Device { family, device } => write!(f, "profile {family}/{device}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::CommandLine => f.write_str("command line"),
            Self::Program => f.write_str("program"),
            Self::Limit(of) => write!(f, "limit of {of}"),
        }
    }
}

/// A knob in an error or a warning: its name, its value, and the layer that set it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Knob {
    /// The knob's name, as in [`Profile::KNOBS`](crate::Profile::KNOBS).
    pub name: &'static str,
    /// The value as TOML writes it.
    pub value: String,
    /// The layer that set the value.
    pub origin: Origin,
}

impl fmt::Display for Knob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {} ({})", self.name, self.value, self.origin)
    }
}
