//! Properties and header types of an application, between nodes (-00 appendix B).

use std::sync::{Arc, Mutex};

use rpcrdma_control::{Authentication, ConnectOptions, ListenOptions, Node, NodeConfig};
use rpcrdma_engine::{
    Activity, Application, ApplicationMessage, ConnectionKey, Context, HostIdentity,
    MessageOutcome, PeerProperties,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::v2::{ApplicationHeaderTypes, ApplicationProperties, TransportError};
use rpcrdma_testkit::until;

use super::authentication::{client_host, connecting, server_host};
use crate::support::{Fabric, PATIENCE, profile};

const TYPE: u32 = 0xffff_ff10;
const PROPERTY: u32 = 0xffff_ff20;

/// What happened at a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Log {
    announced: Vec<(u32, Vec<u8>)>,
    came: Vec<(u32, bool, Vec<u8>)>,
    sent: Vec<u32>,
    refused: Vec<(u32, TransportError)>,
}

/// Sends its question to every peer, and answers those that come with the same octets.
struct Asking {
    log: Arc<Mutex<Log>>,
    question: Vec<u8>,
    /// It asks when the connection is ready; otherwise when it was asked.
    is_first: bool,
    to_send: Vec<(ConnectionKey, Option<u32>, Vec<u8>)>,
}

impl Asking {
    fn log(&self, note: impl FnOnce(&mut Log)) {
        note(&mut self.log.lock().expect("no test fails with it"));
    }
}

impl Application for Asking {
    fn peer_properties(&mut self, _connection: ConnectionKey, properties: &PeerProperties) {
        let all = properties
            .iter()
            .map(|(number, data)| (number, data.to_vec()));
        self.log(|log| log.announced.extend(all));
    }

    fn connected(&mut self, connection: ConnectionKey, _peer: Option<&HostIdentity>) {
        if self.is_first {
            self.to_send.push((connection, None, self.question.clone()));
        }
    }

    fn message(&mut self, message: &ApplicationMessage<'_>) -> MessageOutcome {
        let body = message.body.to_vec();
        if !message.is_answer {
            let answer = (message.connection, Some(message.xid), body.clone());
            self.to_send.push(answer);
            if !self.is_first {
                let question = (message.connection, None, self.question.clone());
                self.to_send.push(question);
            }
        }
        let came = (message.header_type, message.is_answer, body);
        self.log(|log| log.came.push(came));
        MessageOutcome::Taken
    }

    fn message_refused(&mut self, _connection: ConnectionKey, xid: u32, error: TransportError) {
        self.log(|log| log.refused.push((xid, error)));
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut sent = Vec::new();
        self.to_send.retain(|(to, answers, body)| {
            match core.send_message(*to, TYPE, *answers, body) {
                Ok(xid) => {
                    sent.push(xid);
                    false
                }
                Err(refused) => refused.is_transient(),
            }
        });
        // What waits for a credit is tried again in the next iteration.
        let busy = !sent.is_empty() || !self.to_send.is_empty();
        self.log(|log| log.sent.extend(sent));
        Activity::from_busy(busy)
    }
}

/// A node that announces `announced`, and knows the header type if `knows`.
fn node<F: Fabric>(
    (question, is_first): (&[u8], bool),
    announced: &[u8],
    knows: bool,
) -> (Node<Asking>, Arc<Mutex<Log>>) {
    let mut config = NodeConfig::from_profile(&profile(), vec![None]);
    let announced = ApplicationProperties::NONE.with(PROPERTY, announced);
    let announced = announced.expect("it fits");
    config.core.application_properties = announced;
    if knows {
        config.core.header_types = ApplicationHeaderTypes::NONE
            .with(TYPE)
            .expect("a number of applications");
    }
    let log = Arc::new(Mutex::new(Log::default()));
    let node = Node::start(F::provider(&profile()), &config, |_| Asking {
        log: Arc::clone(&log),
        question: question.to_vec(),
        is_first,
        to_send: Vec::new(),
    });
    (node.expect("a small node fits on any machine"), log)
}

/// Waits until the log of `whose` node is as `done` says.
fn wait_for(whose: &str, log: &Mutex<Log>, done: impl Fn(&Log) -> bool) -> Log {
    until(&format!("the log of the {whose}"), || {
        let now = log.lock().expect("no test fails with it").clone();
        done(&now).then_some(now)
    })
}

/// With host authentication, which binds what both ends announce, and without.
pub(crate) fn applications_announce_properties_and_send_messages_of_their_own<F: Fabric>() {
    for authenticated in [false, true] {
        for server_knows in [true, false] {
            let policies = if authenticated {
                [client_host(), server_host()].map(Authentication::Required)
            } else {
                [Authentication::None, Authentication::None]
            };
            let [client_policy, server_policy] = policies;
            let (server, at_server) =
                node::<F>((b"from the server", false), b"seven", server_knows);
            let (client, at_client) = node::<F>((b"from the client", true), b"", true);
            let address = F::address();
            let options = ListenOptions {
                authentication: server_policy,
                authentication_timeout: PATIENCE,
                ..ListenOptions::default()
            };
            server.listen(&address, options).expect("the name is free");
            // In place of what the client announces on other connections.
            let own = ApplicationProperties::NONE.with(PROPERTY, b"eight");
            let options = ConnectOptions {
                application_properties: own.ok(),
                ..connecting(client_policy)
            };
            let connected = client.connect(&address, options);
            connected.expect("a server listens");
            let announced = |data: &[u8]| vec![(PROPERTY, data.to_vec())];
            if server_knows {
                let client = wait_for("client", &at_client, |log| log.came.len() >= 2);
                let server = wait_for("server", &at_server, |log| log.came.len() >= 2);
                for (log, from, own) in [
                    (&client, b"from the server", b"from the client"),
                    (&server, b"from the client", b"from the server"),
                ] {
                    assert_eq!(log.came.len(), 2, "{log:?}");
                    assert!(log.came.contains(&(TYPE, false, from.to_vec())), "{log:?}");
                    assert!(log.came.contains(&(TYPE, true, own.to_vec())), "{log:?}");
                    assert_eq!(log.refused, []);
                }
                assert_eq!(client.announced, announced(b"seven"));
                assert_eq!(server.announced, announced(b"eight"));
            } else {
                // It is answered as an unknown header type always was, and the connection goes on.
                let log = wait_for("client", &at_client, |log| !log.refused.is_empty());
                assert_eq!(log.refused, [(log.sent[0], TransportError::InvalHtype)]);
                assert_eq!(log.announced, announced(b"seven"));
                let counters = server.cores()[0].counters();
                assert_eq!(counters.errors_sent_inval_htype, 1);
                assert_eq!(counters.connections_closed, 0);
                let server = wait_for("server", &at_server, |log| !log.announced.is_empty());
                assert_eq!((server.came, server.sent), (vec![], vec![]));
            }
        }
    }
}
