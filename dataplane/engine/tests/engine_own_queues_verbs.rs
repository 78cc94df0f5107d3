//! The tests of the engine on an RDMA device, with a receive queue for each connection: runs in the
//! lab (tests/lab).

#[path = "engine/cases.rs"]
mod cases;
mod support;

const FORM: support::Form = support::Form::OwnQueues;
type TestFabric = support::verbs::Verbs;
