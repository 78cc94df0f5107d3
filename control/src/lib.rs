//! The control plane: everything that happens before and after calls, and never on their path.
//!
//! A [`Node`] is a set of polling cores and one control thread. The control thread listens, connects, exchanges private data (RFC
//! 8797) and transport properties (-00 section 5), assigns connections to cores, keeps the limits, drains and closes. It talks
//! to the cores by mailbox alone and sleeps until something happens.
//!
//! This crate is for programs that run an `Application` of `rpcrdma-engine`. All others use the crate `rpcrdma`, whose `Node`
//! is built on this one.
//!
//! ```
//! use rpcrdma_control::{ConnectOptions, ListenOptions, Node, NodeConfig, ShmProvider};
//! use rpcrdma_tuning::Profile;
//!
//! /// Serves no program, and calls nobody.
//! struct Nothing;
//!
//! impl rpcrdma_engine::Application for Nothing {}
//!
//! let profile = Profile { connections_max: 4, ..Profile::default() };
//! let config = NodeConfig::from_profile(&profile, vec![None]);
//! let server = Node::start(ShmProvider::from_profile(&profile), &config, |_core| Nothing)?;
//! let address = format!("shm:front-page-{}", std::process::id());
//! server.listen(&address, ListenOptions::default())?;
//! let connection = server.connect(&address, ConnectOptions::default())?;
//! assert_eq!(connection.version, 2);
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # What to read next
//!
//! [`Node`] is the handle of a program: its methods are what can be done with cores and connections, and [`NodeConfig`] is what
//! they are made of. A [`Provider`] is what a fabric implements: [`ShmProvider`] and [`VerbsProvider`], and [`RailsProvider`]
//! for several devices. Three modules describe
//! decisions that operators ask about: [`authentication`] (who may connect), [`core_choice`] (which core a connection gets) and
//! [`reconnect`] (when a lost connection is made again). [`faults`] injects faults on purpose, to test how peers handle them.

#![forbid(unsafe_code)]

mod connection;
mod counters;
mod device;
mod devices;
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
pub use connection::{
    ConnectOptions, Connection, ConnectionName, DrainReport, ListenOptions, Listening, NameOf,
};
pub use core_choice::CoreChoice;
pub use counters::ControlCounters;
pub use device::{Fabric, FabricError, Use};
pub use devices::Devices;
pub use error::{ConnectError, NodeError, Stage};
pub use events::{EventSink, GivenUp, NodeEvent, TargetEvent};
pub use faults::{
    Fault, FaultError, FaultKind, FaultPlan, FaultyApplication, FaultyManager, FaultyPort,
    FaultyProvider, Often,
};
pub use limits::NodeLimits;
pub use node::{Node, NodeConfig, NodeHandle, PendingConnect, PolledNode};
pub use polled::PolledCore;
pub use provider::{PortAndHandle, PortNeed, Provider, RailsProvider, ShmProvider, VerbsProvider};
pub use reconnect::Reconnect;
pub use rpcrdma_fabric::address::{
    ADDRESSES_MAX, Address, AddressError, AddressFault, ServerAddresses, host_and_port,
};
pub use target::Target;
pub use versions::{VERSION_1_REMEMBERED, Versions};
pub use watch::{CoreSnapshot, CoreView, NodeSnapshot};
