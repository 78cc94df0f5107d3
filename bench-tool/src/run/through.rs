//! A load that is made as programs make it: by threads that call through the library, with a poller, blocking calls or
//! futures, in place of an application on the core.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use rpcrdma::{Client, Encode, Error, ErrorKind, Pending, Poller, Procedure, Response};
use rpcrdma_engine::Reply;
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_protocol::rpc::OpaqueAuth;

use crate::exit::Failure;
use crate::load::Watch;
use crate::load::control::{Answer, LoadAnswer, LoadControl, LoadOrder, Order};
use crate::load::cores::LoadCores;
use crate::load::measured::Measured;
use crate::load::phase::LoadPhase;
use crate::load::workload::{Verdict, Workload};
use crate::workloads::bench::{BenchStep, BenchWorkload};

/// How long a thread with nothing to do sleeps before it looks for a stop request.
const LOOK_PERIOD: Duration = Duration::from_millis(1);

/// Calls that a thread makes before it takes replies.
const CALLS_PER_TURN: usize = 32;

/// Error name of calls that ended with their connection.
pub(crate) const DISCONNECTED: &str = "calls_disconnected";

/// The most threads of a load.
pub(crate) const THREADS_MAX: u32 = 1024;

/// A sleep may end so much later than was asked for: in an open loop a thread sleeps only until so long before the next call.
const SLEEP_LATE: Duration = Duration::from_micros(200);

/// Looks in vain after which a poller's thread lets others run.
const SPINS_MAX: u32 = 1000;

/// Who makes the calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Through {
    /// An application on the polling core, without a hop
    #[default]
    Core,
    /// A thread for each connection, which sends and takes replies without waiting
    Poller,
    /// Blocking calls, one at a time in each of --depth threads for each connection
    Call,
    /// Futures, in one thread for each connection
    Async,
}

impl Through {
    /// The name used on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Poller => "poller",
            Self::Call => "call",
            Self::Async => "async",
        }
    }

    /// The threads that make the load, with so many connections and calls on each.
    pub(crate) const fn threads(self, connections: u32, depth: u32) -> u32 {
        match self {
            Self::Core => 0,
            Self::Poller | Self::Async => connections,
            Self::Call => connections.saturating_mul(depth),
        }
    }
}

/// The threads of a load. They take the orders that otherwise polling cores take.
pub(crate) struct Threads {
    pub(crate) cores: LoadCores<BenchWorkload>,
    threads: Vec<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl Threads {
    /// Starts the threads for `clients`, each of which has one connection. They wait for a load.
    ///
    /// # Errors
    /// If the core has no room for the calls, or a thread cannot be started: those before it end.
    pub(crate) fn start(through: Through, clients: &[Client], depth: u32) -> Result<Self, Failure> {
        let connections = u32::try_from(clients.len()).unwrap_or(u32::MAX);
        let count = through.threads(connections, depth);
        let numbers: Vec<usize> = (0..count as usize).collect();
        let mut all = Self {
            cores: LoadCores::new(&numbers),
            threads: Vec::new(),
            is_over: Arc::default(),
        };
        for (number, client) in (0..numbers.len()).zip(clients.iter().cycle()) {
            let (control, is_over) = (all.cores.control(number), Arc::clone(&all.is_over));
            let client = client.clone();
            let poller = match through {
                Through::Poller => Some(client.poller(depth).map_err(|error| {
                    Failure::failed("a poller could not be set up").because(error)
                })?),
                _ => None,
            };
            let run = move || match poller {
                Some(poller) => serve(&control, &is_over, Polled(poller, 0)),
                None if through == Through::Async => {
                    serve(&control, &is_over, Futures::new(client, depth));
                }
                None => serve(&control, &is_over, Blocking(client, VecDeque::new())),
            };
            let thread = std::thread::Builder::new().name(format!("load-{number}"));
            let thread = thread.spawn(run).map_err(|error| {
                Failure::failed("cannot start a thread of the load").because(error)
            })?;
            all.threads.push(thread);
        }
        Ok(all)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of it has been printed.
            // WAIT: for the call that the thread waits for, which has a time-out.
            let _ = thread.join();
        }
    }
}

/// The place of a call of a thread.
type Place = u32;

/// How a thread calls.
trait Way {
    /// The calls of a load with this depth that the thread has under way.
    fn places(depth: u32) -> u32;

    /// Makes a call.
    fn submit(&mut self, place: Place, procedure: Procedure, args: &[u8]) -> Result<(), Error>;

    /// A call that has ended.
    fn complete(&mut self) -> Option<(Place, Result<Response, Error>)>;

    /// Waits until a call may have ended, at most so long.
    fn rest(&mut self, outstanding: u32, longest: Duration);
}

/// A poller, and how often in turn it has found nothing.
struct Polled(Poller, u32);

impl Way for Polled {
    fn places(depth: u32) -> u32 {
        depth
    }

    fn submit(&mut self, place: Place, procedure: Procedure, args: &[u8]) -> Result<(), Error> {
        let mut request = self.0.request(procedure);
        self.0.submit(request.bytes(args), place.into())
    }

    fn complete(&mut self) -> Option<(Place, Result<Response, Error>)> {
        let ended = self.0.complete()?;
        self.1 = 0;
        Some((u32::try_from(ended.tag).unwrap_or(Place::MAX), ended.result))
    }

    fn rest(&mut self, outstanding: u32, longest: Duration) {
        self.1 = self.1.saturating_add(1);
        match outstanding {
            // WAIT: `longest`.
            0 => std::thread::sleep(longest),
            // A poller is for threads that poll. But with fewer processors than threads that do so, the core gets none.
            _ if self.1 > SPINS_MAX => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}

/// The call is over when it is submitted.
struct Blocking(Client, VecDeque<(Place, Result<Response, Error>)>);

impl Way for Blocking {
    fn places(_depth: u32) -> u32 {
        1
    }

    fn submit(&mut self, place: Place, procedure: Procedure, args: &[u8]) -> Result<(), Error> {
        self.1.push_back((place, self.0.call(procedure, args)));
        Ok(())
    }

    fn complete(&mut self) -> Option<(Place, Result<Response, Error>)> {
        self.1.pop_front()
    }

    fn rest(&mut self, _outstanding: u32, longest: Duration) {
        // WAIT: `longest`.
        std::thread::sleep(longest);
    }
}

/// As many futures as calls, polled by their thread when they are woken.
struct Futures {
    client: Client,
    /// Where the next look begins, so that no place waits for others.
    next: usize,
    places: Vec<(Option<Pending>, Arc<Woken>)>,
}

/// Whether a future was woken since it was polled last.
struct Woken {
    is_woken: AtomicBool,
    thread: Thread,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // SYNC POINT future-woken: Release, with the Acquire in `Futures::complete`: what the waker's thread did is seen there.
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl Futures {
    /// Made on its creator's thread; [`Way::rest`] parks whichever thread polls, so the places are made there.
    fn new(client: Client, depth: u32) -> Self {
        Self {
            client,
            next: 0,
            places: Vec::with_capacity(depth as usize),
        }
    }
}

impl Way for Futures {
    fn places(depth: u32) -> u32 {
        depth
    }

    fn submit(&mut self, place: Place, procedure: Procedure, args: &[u8]) -> Result<(), Error> {
        while self.places.len() <= place as usize {
            let woken = Woken {
                is_woken: AtomicBool::new(false),
                thread: std::thread::current(),
            };
            self.places.push((None, Arc::new(woken)));
        }
        let pending = self.client.call_async(procedure, args);
        if let Some((future, woken)) = self.places.get_mut(place as usize) {
            *future = Some(pending);
            // The first poll sends it.
            woken.is_woken.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn complete(&mut self) -> Option<(Place, Result<Response, Error>)> {
        let count = self.places.len();
        for at in (self.next..count).chain(0..self.next.min(count)) {
            let Some((future, woken)) = self.places.get_mut(at) else {
                break;
            };
            // SYNC POINT future-woken: Acquire, with the Release in `Woken::wake_by_ref`. A swap of every place would cost more
            // than a call.
            let is_woken = woken.is_woken.load(Ordering::Relaxed)
                && woken.is_woken.swap(false, Ordering::Acquire);
            let Some(pending) = future.as_mut().filter(|_| is_woken) else {
                continue;
            };
            let waker = Waker::from(Arc::clone(woken));
            // WAIT: never: a future is polled.
            let polled = Pin::new(pending).poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(result) = polled {
                *future = None;
                self.next = at + 1;
                return Some((Place::try_from(at).unwrap_or(Place::MAX), result));
            }
        }
        None
    }

    fn rest(&mut self, _outstanding: u32, longest: Duration) {
        // A waker that came since the last look has left its token, so this returns immediately then.
        // WAIT: `longest`.
        std::thread::park_timeout(longest);
    }
}

/// Takes the orders of one thread until the run is over.
fn serve<W: Way>(control: &LoadControl<BenchWorkload>, is_over: &AtomicBool, mut way: W) {
    let mut taken = 0;
    while !is_over.load(Ordering::Relaxed) {
        match control.take(taken) {
            Some(Order::Load(order)) => {
                taken = taken.wrapping_add(1);
                let places = W::places(order.amount.depth);
                let answer = Load::new(control, *order, places).run(control, &mut way);
                control.answer(Answer::Load(Box::new(answer)));
            }
            // Single calls go by the core's own generator.
            Some(Order::Call(_)) => taken = taken.wrapping_add(1),
            // WAIT: `LOOK_PERIOD`.
            None => std::thread::sleep(LOOK_PERIOD),
        }
    }
}

/// A load of one thread.
struct Load {
    workload: BenchWorkload,
    phase: LoadPhase,
    clock: Clock,
    /// The step and the start of the call in each place.
    places: Vec<(BenchStep, Ticks)>,
    free: Vec<Place>,
    measured: Measured,
    completed: u64,
    args: Vec<u8>,
    watch: Watch,
    part: usize,
    amount: crate::load::Amount,
}

impl Load {
    fn new(
        control: &LoadControl<BenchWorkload>,
        order: LoadOrder<BenchWorkload>,
        places: u32,
    ) -> Self {
        Self {
            workload: order.workload,
            phase: LoadPhase::new(&order.amount, Arc::clone(&control.exchange)),
            clock: Clock::new(),
            places: vec![(BenchStep::default(), 0); places as usize],
            free: (0..places).rev().collect(),
            measured: Measured::default(),
            completed: 0,
            args: Vec::new(),
            watch: order.watch,
            part: order.part as usize,
            amount: order.amount,
        }
    }

    fn outstanding(&self) -> u32 {
        u32::try_from(self.places.len() - self.free.len()).unwrap_or(u32::MAX)
    }

    fn run(
        mut self,
        control: &LoadControl<BenchWorkload>,
        way: &mut impl Way,
    ) -> LoadAnswer<BenchWorkload> {
        let mut now = self.clock.now();
        self.phase.start_at(&self.amount, now);
        while !self.is_over(now) {
            if self.watch.stop.is_asked() {
                self.measured.interrupted |= self.phase.is_calling();
                self.phase.end(now);
            }
            if control.is_abandoned() {
                self.phase.end(now);
                self.phase.give_up();
                break;
            }
            self.phase.advance(now, self.outstanding() as usize);
            let made = self.make_calls(way, now);
            let ended = self.take_replies(way);
            if let Some(progress) = self.watch.progress.core(self.part) {
                progress.publish(self.completed, self.measured.errors.total());
            }
            now = self.clock.now();
            if !made && !ended {
                self.rest(way, now);
                now = self.clock.now();
            }
        }
        let waiting: Vec<Ticks> = self.waiting().collect();
        self.phase.conclude(&mut self.measured, now, &waiting);
        self.measured.slots = self.places.len() as u64;
        LoadAnswer {
            measured: self.measured,
            last: self.phase.into_recorder(),
            workload: self.workload,
        }
    }

    /// Whether every call that was due has been made and has ended.
    fn is_over(&self, now: Ticks) -> bool {
        self.phase.is_ending() && self.outstanding() == 0 && !self.phase.is_draining(now)
    }

    /// The starts of the outstanding calls.
    fn waiting(&self) -> impl Iterator<Item = Ticks> + '_ {
        let places = (0..).zip(&self.places);
        let outstanding = places.filter(|(place, _)| !self.free.contains(place));
        outstanding.map(|(_, (_, start))| *start)
    }

    fn rest(&self, way: &mut impl Way, now: Ticks) {
        let longest = self.phase.idle_for(now, LOOK_PERIOD);
        let longest = match self.phase.next_due() {
            Some(_) => longest.saturating_sub(SLEEP_LATE),
            None => longest,
        };
        if longest.is_zero() {
            std::thread::yield_now();
        } else {
            way.rest(self.outstanding(), longest);
        }
    }

    fn make_calls(&mut self, way: &mut impl Way, now: Ticks) -> bool {
        let mut made = false;
        for _ in 0..CALLS_PER_TURN {
            let Some(start) = self.phase.due(self.phase.now(now)) else {
                break;
            };
            let Some(place) = self.free.pop() else {
                break;
            };
            let step = self.workload.step();
            let procedure = self.workload.message(step, &mut self.args);
            self.workload.advance();
            self.phase.made(start, 1);
            if let Some(of) = self.places.get_mut(place as usize) {
                *of = (step, start);
            }
            made = true;
            if let Err(error) = way.submit(place, procedure, &self.args) {
                self.failed(place, &error);
            }
        }
        made
    }

    fn take_replies(&mut self, way: &mut impl Way) -> bool {
        let mut ended = false;
        while let Some((place, result)) = way.complete() {
            ended = true;
            let end = self.clock.now();
            // A blocking call may have lasted over the end of an interval: it is recorded in that in which it ended.
            if self.phase.is_calling() {
                self.phase.advance(end, self.outstanding() as usize);
            }
            let response = match result {
                Ok(response) => response,
                Err(error) => {
                    self.failed(place, &error);
                    continue;
                }
            };
            let (step, start) = self.places.get(place as usize).copied().unwrap_or_default();
            self.free.push(place);
            let reply = Reply {
                results: response.bytes(),
                verifier: OpaqueAuth::NONE,
            };
            let verdict = self.workload.check(step, &reply, &mut self.measured.errors);
            if verdict != (Verdict::Right { bytes: 0 }) {
                continue;
            }
            self.completed += 1;
            if self.phase.is_measured(start) {
                let latency_ns = self.phase.latency_ns(start, end);
                self.phase.record(latency_ns, 1, end);
            }
        }
        ended
    }

    #[cold]
    fn failed(&mut self, place: Place, error: &Error) {
        self.free.push(place);
        let (name, is_over) = match error.kind() {
            ErrorKind::Disconnected | ErrorKind::NotConnected => (DISCONNECTED, true),
            // No other call of this load would be taken.
            ErrorKind::TooLong | ErrorKind::Unsupported | ErrorKind::ShuttingDown => {
                ("calls_refused", true)
            }
            _ => ("calls_failed", false),
        };
        self.measured.errors.note(name, || error.to_string());
        // As on a core without --retry.
        if is_over {
            if self.phase.is_calling() {
                self.measured.interrupted = true;
                self.phase.end(self.clock.now());
            }
            self.phase.give_up();
        }
    }
}
