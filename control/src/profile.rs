//! The conversion of a tuning profile to the sizes of a node.

use std::time::Duration;

use rpcrdma_engine::{CoreConfig, IdlePolicy, PlacementConfig};
use rpcrdma_fabric::memory::{HugePageSize, HugePages};
use rpcrdma_protocol::v2::plan::Thresholds;
use rpcrdma_protocol::v2::{
    ApplicationHeaderTypes, ApplicationProperties, Properties, ReverseRequestSupport,
};
use rpcrdma_tuning::{Hugepages, Idle, Profile, ReceiveQueues};
use rpcrdma_tuning::{RelaxedOrdering, Settings, ThreadDomains, WithoutWindows};

use rpcrdma_fabric::verbs::{self, DeviceLimits, ManagerOptions};

use crate::error::NodeError;
use crate::node::NodeConfig;
use crate::provider::ShmProvider;
use crate::provider::VerbsProvider;

/// The larger of the two sizes of hugepages.
const HUGE_PAGE_BYTES_LARGE: u32 = 1 << 30;

/// The smallest window that permits calls in both directions.
const REVERSE_CREDITS_LEAST: u16 = 3;

impl NodeConfig {
    /// A node with one core for each entry of `cores`, sized by `profile`.
    #[must_use]
    pub fn from_profile(profile: &Profile, cores: Vec<Option<usize>>) -> Self {
        let core = core_config(profile);
        Self {
            cores,
            huge_pages: match profile.hugepages {
                Hugepages::Prefer => HugePages::Prefer,
                Hugepages::Require => HugePages::Require,
                Hugepages::Never => HugePages::Never,
            },
            // The profile's check permits only these two sizes.
            external: Vec::new(),
            huge_page_size: match profile.hugepage_bytes {
                HUGE_PAGE_BYTES_LARGE => HugePageSize::Gib1,
                _ => HugePageSize::Mib2,
            },
            properties: core.announced(Properties {
                segment_count_max: profile.rdma_segments_max,
                // None until the application enables them (RFC 8167 section 6).
                reverse_requests: ReverseRequestSupport::None,
                ..Properties::default()
            }),
            core,
            peer_connections_max: profile.peers_connections_max,
            target_attempts_per_second_max: profile.reconnects_per_second_max,
            connection_name: None,
            events: None,
        }
    }

    /// Enables calls in the reverse direction, from servers to their clients, up to `level`. A client then accepts such
    /// calls: its application answers them. A server then may make them, on connections whose client enabled them as
    /// well; the lower of the two levels applies. `General` permits chunks, for which the core needs bulk buffers.
    ///
    /// Without this, none are made and none are accepted (RFC 8167 section 6, -00 section 5.2.5). It requires
    /// `credits_per_connection` of three or more: the node does not start with fewer.
    #[must_use]
    pub fn with_reverse_calls(mut self, level: ReverseRequestSupport) -> Self {
        self.properties.reverse_requests = level;
        self.core.credits_guaranteed = self.core.credits_guaranteed.max(self.credits_least());
        self
    }

    /// Checks that peers get enough credits for the permitted directions of calls. With three or more, a peer reserves
    /// one for replies. One end with that reserve is enough: it can always answer, so the two ends do not block each
    /// other.
    pub(crate) fn check_window(&self) -> Result<(), NodeError> {
        let (credits, least) = (self.core.credits_per_connection, self.credits_least());
        if credits < least {
            return Err(NodeError::WindowTooSmall { credits, least });
        }
        Ok(())
    }

    /// The fewest credits that peers may get.
    pub(crate) fn credits_least(&self) -> u16 {
        match self.properties.reverse_requests {
            ReverseRequestSupport::None => 1,
            _ => REVERSE_CREDITS_LEAST,
        }
    }
}

impl ShmProvider {
    /// The embedded fabric, sized by `profile`.
    #[must_use]
    pub fn from_profile(profile: &Profile) -> Self {
        Self {
            channel_ring_bytes: profile.channel_ring_bytes,
            inline_bytes_max: profile.inline_bytes_max,
            copy_bytes_per_poll: profile.copy_bytes_per_poll,
            hot_channels_max: profile.hot_channels_max,
            cold_sweep_polls: profile.cold_sweep_polls,
            handshake_timeout: handshake_timeout(profile, Self::default().handshake_timeout),
            peer_arena_bytes_max: u64::from(profile.peer_arena_mib_max) << 20,
            peer_memory_bytes_max: u64::from(profile.peer_memory_mib_max) << 20,
            own_receive_queues: profile.receive_queues == ReceiveQueues::Own,
            delay: Duration::ZERO,
        }
    }
}

impl VerbsProvider {
    /// The device of that name, or the first active one, configured by `profile`.
    #[must_use]
    pub fn from_profile(profile: &Profile, device: Option<String>) -> Self {
        // The profile's check keeps all of these within a byte.
        let byte = |value: u32| u8::try_from(value).unwrap_or(u8::MAX);
        let type_of_service = byte(profile.type_of_service);
        let connect_timeout = Duration::from_millis(u64::from(profile.connect_timeout_ms));
        let default = ManagerOptions::default();
        Self {
            device,
            manager: ManagerOptions {
                handshake_timeout: handshake_timeout(profile, default.handshake_timeout),
                // Well before the connect timeout, so that an unreachable address is reported as such and not as a slow
                // peer.
                resolve_timeout: (connect_timeout * 2 / 5).min(default.resolve_timeout),
                min_rnr_timer_code: byte(profile.min_rnr_timer_code),
                ack_timeout_exponent: byte(profile.ack_timeout_exponent),
                retry_count: byte(profile.retry_count),
                rnr_retry_count: byte(profile.rnr_retry_count),
                type_of_service: (type_of_service != 0).then_some(type_of_service),
            },
            read_depth_max: byte(profile.read_depth_max),
            inline_bytes_max: profile.inline_bytes_max,
            device_inline_bytes_max: profile.device_inline_bytes_max,
            send_segments_max: profile.send_gather_entries_max,
            receive_segments_max: profile.receive_scatter_entries_max,
            send_queue_depth_max: profile.send_queue_depth_max,
            without_windows: match profile.without_windows {
                WithoutWindows::Refuse => verbs::WithoutWindows::Refuse,
                WithoutWindows::Register => verbs::WithoutWindows::Register,
            },
            relaxed_ordering: profile.relaxed_ordering == RelaxedOrdering::Allow,
            thread_domain: profile.thread_domains == ThreadDomains::Prefer,
            own_receive_queues: profile.receive_queues == ReceiveQueues::Own,
        }
    }

    /// The limits that a device sets for knobs, for [`Layers::limited`](rpcrdma_tuning::Layers::limited).
    #[must_use]
    pub fn limits(limits: &DeviceLimits) -> Settings {
        let own_queues = limits.shared_receive_queues == 0;
        let receive_segments = if own_queues {
            limits.segments
        } else {
            limits.shared_receive_queue_segments
        };
        let reads = limits.initiator_depth.min(limits.responder_resources);
        Settings {
            connections_max: Some(limits.queue_pairs.max(1)),
            send_queue_depth_max: Some(limits.queue_pair_work_requests.max(1)),
            send_gather_entries_max: Some(limits.segments.max(1)),
            receive_scatter_entries_max: Some(receive_segments.max(1)),
            read_depth_max: Some(u32::from(reads).max(1)),
            receive_queues: own_queues.then_some(ReceiveQueues::Own),
            ..Settings::default()
        }
    }
}

/// How long a connection manager waits for a peer. The control plane has its own limit for each connect. This one
/// covers the rest, and must not end a connect with a longer limit.
fn handshake_timeout(profile: &Profile, least: Duration) -> Duration {
    Duration::from_millis(profile.connect_timeout_ms.into()).max(least)
}

fn core_config(profile: &Profile) -> CoreConfig {
    CoreConfig {
        cpu: None,
        // `Node::start` learns the number from its provider.
        rails: 1,
        connections_max: profile.connections_max,
        // The profile's check keeps it within the 16 bits of the credit field.
        credits_per_connection: u16::try_from(profile.credits_per_connection).unwrap_or(u16::MAX),
        receives_shared: profile.receives_shared,
        receive_buffer_bytes: profile.receive_buffer_bytes,
        placement: (profile.placement_segments != 0).then_some(PlacementConfig {
            inline_segment_bytes: profile.inline_segment_bytes,
            segments: profile.placement_segments,
            segment_bytes: profile.placement_segment_bytes,
            spares: profile.placement_spares,
        }),
        thresholds: Thresholds {
            inline_item_bytes_max: profile.inline_item_bytes_max,
            send_placement_bytes_max: profile.send_placement_bytes_max,
            continued_bytes_max: profile.continued_bytes_max,
        },
        send_buffers: profile.send_buffers,
        send_buffer_bytes: profile.send_buffer_bytes,
        message_bytes_max: profile.message_bytes_max,
        message_buffers: profile.reassembly_buffers,
        calls_outstanding_max: profile.calls_outstanding_max,
        deferred_max: profile.deferred_replies_max,
        bulk_buffers: profile.bulk_buffers,
        // Depends on the application, and not on the machine.
        bulk_buffers_kept: 0,
        bulk_buffer_bytes: profile.bulk_buffer_bytes,
        bulk_calls: profile.bulk_calls_max,
        read_depth_max: profile.read_depth_max,
        reap_batch: profile.reap_batch,
        idle: match profile.idle {
            Idle::Spin => IdlePolicy::Spin,
            Idle::Pause => IdlePolicy::Pause,
            Idle::Park => IdlePolicy::Park {
                after: Duration::from_micros(u64::from(profile.idle_park_after_us)),
                awake_percent: profile.idle_awake_percent,
            },
        },
        call_timeout: Duration::from_millis(u64::from(profile.call_timeout_ms)),
        keep_alive_interval: Duration::from_millis(u64::from(profile.keep_alive_interval_ms)),
        stall_timeout: Duration::from_millis(profile.stall_timeout_ms.into()),
        path_suspect_after: Duration::from_millis(profile.path_suspect_ms.into()),
        path_probe_timeout: Duration::from_millis(profile.path_probe_ms.into()),
        // The profile's check keeps it within a byte.
        keep_alive_silent_ticks_max: u8::try_from(profile.keep_alive_silent_ticks_max)
            .unwrap_or(u8::MAX),
        mailbox_depth: profile.mailbox_depth,
        // `with_reverse_calls` raises it.
        credits_guaranteed: CoreConfig::default().credits_guaranteed,
        // These depend on the application as well.
        header_types: ApplicationHeaderTypes::NONE,
        application_properties: ApplicationProperties::NONE,
    }
}

#[cfg(test)]
mod knobs;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_profile_is_the_default_core() {
        let profile = Profile::default();
        let config = NodeConfig::from_profile(&profile, vec![Some(3), None]);
        let default = CoreConfig {
            call_timeout: Duration::from_millis(u64::from(profile.call_timeout_ms)),
            ..CoreConfig::default()
        };
        assert_eq!(
            config.core, default,
            "the profile's and the engine's defaults agree"
        );
        assert_eq!(config.cores, [Some(3), None]);
        assert_eq!(config.properties.receive_buffer_bytes, 4096);
        assert_eq!(
            config.properties.reverse_requests,
            ReverseRequestSupport::None
        );
    }

    /// The profile tells the sizes that the engine makes; neither knows the other's constants.
    #[test]
    fn the_profile_counts_the_receives_and_send_buffers_of_its_cores() {
        for connections_max in [1, 64, 65, 1024, 1025, 10_000] {
            for receives_shared in [0, 7, 1 << 20] {
                let profile = Profile {
                    connections_max,
                    receives_shared,
                    ..Profile::default()
                };
                let core = NodeConfig::from_profile(&profile, vec![None]).core;
                assert_eq!(u64::from(core.receives()), profile.receives_posted());
                // The profile leaves out the buffer that messages are written into.
                let send_buffers = u64::from(core.send_buffers_total()) - 1;
                let send_bytes = send_buffers * u64::from(profile.send_buffer_bytes);
                assert_eq!(send_bytes, profile.send_pool_bytes());
            }
        }
    }

    #[test]
    fn calls_both_ways_need_a_window_of_three() {
        let with = |credits_per_connection, level| {
            let profile = Profile {
                credits_per_connection,
                ..Profile::default()
            };
            let config = NodeConfig::from_profile(&profile, vec![None]);
            config.with_reverse_calls(level).check_window()
        };
        for level in [
            ReverseRequestSupport::Inline,
            ReverseRequestSupport::General,
        ] {
            assert!(with(3, level).is_ok());
            for credits in [1, 2] {
                let refused = with(credits, level).expect_err("too small");
                let text = refused.to_string();
                let told = format!("credits_per_connection of 3 or more, and it is {credits}");
                assert!(text.contains(&told), "{text}");
            }
        }
        assert!(with(1, ReverseRequestSupport::None).is_ok(), "one way");
    }

    #[test]
    fn knobs_reach_the_verbs_device() {
        let profile = Profile {
            min_rnr_timer_code: 9,
            ack_timeout_exponent: 17,
            retry_count: 3,
            rnr_retry_count: 2,
            type_of_service: 104,
            read_depth_max: 5,
            connect_timeout_ms: 1000,
            device_inline_bytes_max: 200,
            thread_domains: ThreadDomains::Prefer,
            ..Profile::default()
        };
        let provider = VerbsProvider::from_profile(&profile, Some("mlx5_0".to_owned()));
        let manager = ManagerOptions {
            handshake_timeout: Duration::from_secs(30),
            resolve_timeout: Duration::from_millis(400),
            min_rnr_timer_code: 9,
            ack_timeout_exponent: 17,
            retry_count: 3,
            rnr_retry_count: 2,
            type_of_service: Some(104),
        };
        assert_eq!(provider.manager, manager);
        assert_eq!(provider.device.as_deref(), Some("mlx5_0"));
        assert_eq!(
            (provider.read_depth_max, provider.device_inline_bytes_max),
            (5, 200)
        );
        assert!(provider.thread_domain);
        let default = VerbsProvider::from_profile(&Profile::default(), None);
        assert_eq!(
            default.manager.type_of_service, None,
            "0 leaves it to the system"
        );
        assert!(!default.thread_domain, "nobody has measured it");
    }

    #[test]
    fn knobs_reach_the_core_and_the_fabric() {
        let profile = Profile {
            credits_per_connection: 7,
            idle: Idle::Park,
            idle_park_after_us: 50,
            idle_awake_percent: 15,
            hugepages: Hugepages::Never,
            channel_ring_bytes: 8192,
            ..Profile::default()
        };
        let config = NodeConfig::from_profile(&profile, vec![None]);
        assert_eq!(config.core.credits_per_connection, 7);
        let park = IdlePolicy::Park {
            after: Duration::from_micros(50),
            awake_percent: 15,
        };
        assert_eq!(config.core.idle, park);
        assert_eq!(config.huge_pages, HugePages::Never);
        let provider = ShmProvider::from_profile(&profile);
        assert_eq!(provider.channel_ring_bytes, 8192);
        let connect_timeout = Duration::from_millis(profile.connect_timeout_ms.into());
        assert_eq!(provider.handshake_timeout, connect_timeout);
        assert!(!provider.own_receive_queues);
        let placing = Profile {
            placement_segments: 2,
            placement_segment_bytes: 8192,
            placement_spares: 5,
            receive_queues: ReceiveQueues::Own,
            ..Profile::default()
        };
        assert!(ShmProvider::from_profile(&placing).own_receive_queues);
        let config = NodeConfig::from_profile(&placing, vec![None]);
        let placement = PlacementConfig {
            inline_segment_bytes: 1024,
            segments: 2,
            segment_bytes: 8192,
            spares: 5,
        };
        assert_eq!(config.core.placement, Some(placement));
        let structure = config.properties.receive_buffer_structure;
        let told = structure.expect("it is told").length_bytes();
        assert_eq!(told, 1024 + 2 * 8192);
        assert_eq!(config.properties.receive_buffer_bytes, told);
        assert!(!config.properties.rtr_support.is_any(), "no bulk data");
        let placing = Profile {
            bulk_buffers: 8,
            inline_item_bytes_max: 100,
            ..placing
        };
        let config = NodeConfig::from_profile(&placing, vec![None]);
        assert!(config.properties.rtr_support.has_request());
        assert_eq!(config.properties.request_transmissions_max, 2);
        assert_eq!(config.core.thresholds.inline_item_bytes_max, 100);
        assert_eq!(u64::from(told), placing.receive_bytes());
        let patient = Profile {
            connect_timeout_ms: 60_000,
            ..Profile::default()
        };
        let provider = ShmProvider::from_profile(&patient);
        assert_eq!(provider.handshake_timeout, Duration::from_secs(60));
    }
}
