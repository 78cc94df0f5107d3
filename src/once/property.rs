//! How the ends of a connection of version 2 tell each other who calls, and what is kept of the calls.
//!
//! The property has a number of the range for experiments (-00 appendix B.3, docs/extension/applications.md). Its data is a
//! mark, the name of the end, and how many calls it keeps:
//!
//! ```text
//!  4 bytes "once" │ 12 bytes node │ 4 bytes connection │ 4 bytes number of calls, 0 if none
//! ```
//!
//! Node and connection are the name of a client: it has the same one when it connects again, and each connection has its
//! own, so that the calls on others do not displace its replies while it is away. The node is random: it is another one
//! after a restart, by which a client learns that its replies are no longer there.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rpcrdma_engine::PeerProperties;
use rpcrdma_protocol::v2::{ApplicationNumberRefused, ApplicationProperties};

use super::CALLS_MAX;

/// The number of the property: "o" for once, in the range that applications have.
const NUMBER: u32 = 0xffff_ff6f;

/// Other applications can choose the same number, but hardly the same mark.
const MARK: [u8; 4] = *b"once";

/// Bytes of a name.
pub(crate) const NAME_BYTES: usize = 16;

/// Bytes of the part of a name that is that of the node.
const NODE_BYTES: usize = 12;

/// Whether a name is that of a client's connection, and not of a node.
pub(crate) fn is_of_a_connection(name: &[u8; NAME_BYTES]) -> bool {
    name[NODE_BYTES..] != [0; NAME_BYTES - NODE_BYTES]
}

/// The name that a client gives to a connection, of which it has one at a time.
pub(crate) fn connection_name(properties: &PeerProperties) -> Option<[u8; NAME_BYTES]> {
    let name = Announced::of(properties)?.name;
    is_of_a_connection(&name).then_some(name)
}

/// The names of a node.
#[derive(Debug)]
pub(crate) struct Names {
    node: [u8; NODE_BYTES],
    /// How many connections of clients have one.
    connections: AtomicU32,
    calls_max: u32,
}

impl Names {
    /// New ones, for a node that keeps replies or does not.
    pub(crate) fn new(keeps: bool) -> Self {
        // The keys of each `RandomState` differ, and those of a thread's first one are random.
        let keys = RandomState::new();
        let random = [
            keys.hash_one(std::process::id()),
            keys.hash_one(Instant::now()),
        ];
        let [high, low] = random.map(u64::to_be_bytes);
        let mut node = [0; NODE_BYTES];
        for (space, byte) in node.iter_mut().zip(high.into_iter().chain(low)) {
            *space = byte;
        }
        Self {
            node,
            connections: AtomicU32::new(0),
            calls_max: if keeps { CALLS_MAX } else { 0 },
        }
    }

    /// What the node announces to its clients: its name, and what its program announces.
    ///
    /// # Errors
    /// When that leaves no room for the name, or has its number.
    pub(crate) fn as_server(
        &self,
        with: ApplicationProperties,
    ) -> Result<ApplicationProperties, ApplicationNumberRefused> {
        self.announced(0).add_to(with)
    }

    /// What a new connection of a client announces, each time that it is made.
    pub(crate) fn as_client(&self) -> ApplicationProperties {
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        self.announced(number.wrapping_add(1)).properties()
    }

    fn announced(&self, number: u32) -> Announced {
        let mut name = [0; NAME_BYTES];
        let (node, rest) = name.split_at_mut(NODE_BYTES);
        node.copy_from_slice(&self.node);
        rest.copy_from_slice(&number.to_be_bytes());
        let calls_max = self.calls_max;
        Announced { name, calls_max }
    }
}

/// What an end announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    /// The node, and the number of a client's connection.
    pub(crate) name: [u8; NAME_BYTES],
    /// The calls of a connection that it keeps the replies of, if it serves procedures that are not idempotent.
    pub(crate) calls_max: u32,
}

impl Announced {
    /// As a property.
    pub(crate) fn properties(&self) -> ApplicationProperties {
        // Never refused: the number is in the range, and the only one.
        self.add_to(ApplicationProperties::NONE)
            .unwrap_or(ApplicationProperties::NONE)
    }

    /// As a property, behind others.
    fn add_to(
        &self,
        others: ApplicationProperties,
    ) -> Result<ApplicationProperties, ApplicationNumberRefused> {
        let mut data = [0; MARK.len() + NAME_BYTES + 4];
        let (mark, rest) = data.split_at_mut(MARK.len());
        let (name, calls) = rest.split_at_mut(NAME_BYTES);
        mark.copy_from_slice(&MARK);
        name.copy_from_slice(&self.name);
        calls.copy_from_slice(&self.calls_max.to_be_bytes());
        others.with(NUMBER, &data)
    }

    /// The node, which no other node has.
    pub(crate) fn node(&self) -> [u8; NODE_BYTES] {
        let node = self.name.first_chunk();
        node.copied().unwrap_or_default()
    }

    /// What a peer announced. `None` if it did not, or another application has the number.
    pub(crate) fn of(properties: &PeerProperties) -> Option<Self> {
        let data = properties.get(NUMBER)?.strip_prefix(&MARK)?;
        let (name, calls) = data.split_first_chunk()?;
        Some(Self {
            name: *name,
            calls_max: u32::from_be_bytes(calls.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use rpcrdma_protocol::v2::{Property, PropertySet, write_property_set};
    use rpcrdma_protocol::xdr::Writer;

    use super::*;

    fn received(properties: &[Property<'_>]) -> PeerProperties {
        let mut space = [0; 512];
        let mut writer = Writer::new(&mut space);
        write_property_set(&mut writer, properties).unwrap();
        let bytes = writer.position();
        PeerProperties::of(&PropertySet::decode(&space[..bytes]).unwrap())
    }

    #[test]
    fn the_property_has_these_octets() {
        let announced = Announced {
            name: *b"0123456789abcdef",
            calls_max: 64,
        };
        let properties = announced.properties();
        let sent: Vec<_> = properties.iter().collect();
        let data = b"once0123456789abcdef\0\0\0\x40";
        let id = 0xffff_ff6f;
        assert_eq!(sent, [Property::Unknown { id, data }]);
        assert_eq!(Announced::of(&received(&sent)), Some(announced));
    }

    #[test]
    fn connections_have_names_of_their_own_and_their_node_in_common() {
        let announced = |properties: ApplicationProperties| {
            let properties: Vec<_> = properties.iter().collect();
            Announced::of(&received(&properties)).unwrap()
        };
        let nodes = [(Names::new(true), 64), (Names::new(false), 0)];
        let mut all = std::collections::HashSet::new();
        for (names, calls_max) in &nodes {
            let of_node = [
                names.as_server(ApplicationProperties::NONE).unwrap(),
                names.as_client(),
                names.as_client(),
            ];
            for one in of_node.map(announced) {
                assert_eq!((one.node(), one.calls_max), (names.node, *calls_max));
                assert!(all.insert(one.name));
            }
        }
        assert_ne!(nodes[0].0.node, nodes[1].0.node);
    }

    #[test]
    fn property_of_another_application_is_not_recognized() {
        let others: [&[u8]; 5] = [
            b"",
            b"once",
            b"once0123456789abcdef\0\0\0",
            b"once0123456789abcdef\0\0\0\x40\0",
            b"Once0123456789abcdef\0\0\0\x40",
        ];
        for data in others {
            let id = 0xffff_ff6f;
            let there = received(&[Property::Unknown { id, data }]);
            assert_eq!(Announced::of(&there), None, "{data:?}");
        }
        assert_eq!(Announced::of(&PeerProperties::default()), None);
    }
}
