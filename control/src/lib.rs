//! The control plane: everything that happens before and after calls, and never on their path.
//!
//! A [`Node`] is a set of polling cores and one control thread. The control thread listens,
//! connects, exchanges private data (RFC 8797) and transport properties (-00 section 5), assigns
//! connections to cores, keeps the limits, drains and closes. It talks to the cores by mailbox
//! alone and sleeps until something happens.
//!
//! * [`node`] is the handle of an application.
//! * [`provider`] has the traits that a fabric implements; [`ShmProvider`] is the embedded one, and
//!   [`VerbsProvider`] is for RDMA devices.
//! * [`authentication`] checks the identity of peers, if this end demands it.
//! * [`faults`] injects faults on purpose, to test how peers handle them.
//! * [`core_choice`] chooses the core of a new connection, and counts peers against their limit.
//! * [`reconnect`] decides when a lost connection is re-established.
//! * [`properties`] decides which properties this end announces, and how it uses the peer's.

#![forbid(unsafe_code)]

mod connection;
mod counters;
mod error;
mod events;
mod limits;
mod link;
mod polled;
mod profile;
mod request;
mod target;
mod thread;
mod versions;
mod watch;

pub mod authentication;
pub mod core_choice;
pub mod faults;
pub mod node;
pub mod properties;
pub mod provider;
pub mod reconnect;

pub use authentication::{Authentication, HostAuthentication, PresharedKey, PresharedKeys};
pub use connection::{ConnectOptions, Connection, DrainReport, ListenOptions, Listening};
pub use core_choice::CoreChoice;
pub use counters::ControlCounters;
pub use error::{ConnectError, NodeError, Stage};
pub use events::{EventSink, GivenUp, NodeEvent, TargetEvent};
pub use faults::{
    Fault, FaultError, FaultKind, FaultPlan, FaultyApplication, FaultyManager, FaultyPort,
    FaultyProvider, Often,
};
pub use limits::NodeLimits;
pub use node::{Node, NodeConfig, PendingConnect, PolledNode};
pub use polled::PolledCore;
pub use provider::VerbsProvider;
pub use provider::{PortNeed, Provider, ShmProvider};
pub use reconnect::Reconnect;
pub use target::Target;
pub use versions::{VERSION_1_REMEMBERED, Versions};
pub use watch::{CoreSnapshot, NodeSnapshot};
