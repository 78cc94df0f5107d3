//! A load over the kernel's TCP: one thread for each connection, with pipelined calls; and single calls.
//!
//! It measures the server behind the kernel's TCP at both ends, with a client thread that sleeps while it waits. The
//! project's data plane is not involved.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rpcrdma::record::{self, Records};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_protocol::rpc::{AcceptStatus, CallHeader, OpaqueAuth, ReplyBody, ReplyHeader};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Session;
use crate::exit::Failure;
use crate::load::intervals::{Collector, Exchange, Recorder};
use crate::load::measure::{Checkpoints, StopGrace, of_silent_part, so_far};
use crate::load::measured::{Beginning, Measured};
use crate::load::pace::Rate;
use crate::load::phase::LoadPhase;
use crate::load::retry_later::RetryLater;
use crate::load::workload::{Verdict, Workload as _};
use crate::load::{Amount, Watch};
use crate::signals::Stop;
use crate::workloads::nfs::steps::Step;
use crate::workloads::nfs::tally::Tally;
use crate::workloads::nfs::{NfsWorkload, StepReply, Work};
use rpcrdma_nfs3::client::CALL_TIMEOUT;
use rpcrdma_nfs3::client::caller::{CallFailed, NfsCaller, Results, accept_words, reject_words};
use rpcrdma_nfs3::client::credential::Credential;
use rpcrdma_nfs3::client::request::{ARGUMENTS_BYTES_MAX, Request};
use rpcrdma_nfs3::client::tcp::{TcpCaller, TcpCallerConfig, connect, first_xid};
use rpcrdma_nfs3::wire as nfs;
use rpcrdma_nfs3::wire::mount::{self, MountProcedure};

/// The longest sleep, so that a stop request is noticed in time.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

/// How long a connection may be silent while calls are outstanding, also after the measurement.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The time limit of one attempt to reconnect, and the pause after a failed one.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);

/// With more unsent bytes than this, no further call is encoded. This bounds the buffer if the server reads slowly.
const UNSENT_BYTES_MAX: usize = 64 * 1024;

/// Room in a reply for header and results, without payload.
const REPLY_OVERHEAD_BYTES: usize = 2048;

/// Upper bound of the READs that check written data, in bytes.
const READ_BYTES_MAX: u32 = 256 << 10;

/// The low bits of an XID are the index of the slot, so that a reply finds its slot without a search.
const SLOT_BITS: u32 = 16;

/// The server and the credential of the calls.
#[derive(Clone, Debug)]
pub(crate) struct TcpServer {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) credential: Credential,
    /// How long to try to replace a lost connection; with 0 it is not tried.
    pub(crate) retry: Duration,
    pub(crate) stop: Stop,
}

impl TcpServer {
    fn connect(&self, timeout: Duration) -> Result<TcpStream, Failure> {
        // WAIT: `timeout`.
        Ok(connect(&self.host, self.port, "NFS", timeout)?)
    }

    /// A connection for single calls.
    fn caller(&self) -> Result<TcpCaller, Failure> {
        // WAIT: the time-out of its configuration.
        let connected = TcpCaller::connect(&TcpCallerConfig {
            host: &self.host,
            port: self.port,
            what: "NFS",
            timeout: CALL_TIMEOUT,
            reply_bytes_max: READ_BYTES_MAX as usize + REPLY_OVERHEAD_BYTES,
        });
        Ok(connected?)
    }
}

/// Connections to a server over TCP.
pub(crate) struct TcpSession {
    pub(crate) server: TcpServer,
    pub(crate) connections: u32,
    pub(crate) cores: Vec<usize>,
}

impl Session for TcpSession {
    fn measure(
        &mut self,
        work: Arc<Work>,
        amount: &Amount,
        watch: &Watch,
        checkpoints: &mut Checkpoints<'_>,
    ) -> Result<(Measured, Tally), Failure> {
        let cores = &self.cores;
        let mut collectors = Vec::new();
        // Connections first, then buffers and histograms: after the gate, only threads are left to start.
        // WAIT: `ANSWER_TIMEOUT` for each.
        let streams = (0..self.connections)
            .map(|_| self.server.connect(ANSWER_TIMEOUT))
            .collect::<Result<Vec<_>, _>>()?;
        let drivers = streams.into_iter().zip(0_u32..).map(|(stream, number)| {
            let part = Part {
                number,
                parts: self.connections,
                core: cores.get(number as usize % cores.len().max(1)).copied(),
                amount: amount.share(number, self.connections),
            };
            let work = Arc::clone(&work);
            let driver = Driver::new(self.server.clone(), stream, work, &part, watch.clone())?;
            collectors.push((
                Collector::new(number as usize, &watch.progress),
                Arc::clone(&driver.exchange),
            ));
            Ok((driver, part))
        });
        let drivers = drivers.collect::<Result<Vec<_>, Failure>>()?;
        watch.gate.pass(&watch.progress, &watch.stop);
        let (began, started) = (Beginning::after(amount.warmup), Clock::new().now());
        let rate_per_s = amount.rate.map(Rate::calls_per_second);
        watch.progress.begin(amount.warmup, rate_per_s);
        let spawn = |(driver, part): (Driver, Part)| {
            let thread = std::thread::Builder::new().name(format!("nfs-{}", part.number));
            thread.spawn(move || driver.run(&part))
        };
        let threads = start_all(drivers, spawn, &watch.stop)?;
        while threads.iter().any(|it| !it.is_finished()) {
            // WAIT: `LOOK_PERIOD`; the whole until each driver ends, by its amount, a stop request or a lost connection.
            std::thread::sleep(LOOK_PERIOD);
            for (collector, exchange) in &mut collectors {
                collector.collect(exchange);
            }
            checkpoints.look(|| {
                let collectors = collectors.iter().map(|(collector, _)| collector);
                let mut measured = so_far(collectors, amount.interval);
                measured.began = Some(began);
                measured.note_errors_so_far(&watch.progress);
                measured
            });
        }
        // Join all threads even after a failure, so that none outlives this function. The first failure is kept.
        let (mut measured, mut tally) = (Measured::default(), Tally::default());
        measured.began = Some(began);
        let threads = threads.into_iter().zip(0..);
        for ((thread, number), (mut collector, exchange)) in threads.zip(collectors) {
            // WAIT: it has ended.
            if let Ok((mut part, its, last)) = thread.join() {
                let timeline = collector.finish(&exchange, &last, &mut part);
                part.timelines.push(timeline);
                measured.merge(part);
                tally.merge(its);
            } else {
                let share = amount.share(number, self.connections);
                let now = Clock::new().now();
                let part = of_silent_part(&mut collector, &share, (started, now), now);
                measured.merge(part);
                measured.failure = Some(Failure::failed("the thread of a connection ended"));
            }
        }
        watch.progress.end();
        Ok((measured, tally))
    }

    fn caller(&mut self) -> Result<Box<dyn NfsCaller + '_>, Failure> {
        let caller = self.server.caller()?;
        Ok(Box::new(OverTcp {
            caller,
            server: &self.server,
        }))
    }
}

/// NFS calls over TCP, one at a time.
struct OverTcp<'a> {
    caller: TcpCaller,
    server: &'a TcpServer,
}

impl NfsCaller for OverTcp<'_> {
    fn call_once(&mut self, request: &Request<'_>, _: u32) -> Result<Results, CallFailed> {
        let mut args = [0; ARGUMENTS_BYTES_MAX];
        let bytes = request.encode(&mut args)?;
        let procedure = request.procedure().number();
        let stream = self.caller.call(
            (nfs::PROGRAM, nfs::VERSION, procedure),
            self.server.credential.auth(),
            args.get(..bytes).unwrap_or(&[]),
        )?;
        Ok(Results {
            stream,
            ..Results::default()
        })
    }

    fn call_mount_once(
        &mut self,
        procedure: MountProcedure,
        args: &[u8],
    ) -> Result<Vec<u8>, CallFailed> {
        let program = (mount::PROGRAM, mount::VERSION, procedure.number());
        self.caller
            .call(program, self.server.credential.auth(), args)
    }

    fn restore(&mut self) -> bool {
        let deadline = Instant::now() + self.server.retry;
        while Instant::now() < deadline {
            if let Ok(caller) = self.server.caller() {
                self.caller = caller;
                return true;
            }
            if self.server.stop.is_asked() {
                break;
            }
            // WAIT: `ATTEMPT_PAUSE`; the whole until `retry` has passed, or a stop request.
            std::thread::sleep(ATTEMPT_PAUSE);
        }
        false
    }

    fn read_bytes_max(&self) -> u32 {
        READ_BYTES_MAX
    }
}

/// Starts the thread of each driver. If a thread cannot be started, those before it are stopped: a failure leaves none
/// behind.
///
/// # Errors
/// The first thread that cannot be started.
fn start_all<D, T>(
    drivers: Vec<D>,
    spawn: impl Fn(D) -> io::Result<JoinHandle<T>>,
    stop: &Stop,
) -> Result<Vec<JoinHandle<T>>, Failure> {
    let mut threads = Vec::with_capacity(drivers.len());
    for driver in drivers {
        match spawn(driver) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                stop.ask();
                for thread in threads {
                    // Its results are of no use, and a panic has been printed.
                    // WAIT: for threads that a stop request ends.
                    let _ = thread.join();
                }
                let what = "cannot start the thread of a connection";
                return Err(Failure::failed(what).because(error));
            }
        }
    }
    Ok(threads)
}

/// Which part of the load a connection carries.
#[derive(Clone, Copy, Debug)]
struct Part {
    number: u32,
    parts: u32,
    core: Option<usize>,
    /// Its share.
    amount: Amount,
}

/// A place for one outstanding call.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The XID of the call. A reply with another XID is to an earlier call of this slot.
    xid: u32,
    step: Step,
    start: Ticks,
    is_waiting: bool,
}

/// A connection with its share of the load.
struct Driver {
    server: TcpServer,
    stream: TcpStream,
    records: Records,
    /// Encoded calls, and how many of these bytes are sent.
    unsent: Vec<u8>,
    sent: usize,
    /// Record mark and call header, encoded once; each call overwrites mark, XID and procedure.
    header: Vec<u8>,
    workload: NfsWorkload,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots whose calls the server asked to repeat later.
    later: RetryLater<u32>,
    clock: Clock,
    phase: LoadPhase,
    /// Full histograms on their way to the starting thread, which packs them.
    exchange: Arc<Exchange>,
    measured: Measured,
    watch: Watch,
    /// Successful calls, including those of the warm-up: for the live line.
    completed: u64,
    /// When the last bytes arrived.
    heard: Instant,
    grace: StopGrace,
    /// Since when no connection has brought a reply; `None` while the connection is in order.
    lost: Option<Instant>,
}

impl Driver {
    fn new(
        server: TcpServer,
        stream: TcpStream,
        work: Arc<Work>,
        part: &Part,
        watch: Watch,
    ) -> Result<Self, Failure> {
        let amount = &part.amount;
        stream.set_nonblocking(true).map_err(|error| {
            Failure::failed("cannot make a connection non-blocking").because(error)
        })?;
        let clock = Clock::new();
        let exchange = Arc::new(Exchange::default());
        let header = header(&server.credential)?;
        let payload_bytes = work.plan.bytes as usize;
        // Only the high half matters: `call` puts the slot's index into the low half.
        let first_xid = first_xid();
        let slots = (0..amount.depth).map(|_| Slot {
            xid: first_xid,
            ..Slot::default()
        });
        Ok(Self {
            records: Records::new(payload_bytes + REPLY_OVERHEAD_BYTES),
            unsent: Vec::with_capacity(
                UNSENT_BYTES_MAX + header.len() + ARGUMENTS_BYTES_MAX + payload_bytes + 4,
            ),
            sent: 0,
            header,
            workload: NfsWorkload::new(work, server.credential.clone(), part.number, part.parts),
            slots: slots.collect(),
            free: (0..amount.depth).rev().collect(),
            later: RetryLater::new(amount.retry, amount.depth as usize),
            phase: LoadPhase::new(amount, Arc::clone(&exchange)),
            exchange,
            clock,
            measured: Measured::default(),
            watch,
            completed: 0,
            heard: Instant::now(),
            grace: StopGrace::default(),
            lost: None,
            server,
            stream,
        })
    }

    fn run(mut self, part: &Part) -> (Measured, Tally, Recorder) {
        if let Some(core) = part.core {
            // Pinning may fail, for example in a cpuset without this core. The thread then runs elsewhere.
            core_affinity::set_for_current(core_affinity::CoreId { id: core });
        }
        // The first turn has the time of the start, even if this thread is late: without a warm-up its calls count.
        // Otherwise a short load could end before a call that counts.
        let mut now = self.clock.now();
        self.phase.start_at(&part.amount, now);
        let is_over = |it: &Self, now| {
            it.phase.is_ending() && it.outstanding() == 0 && !it.phase.is_draining(now)
        };
        while !is_over(&self, now) {
            if self.grace.is_over(&self.watch.stop) {
                self.measured.failure = Some(StopGrace::failure());
                break;
            }
            if let Err(error) = self.turn(part, now)
                && let Err(failure) = self.connect_again(error)
            {
                self.break_off(failure);
                // Connecting again took time, for which the calls have waited too.
                now = self.clock.now();
                break;
            }
            now = self.clock.now();
        }
        let waiting = self.slots.iter().filter(|slot| slot.is_waiting);
        let waiting: Vec<Ticks> = waiting.map(|slot| slot.start).collect();
        self.phase.conclude(&mut self.measured, now, &waiting);
        self.measured.slots = self.slots.len() as u64;
        self.measured.retried_later = self.later.count();
        let last = self.phase.into_recorder();
        (self.measured, self.workload.tally, last)
    }

    /// Ends the load of this connection, which is lost for good.
    #[cold]
    fn break_off(&mut self, failure: Failure) {
        self.phase.end(self.clock.now());
        self.phase.give_up();
        self.give_up();
        self.watch.progress.lost(1);
        self.measured.losses.connections += 1;
        self.measured.failure = Some(failure);
    }

    fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Makes the calls that are due, sends and receives, and sleeps if nothing moved.
    fn turn(&mut self, part: &Part, now: Ticks) -> Result<(), Lost> {
        if self.watch.stop.is_asked() {
            let is_calling = self.phase.is_calling();
            self.phase.end(now);
            if is_calling {
                self.measured.interrupted = true;
                self.give_up();
            }
        }
        self.phase.advance(now, self.outstanding());
        self.make_calls(now);
        let moved = self.send()? | self.receive()?;
        if let Some(progress) = self.watch.progress.core(part.number as usize) {
            progress.publish(self.completed, self.measured.errors.total());
        }
        if moved {
            return Ok(());
        }
        if self.outstanding() > 0 && self.heard.elapsed() > ANSWER_TIMEOUT {
            return Err(Lost::Silent);
        }
        // WAIT: `LOOK_PERIOD`.
        self.wait()
    }

    fn make_calls(&mut self, now: Ticks) {
        while self.unsent.len() - self.sent < UNSENT_BYTES_MAX {
            if let Some(index) = self.later.pop_due(now) {
                if let Some(slot) = self.slots.get(index as usize).copied() {
                    self.call(index, slot.step, slot.start);
                }
                continue;
            }
            let Some(start) = self.phase.due(now) else {
                return;
            };
            let Some(index) = self.free.pop() else {
                return;
            };
            // This is the only outstanding call: the silence before it was idle time and does not count.
            if self.outstanding() == 1 {
                self.heard = Instant::now();
            }
            let step = self.workload.step();
            self.workload.advance();
            self.phase.made(start, 1);
            self.call(index, step, start);
        }
    }

    /// Makes a call with a new XID in a slot that the caller has taken.
    fn call(&mut self, index: u32, step: Step, start: Ticks) {
        if let Some(slot) = self.slots.get_mut(index as usize) {
            let generation = (slot.xid >> SLOT_BITS).wrapping_add(1);
            *slot = Slot {
                xid: generation << SLOT_BITS | index,
                step,
                start,
                is_waiting: true,
            };
            let xid = slot.xid;
            self.encode(xid, step);
        }
    }

    /// Gives up the calls that wait for a repetition.
    #[cold]
    fn give_up(&mut self) {
        for index in self.later.end() {
            NfsWorkload::given_up(&mut self.measured.errors);
            self.free.push(index);
        }
    }

    /// Appends a call to the unsent bytes.
    fn encode(&mut self, xid: u32, step: Step) {
        let work = self.workload.work();
        let request = work.request(step);
        let begin = self.unsent.len();
        self.unsent.extend_from_slice(&self.header);
        let mut args = [0; ARGUMENTS_BYTES_MAX];
        let written = request.encode(&mut args);
        debug_assert!(written.is_ok(), "there is room for any arguments");
        let args = args.get(..written.unwrap_or(0)).unwrap_or(&[]);
        self.unsent.extend_from_slice(args);
        let payload = self.unsent.len();
        let payload_bytes = work.payload_bytes(step);
        self.unsent
            .resize(payload + payload_bytes.next_multiple_of(4), 0);
        if let Some(payload) = self.unsent.get_mut(payload..payload + payload_bytes) {
            work.fill(step, 0, payload);
        }
        let message_bytes = self.unsent.len() - begin - record::HEADER_BYTES;
        let mark = record::header(message_bytes);
        debug_assert!(mark.is_some(), "no payload is so long");
        let procedure = request.procedure().number();
        for (at, word) in [
            (0, mark.unwrap_or_default()),
            (XID_AT, xid.to_be_bytes()),
            (PROCEDURE_AT, procedure.to_be_bytes()),
        ] {
            if let Some(place) = self.unsent.get_mut(begin + at..begin + at + 4) {
                place.copy_from_slice(&word);
            }
        }
    }

    /// Sends until the socket is full. Returns whether anything was sent.
    fn send(&mut self) -> Result<bool, Lost> {
        let mut moved = false;
        while let Some(rest) = self.unsent.get(self.sent..).filter(|rest| !rest.is_empty()) {
            // WAIT: never, since the stream does not block.
            match self.stream.write(rest) {
                Ok(bytes) => {
                    self.sent += bytes;
                    moved = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        if self.sent == self.unsent.len() {
            self.unsent.clear();
            self.sent = 0;
        } else if self.sent > UNSENT_BYTES_MAX {
            // A partly sent buffer rarely becomes empty under load; without this it would grow for ever.
            self.unsent.drain(..self.sent);
            self.sent = 0;
        }
        Ok(moved)
    }

    /// Reads once and handles the complete replies. Returns whether anything arrived.
    fn receive(&mut self) -> Result<bool, Lost> {
        // WAIT: never, since the stream does not block.
        match self.stream.read(self.records.space()) {
            Ok(0) => return Err(Lost::Closed),
            Ok(bytes) => self.records.filled(bytes),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
        let now = self.clock.now();
        while let Some(message) = self.records.next_message()? {
            // A call of the server is for nobody here, and no reason to lose the connection.
            let Some(xid) = ReplyHeader::xid_of(message) else {
                continue;
            };
            let index = xid & ((1 << SLOT_BITS) - 1);
            let slot = self.slots.get_mut(index as usize);
            // No slot waits for this XID: it is the second reply to a call that was sent again after a reconnect.
            let Some(slot) = slot.filter(|slot| slot.is_waiting && slot.xid == xid) else {
                continue;
            };
            slot.is_waiting = false;
            // Other messages are no sign that calls are answered.
            self.heard = Instant::now();
            self.lost = None;
            let (step, start) = (slot.step, slot.start);
            let errors = &mut self.measured.errors;
            let (header, bytes) = match ReplyHeader::decode(message) {
                Ok(decoded) => decoded,
                Err(error) => {
                    errors.note("malformed_replies", || error.to_string());
                    self.free.push(index);
                    continue;
                }
            };
            let refused = match header.body {
                ReplyBody::Accepted { status, .. } => match status {
                    AcceptStatus::Success => None,
                    status => Some(("rpc_refused", accept_words(status))),
                },
                ReplyBody::Denied(status) => Some(("rpc_denied", reject_words(status))),
            };
            if let Some((name, words)) = refused {
                errors.note(name, || words);
                self.free.push(index);
                continue;
            }
            let results = message.get(bytes..).unwrap_or(&[]);
            let reply = StepReply::whole(results);
            match self.workload.check_reply(step, reply, errors) {
                Verdict::Right { bytes } => {
                    self.completed += 1;
                    if self.phase.is_measured(start) {
                        let latency_ns = self.phase.latency_ns(start, now);
                        self.phase.record(latency_ns, 1, now);
                        self.workload.counted(step, bytes, || latency_ns);
                        self.measured.payload_bytes += bytes;
                    }
                }
                Verdict::Later if self.later.push(index, start, now) => continue,
                Verdict::Later => NfsWorkload::given_up(errors),
                Verdict::Wrong | Verdict::Several { .. } => {}
            }
            self.free.push(index);
        }
        Ok(true)
    }

    /// Sleeps until the socket is ready or a call is due, at most [`LOOK_PERIOD`].
    fn wait(&self) -> Result<(), Lost> {
        let timeout = self.phase.idle_for(self.clock.now(), LOOK_PERIOD);
        let mut events = PollFlags::IN;
        if self.sent < self.unsent.len() {
            events |= PollFlags::OUT;
        }
        let timeout = Timespec::try_from(timeout).unwrap_or(Timespec {
            tv_sec: 0,
            tv_nsec: 1_000_000,
        });
        // WAIT: `LOOK_PERIOD` at most.
        match poll(&mut [PollFd::new(&self.stream, events)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Reconnects, and sends the outstanding calls again with their old XIDs: a server with a duplicate request cache does
    /// not execute them twice. It is given up when no reply has come for the `retry` time, however often the server took a
    /// connection and closed it, and after a stop request when one attempt has failed.
    #[cold]
    fn connect_again(&mut self, lost: Lost) -> Result<(), Failure> {
        let since = Instant::now();
        // A connection that lasted and owed no reply was in order: servers close idle ones.
        if self.outstanding() == 0 && self.heard.elapsed() > ATTEMPT_TIMEOUT {
            self.lost = None;
        }
        let is_first = self.lost.is_none();
        let deadline = *self.lost.get_or_insert(since) + self.server.retry;
        let stop = &self.watch.stop;
        let is_over = || Instant::now() > deadline || stop.is_asked();
        if self.server.retry.is_zero() || (!is_first && is_over()) {
            let server = format!("tcp:{}:{}", self.server.host, self.server.port);
            return Err(
                Failure::failed(format!("the connection to {server} was lost"))
                    .because(lost)
                    .advice("look at the server's messages; --retry TIME goes on when it is back"),
            );
        }
        if !is_first {
            // WAIT: `ATTEMPT_PAUSE`.
            std::thread::sleep(ATTEMPT_PAUSE);
        }
        self.stream = loop {
            // WAIT: `ATTEMPT_TIMEOUT`.
            match self.server.connect(ATTEMPT_TIMEOUT) {
                Ok(stream) => break stream,
                Err(failure) if is_over() => return Err(failure),
                // WAIT: `ATTEMPT_PAUSE`; the whole until `retry` has passed, or a stop request.
                Err(_) => std::thread::sleep(ATTEMPT_PAUSE),
            }
        };
        self.stream
            .set_nonblocking(true)
            .map_err(|error| Failure::failed("cannot connect again").because(error))?;
        self.watch.progress.lost(1);
        let losses = &mut self.measured.losses;
        losses.connections += 1;
        losses.calls += self.slots.iter().filter(|it| it.is_waiting).count() as u64;
        losses.replaced(since);
        let payload_bytes = self.workload.work().plan.bytes as usize;
        // A record or a call may be cut off in the middle: start both directions empty on the new stream.
        self.records = Records::new(payload_bytes + REPLY_OVERHEAD_BYTES);
        self.unsent.clear();
        self.sent = 0;
        self.heard = Instant::now();
        for index in 0..self.slots.len() {
            if let Some(slot) = self
                .slots
                .get(index)
                .copied()
                .filter(|slot| slot.is_waiting)
            {
                self.encode(slot.xid, slot.step);
            }
        }
        Ok(())
    }
}

/// Why a connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
enum Lost {
    #[error("the server closed the connection")]
    Closed,
    #[error(transparent)]
    Failed(#[from] io::Error),
    #[error("the server sent nothing for {} s while calls were outstanding", ANSWER_TIMEOUT.as_secs())]
    Silent,
    #[error(transparent)]
    Record(#[from] record::RecordError),
}

/// Offsets in an encoded call: the XID is the first word after the record mark, the procedure is the sixth (RFC 5531,
/// section 9).
const XID_AT: usize = record::HEADER_BYTES;
const PROCEDURE_AT: usize = XID_AT + 20;

/// A call with empty record mark, XID and procedure.
fn header(credential: &Credential) -> Result<Vec<u8>, Failure> {
    let header = CallHeader {
        xid: 0,
        program: nfs::PROGRAM,
        version: nfs::VERSION,
        procedure: 0,
        credential: credential.auth(),
        verifier: OpaqueAuth::NONE,
    };
    let mut bytes = vec![0; record::HEADER_BYTES + header.encoded_bytes()];
    let space = bytes.get_mut(record::HEADER_BYTES..).unwrap_or(&mut []);
    header.encode(space).map_err(|error| {
        Failure::failed("the header of a call cannot be written").because(error)
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn refused() -> io::Error {
        io::ErrorKind::OutOfMemory.into()
    }

    #[test]
    fn a_thread_that_cannot_be_started_leaves_none_behind() {
        let stop = Stop::new();
        let running = Arc::new(AtomicU32::new(0));
        let spawn = |number| {
            if number == 2 {
                return Err(refused());
            }
            let (stop, running) = (stop.clone(), Arc::clone(&running));
            running.fetch_add(1, Ordering::Relaxed);
            Ok(std::thread::spawn(move || {
                rpcrdma_testkit::until("the stop", || stop.is_asked().then_some(()));
                // TIME: who does not wait for this thread sees it; on a machine that is too busy to look within this time,
                // the test misses that, and passes.
                std::thread::sleep(Duration::from_millis(20));
                running.fetch_sub(1, Ordering::Relaxed);
            }))
        };
        let failure = start_all((0..4).collect(), spawn, &stop).unwrap_err();
        assert!(
            failure.to_string().contains("cannot start the thread"),
            "{failure}"
        );
        assert_eq!(running.load(Ordering::Relaxed), 0);
    }
}
