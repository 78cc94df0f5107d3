//! Tuning profiles: one struct of knobs, and one TOML file per NIC family.
//!
//! A [`Profile`] is made of layers, each of which may set any knob and leave the rest alone:
//! the built-in defaults, the family's file (`tuning/profiles/*.toml`, compiled in), the family's
//! section for one device, the user's own file, and the command line. [`Layers`] puts them on top
//! of each other in that order and remembers which layer set which knob, so that a refused value
//! can be traced to where it came from.
//!
//! ```
//! use rpcrdma_tuning::{Layers, Settings};
//!
//! let mut command_line = Settings::default();
//! command_line.assign("credits_per_connection=64")?;
//! let loaded = Layers::named("shm")?.overrides(&command_line).build()?;
//! assert_eq!(loaded.profile.credits_per_connection, 64);
//! # Ok::<(), rpcrdma_tuning::Error>(())
//! ```
//!
//! Programs on the crate `rpcrdma` need this one only to read a profile or to make one in code: `rpcrdma` takes profiles and knobs
//! by name. What each knob means, in which unit and range, is in `docs/tuning.md` and in [`Profile`].
//!
//! The limits of a device cap the values of a profile: the families' files have the published limits of their devices,
//! and an actual device is queried. Reduced values are reported ([`Loaded::clamps`]). [`Device`] finds the family of a
//! device.
//!
//! The relations between knobs are checked when the layers are built ([`Profile::validate`]), and
//! sizes that follow from several knobs are sums written out in one place
//! ([`Profile::receives_posted`] and the other functions of that file).
#![forbid(unsafe_code)]

mod choices;
mod derived;
mod detect;
mod entry;
mod environment;
mod error;
mod expand;
mod families;
mod knobs;
mod layers;
mod origin;
mod profile;
mod relations;
mod table;
mod text;
mod values;

pub use choices::{Hugepages, Idle, ReceiveQueues, RelaxedOrdering, ThreadDomains, WithoutWindows};
pub use detect::{Detected, Device};
pub use environment::{EnvironmentRule, EnvironmentValue};
pub use error::Error;
pub use families::{DeviceSummary, FamilySummary, list};
pub use knobs::{Profile, Settings};
pub use layers::{Clamp, Layers, Loaded};
pub use origin::{Knob, Origin};
pub use relations::Relation;
pub use values::{KnobInfo, Value, Values};
