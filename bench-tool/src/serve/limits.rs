//! The file of `--limits`: limits that operators can change while the server runs.

use std::path::Path;

use rpcrdma::Node;
use rpcrdma_control::{NodeError, NodeLimits};
use serde::Deserialize;

use crate::exit::Failure;

/// The contents of the file. A missing limit has the value from the server's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Limits {
    /// Upper bound of the connections over all cores.
    pub max_connections: Option<u32>,
    /// Upper bound of the connections of one client.
    pub max_connections_per_client: Option<u32>,
    /// Upper bound of the calls outstanding on each connection.
    pub credits: Option<u16>,
}

impl Limits {
    /// Reads the file.
    ///
    /// # Errors
    /// A failure with the file and, for a syntax error, the line.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let cannot = || Failure::failed(format!("the limits in {} cannot be used", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| {
            cannot()
                .because(error)
                .advice("give --limits a file that the server may read")
        })?;
        toml::from_str(&text).map_err(|error| {
            cannot().because(one_line(&error)).advice(
                "write max_connections, max_connections_per_client and credits, each as `name = number`",
            )
        })
    }

    /// Applies them to the node. Returns all its limits.
    ///
    /// # Errors
    /// If they cannot be applied; then nothing has changed.
    pub(crate) fn apply(&self, node: &Node) -> Result<NodeLimits, NodeError> {
        let limits = self.of_node(node.control().limits_reserved(), node.cores());
        node.control().set_limits(limits)?;
        Ok(limits)
    }

    /// The limits of a node with `cores` cores; missing ones are those of `reserved`, from its start.
    #[must_use]
    fn of_node(&self, reserved: NodeLimits, cores: usize) -> NodeLimits {
        let cores = u32::try_from(cores).unwrap_or(u32::MAX).max(1);
        let per_core = self.max_connections.map(|all| all.div_ceil(cores));
        NodeLimits {
            connections_per_core: per_core.unwrap_or(reserved.connections_per_core),
            peer_connections_max: self
                .max_connections_per_client
                .unwrap_or(reserved.peer_connections_max),
            credits_per_connection: self.credits.unwrap_or(reserved.credits_per_connection),
        }
    }
}

/// The error and its line number, without the excerpt from the file, because log collectors work on single lines.
fn one_line(error: &toml::de::Error) -> String {
    let text = error.to_string();
    let place = text.lines().next().unwrap_or_default();
    let place = place
        .strip_prefix("TOML parse error ")
        .map_or_else(String::new, |place| format!("{place}: "));
    format!("{place}{}", error.message())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_testkit::CheckWords;

    const RESERVED: NodeLimits = NodeLimits {
        connections_per_core: 10,
        peer_connections_max: 4,
        credits_per_connection: 8,
    };

    fn read(text: &str) -> Result<Limits, String> {
        toml::from_str(text).map_err(|error| one_line(&error))
    }

    #[test]
    fn omitted_limits_keep_their_initial_values() {
        assert_eq!(read("").unwrap().of_node(RESERVED, 2), RESERVED);
        let limits = read("max_connections = 7 # of 20\ncredits = 3").unwrap();
        let wanted = NodeLimits {
            connections_per_core: 4,
            credits_per_connection: 3,
            ..RESERVED
        };
        assert_eq!(limits.of_node(RESERVED, 2), wanted);
        let limits = read("max_connections_per_client = 100").unwrap();
        assert_eq!(limits.of_node(RESERVED, 2).peer_connections_max, 100);
    }

    #[test]
    fn wrong_file_is_reported_in_one_line_with_the_place() {
        for (text, words) in [
            ("max_connections = \"7\"", "line 1"),
            ("\nmax_conections = 7", "unknown field `max_conections`"),
            ("credits = 65536", "line 1"),
            ("credits = -1", "line 1"),
            ("credits 1", "line 1"),
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains(words) && !told.contains('\n'), "{told}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let failure = Limits::read(Path::new("no/such/limits.toml")).unwrap_err();
        let text = failure.to_string();
        text.check_words(&["no/such/limits.toml", "what to do"]);
    }
}
