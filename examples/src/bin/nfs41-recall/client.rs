//! A client of NFS version 4.1: its calls, by a ring to the core, and what the core answers for it.

use std::error::Error;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rpcrdma_control::{Connection, Node};
use rpcrdma_engine::ring_client::{CallMessage, CallStatus, RingClient, RingService};
use rpcrdma_engine::{
    Activity, Application, Call, CallError, CallTag, ConnectionKey, Context, Outcome, Reply,
    ReplyWriter, Request,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::constants::AUTH_SYS;
use rtrb::Producer;

use crate::callback::{BackChannel, CALLBACK_PROGRAM, CALLBACK_VERSION, CB_COMPOUND, CB_NULL};
use crate::compound::{
    COMPOUND, Compound, NFS_PROGRAM, NFS_VERSION, Results, SessionId, StateId, Wrong, op,
};

/// How long the main thread sleeps before it looks for an answer again.
const LOOK_PERIOD: Duration = Duration::from_micros(200);

/// Which session calls back, and by which connection: said once, when it is known.
pub(crate) type CalledBack = Arc<OnceLock<(ConnectionKey, SessionId)>>;

/// A delegation that the server recalled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recalled {
    pub(crate) state: StateId,
    /// When the recall came.
    pub(crate) at: Instant,
}

/// What runs on the core: it makes the calls of the main thread, and answers those of the server.
pub(crate) struct BackEnd {
    ring: RingService,
    called_back: CalledBack,
    channel: Option<BackChannel>,
    recalls: Producer<Recalled>,
}

impl BackEnd {
    pub(crate) fn new(
        ring: RingService,
        called_back: CalledBack,
        recalls: Producer<Recalled>,
    ) -> Self {
        Self {
            ring,
            called_back,
            channel: None,
            recalls,
        }
    }

    fn compound(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        let Some((connection, session)) = self.called_back.get() else {
            return Outcome::SystemError;
        };
        // The session has no other connection.
        if request.connection != *connection {
            return Outcome::SystemError;
        }
        let channel = self
            .channel
            .get_or_insert_with(|| BackChannel::new(*session));
        let Some((results, recalled)) = channel.answer(request.args) else {
            return Outcome::GarbageArgs;
        };
        if let Some(state) = recalled {
            let at = Instant::now();
            if self.recalls.push(Recalled { state, at }).is_err() {
                return Outcome::SystemError;
            }
        }
        match reply.write(results.bytes()) {
            Ok(()) => Outcome::Success,
            Err(_) => Outcome::SystemError,
        }
    }
}

impl Application for BackEnd {
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        match (request.program, request.version, request.procedure) {
            // The callback program is offered to servers of ours, and to nobody who connects to us.
            _ if !request.is_reverse => Outcome::ProgramUnavailable,
            (CALLBACK_PROGRAM, CALLBACK_VERSION, CB_NULL) => Outcome::Success,
            (CALLBACK_PROGRAM, CALLBACK_VERSION, CB_COMPOUND) => self.compound(request, reply),
            (CALLBACK_PROGRAM, CALLBACK_VERSION, _) => Outcome::ProcedureUnavailable,
            (CALLBACK_PROGRAM, ..) => Outcome::ProgramMismatch {
                low: CALLBACK_VERSION,
                high: CALLBACK_VERSION,
            },
            _ => Outcome::ProgramUnavailable,
        }
    }

    fn completed(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        _now: Ticks,
    ) {
        self.ring.completed(tag, result);
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        self.ring.poll(core)
    }
}

/// The node, and the main thread's ring to its core.
pub(crate) struct ClientNode {
    pub(crate) node: Node<BackEnd>,
    ring: RingClient,
}

impl ClientNode {
    pub(crate) fn new(node: Node<BackEnd>, ring: RingClient) -> Self {
        Self { node, ring }
    }

    /// Calls of peers that its core received. It listens nowhere: each came in the reverse direction of a connection
    /// that it made.
    pub(crate) fn reverse_calls(&self) -> u64 {
        let cores = self.node.watch()().cores;
        cores.iter().map(|core| core.counters.calls_received).sum()
    }

    /// Makes a COMPOUND, and waits for its results.
    fn call(
        &mut self,
        connection: &Connection,
        compound: &Compound,
    ) -> Result<Vec<u8>, Box<dyn Error>> {
        let message = CallMessage {
            connection: connection.key,
            call: Call {
                program: NFS_PROGRAM,
                version: NFS_VERSION,
                procedure: COMPOUND,
            },
            credential: (AUTH_SYS, credential()),
            args: compound.arguments(),
            results: Vec::with_capacity(4096),
            ..CallMessage::default()
        };
        let submitted = self.ring.submit(Box::new(message));
        submitted.map_err(|_| "one call at a time")?;
        self.node.wake_cores();
        loop {
            match self.ring.complete() {
                Some(ended) => {
                    return match ended.status {
                        CallStatus::Success => Ok(ended.results),
                        CallStatus::Failed(error) => Err(error.into()),
                        CallStatus::Refused(refused) => Err(refused.into()),
                        other => Err(format!("a call ended as {other:?}").into()),
                    };
                }
                None if self.ring.is_abandoned() => return Err("the core is gone".into()),
                None => std::thread::sleep(LOOK_PERIOD),
            }
        }
    }
}

/// The body of AUTH_SYS (RFC 5531 appendix A): no stamp, no name, this process's user and group, no more groups.
fn credential() -> Vec<u8> {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let words = [0, 0, user, group, 0];
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A client, its session, and its only connection.
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) owner: String,
    connection: Connection,
    session: SessionId,
    /// The number of the next call on the session's only slot.
    sequence: u32,
}

impl Client {
    /// A client that the server knows by `name`, and a session. With `called_back` the connection is the back channel
    /// of the session too.
    pub(crate) fn start(
        node: &mut ClientNode,
        connection: Connection,
        name: &str,
        called_back: Option<&CalledBack>,
    ) -> Result<Self, Box<dyn Error>> {
        let owner = format!("nfs41-recall {} {name}", std::process::id());
        // A client that was started again has another verifier (RFC 8881 section 2.4).
        let verifier = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros();
        let verifier = u64::try_from(verifier)?;
        let asked = Compound::default().exchange_id(verifier, owner.as_bytes());
        let results = node.call(&connection, &asked)?;
        let made = Results::new(&results)?.exchange_id()?;
        let callbacks = called_back.map(|_| CALLBACK_PROGRAM);
        let asked = Compound::default().create_session(made, callbacks);
        let results = node.call(&connection, &asked)?;
        let (session, is_back_channel) = Results::new(&results)?.create_session()?;
        if let Some(called_back) = called_back {
            if !is_back_channel {
                return Err("the server makes no calls by this connection".into());
            }
            let _ = called_back.set((connection.key, session));
        }
        let mut client = Self {
            id: made.0,
            owner,
            connection,
            session,
            sequence: 1,
        };
        // Nothing is to be reclaimed, of all file systems (section 18.51).
        client.on_session(
            node,
            |it| it.op(op::RECLAIM_COMPLETE).words(&[0]),
            |results| results.done(op::RECLAIM_COMPLETE),
        )?;
        Ok(client)
    }

    /// Makes a COMPOUND of SEQUENCE and what `build` adds, and has `take` read the results of that.
    pub(crate) fn on_session<T>(
        &mut self,
        node: &mut ClientNode,
        build: impl FnOnce(Compound) -> Compound,
        take: impl FnOnce(&mut Results<'_>) -> Result<T, Wrong>,
    ) -> Result<T, Box<dyn Error>> {
        let asked = build(Compound::on(&self.session, self.sequence));
        let results = node.call(&self.connection, &asked)?;
        let mut results = Results::new(&results)?;
        results.sequence()?;
        self.sequence = self.sequence.wrapping_add(1);
        Ok(take(&mut results)?)
    }

    /// Ends the session, and has the server forget the client.
    pub(crate) fn end(&self, node: &mut ClientNode) -> Result<(), Box<dyn Error>> {
        let (client, session) = (self.id.to_be_bytes(), &self.session);
        let both = [
            (op::DESTROY_SESSION, &session[..]),
            (op::DESTROY_CLIENTID, &client),
        ];
        for (operation, of) in both {
            let asked = Compound::default().op(operation).bytes(of);
            let results = node.call(&self.connection, &asked)?;
            Results::new(&results)?.done(operation)?;
        }
        node.node.close(&self.connection);
        Ok(())
    }
}
