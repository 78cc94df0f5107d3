//! Bulk data that is placed by the Sends that carry it.

#[path = "../support/mod.rs"]
mod support;

/// The forms of the Receives are this test's own.
const FORM: support::Form = support::Form::SharedQueue;
type TestFabric = support::fabric::Shm;

mod calls;
mod credits;
mod mixed;
