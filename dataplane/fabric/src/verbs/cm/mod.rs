//! Safe wrappers for RDMA-CM. They keep librdmacm's rules and contain no policy.
//!
//! * [`address`] parses `rdma:HOST:PORT`, and converts socket addresses to C's and back.
//! * [`channel`] is the event channel.
//! * [`event`] reads its events. It copies and acknowledges each one immediately, because destroying an
//!   identifier waits until its events are acknowledged.
//! * [`id`] is a connection identifier without a queue pair: the provider changes the states of queue
//!   pairs itself, with the attributes from librdmacm (`rdma_init_qp_attr`).
//! * [`private_data`] is the private data of requests, replies and rejections.
//! * [`refusal`] describes the reasons that a CM gives for a rejection.
//!
//! All identifiers of a device share the `ibv_context` that librdmacm opened. So does everything in
//! this process that got the device from `rdma_get_devices`.

pub(in crate::verbs) mod address;
pub(in crate::verbs) mod channel;
pub(in crate::verbs) mod event;
pub(in crate::verbs) mod id;
pub(in crate::verbs) mod private_data;
pub(in crate::verbs) mod refusal;
