//! The configuration of a port, and its limits on a device.

use std::time::Duration;

use super::super::context::DeviceLimits;
use super::super::link::QueuePairSizes;
use crate::clock::Clock;
use crate::interface::{Attributes, SEGMENTS_MAX, SetupError};
use crate::memory::Arena;
use crate::share::works_guaranteed;

/// The behaviour of [`crate::interface::PortWindows::bind_window`] on a device without memory windows
/// of type 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithoutWindows {
    /// It fails, and the attributes report that there are no windows.
    #[default]
    Refuse,
    /// It registers the buffer for the call, which takes a system call for registration and another
    /// for its end. With shared receive queues the key opens the buffer to every peer of the port.
    /// With [`PortConfig::own_receive_queues`] it opens it to the one peer, because each queue pair
    /// has its own protection domain.
    Register,
    /// As `Register`, but on any device, for experiments.
    RegisterAnyway,
}

/// The configuration of a port. Sizes above the device's limits are reduced to them;
/// [`crate::interface::PortSetup::attributes`] has the result.
#[derive(Debug)]
pub struct PortConfig {
    /// The device's name; `None` for the first that is active.
    pub device: Option<String>,
    /// The registered memory; pools are carved from it before or after.
    pub arena: Arena,
    /// The clock whose readings [`crate::interface::PortPoll::poll`] gets.
    pub clock: Clock,
    /// Queue pairs.
    pub queue_pairs_max: u32,
    /// Receives of all receive queues together. The completion queue has room for these and for
    /// `work_requests_max`.
    pub receives_max: u32,
    /// Segments of a Receive.
    pub receive_segments_max: u32,
    /// Work requests outstanding on the whole port, signalled or not, because a flush completes them
    /// all. At least twice `queue_pairs_max`: one for each queue pair, and as many that any can
    /// borrow. With less than four times as many, every Send asks the device for a completion.
    pub work_requests_max: u32,
    /// Work requests outstanding per queue pair.
    pub send_queue_depth_max: u32,
    /// Segments of a Send, RDMA Write or RDMA Read.
    pub send_segments_max: u32,
    /// Segments in one RDMA Read of the device; a longer list is read in parts. Some devices support
    /// only one.
    pub read_segments_max: u32,
    /// The longest Send that is copied, in bytes. A copy that does not fit into the work request goes
    /// through registered memory of the port, of which each work request has this many bytes.
    pub inline_bytes_max: u32,
    /// The longest copied Send that goes in the work request itself, in bytes, if the device supports
    /// it.
    pub device_inline_bytes_max: u32,
    /// Memory windows. The port has fewer where the device has no more left.
    pub windows_max: u32,
    /// Ports that this program makes on the device. Each has the same share of the windows that the device reports.
    pub ports: u32,
    /// The behaviour on a device without windows.
    pub without_windows: WithoutWindows,
    /// Let the device write incoming data to memory in any order, where it can (`IBV_ACCESS_RELAXED_ORDERING`).
    pub relaxed_ordering: bool,
    /// Make the queue pairs in a thread domain, where the device has such: its library may then leave out the locks of
    /// posts. Without it the port has the locks, and [`Attributes::thread_domain_refused`] has the reason.
    pub thread_domain: bool,
    /// Use one receive queue per queue pair even if the device has shared ones: for experiments, or,
    /// where memory is registered for calls, to give each queue pair its own protection domain. The
    /// whole arena is then registered once more for each queue pair. Each registration takes its time,
    /// and counts against the limit of locked memory (`ulimit -l`).
    pub own_receive_queues: bool,
    /// RDMA Reads of a peer that a queue pair serves at a time.
    pub responder_resources: u8,
    /// RDMA Reads that a queue pair has outstanding; none on iWARP
    /// ([`DeviceLimits::reads_outstanding`]).
    pub initiator_depth: u8,
    /// How long a queue pair in error waits for the device to report that it takes no more Receives.
    /// Not every device reports it.
    pub last_receive_timeout: Duration,
    /// How long a queue pair in error waits for the device to flush its work requests before it is
    /// reset.
    pub flush_timeout: Duration,
}

impl PortConfig {
    /// The default sizes, for a port with this memory.
    #[must_use]
    pub fn new(arena: Arena, clock: Clock) -> Self {
        Self {
            device: None,
            arena,
            clock,
            queue_pairs_max: 256,
            receives_max: 4096,
            receive_segments_max: 4,
            work_requests_max: 2048,
            send_queue_depth_max: 256,
            send_segments_max: 18,
            read_segments_max: 18,
            inline_bytes_max: 1024,
            device_inline_bytes_max: 256,
            windows_max: 1024,
            ports: 1,
            without_windows: WithoutWindows::Refuse,
            relaxed_ordering: true,
            thread_domain: false,
            own_receive_queues: false,
            responder_resources: 16,
            initiator_depth: 16,
            last_receive_timeout: Duration::from_millis(20),
            flush_timeout: Duration::from_secs(2),
        }
    }

    /// Reduces all sizes to the device's limits.
    pub(super) fn clamp(&mut self, limits: &DeviceLimits) {
        let cut = |value: &mut u32, limit: u32| *value = (*value).clamp(1, limit.max(1));
        let segments = u32::try_from(SEGMENTS_MAX).unwrap_or(u32::MAX);
        self.own_receive_queues |= limits.shared_receive_queues == 0;
        cut(&mut self.queue_pairs_max, limits.queue_pairs);
        cut(&mut self.receives_max, limits.completion_queue_entries / 2);
        cut(
            &mut self.work_requests_max,
            limits.completion_queue_entries - self.receives_max,
        );
        cut(
            &mut self.send_queue_depth_max,
            limits.queue_pair_work_requests.min(self.work_requests_max),
        );
        cut(&mut self.send_segments_max, limits.segments.min(segments));
        let read_segments = limits.read_segments.min(self.send_segments_max);
        cut(&mut self.read_segments_max, read_segments);
        let receive_segments = if self.own_receive_queues {
            limits.segments
        } else {
            limits.shared_receive_queue_segments
        };
        cut(
            &mut self.receive_segments_max,
            receive_segments.min(segments),
        );
        if self.registers(limits) {
            self.windows_max = self.windows_max.min(1 << 16);
        } else {
            let share = limits.windows.div_ceil(self.ports.max(1));
            self.windows_max = self.windows_max.min(share);
        }
        self.responder_resources = self.responder_resources.min(limits.responder_resources);
        self.initiator_depth = self.initiator_depth.min(limits.reads_outstanding());
    }

    /// Whether memory is registered for a call instead of a window being bound.
    pub(super) fn registers(&self, limits: &DeviceLimits) -> bool {
        match self.without_windows {
            WithoutWindows::Refuse => false,
            WithoutWindows::Register => limits.windows == 0,
            WithoutWindows::RegisterAnyway => true,
        }
    }

    /// Whether each queue pair has its own protection domain. It is needed where memory is registered for a call, because
    /// every queue pair of the domain could use the key. It is possible where queue pairs share no receive queue.
    pub(super) fn domains_apart(&self, limits: &DeviceLimits) -> bool {
        self.own_receive_queues && self.registers(limits)
    }

    /// Receives of one queue.
    pub(super) fn receive_depth_max(&self, limits: &DeviceLimits) -> u32 {
        let device = if self.own_receive_queues {
            limits.queue_pair_work_requests
        } else {
            limits.shared_receive_queue_depth
        };
        self.receives_max.min(device)
    }

    pub(super) fn queue_pair_sizes(&self, limits: &DeviceLimits) -> QueuePairSizes {
        let own = self.receives_max / self.queue_pairs_max;
        QueuePairSizes {
            send_depth: self.send_queue_depth_max,
            send_segments: self.send_segments_max,
            inline_bytes: self.device_inline_bytes_max.min(self.inline_bytes_max),
            receive_depth: own.clamp(1, self.receive_depth_max(limits).max(1)),
            receive_segments: self.receive_segments_max,
        }
    }

    pub(super) fn attributes(&self, device: &str, limits: &DeviceLimits) -> Attributes {
        let registers = self.registers(limits);
        let receive_queue_depth_max = if self.own_receive_queues {
            self.queue_pair_sizes(limits).receive_depth
        } else {
            self.receive_depth_max(limits)
        };
        Attributes {
            provider: "verbs",
            device: device.to_owned(),
            queue_pairs_max: self.queue_pairs_max,
            receive_queue_depth_max,
            receive_segments_max: self.receive_segments_max,
            send_segments_max: self.send_segments_max,
            send_queue_depth_max: self.send_queue_depth_max,
            inline_bytes_max: self.inline_bytes_max,
            message_bytes_max: limits.message_bytes,
            read_depth_max: self.initiator_depth.into(),
            windows_max: self.windows_max,
            shared_receive_queue: !self.own_receive_queues,
            send_with_invalidate: limits.send_with_invalidate && !registers,
            rails: 1,
            thread_domain_refused: None,
        }
    }

    /// At least one in this many works of a queue pair asks for a completion. An idle queue pair therefore holds at most
    /// one work less than its guarantee, and can always post the one that asks. All idle queue pairs together hold at most
    /// half of the works, so that they starve no busy one.
    pub(super) fn unsignalled_max(&self, works_guaranteed: u32) -> u32 {
        works_guaranteed.min(self.send_queue_depth_max / 4).max(1)
    }

    /// The work requests that each queue pair is guaranteed. Call it after [`PortConfig::clamp`].
    pub(super) fn works_guaranteed(&self) -> Result<u32, SetupError> {
        works_guaranteed(
            self.work_requests_max,
            self.queue_pairs_max,
            "raise work_requests_max, as far as the completion queue of the device has room besides the Receives, or \
             lower queue_pairs_max, which is connections_max of a core",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{ArenaOptions, HugePages};

    fn config(limits: &DeviceLimits) -> PortConfig {
        let options = ArenaOptions {
            bytes: 4096,
            huge_pages: HugePages::Never,
        };
        let arena = Arena::private(&options).expect("one page");
        let mut config = PortConfig::new(arena, Clock::new());
        config.clamp(limits);
        config
    }

    #[test]
    fn a_port_on_iwarp_reads_nothing_and_is_read_from() {
        let limits = DeviceLimits {
            iwarp: true,
            ..DeviceLimits::for_tests()
        };
        let config = config(&limits);
        let attributes = config.attributes("siw0", &limits);
        assert_eq!(attributes.read_depth_max, 0);
        // What the peer is asked to serve, and what is served to it.
        assert_eq!(
            (config.initiator_depth, config.responder_resources),
            (0, 16)
        );
        assert_eq!(attributes.windows_max, 1024);
    }

    #[test]
    fn a_port_that_guarantees_no_work_to_a_queue_pair_is_refused() {
        let sizes = |works, queue_pairs, completions| {
            let limits = DeviceLimits {
                completion_queue_entries: completions,
                ..DeviceLimits::for_tests()
            };
            let options = ArenaOptions {
                bytes: 4096,
                huge_pages: HugePages::Never,
            };
            let mut config = PortConfig {
                work_requests_max: works,
                queue_pairs_max: queue_pairs,
                ..PortConfig::new(Arena::private(&options).expect("one page"), Clock::new())
            };
            config.clamp(&limits);
            config.works_guaranteed()
        };
        assert_eq!(sizes(2048, 256, 1 << 16).expect("the usual sizes"), 4);
        assert_eq!(sizes(2048, 1024, 1 << 16).expect("just enough"), 1);
        assert!(sizes(2047, 1024, 1 << 16).is_err());
        // A completion queue of so many entries, half of which are for Receives.
        assert_eq!(sizes(8192, 1024, 4096).expect("just enough"), 1);
        let refused = sizes(8192, 1024, 4094).expect_err("too few are left");
        let told = refused.to_string();
        for part in [
            "1024 queue pairs = 2048 needed, and there are 2047",
            "work_requests_max",
            "completion queue",
            "connections_max",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }

    /// A queue pair whose Sends are all done can hold so many works of which the device says nothing, and one less: the
    /// next must be among those that it can always have.
    #[test]
    fn unsignalled_works_stay_within_the_guarantee() {
        for works in [2, 16, 64, 128, 512, 2048, 16_384] {
            for queue_pairs in [1, 2, 8, 32, 256] {
                let mut config = config(&DeviceLimits::for_tests());
                config.work_requests_max = works;
                config.queue_pairs_max = queue_pairs;
                let Ok(guaranteed) = config.works_guaranteed() else {
                    continue;
                };
                let silent = config.unsignalled_max(guaranteed);
                assert!(
                    silent <= guaranteed,
                    "{silent} of {works} for {queue_pairs}"
                );
            }
        }
    }

    #[test]
    fn elsewhere_a_port_reads_as_deep_as_device_and_configuration_allow() {
        for (device, depth) in [(4, 4), (16, 16), (128, 16)] {
            let limits = DeviceLimits {
                initiator_depth: device,
                ..DeviceLimits::for_tests()
            };
            let attributes = config(&limits).attributes("mlx5_0", &limits);
            assert_eq!(attributes.read_depth_max, depth);
        }
    }
}
