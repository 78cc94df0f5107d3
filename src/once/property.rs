//! How the ends of a connection of version 2 tell each other who calls, and what is kept of the calls.
//!
//! The property has a number of the range for experiments (-00 appendix B.3, docs/extension/applications.md). Its data is a
//! mark, the name of the end, and how many calls it keeps:
//!
//! ```text
//!  4 bytes "once" │ 12 bytes node │ 4 bytes core │ 4 bytes number of calls, 0 if none
//! ```
//!
//! Node and core are the name of who counts the XIDs of the calls of this end. The node is random: it is another one after a
//! restart, by which a client learns that its replies are no longer there.

use std::hash::{BuildHasher, RandomState};
use std::time::Instant;

use rpcrdma_engine::PeerProperties;
use rpcrdma_protocol::v2::ApplicationProperties;

use super::CALLS_MAX;

/// The number of the property: "o" for once, in the range that applications have.
const NUMBER: u32 = 0xffff_ff6f;

/// Other applications can choose the same number, but hardly the same mark.
const MARK: [u8; 4] = *b"once";

/// Bytes of a name.
pub(crate) const NAME_BYTES: usize = 16;

/// Bytes of the part of a name that is the same for all cores of a node.
const NODE_BYTES: usize = 12;

/// What the cores of a node announce.
pub(crate) fn properties(cores: usize, keeps: bool) -> Vec<ApplicationProperties> {
    let calls_max = if keeps { CALLS_MAX } else { 0 };
    // The keys of each `RandomState` differ, and those of a thread's first one are random.
    let keys = RandomState::new();
    let node = [
        keys.hash_one(std::process::id()),
        keys.hash_one(Instant::now()),
    ];
    let of_core = |core: usize| {
        let mut name = [0; NAME_BYTES];
        for (space, half) in name.chunks_exact_mut(8).zip(node) {
            space.copy_from_slice(&half.to_be_bytes());
        }
        let number = u32::try_from(core).unwrap_or(u32::MAX);
        name[NODE_BYTES..].copy_from_slice(&number.to_be_bytes());
        Announced { name, calls_max }.properties()
    };
    (0..cores).map(of_core).collect()
}

/// What an end announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    /// Who counts the XIDs of its calls: a core of a process, for as long as that lives.
    pub(crate) name: [u8; NAME_BYTES],
    /// The calls of a connection that it keeps the replies of, if it serves procedures that are not idempotent.
    pub(crate) calls_max: u32,
}

impl Announced {
    /// As a property.
    pub(crate) fn properties(&self) -> ApplicationProperties {
        let mut data = [0; MARK.len() + NAME_BYTES + 4];
        let (mark, rest) = data.split_at_mut(MARK.len());
        let (name, calls) = rest.split_at_mut(NAME_BYTES);
        mark.copy_from_slice(&MARK);
        name.copy_from_slice(&self.name);
        calls.copy_from_slice(&self.calls_max.to_be_bytes());
        // Never refused: the number is in the range, and the only one.
        let properties = ApplicationProperties::NONE.with(NUMBER, &data);
        properties.unwrap_or(ApplicationProperties::NONE)
    }

    /// The node, which all of its cores have in common and no other node has.
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
    fn cores_have_names_of_their_own_and_their_node_in_common() {
        let announced = |keeps| {
            let cores = properties(3, keeps).into_iter();
            let cores = cores.map(|core| received(&core.iter().collect::<Vec<_>>()));
            cores.map(|core| Announced::of(&core).unwrap()).collect()
        };
        let [one, other]: [Vec<_>; 2] = [announced(true), announced(false)];
        assert_ne!(one[0].node(), other[0].node());
        for (node, calls_max) in [(&one, 64), (&other, 0)] {
            assert!(node.iter().all(|core| core.node() == node[0].node()));
            assert!(node.iter().all(|core| core.calls_max == calls_max));
            let names: std::collections::HashSet<_> = node.iter().map(|core| core.name).collect();
            assert_eq!(names.len(), 3);
        }
    }

    #[test]
    fn what_another_application_announces_is_not_taken_for_it() {
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
