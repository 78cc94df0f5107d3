//! The tests of the engine once more, with receive buffers of several segments.

#[path = "engine/cases.rs"]
mod cases;
mod support;

const FORM: support::Form = support::Form::Segments;
type TestFabric = support::fabric::Shm;
