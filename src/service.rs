//! Services: the code that answers calls.

use std::cell::Cell;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use rpcrdma_engine::{
    BulkArguments, CloseReason, ConnectionKey, HostIdentity, Outcome, PeerProperties, ReplyWriter,
    Request, VerifierRefused,
};
use rpcrdma_fabric::interface::PeerIdentity;
use rpcrdma_protocol::constants::{AUTH_NONE, AUTH_SYS};
use rpcrdma_protocol::rpc::{self, Auth, AuthStatus};

use crate::auth::Unauthenticated;
use crate::buffers::{Buffer, Buffers};
use crate::decode::{Decoder, Position};
use crate::encode::{Encode, length_word};
use crate::error::Malformed;
use crate::exchange::{Answer, CoreShared, Token};
use crate::once::{self, Kept, Running, Verdict};
use crate::procedure::Procedure;
use crate::trace;

/// Answers the calls of one program.
///
/// Each core has its own service, so nothing is locked. A service that stores data is one store for each core then, and a
/// client sees the store of the core that has its connection: share the data behind an `Arc`, or use one core. A method runs to completion on the core's thread, which does
/// nothing else meanwhile: it must not read a file, wait for a lock or sleep. What takes longer is answered later, from
/// any thread ([`Incoming::later`]).
///
/// Calls that a service does not take are refused without it: those with credentials of other flavors, and other
/// procedures. The null procedure (number 0) is answered without it, too, for callers without an identity (AUTH_NONE)
/// whatever the flavors are: clients look with it whether the server is there (RFC 5531 section 12.1).
pub trait Service: Send + 'static {
    /// A peer calls. What is written to `reply` is sent when this returns `Ok`.
    ///
    /// # Errors
    /// What the caller is told instead (RFC 5531 section 9).
    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal>;

    /// The procedures that must not run twice, each of the program and a version that this serves. A client that lost its
    /// connection may send a call again that ran; then the first reply is sent again. See
    /// [`NodeBuilder::procedure_once`](crate::NodeBuilder::procedure_once). Asked once, when the core starts.
    fn non_idempotent(&self) -> Vec<Procedure> {
        Vec::new()
    }

    /// The flavors of credentials that it takes (RFC 5531 section 8.2): AUTH_NONE (0) and AUTH_SYS (1) by default. A call with
    /// another one is denied (AUTH_TOOWEAK). With `None`, the service sees all calls and judges their flavors itself. Asked
    /// once, when the core starts.
    fn flavors(&self) -> Option<Vec<u32>> {
        Some(vec![AUTH_NONE, AUTH_SYS])
    }

    /// Judges the caller of a call whose credential is neither AUTH_NONE nor AUTH_SYS, before it runs and before its reply is looked
    /// for among those that are kept. Returns the verifier of the reply. By default all callers are taken, and the verifier is
    /// AUTH_NONE.
    ///
    /// [`Incoming::credential`], [`Incoming::verifier`] and [`Incoming::signed`] have what it takes. With RPCSEC_GSS the reply to a
    /// call that creates a context has a verifier that [`Service::call`] makes ([`Reply::set_verifier`]).
    ///
    /// # Errors
    /// What becomes of the call instead.
    fn authenticate(&mut self, call: &Incoming<'_>) -> Result<Auth, Unauthenticated> {
        let _ = call;
        Ok(Auth::NONE)
    }

    /// Its procedures, if the core is to refuse calls of others (PROC_UNAVAIL). Asked once, when the core starts.
    fn procedures(&self) -> Option<Vec<Procedure>> {
        None
    }

    /// Whether it answers procedure 0 itself, as it also does if that is among its [procedures](Service::procedures). The
    /// arguments are empty, except for a call with RPCSEC_GSS that creates a context. Asked once, when the core starts.
    fn sees_null(&self) -> bool {
        false
    }

    /// A peer has connected, and may call. `identity` is what it proved to be, if it had to.
    fn connected(&mut self, connection: ConnectionKey, identity: Option<&HostIdentity>) {
        let _ = (connection, identity);
    }

    /// A connection has ended.
    fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        let _ = (connection, reason);
    }
}

/// Why a call gets no results (RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The arguments cannot be decoded.
    GarbageArgs,
    /// Something failed here.
    SystemError,
    /// The credential or verifier is refused.
    Denied(AuthStatus),
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Self {
        Self::GarbageArgs
    }
}

impl From<Refusal> for Outcome {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::ProcedureUnavailable => Self::ProcedureUnavailable,
            Refusal::GarbageArgs => Self::GarbageArgs,
            Refusal::SystemError => Self::SystemError,
            Refusal::Denied(status) => Self::AuthError(status),
        }
    }
}

/// A call of a peer. Its arguments are read with the methods of [`Decoder`].
#[derive(Debug)]
pub struct Incoming<'a> {
    request: &'a Request<'a>,
    arguments: Decoder<'a>,
    core: &'a Arc<CoreShared>,
    answering: &'a Answering,
    /// If it must not run twice, and until it is deferred.
    running: Option<Running>,
}

/// What a call and its reply have in common while its service has both.
#[derive(Debug, Default)]
struct Answering {
    /// The verifier of the reply, if it is not AUTH_NONE.
    verifier: Cell<Option<Auth>>,
    is_deferred: Cell<bool>,
}

impl<'a> Incoming<'a> {
    /// The number of the procedure.
    #[must_use]
    pub fn procedure(&self) -> u32 {
        self.request.procedure
    }

    /// The version of the program.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.request.version
    }

    /// Program, version and procedure.
    #[must_use]
    pub fn named(&self) -> Procedure {
        Procedure::new(
            self.request.program,
            self.request.version,
            self.request.procedure,
        )
    }

    /// The connection that the call came by.
    #[must_use]
    pub fn connection(&self) -> ConnectionKey {
        self.request.connection
    }

    /// The caller's credential: its flavor, and its body (RFC 5531 section 8.2).
    #[must_use]
    pub fn credential(&self) -> (u32, &'a [u8]) {
        let credential = self.request.credential;
        (credential.flavor, credential.body)
    }

    /// The caller's verifier: its flavor, and its body.
    #[must_use]
    pub fn verifier(&self) -> (u32, &'a [u8]) {
        let verifier = self.request.verifier;
        (verifier.flavor, verifier.body)
    }

    /// The call from its XID to the end of its credential, which the verifier of RPCSEC_GSS is computed over (RFC 2203 section
    /// 5.3.1). Empty if the verifier is AUTH_NONE and has no body.
    #[must_use]
    pub fn signed(&self) -> &'a [u8] {
        self.request.signed()
    }

    /// The arguments that were not read yet.
    pub fn args(&mut self) -> &mut Decoder<'a> {
        &mut self.arguments
    }

    /// The right to answer this call later, from any thread. What this call of the service writes or returns counts no
    /// more then, but for the verifier that [`Reply::set_verifier`] has set before.
    ///
    /// # Errors
    /// [`Refusal::SystemError`] when as many calls wait for their answers as the core has room for
    /// (`deferred_replies_max` of the profile; by TCP 32 of a connection and 64 of all, beyond the first three of each), or when
    /// this call was deferred already.
    pub fn later(&mut self) -> Result<Later, Refusal> {
        let Answering {
            verifier,
            is_deferred,
        } = self.answering;
        let token = (!is_deferred.get())
            .then(|| self.core.defer(self.request, verifier))
            .flatten();
        let token = token.ok_or(Refusal::SystemError)?;
        is_deferred.set(true);
        Ok(Later {
            token: Some(token),
            core: Arc::clone(self.core),
            running: self.running.take(),
        })
    }
}

/// Takes the results of a call, with the methods of [`Encode`].
#[derive(Debug)]
pub struct Reply<'a, 'w> {
    writer: &'a mut ReplyWriter<'w>,
    answering: &'a Answering,
    /// Takes the results as well, if the call must not run twice.
    kept: Option<&'a mut Kept>,
}

impl Reply<'_, '_> {
    /// Gives the reply this verifier, in place of AUTH_NONE. It comes before all results, and before [`Incoming::later`],
    /// whose answer has it too.
    ///
    /// # Errors
    /// [`VerifierRefused`] when there are results, [`Service::authenticate`] has set a verifier, or the call is deferred.
    pub fn set_verifier(&mut self, verifier: &Auth) -> Result<(), VerifierRefused> {
        if self.answering.is_deferred.get() {
            return Err(VerifierRefused);
        }
        self.writer.set_verifier(verifier.get())?;
        self.answering.verifier.set(Some(*verifier));
        Ok(())
    }
}

impl From<VerifierRefused> for Refusal {
    fn from(_: VerifierRefused) -> Self {
        Self::SystemError
    }
}

impl Encode for Reply<'_, '_> {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        // The writer remembers it, and the core answers SYSTEM_ERR.
        let fits = self.writer.write(bytes).is_ok();
        if let Some(kept) = &mut self.kept {
            kept.push(bytes);
            if !fits {
                kept.give_up();
            }
        }
        self
    }

    fn bulk(&mut self, mut buffer: Buffer) -> &mut Self {
        self.u32(length_word(&buffer));
        if let Some(kept) = &mut self.kept {
            kept.push_item(&buffer.item);
        }
        let fits = self.writer.attach(0, &mut buffer.item).is_ok();
        if let Some(kept) = self.kept.as_mut().filter(|_| !fits) {
            kept.give_up();
        }
        self
    }

    fn buffer_for(&mut self, bytes: usize) -> Option<Buffer> {
        let mut buffer = Buffer::default();
        let mut left = bytes;
        while left > 0 {
            let mut piece = self.writer.take_bulk()?;
            piece.set_len(left);
            left -= piece.len();
            buffer.item.push(piece).ok()?;
        }
        Some(buffer)
    }
}

/// The right to answer a call later, once. It may go to any thread. Dropping it answers SYSTEM_ERR.
#[must_use = "the caller waits for the answer"]
pub struct Later {
    token: Option<Token>,
    core: Arc<CoreShared>,
    running: Option<Running>,
}

impl Later {
    /// Answers with what `write` writes.
    pub fn reply(mut self, write: impl FnOnce(&mut Results)) {
        let mut results = Results {
            answer: self.core.new_answer(),
            core: Arc::clone(&self.core),
        };
        write(&mut results);
        self.send(results.answer, Outcome::Success);
    }

    /// Answers with an error.
    pub fn refuse(mut self, refusal: Refusal) {
        let answer = self.core.new_answer();
        self.send(answer, refusal.into());
    }

    /// Registered memory of the core that the call came to, for the answer.
    #[must_use]
    pub fn buffers(&self) -> Buffers {
        Buffers::new(&self.core)
    }

    fn send(&mut self, mut answer: Box<Answer>, outcome: Outcome) {
        if let Some(running) = self.running.take() {
            // Before the answer goes: who has it may send the call again.
            running.finish_with(outcome, &answer.results, &answer.items);
        }
        if let Some(token) = self.token.take() {
            answer.token = Some(token);
            answer.outcome = Some(outcome);
            self.core.answer(answer);
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if self.token.is_some() {
            let answer = self.core.new_answer();
            self.send(answer, Outcome::SystemError);
        }
    }
}

impl fmt::Debug for Later {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Later").field(&self.token).finish()
    }
}

/// Takes the results of a call that is answered later, with the methods of [`Encode`].
pub struct Results {
    answer: Box<Answer>,
    core: Arc<CoreShared>,
}

impl Encode for Results {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.answer.results.extend_from_slice(bytes);
        self
    }

    fn bulk(&mut self, buffer: Buffer) -> &mut Self {
        self.u32(length_word(&buffer));
        let at = self.answer.results.len();
        self.answer.items.push((at, buffer.item));
        self
    }

    fn buffer_for(&mut self, bytes: usize) -> Option<Buffer> {
        Buffers::new(&self.core).take(bytes)
    }
}

/// What a closure per procedure is.
pub(crate) type Handler =
    dyn Fn(&mut Incoming<'_>, &mut Reply<'_, '_>) -> Result<(), Refusal> + Send + Sync;

/// A service of closures, one for each procedure of each version. All cores share them.
#[derive(Clone, Default)]
pub(crate) struct Procedures {
    handlers: Vec<(Procedure, Arc<Handler>)>,
    /// Those that must not run twice.
    once: Vec<Procedure>,
}

impl Procedures {
    pub(crate) fn add(&mut self, procedure: Procedure, handler: Arc<Handler>) {
        self.handlers.push((procedure, handler));
    }

    pub(crate) fn add_once(&mut self, procedure: Procedure, handler: Arc<Handler>) {
        self.add(procedure, handler);
        self.once.push(procedure);
    }

    /// The programs that they are of, each with its versions.
    pub(crate) fn programs(&self) -> Vec<(u32, Versions)> {
        let mut programs: Vec<(u32, Versions)> = Vec::new();
        for (procedure, _) in &self.handlers {
            let (number, version) = (procedure.program, procedure.version..=procedure.version);
            match programs.iter_mut().find(|(other, _)| *other == number) {
                Some((_, versions)) if versions.contains(&version) => {}
                Some((_, versions)) => versions.push(version),
                None => programs.push((number, vec![version])),
            }
        }
        programs
    }
}

impl Service for Procedures {
    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        let wanted = call.named();
        let handler = self.handlers.iter().find(|(named, _)| *named == wanted);
        let (_, handler) = handler.ok_or(Refusal::ProcedureUnavailable)?;
        handler(call, reply)
    }

    fn non_idempotent(&self) -> Vec<Procedure> {
        self.once.clone()
    }

    fn procedures(&self) -> Option<Vec<Procedure>> {
        Some(self.handlers.iter().map(|(named, _)| *named).collect())
    }
}

/// The versions of a program.
pub(crate) type Versions = Vec<RangeInclusive<u32>>;

/// A program, and the service that answers its calls.
pub(crate) struct Program {
    /// The calls that it takes.
    takes: rpc::Program,
    service: Box<dyn Service>,
    /// Versions and procedures that must not run twice.
    once: Box<[(u32, u32)]>,
}

impl Program {
    pub(crate) fn new(number: u32, versions: Versions, service: Box<dyn Service>) -> Self {
        let once = service.non_idempotent().into_iter();
        let once = once.filter(|procedure| procedure.program == number);
        let once = once.map(|procedure| (procedure.version, procedure.number));
        let once = once.collect();
        let takes = rpc::Program::new(number, versions);
        let mut takes = match service.flavors() {
            Some(flavors) => takes.with_flavors(flavors),
            None => takes.with_any_flavor(),
        };
        let mut sees_null = service.sees_null();
        if let Some(listed) = service.procedures() {
            let listed = listed.into_iter().filter(|it| it.program == number);
            let listed: Vec<_> = listed.map(|it| (it.version, it.number)).collect();
            sees_null |= listed.iter().any(|(_, number)| *number == 0);
            takes = takes.with_procedures(listed);
        }
        if sees_null {
            takes = takes.with_null();
        }
        Self {
            takes,
            service,
            once,
        }
    }

    #[inline]
    fn must_run_once(&self, request: &Request<'_>) -> bool {
        !self.once.is_empty() && self.once.contains(&(request.version, request.procedure))
    }
}

/// The programs of a core.
#[derive(Default)]
pub(crate) struct Programs {
    programs: Vec<Program>,
    /// If a program has procedures that must not run twice.
    once: Option<once::Calls>,
}

impl Programs {
    pub(crate) fn new(programs: Vec<Program>) -> Self {
        Self {
            programs,
            once: None,
        }
    }

    /// What the core judges calls by.
    pub(crate) fn taken(&self) -> rpc::Programs {
        rpc::Programs::new(self.programs.iter().map(|program| program.takes.clone()))
    }

    /// Whether a procedure must not run twice.
    pub(crate) fn have_once(&self) -> bool {
        self.programs.iter().any(|program| !program.once.is_empty())
    }

    /// Keeps replies, with the other cores of the node.
    pub(crate) fn keep(&mut self, clients: &Arc<once::Clients<once::Waiter>>) {
        self.once = Some(once::Calls::new(clients));
    }

    #[inline]
    pub(crate) fn serve(
        &mut self,
        index: usize,
        core: &Arc<CoreShared>,
        request: &Request<'_>,
        items: Option<&mut BulkArguments<'_>>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        let Some(program) = self.programs.get_mut(index) else {
            return Outcome::ProgramUnavailable;
        };
        let answering = Answering::default();
        // Most calls have no other flavors, and spare themselves the question.
        if request.credential.flavor > AUTH_SYS
            && let Err(outcome) = program.authenticate(core, request, &answering, reply)
        {
            return outcome;
        }
        if program.must_run_once(request)
            && let Some(once) = &mut self.once
        {
            return program.serve_once(core, once, (request, &answering), items, reply);
        }
        let items = items.map(BulkArguments::split).unwrap_or_default();
        let mut position = Position::default();
        let mut call = Incoming {
            request,
            arguments: Decoder::of_call(request.args, items, &mut position),
            core,
            answering: &answering,
            running: None,
        };
        let mut reply = Reply {
            writer: reply,
            answering: &answering,
            kept: None,
        };
        program.call(&mut call, &mut reply)
    }

    pub(crate) fn opened(&mut self, connection: ConnectionKey, peer: &PeerIdentity) {
        if let Some(once) = &mut self.once {
            once.callers.opened(connection, peer);
        }
    }

    pub(crate) fn announced(&mut self, connection: ConnectionKey, properties: &PeerProperties) {
        if let Some(once) = &mut self.once {
            once.callers.announced(connection, properties);
        }
    }

    pub(crate) fn connected(&mut self, connection: ConnectionKey, peer: Option<&HostIdentity>) {
        if let Some(once) = &mut self.once {
            once.callers.connected(connection, peer);
        }
        for program in &mut self.programs {
            program.service.connected(connection, peer);
        }
    }

    pub(crate) fn disconnected(&mut self, connection: ConnectionKey, reason: CloseReason) {
        if let Some(once) = &mut self.once {
            once.callers.disconnected(connection);
        }
        for program in &mut self.programs {
            program.service.disconnected(connection, reason);
        }
    }
}

impl Program {
    /// Asks the service for the verifier of the reply.
    #[cold]
    fn authenticate(
        &mut self,
        core: &Arc<CoreShared>,
        request: &Request<'_>,
        answering: &Answering,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<(), Outcome> {
        let mut position = Position::default();
        let call = Incoming {
            request,
            arguments: Decoder::of_call(&[], Default::default(), &mut position),
            core,
            answering,
            running: None,
        };
        match self.service.authenticate(&call) {
            Ok(Auth::NONE) => Ok(()),
            Ok(verifier) => {
                let set = reply.set_verifier(verifier.get());
                answering.verifier.set(Some(verifier));
                set.map_err(|_| Outcome::SystemError)
            }
            Err(Unauthenticated::Denied(status)) => Err(Outcome::AuthError(status)),
            Err(Unauthenticated::Discarded) => Err(Outcome::Discarded),
        }
    }

    #[inline]
    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Outcome {
        let request = call.request;
        let served = trace::serve(request, || self.service.call(call, reply));
        match served {
            _ if call.answering.is_deferred.get() => Outcome::Deferred,
            Ok(()) => Outcome::Success,
            Err(refusal) => refusal.into(),
        }
    }

    /// Runs a call that must not run twice, or answers it as the first time.
    #[inline(never)]
    fn serve_once(
        &mut self,
        core: &Arc<CoreShared>,
        once: &mut once::Calls,
        (request, answering): (&Request<'_>, &Answering),
        items: Option<&mut BulkArguments<'_>>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        let running = match once.begin(core, request, &answering.verifier, items.as_deref()) {
            Verdict::Run(running) => running,
            Verdict::Answer(Outcome::Success) => {
                let is_written = reply.write(once.results()).is_ok();
                return if is_written {
                    Outcome::Success
                } else {
                    Outcome::SystemError
                };
            }
            Verdict::Answer(outcome) => return outcome,
        };
        let items = items.map(BulkArguments::split).unwrap_or_default();
        let mut position = Position::default();
        let mut call = Incoming {
            request,
            arguments: Decoder::of_call(request.args, items, &mut position),
            core,
            answering,
            running: Some(running),
        };
        let mut reply = Reply {
            writer: reply,
            answering,
            kept: Some(&mut once.kept),
        };
        let outcome = self.call(&mut call, &mut reply);
        // A call that is answered later has taken it along.
        if let Some(running) = call.running.take() {
            running.finish(outcome, once.kept.whole());
        }
        outcome
    }
}
