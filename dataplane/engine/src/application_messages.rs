//! Header types and properties that an application adds to version 2 (-00 appendix B).

use rpcrdma_protocol::v2::{Property, PropertySet, TransportError};

use crate::rpc::ConnectionKey;

/// Most properties of a peer that are kept for the application. Ours.
pub const PEER_PROPERTIES_MAX: usize = 16;

/// Most octets of data of all these properties together. Ours.
pub const PEER_PROPERTIES_BYTES_MAX: usize = 1024;

/// A message of a header type of the application ([`CoreConfig::header_types`](crate::CoreConfig::header_types)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplicationMessage<'m> {
    /// Where it came from.
    pub connection: ConnectionKey,
    /// Its header type.
    pub header_type: u32,
    /// Its XID. An answer has the same one ([`Context::send_message`](crate::Context::send_message)).
    pub xid: u32,
    /// Its sender marked it as the answer to a message of ours (F_RESPONSE, -00 section 6.3.2.1). The application has
    /// to check that it sent a message with this XID: the core does not remember them.
    pub is_answer: bool,
    /// What follows the prefix of 20 octets. It is in the Receive, which is posted again when the application has
    /// returned.
    pub body: &'m [u8],
}

/// How an application dealt with a message of one of its header types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageOutcome {
    /// It was taken. The core sends no answer; the application may.
    Taken,
    /// The header type is not known: RDMA2_ERR_INVAL_HTYPE (-00 section 6.4.3), as for a type that is not registered.
    #[default]
    Unsupported,
    /// The body cannot be decoded: RDMA2_ERR_BAD_XDR.
    Malformed,
    /// Any other problem: RDMA2_ERR_SYSTEM.
    Failed,
}

impl MessageOutcome {
    /// The transport error that answers the message. An answer of a peer cannot be answered: its connection is closed.
    #[must_use]
    pub const fn error(self) -> Option<TransportError> {
        match self {
            Self::Taken => None,
            Self::Unsupported => Some(TransportError::InvalHtype),
            Self::Malformed => Some(TransportError::BadXdr),
            Self::Failed => Some(TransportError::System),
        }
    }
}

/// Properties of a peer that neither -00 nor the extension defines, in the order in which they came.
///
/// Of a set that has more, the first [`PEER_PROPERTIES_MAX`] are kept, and of these no more than
/// [`PEER_PROPERTIES_BYTES_MAX`] octets: one that does not fit is left out whole. Numbers outside the range of
/// applications are among them, and one number may come more than once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerProperties {
    entries: Vec<(u32, Box<[u8]>)>,
    left_out: usize,
}

impl PeerProperties {
    /// The unknown properties of `set`, as far as the limits above allow.
    #[must_use]
    pub fn of(set: &PropertySet<'_>) -> Self {
        let mut properties = Self::default();
        let mut room_bytes = PEER_PROPERTIES_BYTES_MAX;
        for property in *set {
            let Property::Unknown { id, data } = property else {
                continue;
            };
            match room_bytes.checked_sub(data.len()) {
                Some(rest) if properties.entries.len() < PEER_PROPERTIES_MAX => {
                    room_bytes = rest;
                    properties.entries.push((id, data.into()));
                }
                // The peer chooses how many it sends: what is kept of them has to be bounded. A later,
                // shorter property may still fit.
                _ => properties.left_out += 1,
            }
        }
        properties
    }

    /// The data of the first property with this number.
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&[u8]> {
        self.iter()
            .find_map(|(id, data)| (id == number).then_some(data))
    }

    /// Numbers and data.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.entries.iter().map(|(id, data)| (*id, &**data))
    }

    /// How many were left out.
    #[must_use]
    pub const fn left_out(&self) -> usize {
        self.left_out
    }

    /// Whether the peer announced none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.left_out == 0
    }
}

#[cfg(test)]
mod tests {
    use rpcrdma_protocol::v2::write_property_set;
    use rpcrdma_protocol::xdr::Writer;

    use super::*;

    fn peer(properties: &[Property<'_>]) -> PeerProperties {
        let mut space = [0; 16_384];
        let mut writer = Writer::new(&mut space);
        write_property_set(&mut writer, properties).expect("ample space");
        let bytes = writer.position();
        PeerProperties::of(&PropertySet::decode(&space[..bytes]).expect("well formed"))
    }

    #[test]
    fn a_peer_has_no_more_kept_than_the_limits() {
        let unknown = |id, data| Property::Unknown { id, data };
        let many: Vec<_> = (0..500).map(|id| unknown(1000 + id, &[7; 4][..])).collect();
        let kept = peer(&many);
        assert_eq!(kept.iter().count(), PEER_PROPERTIES_MAX);
        assert_eq!(kept.left_out(), 500 - PEER_PROPERTIES_MAX);
        let long = [1; PEER_PROPERTIES_BYTES_MAX];
        let mixed = [
            unknown(1000, &long[1..]),
            Property::SendSizeMax(Some(4096)),
            unknown(1001, &long[..2]),
            unknown(1002, &long[..1]),
            unknown(1000, &[]),
        ];
        let kept = peer(&mixed);
        let numbers: Vec<u32> = kept.iter().map(|(number, _)| number).collect();
        assert_eq!((numbers, kept.left_out()), (vec![1000, 1002, 1000], 1));
        assert_eq!(kept.get(1000).map(<[u8]>::len), Some(1023), "the first");
        assert!(peer(&[Property::SendSizeMax(None)]).is_empty());
        assert!(
            !peer(&[unknown(1000, &[0; 2000])]).is_empty(),
            "one is missing"
        );
    }
}
