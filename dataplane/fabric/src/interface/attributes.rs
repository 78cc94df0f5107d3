//! The capabilities and limits of a device.

/// The limits of a device, as the provider found them. A limit of zero means that the device lacks the feature; the
/// conformance suite reports what it skips for that reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The provider's name: `shm` or `verbs`.
    pub provider: &'static str,
    /// The device's name, for people.
    pub device: String,
    /// The devices that the port joins ([`crate::rails`]), each with its own receive queues and Receives; usually 1.
    pub rails: u32,
    /// The queue pairs that one port may hold: the bound of their indexes. With several rails, each holds fewer.
    pub queue_pairs_max: u32,
    /// Receives that one receive queue may hold.
    pub receive_queue_depth_max: u32,
    /// Segments in the scatter list of a Receive.
    pub receive_segments_max: u32,
    /// Segments in the gather list of a Send or RDMA Write, or the scatter list of an RDMA Read.
    pub send_segments_max: u32,
    /// Work requests outstanding in the send queue of one queue pair.
    pub send_queue_depth_max: u32,
    /// Bytes that [`super::PortSends::post_send_copied`] copies in one call.
    pub inline_bytes_max: u32,
    /// Bytes of one message or RDMA operation.
    pub message_bytes_max: u32,
    /// RDMA Reads outstanding per queue pair, as initiator; zero if the device has none, or if a Read would expose more
    /// of this end's memory than its target (iWARP). Two peers may agree on fewer, or on none: see
    /// [`super::PortSends::post_read`].
    pub read_depth_max: u32,
    /// Memory windows that one port may bind at a time; zero if the device has none.
    pub windows_max: u32,
    /// Whether one receive queue may serve several queue pairs. Otherwise each serves one at a
    /// time: its Receives count from [`super::PortSetup::adopt_queue_pair`] on, and complete with
    /// [`super::Status::Flushed`] before its `Disconnected`. It serves the next one when
    /// [`super::PortSetup::destroy_queue_pair`] has ended the one before.
    pub shared_receive_queue: bool,
    /// Whether Send With Invalidate is supported in both directions.
    pub send_with_invalidate: bool,
    /// Why the queue pairs of the port are in no thread domain, although one is configured; `None` where they are as
    /// configured.
    pub thread_domain_refused: Option<String>,
}
