//! What is said of this end when a connection is made, and what is learned of the versions of servers.

use std::time::Instant;

use rpcrdma_fabric::interface::ConnectionId;
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::connection::{Terms, Versions};

use super::ControlThread;
use crate::connection::{Attempt, Tracked};
use crate::error::Stage;
use crate::provider::Provider;

impl<V: Provider> ControlThread<V> {
    pub(super) fn private_data(&self) -> [u8; 8] {
        self.own_data().to_bytes()
    }

    /// What RFC 8797 has us tell, for version 1: our sizes, and that remote invalidation is supported,
    /// since whatever memory is exposed is a window of its call's own.
    fn own_data(&self) -> PrivateData {
        PrivateData {
            remote_invalidation: true,
            // Longer ones are gathered from several buffers, as transmission groups of version 2 alone.
            send_bytes: self
                .settings
                .send_buffer_bytes
                .min(self.settings.properties.send_bytes_max),
            receive_bytes: self.settings.properties.receive_buffer_bytes,
        }
    }

    /// What a core is to know of both ends.
    pub(super) fn terms(&self, tracked: &Tracked) -> Terms {
        Terms {
            versions: tracked.versions,
            own: self.own_data(),
            peer: tracked.peer_data,
        }
    }

    /// A connection ends. A server that was asked for version 2, and has not answered that, may be one that does not
    /// know what to say to it: the next attempt is made with version 1.
    pub(super) fn note_unanswered(&mut self, id: ConnectionId) {
        let Some(tracked) = self.connections.get_mut(&id) else {
            return;
        };
        let is_unanswered =
            tracked.stage == Stage::ExchangingProperties && tracked.versions == Versions::Both;
        let waits = |attempt: &&mut Attempt| is_unanswered && attempt.waiter.is_some();
        if let Some(attempt) = tracked.attempt().filter(waits) {
            self.versions.remember(&attempt.address, Instant::now());
        }
    }
}
