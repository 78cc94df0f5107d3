//! The tests of placement on an RDMA device: runs in the lab (tests/lab).

#[path = "placement/cases.rs"]
mod cases;
mod support;

const FORM: support::Form = support::Form::SharedQueue;
type TestFabric = support::verbs::Verbs;
