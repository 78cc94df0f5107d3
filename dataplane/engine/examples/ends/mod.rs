//! Two cores of one process with a connection between them, without a control plane's thread.

use rpcrdma_engine::{
    Application, Command, ConnectionKey, Core, CoreConfig, CoreEvent, CoreHandle,
};
use rpcrdma_fabric::clock::Clock;
use rpcrdma_fabric::interface::PeerIdentity;
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages};
use rpcrdma_fabric::shm;
use rpcrdma_protocol::connection::{Terms, Versions};
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_protocol::v2::{Properties, PropertySet};

/// A core, and how to speak to it.
pub(crate) struct End<A: Application> {
    pub(crate) core: Core<shm::Port, A>,
    pub(crate) handle: CoreHandle<shm::Port>,
}

/// Both cores, with a connection of these versions on its way to be adopted.
pub(crate) fn ends<C: Application, S: Application>(
    clock: &Clock,
    versions: Versions,
    (client_config, client): (&CoreConfig, C),
    (server_config, server): (&CoreConfig, S),
) -> (End<C>, End<S>) {
    let (client_port, client_files) = port(0, client_config, clock);
    let (server_port, server_files) = port(1, server_config, clock);
    let joint = shm::Joint::new(&client_port, &client_files, &server_port, &server_files)
        .expect("a channel");
    let (client_prepared, server_prepared) = joint
        .prepared_pair(&client_files, &server_files)
        .expect("two queue pairs");
    let server = end(clock, server_port, server_config, server);
    let client = end(clock, client_port, client_config, client);
    adopt_queue_pair(
        &server.handle,
        server_prepared,
        (Role::Server, versions),
        server_config,
    );
    adopt_queue_pair(
        &client.handle,
        client_prepared,
        (Role::Client, versions),
        client_config,
    );
    (client, server)
}

pub(crate) fn port(
    number: u32,
    config: &CoreConfig,
    clock: &Clock,
) -> (shm::Port, shm::PortHandle) {
    let arena = Arena::shared(&ArenaOptions {
        bytes: config.arena_bytes(),
        huge_pages: HugePages::Prefer,
    })
    .expect("memory for the arena");
    let usual = shm::PortConfig::new(number, arena, clock.clone());
    let queue_pairs_max = usual.queue_pairs_max.max(config.connections_max);
    shm::Port::new(shm::PortConfig {
        queue_pairs_max,
        work_requests_max: usual.work_requests_max.max(2 * queue_pairs_max),
        ..usual
    })
    .expect("a port")
}

pub(crate) fn end<A: Application>(
    clock: &Clock,
    port: shm::Port,
    config: &CoreConfig,
    application: A,
) -> End<A> {
    let (core, handle) = Core::new(port, config, clock.clone(), application).expect("a core");
    End { core, handle }
}

pub(crate) fn adopt_queue_pair(
    handle: &CoreHandle<shm::Port>,
    prepared: shm::PreparedQueuePair,
    (role, versions): (Role, Versions),
    config: &CoreConfig,
) {
    let command = Command::Adopt {
        token: 0,
        prepared,
        role,
        peer: PeerIdentity::default(),
        properties: config.announced(Properties::default()),
        terms: Terms {
            versions,
            ..Terms::default()
        },
        credits_max: u16::MAX,
        guarded: false,
        has_other_path: false,
    };
    handle.send(command).expect("room in the mailbox");
}

/// Answers what a core asks of its control plane. The connection, when it is ready.
pub(crate) fn control(handle: &CoreHandle<shm::Port>, role: Role) -> Option<ConnectionKey> {
    while let Some(notification) = handle.receive() {
        let command = match notification {
            CoreEvent::Adopted { result, .. } => {
                let connection = result.expect("adopted");
                if role == Role::Server {
                    continue;
                }
                Command::SendProperties { connection }
            }
            CoreEvent::Properties { connection, bytes } => Command::AnswerProperties {
                connection,
                peer: PropertySet::decode(&bytes)
                    .expect("well formed")
                    .properties(),
                answer: role == Role::Server,
            },
            CoreEvent::Ready { connection, .. } => return Some(connection),
            other => panic!("unexpected: {other:?}"),
        };
        handle.send(command).expect("room in the mailbox");
    }
    None
}

/// Runs both cores by turns in this thread until they can call each other. The connection, as the client knows it.
pub(crate) fn connect<C: Application, S: Application>(
    client: &mut End<C>,
    server: &mut End<S>,
) -> ConnectionKey {
    let (mut of_client, mut of_server) = (None, None);
    loop {
        // The server first: the client speaks as soon as it is adopted.
        let _ = server.core.iterate();
        let _ = client.core.iterate();
        of_client = of_client.or_else(|| control(&client.handle, Role::Client));
        of_server = of_server.or_else(|| control(&server.handle, Role::Server));
        if let (Some(connection), Some(_)) = (of_client, of_server) {
            return connection;
        }
    }
}
