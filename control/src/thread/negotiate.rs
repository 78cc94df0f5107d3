//! The private data of this end, and what the end of a connection shows about a server's versions.

use std::time::Instant;

use rpcrdma_engine::{CloseReason, ConnectionCounters};
use rpcrdma_fabric::interface::ConnectionId;
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::connection::{Terms, Versions};

use super::connection::{Attempt, Tracked};
use super::{ControlThread, Settings};
use crate::core_choice::CoreChoice;
use crate::error::Stage;
use crate::provider::Provider;
use crate::versions::Source;

/// The private data of RFC 8797, for version 1: sizes, and whether remote invalidation is supported.
fn own_data(settings: &Settings) -> PrivateData {
    PrivateData {
        remote_invalidation: settings.remote_invalidation,
        // Only version 2 sends longer messages, from several buffers.
        send_bytes: settings
            .send_buffer_bytes
            .min(settings.properties.send_bytes_max),
        receive_bytes: settings.properties.receive_buffer_bytes,
    }
}

impl<V: Provider> ControlThread<V> {
    pub(super) fn private_data(&self) -> [u8; 8] {
        self.own_data().to_bytes()
    }

    fn own_data(&self) -> PrivateData {
        own_data(&self.settings)
    }

    /// What a core has to know about both ends.
    pub(super) fn terms(&self, tracked: &Tracked) -> Terms {
        Terms {
            versions: tracked.versions,
            own: self.own_data(),
            peer: tracked.peer_data,
        }
    }

    /// Handles the end of a connection. A server that did not answer version 2 may know only version 1: the next
    /// attempt is made with version 1. Returns the attempt that waits for this one, if that is so.
    ///
    /// Nothing is inferred where this end can authenticate hosts, which version 1 cannot.
    pub(super) fn note_unanswered(&mut self, id: ConnectionId) -> Option<&mut Attempt> {
        let tracked = self.connections.get_mut(&id)?;
        let is_unanswered = tracked.stage == Stage::ExchangingProperties
            && tracked.versions == Versions::Both
            && !tracked.session.has_mechanism();
        let attempt = tracked.attempt().filter(|_| is_unanswered)?;
        attempt.waiter.as_ref()?;
        let is_inferred = self
            .versions
            .remember(&attempt.address, Source::Silence, Instant::now());
        is_inferred.then_some(attempt)
    }

    /// Handles a closed connection. If the server closed it in place of an answer to version 2, its attempt goes on with
    /// version 1, once: returns it, and its core. If the server did not answer version 1 either, the next attempt is
    /// made with version 2.
    pub(super) fn note_closed(
        &mut self,
        id: ConnectionId,
        reason: CloseReason,
        counters: ConnectionCounters,
    ) -> Option<(Attempt, CoreChoice)> {
        if counters.messages_sent == 0 || counters.messages_received != 0 {
            return None;
        }
        let tracked = self.connections.get_mut(&id)?;
        let core = CoreChoice::Core(tracked.core);
        if tracked.versions == Versions::One {
            let attempt = tracked.attempt()?;
            self.versions.doubt(&attempt.address);
            return None;
        }
        let attempt = self.note_unanswered(id)?;
        (reason == CloseReason::Peer).then(|| (attempt.go_on(), core))
    }
}

#[cfg(test)]
mod tests {
    use rpcrdma_protocol::v2::{ApplicationProperties, Properties};

    use super::*;
    use crate::limits::NodeLimits;

    /// Memory that is registered for a call has a key that no peer may invalidate. A device that is told to do so ends the
    /// connection.
    #[test]
    fn remote_invalidation_is_announced_where_the_device_has_it() {
        for remote_invalidation in [true, false] {
            let settings = Settings {
                limits: NodeLimits {
                    connections_per_core: 1,
                    credits_per_connection: 1,
                    peer_connections_max: 1,
                },
                properties: Properties::default(),
                application_properties: ApplicationProperties::NONE,
                connection_name: None,
                remote_invalidation,
                send_buffer_bytes: 4096,
                target_attempts_per_second_max: 1,
                seed: 0,
            };
            let told = PrivateData::find(&own_data(&settings).to_bytes()).expect("it is whole");
            assert_eq!(told.remote_invalidation, remote_invalidation);
            assert_eq!((told.send_bytes, told.receive_bytes), (4096, 4096));
        }
    }
}
