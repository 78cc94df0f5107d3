//! Receives of several segments, and the leases on what lies in them.

mod crossing;
mod forms;
mod leases;
#[path = "../support/mod.rs"]
mod support;

/// The tests say themselves how segments are made.
const FORM: support::Form = support::Form::SharedQueue;
type TestFabric = support::fabric::Shm;
