//! The conformance suite of the fabric, on the `verbs` provider: runs in the lab (tests/lab), on the
//! device that `LAB_DEV` names and the address that `LAB_IP` gives.
#![forbid(unsafe_code)]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::QueuePairId;
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages};
use rpcrdma_fabric::verbs;
use rpcrdma_tests::fabric_conformance::{Extras, Fault, Harness, PortOptions};

/// Calibrating a clock takes time, so there is one for all tests.
fn clock() -> Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(Clock::new).clone()
}

/// What the lab tells about the device.
fn lab(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name}: run this in the lab, tests/lab"))
}

/// Whether the lab's device is software iWARP.
fn is_iwarp() -> bool {
    lab("LAB_DEV").starts_with("siw")
}

/// The limits of the lab's device, which may be those of a card (tests/lab/as-card).
fn limits() -> &'static verbs::DeviceLimits {
    static LIMITS: OnceLock<verbs::DeviceLimits> = OnceLock::new();
    LIMITS.get_or_init(|| {
        let context = verbs::Context::open(Some(&lab("LAB_DEV")));
        context.expect("the lab's device").limits().clone()
    })
}

/// Ports and managers of an RDMA device.
struct VerbsHarness;

impl Harness for VerbsHarness {
    type Port = verbs::Port;
    type Manager = verbs::Manager;

    fn new() -> Self {
        Self
    }

    fn extras() -> Extras {
        // Soft-RoCE, as of Linux 6.1, looks a window up and then checks the range of the memory
        // region; it acknowledges a Send With Invalidate before it looks at the key, and does not
        // look at whose the window is.
        let soft_roce = lab("LAB_DEV").starts_with("rxe");
        Extras {
            windows_unbounded: soft_roce,
            invalidates_late: soft_roce,
            invalidates_foreign: soft_roce,
            windows_of_all: limits().windows == 0 && limits().shared_receive_queues > 0,
            done_when_sent: is_iwarp(),
            ends_without_receive: is_iwarp(),
            ..Extras::default()
        }
    }

    fn malformed_address() -> &'static str {
        "rdma:no port"
    }

    fn port(&mut self, options: PortOptions) -> (verbs::Port, verbs::PortHandle) {
        let arena = Arena::private(&ArenaOptions {
            bytes: options.arena_bytes,
            huge_pages: HugePages::Never,
        })
        .expect("an arena of ordinary pages");
        let shares_receives = limits().shared_receive_queues > 0;
        let config = verbs::PortConfig {
            device: Some(lab("LAB_DEV")),
            queue_pairs_max: options.queue_pairs,
            send_queue_depth_max: options.send_queue_depth,
            windows_max: options.windows,
            // Software iWARP has none: so the suite tries what stands in for them.
            without_windows: verbs::WithoutWindows::Register,
            receives_max: if shares_receives {
                512
            } else {
                128 * options.queue_pairs
            },
            work_requests_max: 512,
            // TIME: a day is longer than any test may run, so no slow device is taken for one that flushes nothing.
            flush_timeout: Duration::from_secs(24 * 60 * 60),
            ..verbs::PortConfig::new(arena, clock())
        };
        verbs::Port::new(config).expect("a port of moderate size")
    }

    fn manager(&mut self) -> verbs::Manager {
        // TIME: the first two are longer than any test may run, and the third lets a peer be silent for 17 s: no slow
        // machine is taken for a dead one.
        verbs::Manager::with_options(verbs::ManagerOptions {
            handshake_timeout: Duration::from_secs(24 * 60 * 60),
            resolve_timeout: Duration::from_secs(10 * 60),
            ack_timeout_exponent: 19,
            ..verbs::ManagerOptions::default()
        })
        .expect("a manager")
    }

    fn fresh_address(&mut self) -> String {
        static NEXT: AtomicU16 = AtomicU16::new(21_000);
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("rdma:{}:{port}", lab("LAB_IP"))
    }

    fn now(&self) -> Ticks {
        clock().now()
    }

    fn hold(&mut self) {
        unreachable!("no device has a delay that can be set");
    }

    fn release(&mut self) {
        unreachable!("no device has a delay that can be set");
    }

    fn pass(&mut self, _: Duration) {
        unreachable!("no device has a delay that can be set");
    }

    fn fault(&self, _: QueuePairId, _: Fault) -> Option<verbs::PortEvent> {
        None
    }
}

rpcrdma_tests::fabric_conformance!(conformance, VerbsHarness, skipped [
    // Soft-RoCE does not hold a peer to the range of a window.
    read_out_of_range,
    write_out_of_range,
    // Nor does it look at whose window a peer invalidates.
    invalidate_foreign_key_fails,
    // A device moves the bytes by itself, knows no delay, and fails when it fails.
    large_transfer_is_bounded_per_poll,
    large_read_is_bounded_per_poll,
    set_delay_is_one_way,
    set_delay_is_paid_twice_by_a_read,
    set_delay_keeps_the_order,
    a_dropped_connection_ends_both_sides,
    a_work_request_fails_on_demand,
    receiver_not_ready_on_demand
], or where is_iwarp() => [
    // A message that meets no Receive ends the connection.
    receiver_not_ready_stalls_then_delivers,
    // This end posts no RDMA Reads on iWARP.
    rdma_read,
    rdma_reads_up_to_the_depth,
    rdma_read_after_write,
    read_after_invalidate_fails,
    read_out_of_range,
    read_without_access,
    wrong_key,
    // Memory is registered for a call: its key is of no one peer.
    key_of_other_queue_pair,
    write_with_key_of_other_queue_pair,
    old_generation_key,
    a_refused_access_harms_no_other_connection,
    // And a peer cannot invalidate it.
    send_with_invalidate,
    invalidate_foreign_key_fails,
    invalidate_unknown_key_fails,
    // It posts no RDMA Reads, as above.
    a_view_is_exposed_to_be_read_alone,
    an_ended_window_of_another_port_is_refused,
    flush_on_disconnect,
    peer_disconnect_seen,
    peer_end_seen_without_receives,
    late_message_of_an_old_connection_is_dropped,
    work_behind_a_failure_is_flushed,
    reads_are_flushed,
    // A device moves the bytes by itself, knows no delay, and fails when it fails.
    large_transfer_is_bounded_per_poll,
    large_read_is_bounded_per_poll,
    set_delay_is_one_way,
    set_delay_is_paid_twice_by_a_read,
    set_delay_keeps_the_order,
    a_dropped_connection_ends_both_sides,
    a_work_request_fails_on_demand,
    receiver_not_ready_on_demand
]);
