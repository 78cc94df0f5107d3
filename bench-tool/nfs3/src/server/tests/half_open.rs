//! Clients that lose their connections, and a server that does not know: whole cores over shared memory, in virtual time.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::time::Duration;

use rpcrdma_engine::{
    Activity, Application, Call as Called, CallError, CallTag, Command, ConnectionKey, Context,
    Core, CoreConfig, CoreEvent, CoreHandle,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{PeerIdentity, Port};
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages};
use rpcrdma_fabric::shm;
use rpcrdma_protocol::cm_private_data::PrivateData;
use rpcrdma_protocol::connection::{Terms, Versions};
use rpcrdma_protocol::v2::Properties;
use rpcrdma_protocol::v2::connection::Role;
use rpcrdma_testkit::Random;

use super::*;
use crate::server::application::NfsApplication;
use crate::wire::{PROGRAM, VERSION};

/// Turns of both ends in which a call and its reply go to and fro.
const TURNS: usize = 200;

/// Makes calls under the XIDs that it is given.
#[derive(Debug, Default)]
struct Caller {
    wanted: VecDeque<(ConnectionKey, u32, Procedure, Vec<u8>)>,
    ended: Vec<(CallTag, Result<Vec<u8>, CallError>)>,
}

impl Application for Caller {
    fn poll<V: Port>(&mut self, core: &mut Context<'_, V>, _: Ticks) -> Activity {
        let Some((connection, xid, procedure, args)) = self.wanted.front() else {
            return Activity::Idle;
        };
        let call = Called {
            program: PROGRAM,
            version: VERSION,
            procedure: procedure.number(),
        };
        let tag = CallTag::from(*xid);
        match core.call_again(*xid, |core| core.call(*connection, call, args, tag)) {
            Ok(()) => drop(self.wanted.pop_front()),
            Err(refused) => assert!(refused.is_transient(), "{refused}"),
        }
        Activity::Busy
    }

    fn completed(
        &mut self,
        tag: CallTag,
        _: ConnectionKey,
        result: Result<rpcrdma_engine::Reply<'_>, CallError>,
        _: Ticks,
    ) {
        let result = result.map(|reply| reply.results.to_vec());
        self.ended.push((tag, result));
    }
}

/// A core and its control plane.
struct End<A: Application> {
    core: Core<shm::Port, A>,
    handle: CoreHandle<shm::Port>,
    port: shm::PortHandle,
    role: Role,
    adopted: Vec<ConnectionKey>,
    closed: usize,
}

impl<A: Application> End<A> {
    fn iterate(&mut self, now: Ticks) {
        let _ = self.core.iterate_at(now);
        while let Some(event) = self.handle.receive() {
            match event {
                CoreEvent::Adopted { result, .. } => {
                    let connection = result.unwrap();
                    self.adopted.push(connection);
                    if self.role == Role::Client {
                        let begin = Command::SendProperties { connection };
                        self.handle.send(begin).unwrap();
                    }
                }
                CoreEvent::Closed { .. } => self.closed += 1,
                _ => {}
            }
        }
    }

    fn adopt(&self, prepared: shm::PreparedQueuePair, host: u8) {
        let data = PrivateData {
            remote_invalidation: false,
            send_bytes: 4096,
            receive_bytes: 4096,
        };
        let adopt = Command::Adopt {
            token: 0,
            prepared,
            role: self.role,
            peer: PeerIdentity {
                address: Some(Ipv4Addr::new(192, 0, 2, host).into()),
                ..PeerIdentity::default()
            },
            properties: Properties::default(),
            terms: Terms {
                versions: Versions::One,
                own: data,
                peer: data,
            },
            credits_max: u16::MAX,
            guarded: false,
            has_other_path: false,
        };
        self.handle.send(adopt).unwrap();
    }
}

/// A server, and processes of clients.
struct World {
    server: End<NfsApplication<HeapPages>>,
    clients: Vec<(End<Caller>, shm::Joint)>,
    now: Ticks,
    clock: Clock,
}

impl World {
    /// With so many processes.
    fn new(clients: u32) -> Self {
        let clock = Clock::new();
        let config = CoreConfig {
            connections_max: 4,
            message_buffers: 8,
            call_timeout: Duration::from_secs(60),
            ..CoreConfig::default()
        };
        let port = |number| {
            let arena = Arena::shared(&ArenaOptions {
                bytes: config.arena_bytes() + (1 << 20),
                huge_pages: HugePages::Never,
            });
            shm::Port::new(shm::PortConfig::new(number, arena.unwrap(), clock.clone())).unwrap()
        };
        let (server_port, server_handle) = port(0);
        let clients: Vec<_> = (1..=clients)
            .map(|number| {
                let (port, handle) = port(number);
                let joint = shm::Joint::new(&port, &handle, &server_port, &server_handle);
                let joint = joint.unwrap().at_channel(number - 1);
                (
                    end(
                        Role::Client,
                        (port, handle),
                        &config,
                        &clock,
                        Caller::default(),
                    ),
                    joint,
                )
            })
            .collect();
        let pages = HeapPages::new(1 << 20, 4096);
        let service = Service::new(pages, Limits { files_max: 1000 }, 4);
        let application = NfsApplication::new(service);
        let server = end(
            Role::Server,
            (server_port, server_handle),
            &config,
            &clock,
            application,
        );
        Self {
            server,
            clients,
            now: clock.now(),
            clock,
        }
    }

    /// One iteration of the server, if it is its turn, and of this client.
    fn turn(&mut self, client: Option<usize>, server: bool) {
        self.now += self.clock.ticks(Duration::from_micros(1));
        if let Some((client, _)) = client.and_then(|at| self.clients.get_mut(at)) {
            client.iterate(self.now);
        }
        if server {
            self.server.iterate(self.now);
        }
    }

    fn turns(&mut self, client: usize) {
        (0..TURNS).for_each(|_| self.turn(Some(client), true));
    }

    /// A connection of a process, which is one of this host.
    fn connect(&mut self, client: usize, host: u8) -> ConnectionKey {
        let (end, joint) = &self.clients[client];
        let (own, peers) = joint.prepared_pair(&end.port, &self.server.port).unwrap();
        self.server.adopt(peers, host);
        end.adopt(own, 0);
        self.turns(client);
        *self.clients[client].0.adopted.last().unwrap()
    }

    fn send(
        &mut self,
        (client, connection): (usize, ConnectionKey),
        xid: u32,
        procedure: Procedure,
        args: &[u8],
    ) {
        let caller = self.clients[client].0.core.application_mut();
        let wanted = (connection, xid, procedure, args.to_vec());
        caller.wanted.push_back(wanted);
    }

    /// The status of the results, once they are there.
    fn status(&mut self, client: usize) -> u32 {
        for _ in 0..100 {
            self.turns(client);
            let ended = &mut self.clients[client].0.core.application_mut().ended;
            if let Some((_, result)) = ended.pop() {
                return u32::from_be_bytes(*result.unwrap().first_chunk().unwrap());
            }
        }
        panic!("no reply");
    }

    fn call(
        &mut self,
        to: (usize, ConnectionKey),
        xid: u32,
        procedure: Procedure,
        args: &[u8],
    ) -> u32 {
        self.send(to, xid, procedure, args);
        self.status(to.0)
    }

    fn service(&self) -> &Service<HeapPages> {
        self.server.core.application().service()
    }

    fn root(&self) -> FileHandle {
        let store = self.service().store();
        store.handle(Store::<HeapPages>::ROOT).unwrap()
    }

    fn mkdir(&self, name: &str) -> Vec<u8> {
        let place = Place {
            directory: self.root(),
            name: name.as_bytes(),
        };
        bytes_of(arguments::Mkdir {
            place,
            attributes: SetAttributes::default(),
        })
    }

    fn symlink(&self, name: &str, target: &[u8]) -> Vec<u8> {
        let place = Place {
            directory: self.root(),
            name: name.as_bytes(),
        };
        let symlink = arguments::Symlink {
            place,
            attributes: SetAttributes::default(),
        };
        encoded(&[&|writer| symlink.encode(writer).unwrap(), &|writer| {
            target.encode(writer).unwrap();
        }])
    }
}

fn end<A: Application>(
    role: Role,
    (port, handle): (shm::Port, shm::PortHandle),
    config: &CoreConfig,
    clock: &Clock,
    application: A,
) -> End<A> {
    let (core, core_handle) = Core::new(port, config, clock.clone(), application).unwrap();
    End {
        core,
        handle: core_handle,
        port: handle,
        role,
        adopted: Vec::new(),
        closed: 0,
    }
}

const DONE: u32 = 0;
const EXISTS: u32 = 17;

/// A process of the client stops anywhere between its call and the reply, and another one of its host calls again.
/// For the server the first connection is there, and may bring the first call behind the second.
#[test]
fn mkdir_on_a_half_open_connection_is_executed_once() {
    const CASES: u32 = 60;
    let mut random = Random(31);
    let (mut repeated, mut unread) = (0, 0);
    for case in 0..CASES {
        let mut world = World::new(2);
        let (first, second) = ((0, world.connect(0, 1)), (1, world.connect(1, 1)));
        let args = world.mkdir("made");
        world.send(first, 7, Procedure::Mkdir, &args);
        let turns = |world: &mut World, random: &mut Random| {
            for _ in 0..random.between(0, 3) {
                let client = random.between(0, 2) as usize;
                world.turn(Some(client), random.once_in(2));
            }
        };
        turns(&mut world, &mut random);
        world.send(second, 7, Procedure::Mkdir, &args);
        turns(&mut world, &mut random);
        assert_eq!(world.status(1), DONE, "{case}");
        let again = world.service().repeated();
        repeated += again;
        unread += u64::from(again == 0);
        // What the first process had not sent yet.
        world.turns(0);
        assert_eq!(world.service().repeated(), 1, "{case}");
        assert_eq!(
            world.call(second, 8, Procedure::Mkdir, &args),
            EXISTS,
            "{case}"
        );
        // The connections end, and the host connects again.
        for (client, connection) in [first, second] {
            let reason = rpcrdma_engine::CloseReason::Local;
            let close = Command::Close { connection, reason };
            world.clients[client].0.handle.send(close).unwrap();
            world.turns(client);
        }
        assert_eq!(world.server.closed, 2);
        let third = (0, world.connect(0, 1));
        let again = world.call(third, 7, Procedure::Mkdir, &args);
        assert_eq!(again, DONE, "{case}");
        // Another host may use the same number.
        let other = (1, world.connect(1, 2));
        let status = world.call(other, 7, Procedure::Mkdir, &args);
        assert_eq!(status, EXISTS, "{case}");
    }
    assert!(repeated > 5 && unread > 5, "{repeated} {unread}");
}

/// The arguments of a SETATTR that changes nothing.
fn setattr(file: FileHandle) -> Vec<u8> {
    let attributes = SetAttributes::default();
    let guard = None;
    bytes_of(arguments::Setattr {
        object: file,
        attributes,
        guard,
    })
}

#[test]
fn flood_of_another_host_leaves_what_is_kept_of_a_call() {
    let mut world = World::new(2);
    let (first, flood) = ((0, world.connect(0, 1)), (1, world.connect(1, 2)));
    let args = world.mkdir("made");
    assert_eq!(world.call(first, 7, Procedure::Mkdir, &args), DONE);
    let set = setattr(world.root());
    for xid in 0..4200 {
        world.send(flood, xid, Procedure::Setattr, &set);
    }
    let ended = |world: &World| world.clients[1].0.core.application().ended.len();
    while ended(&world) < 4200 {
        world.turns(1);
    }
    assert_eq!(world.service().repeated(), 0);
    assert_eq!(world.call(first, 7, Procedure::Mkdir, &args), DONE);
    assert_eq!(world.service().repeated(), 1);
    // By another connection of the flooding host it is another call.
    assert_eq!(world.call(flood, 7, Procedure::Mkdir, &args), EXISTS);
}

#[test]
fn symlink_with_another_target_is_another_call() {
    let mut world = World::new(1);
    let to = (0, world.connect(0, 1));
    let mut target = vec![b't'; 1000];
    let first = world.symlink("link", &target);
    assert_eq!(world.call(to, 7, Procedure::Symlink, &first), DONE);
    assert_eq!(world.call(to, 7, Procedure::Symlink, &first), DONE);
    target[700] = b'u';
    let other = world.symlink("link", &target);
    assert_eq!(world.call(to, 7, Procedure::Symlink, &other), EXISTS);
    assert_eq!(world.service().repeated(), 1);
}
