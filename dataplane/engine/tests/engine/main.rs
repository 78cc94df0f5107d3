//! The engine over the `shm` fabric: Receives of one segment, from a shared queue.

#[path = "cases.rs"]
mod cases;
#[path = "../support/mod.rs"]
mod support;

const FORM: support::Form = support::Form::SharedQueue;
type TestFabric = support::fabric::Shm;
