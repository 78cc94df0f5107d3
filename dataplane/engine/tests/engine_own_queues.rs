//! The tests of the engine once more, as on a device without shared receive queues.

#[path = "engine/cases.rs"]
mod cases;
mod support;

const FORM: support::Form = support::Form::OwnQueues;
type TestFabric = support::fabric::Shm;
