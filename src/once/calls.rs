//! The calls of a core's connections that must not run twice.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use rpcrdma_engine::{
    BulkArguments, BulkItem, ConnectionKey, HostIdentity, Outcome, PeerProperties, Request,
};
use rpcrdma_fabric::interface::PeerIdentity;

use super::clients::{ClientId, Clients, Session, Waiter};
use super::property::Announced;
use super::window::{Begun, KEPT_BYTES_MAX, Key, Ticket};
use crate::exchange::CoreShared;

/// How much is looked at of the arguments, and of what came beside them, in bytes.
const CHECKED_BYTES: usize = 256;

/// The flavor of RPCSEC_GSS (RFC 2203 section 4). Its credentials have a number that differs when a call is sent again.
const RPCSEC_GSS: u32 = 6;

/// What a core knows of the callers of its connections, and results on their way.
pub(crate) struct Calls {
    clients: Arc<Clients>,
    /// By the index of their connection.
    callers: Vec<Option<Caller>>,
    pub(crate) kept: Kept,
}

struct Caller {
    id: ClientId,
    /// What is kept of its calls. `None` before it is connected, or where there is no room for it.
    session: Option<Arc<Session>>,
}

/// What is to be done with a call.
pub(crate) enum Verdict {
    /// Run it.
    Run(Running),
    /// Answer so. The results of a success are in [`Calls::kept`].
    Answer(Outcome),
}

/// A call that runs. It must come to [`Running::finish`], or nobody gets an answer who sends it again.
#[derive(Debug)]
pub(crate) struct Running {
    session: Arc<Session>,
    ticket: Ticket,
}

impl Running {
    /// The call ended so. `results` are `None` where they are too long to keep.
    pub(crate) fn finish(self, outcome: Outcome, results: Option<&[u8]>) {
        self.session.finish(self.ticket, outcome, results);
    }

    /// As [`Running::finish`], with items, each behind so many bytes of `results`.
    pub(crate) fn finish_with(self, outcome: Outcome, results: &[u8], items: &[(usize, BulkItem)]) {
        if items.is_empty() {
            return self.finish(outcome, Some(results));
        }
        let mut kept = Kept::default();
        let mut before = 0;
        for (at, item) in items {
            kept.push(results.get(before..*at).unwrap_or(&[]));
            kept.push_item(item);
            before = *at;
        }
        kept.push(results.get(before..).unwrap_or(&[]));
        self.finish(outcome, kept.whole());
    }
}

/// Results as they are kept: all in one stream, as far as they are short enough.
#[derive(Debug)]
pub(crate) struct Kept {
    bytes: Vec<u8>,
    is_whole: bool,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            bytes: Vec::with_capacity(KEPT_BYTES_MAX),
            is_whole: true,
        }
    }
}

impl Kept {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.is_whole = true;
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.is_whole &= self.bytes.len() + bytes.len() <= KEPT_BYTES_MAX;
        if self.is_whole {
            self.bytes.extend_from_slice(bytes);
        }
    }

    /// Appends an item with its padding.
    pub(crate) fn push_item(&mut self, item: &BulkItem) {
        let padding_bytes = item.len().next_multiple_of(4) - item.len();
        for part in item.parts() {
            self.push(part);
        }
        self.push(&[0; 3][..padding_bytes]);
    }

    /// All of the results, if they are short enough.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        self.is_whole.then_some(&*self.bytes)
    }
}

impl Calls {
    pub(crate) fn new(clients: &Arc<Clients>) -> Self {
        Self {
            clients: Arc::clone(clients),
            callers: Vec::new(),
            kept: Kept::default(),
        }
    }

    pub(crate) fn opened(&mut self, connection: ConnectionKey, peer: &PeerIdentity) {
        // One that never became ready has not ended for an application.
        self.disconnected(connection);
        let index = connection.index as usize;
        if self.callers.len() <= index {
            self.callers.resize_with(index + 1, || None);
        }
        let address = peer.address.map(ClientId::Host);
        self.callers[index] = Some(Caller {
            id: address.unwrap_or(ClientId::Process(peer.key)),
            session: None,
        });
    }

    pub(crate) fn announced(&mut self, connection: ConnectionKey, properties: &PeerProperties) {
        let caller = self.caller(connection);
        // One that has called before its properties were there goes on as what it was then.
        let caller = caller.filter(|caller| caller.session.is_none());
        if let (Some(caller), Some(announced)) = (caller, Announced::of(properties)) {
            caller.id = ClientId::Named(announced.name, None);
        }
    }

    pub(crate) fn connected(&mut self, connection: ConnectionKey, host: Option<&HostIdentity>) {
        let caller = self.caller(connection);
        let Some(caller) = caller.filter(|caller| caller.session.is_none()) else {
            return;
        };
        if let ClientId::Named(_, proved) = &mut caller.id {
            *proved = host.cloned();
        }
        self.attach(connection);
    }

    pub(crate) fn disconnected(&mut self, connection: ConnectionKey) {
        let place = self.callers.get_mut(connection.index as usize);
        let caller = place.and_then(Option::take);
        if let Some(caller) = caller.filter(|caller| caller.session.is_some()) {
            self.clients.detach(&caller.id);
        }
    }

    /// Looks whether a call ran before.
    pub(crate) fn begin(
        &mut self,
        core: &Arc<CoreShared>,
        request: &Request<'_>,
        items: Option<&BulkArguments<'_>>,
    ) -> Verdict {
        let key = key(&self.clients, request, items);
        let Some(session) = self.session(request.connection) else {
            return Verdict::Answer(Outcome::SystemError);
        };
        let wait = || {
            let token = request.defer()?;
            let core = Arc::clone(core);
            Some(Waiter { core, token })
        };
        let begun = session.begin(&key, &mut self.kept.bytes, wait);
        let outcome = match begun {
            Begun::Run(ticket) => {
                self.kept.clear();
                return Verdict::Run(Running { session, ticket });
            }
            // Nothing of it ran.
            Begun::Full => return Verdict::Answer(Outcome::SystemError),
            Begun::Finished(outcome) => outcome,
            Begun::Waits(_) => Outcome::Deferred,
            Begun::CannotWait => Outcome::SystemError,
        };
        self.clients.count_repeated();
        Verdict::Answer(outcome)
    }

    /// The results of a call that came again.
    pub(crate) fn results(&self) -> &[u8] {
        &self.kept.bytes
    }

    fn caller(&mut self, connection: ConnectionKey) -> Option<&mut Caller> {
        self.callers.get_mut(connection.index as usize)?.as_mut()
    }

    fn session(&mut self, connection: ConnectionKey) -> Option<Arc<Session>> {
        if self.caller(connection)?.session.is_none() {
            // It calls before it is connected, as one may that proves no identity.
            self.attach(connection);
        }
        self.caller(connection)?.session.clone()
    }

    fn attach(&mut self, connection: ConnectionKey) {
        let clients = Arc::clone(&self.clients);
        if let Some(caller) = self.caller(connection) {
            caller.session = clients.attach(&caller.id);
        }
    }
}

/// What makes a call the same when it comes again.
fn key(clients: &Clients, request: &Request<'_>, items: Option<&BulkArguments<'_>>) -> Key {
    let mut hasher = clients.hash.build_hasher();
    let (flavor, body) = (request.credential.flavor, request.credential.body);
    (request.xid, request.procedure, flavor).hash(&mut hasher);
    if flavor != RPCSEC_GSS {
        body.hash(&mut hasher);
    }
    let first = |bytes: &[u8], max: usize| bytes.len().min(max);
    request.args.len().hash(&mut hasher);
    hasher.write(&request.args[..first(request.args, CHECKED_BYTES)]);
    if let Some(items) = items {
        let mut left = CHECKED_BYTES;
        for index in 0..items.len() {
            (items.args_offset(index), items.bytes(index)).hash(&mut hasher);
            for part in items.parts(index) {
                let checked = first(part, left);
                hasher.write(&part[..checked]);
                left -= checked;
            }
        }
    }
    Key {
        xid: request.xid,
        program: request.program,
        version: request.version,
        procedure: request.procedure,
        digest: hasher.finish(),
    }
}
