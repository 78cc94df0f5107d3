//! Prepares queue pairs for ports, from the contents of a request or a reply.

use std::io;
use std::sync::Arc;

use super::Manager;
use super::channels::Half;
use super::connection::{Connection, Offer, Replied, Side, Stage};
use super::wire::{Confirm, Reply, Request};
use crate::interface::SetupError;
use crate::shm::{NumberHold, PortHandle, PreparedQueuePair};

impl Manager {
    pub(super) fn prepare_queue_pair(
        &mut self,
        id: u64,
        port: &PortHandle,
    ) -> Result<PreparedQueuePair, SetupError> {
        let gone = || SetupError::Peer {
            what: "connection is gone".to_owned(),
        };
        let connection = self.connections.get_mut(&id).ok_or_else(gone)?;
        match &connection.side {
            Side::Client(_) => prepare_client(connection, port),
            Side::Server { peer, .. } => {
                let pid = peer.pid;
                prepare_server(connection, port, |request| {
                    self.channels.server_half(port, pid, request)
                })
            }
        }
    }
}

fn prepare_client(
    connection: &mut Connection,
    port: &PortHandle,
) -> Result<PreparedQueuePair, SetupError> {
    let Side::Client(client) = &mut connection.side else {
        return Err(not_ready());
    };
    if client.port.identity != port.identity {
        return Err(SetupError::System {
            doing: "preparing a queue pair for another port than the one that connected".into(),
            source: io::ErrorKind::InvalidInput.into(),
        });
    }
    let stage = std::mem::replace(&mut connection.stage, Stage::AwaitingReply);
    let Stage::Replied(replied) = stage else {
        connection.stage = stage;
        return Err(not_ready());
    };
    let Some(number) = client.hold.take() else {
        connection.stage = Stage::Replied(replied);
        return Err(not_ready());
    };
    let Replied {
        reply,
        memory,
        half,
    } = *replied;
    connection.local = Some(number.number());
    let confirm = Confirm {
        doorbell_number: half.doorbell_number,
    };
    let offer = Offer {
        channel: half.file,
        port: port.clone(),
    };
    connection.stage = Stage::ClientPrepared(confirm, offer);
    Ok(PreparedQueuePair {
        number,
        remote: reply.queue_pair,
        peer: reply.core,
        channel: half.mapping,
        doorbell_number: half.doorbell_number,
        memory: Some(memory),
    })
}

fn prepare_server(
    connection: &mut Connection,
    port: &PortHandle,
    half: impl FnOnce(&Request) -> Result<Half, SetupError>,
) -> Result<PreparedQueuePair, SetupError> {
    let Stage::Requested(request) = &connection.stage else {
        return Err(not_ready());
    };
    let number = NumberHold::take(port)?;
    let half = half(request)?;
    let (peer, remote) = (request.core, request.queue_pair);
    let reply = Reply {
        core: port.identity,
        queue_pair: number.number(),
        doorbell_number: half.doorbell_number,
        channel: half.number,
        private_data: Vec::new(),
    };
    let offer = Offer {
        channel: Arc::clone(&half.file),
        port: port.clone(),
    };
    connection.local = Some(number.number());
    connection.stage = Stage::ServerPrepared(Box::new(reply), offer);
    Ok(PreparedQueuePair {
        number,
        remote,
        peer,
        channel: half.mapping,
        doorbell_number: half.doorbell_number,
        memory: None,
    })
}

fn not_ready() -> SetupError {
    SetupError::System {
        doing: "preparing a queue pair before a request or reply has arrived, or twice".into(),
        source: io::ErrorKind::InvalidInput.into(),
    }
}
