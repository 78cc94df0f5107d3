//! RDMA-CM as this crate uses it: thin wrappers that keep librdmacm's rules, and no policy.
//!
//! * [`address`] reads `rdma:HOST:PORT`, and turns socket addresses into C's and back.
//! * [`channel`] is the event channel: every event is copied out and acknowledged at once, so that
//!   no identifier ever waits for an event to be acknowledged when it is destroyed.
//! * [`event`] is what an event says, in plain values.
//! * [`id`] is a connection identifier without a queue pair of its own: the provider drives queue
//!   pairs itself, by the attributes that librdmacm hands out (`rdma_init_qp_attr`).
//! * [`private_data`] is what travels with requests, replies and rejections.
//! * [`refusal`] names the reasons that a CM gives for a rejection.
//!
//! All identifiers of a device share the `ibv_context` that librdmacm opened, with everything of
//! this process that got the device from `rdma_get_devices`.

pub(in crate::verbs) mod address;
pub(in crate::verbs) mod channel;
pub(in crate::verbs) mod event;
pub(in crate::verbs) mod id;
pub(in crate::verbs) mod private_data;
pub(in crate::verbs) mod refusal;
