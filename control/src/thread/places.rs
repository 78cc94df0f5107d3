//! Places of connections that are lost, and that this end would hold until a keep-alive is missed: their clients may need them, and come
//! again.

use std::collections::HashMap;

use rpcrdma_engine::{CloseReason, HostIdentity, PeerProperties};
use rpcrdma_fabric::interface::{ConnectionId, Manager};
use rpcrdma_protocol::v2::PropertySet;

use super::ControlThread;
use super::connection::{End, Tracked};
use crate::connection::ConnectionName;
use crate::provider::Provider;

/// The connections of clients that give them names. A name is valid together with the host that the client proved to be. Where hosts
/// prove nothing, a peer that knows a name can end the connection that has it.
#[derive(Default)]
pub(super) struct Names(HashMap<(ConnectionName, Option<HostIdentity>), ConnectionId>);

impl Names {
    /// The connection is ready. Returns the one that had its name.
    fn take(&mut self, tracked: &Tracked) -> Option<ConnectionId> {
        let name = (tracked.name?, tracked.session.identity().cloned());
        let before = self.0.insert(name, tracked.id);
        before.filter(|before| *before != tracked.id)
    }

    /// The connection has ended.
    pub(super) fn forget(&mut self, tracked: &Tracked) {
        let Some(name) = tracked.name else {
            return;
        };
        let name = (name, tracked.session.identity().cloned());
        if self.0.get(&name) == Some(&tracked.id) {
            self.0.remove(&name);
        }
    }
}

impl<V: Provider> ControlThread<V> {
    /// Notes the name that a client gives to a connection. It may be in any set of properties before the connection is ready.
    pub(super) fn note_name(&mut self, id: ConnectionId, set: &PropertySet<'_>) {
        let Some(name_of) = self.settings.connection_name else {
            return;
        };
        let tracked = self.connections.get_mut(&id);
        let unnamed = tracked.filter(|it| matches!(it.end, End::Server) && it.name.is_none());
        if let Some(tracked) = unnamed {
            tracked.name = name_of(&PeerProperties::of(set));
        }
    }

    /// A connection is ready. Its client has lost the earlier one of that name, whose end this end may not see for long: where the path
    /// is cut, nothing comes of it.
    pub(super) fn replace_earlier(&mut self, id: ConnectionId) {
        let Some(tracked) = self.connections.get(&id) else {
            return;
        };
        let Some(before) = self.names.take(tracked) else {
            return;
        };
        let arrival = |id| {
            let peer = self.connections.get(id).and_then(|it| it.peer.as_ref());
            peer.map_or(0, |peer| peer.arrival)
        };
        // Another core may report the earlier one late.
        let (earlier, later) = match arrival(&before) > arrival(&id) {
            true => (id, before),
            false => (before, id),
        };
        if let Some(later) = self.connections.get(&later) {
            self.names.take(later);
        }
        let earlier = self.connections.get(&earlier);
        if let Some((core, Some(key))) = earlier.map(|it| (it.core, it.key)) {
            self.close(core, key, CloseReason::Replaced);
        }
    }

    /// A peer was rejected, because all places of a kind are taken: connections whose link is down give theirs up. Their peers come by
    /// another link, and try again until there is a place. Before that, the link may still come back in time.
    pub(super) fn leave_cut(&mut self, is_such: impl Fn(&Tracked) -> bool) {
        let cut = self.manager.cut_connections().into_iter();
        let cut = cut.filter(|id| {
            let tracked = self.connections.get(id);
            tracked.is_some_and(|it| matches!(it.end, End::Server) && is_such(it))
        });
        for id in cut.collect::<Vec<_>>() {
            self.manager.abandon(id);
        }
    }
}
