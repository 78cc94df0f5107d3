//! Limits that change while a node runs.

use crate::error::NodeError;

/// Limits of a node. A change applies to new connections only; open connections keep theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// Connections of one core at a time.
    pub connections_per_core: u32,
    /// Connections that one peer may have at a time.
    pub peer_connections_max: u32,
    /// Credits that each connection is granted, one at least.
    pub credits_per_connection: u16,
}

impl NodeLimits {
    /// Checks these limits against the reserved memory and the fewest credits that peers need. The limit of one peer
    /// costs no memory, so it may exceed its value at the start.
    pub(crate) fn check(&self, reserved: &Self, credits_least: u16) -> Result<(), NodeError> {
        let limits = [
            (
                "connections of a core",
                self.connections_per_core,
                0,
                reserved.connections_per_core,
            ),
            (
                "credits of a connection",
                self.credits_per_connection.into(),
                credits_least.into(),
                reserved.credits_per_connection.into(),
            ),
        ];
        let outside = limits
            .into_iter()
            .find(|(_, asked, least, most)| asked < least || asked > most);
        match outside {
            None => Ok(()),
            Some((what, asked, least, most)) => Err(NodeError::LimitOutside {
                what,
                asked,
                least,
                most,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_stay_within_what_memory_is_reserved_for() {
        let reserved = NodeLimits {
            connections_per_core: 10,
            peer_connections_max: 4,
            credits_per_connection: 8,
        };
        assert!(reserved.check(&reserved, 1).is_ok());
        let with = |connections_per_core, credits_per_connection| NodeLimits {
            connections_per_core,
            peer_connections_max: 1000,
            credits_per_connection,
        };
        assert!(
            with(0, 1).check(&reserved, 1).is_ok(),
            "nobody, for a while"
        );
        for (limits, words) in [
            (with(11, 8), "11 connections of a core"),
            (with(10, 9), "9 credits of a connection"),
            (with(10, 0), "from 3 to 8"),
            (with(10, 2), "from 3 to 8"),
        ] {
            let text = limits.check(&reserved, 3).expect_err("outside").to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
