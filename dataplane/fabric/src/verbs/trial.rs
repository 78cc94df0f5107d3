//! What a device does of what it reports.
//!
//! The flags of a device come from its kernel driver, and its library need not have the verbs: those of Broadcom and
//! HiSilicon in rdma-core 65 cannot allocate the memory windows that their drivers report, and that of Microsoft
//! allocates some and cannot bind them. So one window is allocated, bound and invalidated when a device is opened, on a
//! queue pair that is connected with itself. A verb that the device refuses does not exist for this program.
//!
//! The trial only takes away. Windows without the flag of type 2B are not used, because their keys need not be of one
//! queue pair. On iWARP, and where no port is active, no queue pair can be connected with itself; the allocation decides
//! there.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::bindings::{
    self, bind_mw_t, bind_mw_tso_union_t, ibv_access_flags, ibv_mw_bind_info, ibv_qp,
    ibv_send_flags, ibv_send_wr, ibv_wc_status, ibv_wr_opcode,
};
use super::completion_queue::CompletionQueue;
use super::context::Context;
use super::errno::done;
use super::join::connect_with_itself;
use super::leaked;
use super::link::QueuePairSizes;
use super::memory_region::MemoryRegion;
use super::memory_window::MemoryWindow;
use super::protection_domain::ProtectionDomain;
use super::queue_pair::make;
use super::thread_domain::QueuePairDomain;
use crate::interface::SetupError;
use crate::memory::{Arena, ArenaOptions, HugePages};

/// The time limit of one work request. It needs no peer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The memory that the window exposes.
const BYTES: u64 = 4096;
/// Events about the objects of a trial carry this number, which no port has.
const NO_PORT: usize = usize::MAX;

/// The outcome.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trial {
    /// The verb that failed, and why; `None` if the windows work or the device reports none.
    pub(super) windows_refused: Option<String>,
    /// Whether the library takes a Send With Invalidate.
    pub(super) invalidates: bool,
}

/// Tries the device.
pub(super) fn of(context: &Arc<Context>) -> Trial {
    let limits = context.limits();
    let mut trial = Trial {
        windows_refused: None,
        invalidates: true,
    };
    if limits.windows == 0 && !limits.send_with_invalidate {
        return trial;
    }
    // Without memory or a domain nothing is known, and the port that follows reports what is missing.
    let Ok(region) = region(context) else {
        return trial;
    };
    let mut window = None;
    if limits.windows > 0 {
        match MemoryWindow::new(&region) {
            Ok(made) => window = Some(made),
            // Other processes may have taken all of them, which says nothing of the device.
            Err(error) if is_used_up(&error) => {}
            Err(error) => trial.windows_refused = Some(error.to_string()),
        }
    }
    if limits.iwarp {
        return trial;
    }
    let Ok(ends) = OwnPair::new(&region) else {
        return trial;
    };
    if let Some(window) = &mut window
        && let Err(error) = ends.bind_and_invalidate(window, &region)
    {
        trial.windows_refused = Some(error);
    }
    if limits.send_with_invalidate {
        trial.invalidates = ends.takes_send_with_invalidate();
    }
    // Some devices keep a queue pair that has windows.
    drop(window);
    trial
}

/// Whether what is lacking may be at others: memory, places in a table, or the limit of a control group.
fn is_used_up(error: &SetupError) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|it| it.downcast_ref::<io::Error>());
    let number = source.and_then(io::Error::raw_os_error);
    let used_up = [Errno::NOMEM, Errno::AGAIN, Errno::NOSPC];
    used_up.iter().any(|it| number == Some(it.raw_os_error()))
}

fn region(context: &Arc<Context>) -> Result<Arc<MemoryRegion>, SetupError> {
    let domain = Arc::new(ProtectionDomain::new(context, false)?);
    let arena = Arena::private(&ArenaOptions {
        bytes: BYTES,
        huge_pages: HugePages::Never,
    })?;
    MemoryRegion::new(&domain, arena.memory().mapping()).map(Arc::new)
}

/// A queue pair that is connected with itself.
struct OwnPair {
    raw: NonNull<ibv_qp>,
    queue: CompletionQueue,
}

impl OwnPair {
    fn new(region: &MemoryRegion) -> Result<Self, SetupError> {
        let context = region.domain().context();
        let queue = CompletionQueue::new(context, 4, NO_PORT)?;
        let sizes = QueuePairSizes {
            send_depth: 4,
            send_segments: 1,
            inline_bytes: 0,
            receive_depth: 1,
            receive_segments: 1,
        };
        let domain = QueuePairDomain::new(region.domain());
        let made = make(&domain, &queue, None, &sizes, NO_PORT);
        let raw = made.map_err(super::errno::failed("a queue pair to try"))?;
        let ends = Self { raw, queue };
        connect_with_itself(context, raw).map_err(super::errno::failed("its connection"))?;
        Ok(ends)
    }

    /// Binds the window and invalidates it.
    fn bind_and_invalidate(
        &self,
        window: &mut MemoryWindow,
        region: &MemoryRegion,
    ) -> Result<(), String> {
        let mut bind = request(ibv_wr_opcode::IBV_WR_BIND_MW);
        let key = window.next_key();
        bind.bind_mw_tso_union = bind_mw_tso_union_t {
            bind_mw: bind_mw_t {
                mw: window.raw(),
                rkey: key,
                bind_info: ibv_mw_bind_info {
                    mr: region.raw(),
                    addr: region.mapping().start().addr() as u64,
                    length: BYTES,
                    mw_access_flags: ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
                },
            },
        };
        self.run(&mut bind)
            .map_err(|why| format!("the device refused to bind a memory window: {why}"))?;
        window.note_bound();
        let mut invalidation = request(ibv_wr_opcode::IBV_WR_LOCAL_INV);
        // As the port sets it.
        invalidation
            .imm_data_invalidated_rkey_union
            .invalidated_rkey = key;
        self.run(&mut invalidation)
            .map_err(|why| format!("the device refused to invalidate a memory window: {why}"))
    }

    /// Whether the library posts a Send With Invalidate. There is no Receive for it, so that it invalidates nothing.
    fn takes_send_with_invalidate(&self) -> bool {
        self.post(&mut request(ibv_wr_opcode::IBV_WR_SEND_WITH_INV))
            .is_ok()
    }

    fn post(&self, request: &mut ibv_send_wr) -> io::Result<()> {
        let mut bad = std::ptr::null_mut();
        // SAFETY: a queue pair that lives, and one work request without segments, which the library copies.
        done(unsafe { bindings::ibv_post_send(self.raw.as_ptr(), request, &raw mut bad) })
    }

    /// Posts a work request and waits until it is done.
    fn run(&self, request: &mut ibv_send_wr) -> Result<(), String> {
        self.post(request).map_err(|error| error.to_string())?;
        let began = Instant::now();
        loop {
            // Before the poll: a process that stood still since the last one finds what is done.
            let is_last = began.elapsed() >= PATIENCE;
            let mut completion = [MaybeUninit::zeroed()];
            match self.queue.poll(&mut completion, 1) {
                Ok(0) if !is_last => std::thread::yield_now(),
                Ok(0) => return Err(format!("it is not done after {PATIENCE:?}")),
                Err(error) => return Err(error.to_string()),
                Ok(_) => {
                    // SAFETY: the library wrote it.
                    let status = unsafe { completion[0].assume_init_ref() }.status;
                    return match status {
                        ibv_wc_status::IBV_WC_SUCCESS => Ok(()),
                        status => Err(format!("it completed with the status {status}")),
                    };
                }
            }
        }
    }
}

impl Drop for OwnPair {
    fn drop(&mut self) {
        // SAFETY: from `make`, given back only here.
        let returned = unsafe { bindings::ibv_destroy_qp(self.raw.as_ptr()) };
        leaked("queue pair", done(returned));
    }
}

/// A work request without segments that asks for a completion.
fn request(opcode: ibv_wr_opcode::Type) -> ibv_send_wr {
    // SAFETY: numbers and nullable pointers, for which zero is a value.
    let mut request: ibv_send_wr = unsafe { std::mem::zeroed() };
    request.opcode = opcode;
    request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
    request
}

#[cfg(all(test, not(loom), not(feature = "rdma-sys")))]
mod tests {
    use super::*;
    use crate::interface::PortSetup;
    use crate::verbs::fake::{Card, Fake};
    use crate::verbs::{Port, PortConfig, WithoutWindows};

    fn windows(card: Card) -> (u32, Option<String>, bool) {
        let fake = Fake::install(card);
        let context = Context::open(Some(fake.name())).expect("the fake device");
        let limits = context.limits();
        let refused = context.windows_refused().map(str::to_owned);
        (limits.windows, refused, limits.send_with_invalidate)
    }

    #[test]
    fn a_device_that_works_as_it_reports_keeps_its_windows() {
        let (windows, refused, invalidates) = windows(Card::HONEST);
        assert_eq!((windows, refused, invalidates), (1024, None, true));
    }

    #[test]
    fn a_window_that_a_device_cannot_allocate_bind_or_invalidate_counts_as_none() {
        let cards = [
            (
                Card {
                    allocates: false,
                    ..Card::HONEST
                },
                "refused a memory window",
            ),
            (
                Card {
                    binds: false,
                    ..Card::HONEST
                },
                "refused to bind",
            ),
            (
                Card {
                    bind_fails: true,
                    ..Card::HONEST
                },
                "refused to bind",
            ),
            (
                Card {
                    invalidates: false,
                    ..Card::HONEST
                },
                "refused to invalidate",
            ),
        ];
        for (card, words) in cards {
            let (windows, refused, _) = windows(card);
            assert_eq!(windows, 0, "{words}");
            let refused = refused.expect("a reason");
            assert!(refused.contains(words), "{refused}");
            assert!(refused.matches("os error").count() <= 1, "{refused}");
        }
    }

    /// The flag decides for none: the keys of other windows may be of more than one queue pair.
    #[test]
    fn windows_that_are_not_reported_are_not_used() {
        let card = Card {
            reports_windows: false,
            ..Card::HONEST
        };
        assert_eq!(windows(card), (0, None, true));
    }

    #[test]
    fn a_library_without_send_with_invalidate_is_found() {
        let card = Card {
            sends_invalidate: false,
            ..Card::HONEST
        };
        let (windows, _, invalidates) = windows(card);
        assert_eq!((windows, invalidates), (1024, false));
    }

    #[test]
    fn device_whose_windows_other_processes_have_is_tried_without_one() {
        for sends_invalidate in [true, false] {
            let card = Card {
                windows_max: 0,
                sends_invalidate,
                ..Card::HONEST
            };
            assert_eq!(windows(card), (1024, None, sends_invalidate));
        }
    }

    #[test]
    fn a_queue_pair_that_cannot_be_connected_proves_nothing() {
        let card = Card {
            connects: false,
            binds: false,
            ..Card::HONEST
        };
        let (windows, refused, _) = windows(card);
        assert_eq!((windows, refused), (1024, None));
    }

    fn port(fake: &Fake, without_windows: WithoutWindows) -> Port {
        port_with(fake, |config| config.without_windows = without_windows)
    }

    fn port_with(fake: &Fake, change: impl FnOnce(&mut PortConfig)) -> Port {
        fake.port(change).0
    }

    /// It never registers by itself.
    #[test]
    fn a_port_starts_on_a_device_without_the_windows_that_it_reports() {
        let fake = Fake::install(Card {
            allocates: false,
            ..Card::HONEST
        });
        for (without_windows, windows) in
            [(WithoutWindows::Refuse, 0), (WithoutWindows::Register, 64)]
        {
            assert_eq!(
                port(&fake, without_windows).attributes().windows_max,
                windows
            );
        }
    }

    /// Two ports want 64 each.
    #[test]
    fn ports_share_the_windows_that_there_are() {
        for (windows_reported, windows_max, had) in [(100, 100, [50, 50]), (1024, 5, [5, 0])] {
            let fake = Fake::install(Card {
                windows_reported,
                windows_max,
                ..Card::HONEST
            });
            let ports = [(); 2].map(|()| port_with(&fake, |config| config.ports = 2));
            let windows = ports.each_ref().map(|port| port.attributes().windows_max);
            assert_eq!(windows, had, "{windows_reported} are reported");
        }
    }

    #[test]
    fn memory_is_registered_with_relaxed_ordering_where_it_is_wanted_and_taken() {
        for (wanted, relaxes) in [(true, true), (true, false), (false, true)] {
            let fake = Fake::install(Card {
                relaxes,
                ..Card::HONEST
            });
            drop(Context::open(Some(fake.name())).expect("the fake device"));
            let before = fake.accesses().len();
            drop(port_with(&fake, |config| {
                config.relaxed_ordering = wanted;
                config.without_windows = WithoutWindows::RegisterAnyway;
            }));
            let flag = ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
            // Without those of the trial, which the port's context makes again.
            let of_port = fake.accesses().split_off(before + 1);
            assert!(of_port.len() >= 2, "the arena and the staging memory");
            for access in of_port {
                assert_eq!(access & flag != 0, wanted && relaxes, "{access:#x}");
            }
        }
    }
}
