//! Bulk data that is placed by the Sends that carry it, over the `shm` fabric.

#[path = "cases.rs"]
mod cases;
#[path = "../support/mod.rs"]
mod support;

/// The forms of the Receives are this test's own.
const FORM: support::Form = support::Form::SharedQueue;
type TestFabric = support::fabric::Shm;
