// What examples in the documentation of the engine share, taken by `include!`: a call, the two ends
// that it passes between, and applications that are made of a function each.

#[path = "mod.rs"]
mod joined;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use rpcrdma_engine::placement::PlacementSegments;
use rpcrdma_engine::ring_client::{
    self, CallMessage, ReplySender, ReplyService, RingApplication, RingClient,
};
use rpcrdma_engine::{
    Activity, Application, BulkArguments, BulkCall, BulkItem, BulkReply, Call, CallError, CallTag,
    ConnectionKey, Context, CoreConfig, DeferToken, ExpectedResult, HostIdentity, Notification,
    Outcome, Placement, PlacementConfig, PropertyBytes, Reply, ReplyWriter, Request,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::{Port, Receive, ReceiveQueueAttributes};
use rpcrdma_fabric::shm;
use rpcrdma_protocol::v2::connection::Role;

pub(crate) use joined::{End, control, end, ends, port};

/// What the examples call.
pub(crate) const CALL: Call = Call {
    program: 0x2000_0001,
    version: 1,
    procedure: 1,
};

/// How long anything here may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A small core.
pub(crate) fn config() -> CoreConfig {
    CoreConfig {
        connections_max: 2,
        bulk_buffers: 16,
        bulk_calls: 4,
        // However slow the machine is, nothing is sent but what an example shows.
        keep_alive_interval: Duration::ZERO,
        ..CoreConfig::default()
    }
}

/// Two small cores that can call each other.
pub(crate) fn pair<C: Application, S: Application>(client: C, server: S) -> (End<C>, End<S>) {
    pair_with(&config(), client, server)
}

/// As [`pair`], of this configuration.
pub(crate) fn pair_with<C: Application, S: Application>(
    config: &CoreConfig,
    client: C,
    server: S,
) -> (End<C>, End<S>) {
    let (mut client, mut server) = ends(&Clock::new(), (config, client), (config, server));
    joined::connect(&mut client, &mut server);
    (client, server)
}

/// Runs both cores by turns until `done`.
pub(crate) fn until<C: Application, S: Application>(
    client: &mut End<C>,
    server: &mut End<S>,
    mut done: impl FnMut(&End<C>, &End<S>) -> bool,
) {
    let deadline = Instant::now() + PATIENCE;
    while !done(client, server) {
        let _ = server.core.iterate();
        let _ = client.core.iterate();
        assert!(Instant::now() < deadline, "it takes too long");
    }
}

/// What one of the ends is told next, as `receive` takes it.
pub(crate) fn told<C: Application, S: Application>(
    client: &mut End<C>,
    server: &mut End<S>,
    receive: impl Fn(&End<C>, &End<S>) -> Option<Notification>,
) -> Notification {
    let mut told = None;
    until(client, server, |client, server| {
        told = receive(client, server);
        told.is_some()
    });
    told.expect("told")
}

/// Neither serves nor calls.
pub(crate) struct Nothing;

impl Application for Nothing {}

/// A core without connections.
pub(crate) fn alone<A: Application>(config: &CoreConfig, application: A) -> End<A> {
    let clock = Clock::new();
    let (port, _) = port(0, config, &clock);
    end(&clock, port, config, application)
}

/// Two ends, of which the client has sent its properties and the server has not answered: what it
/// was told of the connection.
pub(crate) fn asking() -> (
    End<Nothing>,
    End<Nothing>,
    ConnectionKey,
    Box<PropertyBytes>,
) {
    let config = config();
    let (mut client, mut server) = ends(&Clock::new(), (&config, Nothing), (&config, Nothing));
    loop {
        let notification = told(&mut client, &mut server, |client, server| {
            control(&client.handle, Role::Client);
            server.handle.receive()
        });
        if let Notification::Properties { connection, bytes } = notification {
            return (client, server, connection, bytes);
        }
    }
}

/// Answers calls by a function.
pub(crate) struct Service<F>(F);

/// A service that answers by `answer`.
pub(crate) fn service<F>(answer: F) -> Service<F>
where
    F: FnMut(&Request<'_>, &mut ReplyWriter<'_>) -> Outcome + Send + 'static,
{
    Service(answer)
}

/// Sends the arguments back.
pub(crate) fn echo(request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
    match reply.write(request.args) {
        Ok(()) => Outcome::Success,
        Err(_) => Outcome::SystemError,
    }
}

impl<F> Application for Service<F>
where
    F: FnMut(&Request<'_>, &mut ReplyWriter<'_>) -> Outcome + Send + 'static,
{
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        (self.0)(request, reply)
    }
}

/// What a client does as soon as it may call.
pub(crate) trait Begin: Send + 'static {
    fn begin<P: Port>(&mut self, core: &mut Context<'_, P>, connection: ConnectionKey);
}

/// Makes one call.
struct Ask(Call, Vec<u8>);

impl Begin for Ask {
    fn begin<P: Port>(&mut self, core: &mut Context<'_, P>, connection: ConnectionKey) {
        let called = core.call(connection, self.0, &self.1, 0);
        called.expect("a call that can be made");
    }
}

/// A client whose calls end in `take`.
struct Client<B, F, T> {
    begin: Option<B>,
    take: F,
    connection: Option<ConnectionKey>,
    ended: Vec<(CallTag, T)>,
    is_done: bool,
}

impl<B, F, T> Application for Client<B, F, T>
where
    B: Begin,
    F: FnMut(Result<BulkReply<'_>, CallError>) -> T + Send + 'static,
    T: Send + 'static,
{
    fn completed(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        let items = &mut [];
        let result = result.map(|reply| BulkReply { reply, items });
        self.completed_bulk(tag, connection, result, now);
    }

    fn completed_bulk(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        _now: Ticks,
    ) {
        self.ended.push((tag, (self.take)(result)));
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        if let Some(connection) = self.connection {
            if let Some(mut begin) = self.begin.take() {
                begin.begin(core, connection);
            }
            self.is_done = core.calls_waiting() == 0;
        }
        Activity::Idle
    }

    fn connected(&mut self, connection: ConnectionKey, _peer: Option<&HostIdentity>) {
        self.connection = Some(connection);
    }
}

/// Both ends, after a client has begun and its calls have ended.
fn run_ends<B, S, F, T>(begin: B, server: S, take: F) -> (End<Client<B, F, T>>, End<S>)
where
    B: Begin,
    S: Application,
    F: FnMut(Result<BulkReply<'_>, CallError>) -> T + Send + 'static,
    T: Send + 'static,
{
    let client = Client {
        begin: Some(begin),
        take,
        connection: None,
        ended: Vec::new(),
        is_done: false,
    };
    let (mut client, mut server) = pair(client, server);
    until(&mut client, &mut server, |client, _| {
        client.core.application().is_done
    });
    (client, server)
}

/// What `take` makes of how the calls of a client end.
pub(crate) fn run_with<B, S, F, T>(begin: B, server: S, take: F) -> Vec<(CallTag, T)>
where
    B: Begin,
    S: Application,
    F: FnMut(Result<BulkReply<'_>, CallError>) -> T + Send + 'static,
    T: Send + 'static,
{
    let (mut client, _) = run_ends(begin, server, take);
    std::mem::take(&mut client.core.application_mut().ended)
}

/// Both ends, after a call.
pub(crate) fn after_a_call() -> (End<impl Application>, End<impl Application>) {
    run_ends(Ask(CALL, b"a call".to_vec()), service(echo), results)
}

/// The results of a call.
pub(crate) fn results(result: Result<BulkReply<'_>, CallError>) -> Result<Vec<u8>, CallError> {
    result.map(|bulk| bulk.reply.results.to_vec())
}

/// How a call to `server` ends.
pub(crate) fn ask(server: impl Application, call: Call, args: &[u8]) -> Result<Vec<u8>, CallError> {
    let ended = run_with(Ask(call, args.to_vec()), server, results);
    ended.into_iter().next().expect("it ends").1
}

/// What `take` makes of how a call ends that `answer` answers.
pub(crate) fn ask_with<T: Send + 'static>(
    answer: impl FnMut(&Request<'_>, &mut ReplyWriter<'_>) -> Outcome + Send + 'static,
    args: &[u8],
    mut take: impl FnMut(Result<Reply<'_>, CallError>) -> T + Send + 'static,
) -> T {
    let take = move |result: Result<BulkReply<'_>, _>| take(result.map(|bulk| bulk.reply));
    let ended = run_with(Ask(CALL, args.to_vec()), service(answer), take);
    ended.into_iter().next().expect("it ends").1
}

/// How a call ends that `answer` answers.
pub(crate) fn answered(
    answer: impl FnMut(&Request<'_>, &mut ReplyWriter<'_>) -> Outcome + Send + 'static,
    call: Call,
    args: &[u8],
) -> Result<Vec<u8>, CallError> {
    ask(service(answer), call, args)
}

/// Answers calls with bulk data by a function, which gets the arguments, and the items that stand
/// beside them.
pub(crate) struct BulkService<F>(F);

/// A service that answers by `answer`.
pub(crate) fn bulk_service<F>(answer: F) -> BulkService<F>
where
    F: FnMut(&Request<'_>, &mut BulkArguments<'_>, &mut ReplyWriter<'_>) -> Outcome
        + Send
        + 'static,
{
    BulkService(answer)
}

impl<F> Application for BulkService<F>
where
    F: FnMut(&Request<'_>, &mut BulkArguments<'_>, &mut ReplyWriter<'_>) -> Outcome
        + Send
        + 'static,
{
    fn call_bulk(
        &mut self,
        request: &Request<'_>,
        items: &mut BulkArguments<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> Outcome {
        (self.0)(request, items, reply)
    }
}

/// Calls with an item of 1000 octets behind the arguments `name`, by RDMA.
struct Give;

impl Begin for Give {
    fn begin<P: Port>(&mut self, core: &mut Context<'_, P>, connection: ConnectionKey) {
        let mut piece = core.take_bulk().expect("a buffer is free");
        piece.set_len(1000);
        let mut call = BulkCall::new(CALL, b"name");
        call.placement = Placement::Rdma;
        call.add(4, &mut piece.into()).expect("room for an item");
        let called = core.call_bulk(connection, &mut call, 0);
        called.expect("a call that can be made");
    }
}

/// How a call ends that brings an item of 1000 octets behind the arguments `name`.
pub(crate) fn given(
    answer: impl FnMut(&Request<'_>, &mut BulkArguments<'_>, &mut ReplyWriter<'_>) -> Outcome
    + Send
    + 'static,
) -> Result<Vec<u8>, CallError> {
    let ended = run_with(Give, bulk_service(answer), results);
    ended.into_iter().next().expect("it ends").1
}

/// Asks for a result of up to 1000 octets beside the stream.
struct Want;

impl Begin for Want {
    fn begin<P: Port>(&mut self, core: &mut Context<'_, P>, connection: ConnectionKey) {
        let mut call = BulkCall::new(CALL, &[]);
        call.placement = Placement::Rdma;
        call.results_bytes_max = 4;
        let result = ExpectedResult {
            bytes_max: 1000,
            ..ExpectedResult::default()
        };
        call.expect(result).expect("room for a result");
        let called = core.call_bulk(connection, &mut call, 0);
        called.expect("a call that can be made");
    }
}

/// What `take` makes of a reply with a result of 600 octets beside its stream, which has their number.
pub(crate) fn wanted<T: Send + 'static>(
    take: impl FnMut(Result<BulkReply<'_>, CallError>) -> T + Send + 'static,
) -> T {
    let server = service(|_, reply| {
        let mut piece = reply.take_bulk().expect("a buffer is free");
        piece.set_len(600);
        let written = reply.write_u32(600);
        let attached = written.and_then(|()| reply.attach(0, &mut BulkItem::from(piece)));
        attached.map_or(Outcome::SystemError, |()| Outcome::Success)
    });
    let ended = run_with(Want, server, take);
    ended.into_iter().next().expect("it ends").1
}

/// A thread's end of a pair of rings for `capacity` calls, the core that serves it, and one that echoes.
pub(crate) fn ringed(capacity: u32) -> (RingClient, End<RingApplication>, End<impl Application>) {
    let (rings, mut clients) = RingApplication::new(1, capacity);
    let (client, server) = pair(rings, service(echo));
    (clients.remove(0), client, server)
}

/// The next call that comes back.
pub(crate) fn come_back(
    ring: &mut RingClient,
    client: &mut End<RingApplication>,
    server: &mut End<impl Application>,
) -> Box<CallMessage> {
    let mut message = None;
    until(client, server, |_, _| {
        message = ring.complete();
        message.is_some()
    });
    message.expect("one came")
}

/// Hands the right to answer its calls to another thread.
pub(crate) struct Office {
    pub(crate) tokens: mpsc::Sender<DeferToken>,
    pub(crate) replies: ReplyService,
}

impl Application for Office {
    fn call(&mut self, request: &Request<'_>, _reply: &mut ReplyWriter<'_>) -> Outcome {
        let sent = request.defer().map(|token| self.tokens.send(token));
        sent.map_or(Outcome::SystemError, |_| Outcome::Deferred)
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        self.replies.poll(core)
    }
}

/// How a call ends that `clerk` answers, on a thread of its own.
pub(crate) fn by_office(
    clerk: impl FnOnce(mpsc::Receiver<DeferToken>, ReplySender) + Send + 'static,
) -> Result<Vec<u8>, CallError> {
    let (sender, replies) = ring_client::reply_ring(8);
    let (tokens, receiver) = mpsc::channel();
    let thread = std::thread::spawn(move || clerk(receiver, sender));
    let ended = ask(Office { tokens, replies }, CALL, &[]);
    thread.join().expect("it does not panic");
    ended
}

/// Runs the block on a core whose `connection` is ready, and gives how the calls that it makes end.
macro_rules! on_core {
    ($server:expr, |$core:ident, $connection:ident| $body:block) => {
        on_core!($server, |$core, $connection| $body, results)
    };
    ($server:expr, |$core:ident, $connection:ident| $body:block, $take:expr) => {{
        struct Body;
        impl Begin for Body {
            fn begin<P: ::rpcrdma_fabric::interface::Port>(
                &mut self,
                $core: &mut ::rpcrdma_engine::Context<'_, P>,
                $connection: ::rpcrdma_engine::ConnectionKey,
            ) $body
        }
        run_with(Body, $server, $take)
    }};
}
pub(crate) use on_core;

/// What a service does with the right to answer a call.
pub(crate) trait Finish: Send + 'static {
    fn finish<P: Port>(&mut self, core: &mut Context<'_, P>, token: DeferToken);
}

/// Defers its calls.
pub(crate) struct Later<F> {
    pub(crate) finish: F,
    pub(crate) token: Option<DeferToken>,
}

impl<F: Finish> Application for Later<F> {
    fn call(&mut self, request: &Request<'_>, _reply: &mut ReplyWriter<'_>) -> Outcome {
        self.token = request.defer();
        Outcome::Deferred
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let token = self.token.take();
        Activity::from_busy(token.map(|token| self.finish.finish(core, token)).is_some())
    }
}

/// How a call ends that is deferred, and answered by the block.
macro_rules! deferred {
    (|$core:ident, $token:ident| $body:block) => {{
        struct Body;
        impl Finish for Body {
            fn finish<P: ::rpcrdma_fabric::interface::Port>(
                &mut self,
                $core: &mut ::rpcrdma_engine::Context<'_, P>,
                $token: ::rpcrdma_engine::DeferToken,
            ) $body
        }
        ask(Later { finish: Body, token: None }, CALL, &[])
    }};
}
pub(crate) use deferred;

/// A port, a Receive of one inline and one placement segment of it, and one spare of the latter.
pub(crate) fn receiving() -> (shm::Port, Receive, PlacementSegments) {
    let placement = PlacementConfig {
        spares: 1,
        ..PlacementConfig::default()
    };
    let config = CoreConfig {
        connections_max: 1,
        credits_per_connection: 1,
        placement: Some(placement),
        ..config()
    };
    let (mut port, _) = port(0, &config, &Clock::new());
    let mut inline = port.carve(config.receive_pool()).expect("room");
    let shape = rpcrdma_fabric::memory::PoolShape {
        buffers: 2,
        ..config.placement_pool().expect("it has placement segments")
    };
    let mut segments = PlacementSegments::new(port.carve(shape).expect("room"));
    let attributes = ReceiveQueueAttributes {
        depth: 1,
        segments_max: 2,
    };
    let queue = port.create_receive_queue(attributes).expect("a queue");
    let mut list = inline.take().into_iter().chain(segments.take_for_receive());
    let receive = port.create_receive(queue, &mut list).expect("a Receive");
    (port, receive, segments)
}
