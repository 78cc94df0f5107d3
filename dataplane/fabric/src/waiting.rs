//! How a connection manager waits: for readable descriptors, a waker for other threads, and timers. The manager chooses
//! a number for each of them.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll};
use rustix::io::Errno;

/// Descriptors that one sleep reports; the next sleep reports the others.
const DESCRIPTORS: usize = 64;
/// The number of the waker; no descriptor may use it.
const WAKER: u64 = u64::MAX;

/// Wakes the waiting thread from any other thread.
pub(crate) type Waker = Arc<dyn Fn() + Send + Sync>;

/// What happened while the manager slept.
#[derive(Debug, Default)]
pub(crate) struct Happened {
    /// The numbers of descriptors that are readable or hung up, at most [`DESCRIPTORS`].
    pub(crate) readable: Vec<u64>,
    /// Whether the waker was used.
    pub(crate) woken: bool,
}

pub(crate) struct Waiting {
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    timers: BTreeSet<(Instant, u64)>,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting")
            .field("timers", &self.timers.len())
            .finish_non_exhaustive()
    }
}

impl Waiting {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let waiting = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            wake: Arc::new(rustix::event::eventfd(0, flags)?),
            timers: BTreeSet::new(),
        };
        waiting.watch(&*waiting.wake, WAKER)?;
        Ok(waiting)
    }

    pub(crate) fn waker(&self) -> Waker {
        let wake = Arc::clone(&self.wake);
        Arc::new(move || {
            // It fails only when the counter is full, and then a wake-up is pending already.
            let _pending = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
        })
    }

    /// Adds a descriptor. Closing it removes it.
    pub(crate) fn watch(&self, descriptor: impl AsFd, number: u64) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, descriptor, data, flags)?)
    }

    /// Removes a descriptor.
    pub(crate) fn forget(&self, descriptor: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, descriptor)?)
    }

    /// Sets, moves or clears the only timer of `number`; `timer` is the time at which it is due.
    pub(crate) fn set_timer(
        &mut self,
        number: u64,
        timer: &mut Option<Instant>,
        at: Option<Instant>,
    ) {
        if let Some(old) = std::mem::replace(timer, at) {
            self.timers.remove(&(old, number));
        }
        if let Some(new) = at {
            self.timers.insert((new, number));
        }
    }

    /// Whether a timer is due at `now`.
    pub(crate) fn has_due(&self, now: Instant) -> bool {
        self.timers.first().is_some_and(|(at, _)| *at <= now)
    }

    /// Takes the first timer that is due at `now`.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<u64> {
        let first = self.timers.first().copied()?;
        let due = first.0 <= now;
        if due {
            self.timers.remove(&first);
        }
        due.then_some(first.1)
    }

    /// Sleeps until something happens: at most until a timer is due, and until `until`.
    pub(crate) fn sleep(&self, until: Option<Instant>) -> io::Result<Happened> {
        let first_timer = self.timers.first().map(|(at, _)| *at);
        let at = match (until, first_timer) {
            (Some(until), Some(timer)) => Some(until.min(timer)),
            (until, timer) => until.or(timer),
        };
        // A time too far for the kernel counts as none.
        let timeout = at
            .map(|at| at.saturating_duration_since(Instant::now()))
            .and_then(|sleep| Timespec::try_from(sleep).ok());
        let mut events = Vec::with_capacity(DESCRIPTORS);
        let room = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(&self.epoll, room, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut happened = Happened::default();
        for event in events {
            match event.data.u64() {
                WAKER => happened.woken |= self.drain_waker(),
                number => happened.readable.push(number),
            }
        }
        Ok(happened)
    }

    fn drain_waker(&self) -> bool {
        let mut count = [0; 8];
        rustix::io::read(&*self.wake, &mut count).is_ok()
    }
}

/// Calls `turn` until it reports an event, or `timeout` is over. With an event at hand already (`has_events`), one turn
/// without sleep is enough: it collects what else happened. A turn is given the time at which to return; `None` when
/// the clock cannot express it.
pub(crate) fn turn_until<E>(
    timeout: Duration,
    has_events: bool,
    mut turn: impl FnMut(Option<Instant>) -> Result<bool, E>,
) -> Result<(), E> {
    let timeout = if has_events { Duration::ZERO } else { timeout };
    let until = Instant::now().checked_add(timeout);
    while !turn(until)? && until.is_none_or(|until| Instant::now() < until) {}
    Ok(())
}
