//! Bulk data that is placed by Sends, once more, as on a device without shared receive queues.

#[path = "placement/cases.rs"]
mod cases;
mod support;

const FORM: support::Form = support::Form::OwnQueues;
type TestFabric = support::fabric::Shm;
