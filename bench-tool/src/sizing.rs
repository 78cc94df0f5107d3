//! From the command line to a tuning profile: what a run and its server need of their cores.

use rpcrdma_tuning::{Layers, Loaded, Settings};

use crate::exit::Failure;
use crate::fabric::Fabric;

/// Receives that the connections of one core share out when nobody says otherwise.
const RECEIVES_PER_CORE: u32 = 4096;

/// The least credits per connection that are chosen when nobody says otherwise.
const CREDITS_LEAST: u32 = 2;

/// Headers and marks around a payload, generously.
const MESSAGE_OVERHEAD_BYTES: u64 = 4096;

/// What one side of a run asks of each of its cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Connections on one core; `None` leaves the profile's.
    pub connections_per_core: Option<u32>,
    /// Credits per connection; `None` chooses by the connections.
    pub credits: Option<u32>,
    /// The largest payload; `None` leaves the profile's.
    pub payload_bytes: Option<u64>,
    /// Calls outstanding on one core; `None` leaves the profile's.
    pub calls_per_core: Option<u32>,
    /// Cores that together serve one peer.
    pub cores: u32,
    /// Sleep when there is nothing to do.
    pub park: bool,
}

impl Need {
    /// The profile named on the command line, or the embedded one of the fabric, with what is
    /// needed on top.
    ///
    /// # Errors
    /// A usage failure when there is no such profile, or it cannot carry what is asked for.
    pub fn profile(&self, named: Option<&str>, fabric: &Fabric) -> Result<Loaded, Failure> {
        let usage = |error: rpcrdma_tuning::Error| {
            Failure::usage("the tuning profile cannot be used").because(error)
        };
        let layers = match named.or(fabric.family()) {
            Some(name) => Layers::choose(name).map_err(usage)?,
            None => Layers::defaults(),
        };
        let base = layers.clone().build().map_err(usage)?.profile;
        let mut settings = Settings {
            connections_max: self.connections_per_core,
            ..Settings::default()
        };
        if let Some(connections) = self.connections_per_core {
            let all = connections.saturating_mul(self.cores.max(1));
            settings.peers_connections_max = Some(all.max(base.peers_connections_max));
            let fair = (RECEIVES_PER_CORE / connections.max(1)).max(CREDITS_LEAST);
            settings.credits_per_connection = Some(base.credits_per_connection.min(fair));
        }
        if let Some(credits) = self.credits {
            let chosen = settings
                .credits_per_connection
                .unwrap_or(base.credits_per_connection);
            settings.credits_per_connection = Some(chosen.max(credits));
        }
        if let Some(bytes) = self.payload_bytes {
            let message = bytes.saturating_add(MESSAGE_OVERHEAD_BYTES);
            let message = u32::try_from(message).unwrap_or(u32::MAX);
            settings.message_bytes_max = Some(message.max(base.message_bytes_max));
        }
        if let Some(calls) = self.calls_per_core {
            let credits = settings
                .credits_per_connection
                .unwrap_or(base.credits_per_connection);
            let calls = calls.max(base.calls_outstanding_max).max(credits);
            settings.calls_outstanding_max = Some(calls);
        }
        if self.park {
            settings.idle = Some(rpcrdma_tuning::Idle::Park);
        }
        layers.overrides(&settings).build().map_err(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(need: Need) -> rpcrdma_tuning::Profile {
        need.profile(None, &Fabric::Shm).unwrap().profile
    }

    #[test]
    fn without_needs_the_profile_stands() {
        let base = rpcrdma_tuning::Profile::by_name("shm").unwrap();
        assert_eq!(profile(Need::default()), base);
    }

    #[test]
    fn many_connections_share_the_receives_and_depth_is_never_cut() {
        let many = Need {
            connections_per_core: Some(4097),
            cores: 1,
            ..Need::default()
        };
        let chosen = profile(many);
        assert_eq!(
            (chosen.connections_max, chosen.credits_per_connection),
            (4097, 2)
        );
        assert!(chosen.peers_connections_max >= 4097);
        let deep = Need {
            credits: Some(64),
            ..many
        };
        assert_eq!(profile(deep).credits_per_connection, 64);
        let few = Need {
            connections_per_core: Some(1),
            cores: 1,
            ..Need::default()
        };
        assert_eq!(
            profile(few).credits_per_connection,
            32,
            "as the profile says"
        );
    }

    #[test]
    fn large_payloads_raise_the_largest_message() {
        let need = Need {
            payload_bytes: Some(8 << 20),
            ..Need::default()
        };
        assert_eq!(profile(need).message_bytes_max, (8 << 20) + 4096);
        let small = Need {
            payload_bytes: Some(64),
            ..Need::default()
        };
        assert_eq!(profile(small).message_bytes_max, (1 << 20) + 4096);
    }

    #[test]
    fn an_unknown_profile_is_a_usage_error() {
        let failure = Need::default()
            .profile(Some("nosuch"), &Fabric::Shm)
            .unwrap_err();
        assert_eq!(failure.status().code(), 2);
        assert!(failure.to_string().contains("nosuch"), "{failure}");
    }
}
