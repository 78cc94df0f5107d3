//! What a port is made with, and what the device makes of it.

use std::time::Duration;

use super::super::context::DeviceLimits;
use super::super::queue_pair::QueuePairSizes;
use crate::clock::Clock;
use crate::interface::{Attributes, SEGMENTS_MAX, SetupError};
use crate::memory::Arena;
use crate::share::works_guaranteed;

/// What happens to [`crate::interface::PortWindows::bind_window`] where the device has no memory windows
/// of type 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithoutWindows {
    /// It is refused, and the attributes say that there are no windows.
    #[default]
    Refuse,
    /// The buffer is registered for the call: a system call each way, counted. With shared receive
    /// queues its key opens it to every peer of the port, not to one alone; with
    /// [`PortConfig::own_receive_queues`] to the one peer, since each queue pair has a protection
    /// domain then.
    Register,
    /// As `Register`, on a device that has windows: to try it out.
    RegisterAnyway,
}

/// What a port is made with. What is beyond the device's limits is cut down to them;
/// [`crate::interface::PortSetup::attributes`] says what there is.
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
    /// Receives of all receive queues together. With `work_requests_max` it makes the size of the
    /// completion queue.
    pub receives_max: u32,
    /// Segments of a Receive.
    pub receive_segments_max: u32,
    /// Work requests outstanding on the whole port, signalled or not: a flush completes them all.
    /// At least twice `queue_pairs_max`, so that each queue pair can have one of its own and others are
    /// there to be borrowed; at least four times, or every Send asks the device for a completion.
    pub work_requests_max: u32,
    /// Work requests outstanding per queue pair.
    pub send_queue_depth_max: u32,
    /// Segments of a Send, RDMA Write or RDMA Read.
    pub send_segments_max: u32,
    /// Segments that the device is given in one RDMA Read; a longer list is read in parts. Some
    /// devices take no more than one.
    pub read_segments_max: u32,
    /// Bytes up to which a Send is copied. What the device does not take in the work request
    /// itself goes through registered memory of the port, of which this many bytes per work
    /// request are reserved.
    pub inline_bytes_max: u32,
    /// Bytes up to which a copied Send goes in the work request, if the device takes them.
    pub device_inline_bytes_max: u32,
    /// Memory windows.
    pub windows_max: u32,
    /// What there is instead of windows.
    pub without_windows: WithoutWindows,
    /// Use receive queues per queue pair even if the device has shared ones: to try it out, or, where
    /// memory is registered for calls, for a protection domain of each queue pair. The whole arena is
    /// then registered once more for each of them, which takes as long as that does, and counts
    /// against the limit of locked memory (`ulimit -l`) as often.
    pub own_receive_queues: bool,
    /// RDMA Reads of a peer that a queue pair serves at a time.
    pub responder_resources: u8,
    /// RDMA Reads that a queue pair has outstanding; none on iWARP
    /// ([`DeviceLimits::reads_outstanding`]).
    pub initiator_depth: u8,
    /// How long a closed queue pair waits for the device to say that it takes no more Receives.
    /// Not every device ever says so.
    pub last_receive_timeout: Duration,
    /// How long a closed queue pair waits for the device to flush its work; then it is reset.
    pub flush_timeout: Duration,
}

impl PortConfig {
    /// The usual sizes, for a port with this memory.
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
            without_windows: WithoutWindows::Refuse,
            own_receive_queues: false,
            responder_resources: 16,
            initiator_depth: 16,
            last_receive_timeout: Duration::from_millis(20),
            flush_timeout: Duration::from_secs(2),
        }
    }

    /// Cuts everything down to what the device takes.
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
            self.windows_max = self.windows_max.min(limits.windows);
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

    /// Whether each queue pair has a protection domain: where memory is registered for a call, by whose key every queue
    /// pair of the domain would reach it, and no shared receive queue holds them together.
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
        }
    }

    /// One in so many works of a queue pair asks for a completion at least: what those before it did is known to be done
    /// only then. So a queue pair leaves fewer behind than it is guaranteed. It can always post the one that asks,
    /// and many idle ones, which hold at most half of all works so, starve no busy one.
    pub(super) fn unsignalled_max(&self, works_guaranteed: u32) -> u32 {
        works_guaranteed.min(self.send_queue_depth_max / 4).max(1)
    }

    /// What each queue pair can always have of the work requests, once they are cut down to what the device takes.
    pub(super) fn works_guaranteed(&self) -> Result<u32, SetupError> {
        works_guaranteed(
            self.work_requests_max,
            self.queue_pairs_max,
            "raise work_requests_max, as far as the completion queue of the device has room beside the Receives, or \
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
    fn what_a_queue_pair_leaves_behind_in_silence_is_within_its_guarantee() {
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
