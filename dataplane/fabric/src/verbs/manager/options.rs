//! The options of a manager.

use std::time::Duration;

/// The settings of a manager and of its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManagerOptions {
    /// The time that a client has to resolve and connect, and that a peer has for its next answer.
    pub handshake_timeout: Duration,
    /// The time limit for finding the device of one address, and again for finding the path.
    pub resolve_timeout: Duration,
    /// The time that a peer waits before it retries a Send for which we had no Receive, as a code of
    /// the InfiniBand specification (volume 1, section 9.7.5.2.8), from 0 to 31; 12 is 0.64 ms.
    pub min_rnr_timer_code: u8,
    /// The exponent of the time that the device waits for an acknowledgement: 4.096 µs times two to
    /// this power, from 1 to 31; 16 is 268 ms.
    pub ack_timeout_exponent: u8,
    /// How often the device repeats an unacknowledged packet, from 0 to 7.
    pub retry_count: u8,
    /// How often the device retries when the peer has no Receive posted, from 0 to 7; 7 is without
    /// limit. The peer sets the delay before each retry, 655 ms at most: six retries take at most
    /// four seconds, and 4 ms with a peer that has the default `min_rnr_timer_code`. After the last
    /// retry the connection ends with [`Status::ReceiverNotReady`](crate::interface::Status). The
    /// connection request carries the same number, for the peer's Sends.
    pub rnr_retry_count: u8,
    /// The type of service in the IP header, on RoCE v2 and iWARP; `None` keeps the system's default.
    pub type_of_service: Option<u8>,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            handshake_timeout: Duration::from_secs(30),
            resolve_timeout: Duration::from_secs(2),
            min_rnr_timer_code: 12,
            ack_timeout_exponent: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            type_of_service: None,
        }
    }
}
