//! Bulk data that is placed by Sends, once more, as on a device without shared receive queues.

#[path = "placement/calls.rs"]
mod calls;
#[path = "placement/mixed.rs"]
mod mixed;
mod support;

const FORM: support::Form = support::Form::OwnQueues;
type TestFabric = support::fabric::Shm;
