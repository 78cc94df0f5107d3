//! The tests of the engine on an RDMA device, with receive buffers of several segments: runs in the
//! lab (tests/lab).

#[path = "engine/cases.rs"]
mod cases;
mod support;

const FORM: support::Form = support::Form::Segments;
type TestFabric = support::verbs::Verbs;
