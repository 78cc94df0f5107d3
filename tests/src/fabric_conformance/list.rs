//! The list of all cases, in one place: what the macros make tests of, and what the table of the
//! runner is made of. A case that is not in the list is dead code, which the lints refuse.

/// Hands all cases to the macro in brackets, behind what else is given.
#[doc(hidden)]
#[macro_export]
macro_rules! fabric_conformance_list {
    ([$($callback:tt)+] $($prefix:tt)*) => {
        $($callback)+! { $($prefix)*
            sending {
                #[test] fn attributes_are_sane() needs [];
                #[test] fn send_receive_inline() needs [];
                #[test] fn a_copied_send_leaves_its_buffer_free() needs [];
                #[test] fn zero_length_send() needs [];
                #[test] fn send_from_registered_gather_scatter() needs [];
                #[test] fn a_gather_list_as_long_as_the_device_takes() needs [];
                #[test] fn every_length_around_the_boundaries() needs [];
                #[test] fn messages_arrive_in_order() needs [];
                #[test] fn both_directions_at_once() needs [];
                #[test] fn unsignalled_sends_return_buffers() needs [];
                #[test] fn signalled_completions_in_order() needs [];
                #[test] fn queue_full_is_reported_and_recovers() needs [];
                #[test] fn a_refused_post_leaves_the_list_as_it_was() needs [];
            }
            receiving {
                #[test] fn shared_receive_queue_serves_many_queue_pairs() needs [SharedReceiveQueue];
                #[test] fn receives_are_used_in_the_order_they_were_posted() needs [];
                #[test] fn receiver_not_ready_stalls_then_delivers() needs [Patience];
                #[test] fn message_longer_than_receive() needs [];
                #[test] fn a_failed_receive_harms_no_other_connection() needs [SharedReceiveQueue];
                #[test] fn a_segment_is_kept_and_replaced() needs [];
                #[test] fn a_receive_queue_takes_no_more_than_it_holds() needs [];
                #[test] fn receives_count_when_they_are_flushed() needs [];
                #[test] fn a_receive_of_another_port_is_refused() needs [];
            }
            remote {
                #[test] fn rdma_read() needs [Windows, Reads];
                #[test] fn rdma_reads_up_to_the_depth() needs [Windows, Reads];
                #[test] fn rdma_write_before_send() needs [Windows];
                #[test] fn rdma_read_after_write() needs [Windows, Reads];
                #[test] fn rdma_write_from_a_gather_list() needs [Windows];
                #[test] fn read_after_invalidate_fails() needs [Windows, Reads];
                #[test] fn write_after_invalidate_fails() needs [Windows];
                #[test] fn read_out_of_range() needs [BoundedWindows, Reads];
                #[test] fn write_out_of_range() needs [BoundedWindows];
                #[test] fn read_without_access() needs [Windows, Reads];
                #[test] fn write_without_access() needs [Windows];
                #[test] fn wrong_key() needs [Windows, Reads];
                #[test] fn key_of_other_queue_pair() needs [PrivateWindows, Reads, SharedReceiveQueue];
                #[test] fn write_with_key_of_other_queue_pair() needs [PrivateWindows, SharedReceiveQueue];
                #[test] fn old_generation_key() needs [Windows, Reads];
                #[test] fn a_refused_access_harms_no_other_connection() needs [Windows, Reads, SharedReceiveQueue];
            }
            windows {
                #[test] fn send_with_invalidate() needs [Windows, SendWithInvalidate];
                #[test] fn invalidate_foreign_key_fails() needs [OwnedWindows, SendWithInvalidate, SharedReceiveQueue];
                #[test] fn invalidate_unknown_key_fails() needs [Windows, SendWithInvalidate];
                #[test] fn local_invalidate_once() needs [Windows];
                #[test] fn keys_are_not_predictable() needs [Windows];
                #[test] fn windows_run_out_and_come_back() needs [Windows];
                #[test] fn a_window_longer_than_its_buffer_is_refused() needs [Windows];
                #[test] fn a_view_is_exposed_to_be_read_alone() needs [Windows, Reads];
                #[test] fn windows_end_with_their_queue_pair() needs [Windows];
                #[test] fn a_window_of_another_port_is_refused() needs [Windows];
                #[test] fn an_ended_window_of_another_port_is_refused() needs [Windows, SendWithInvalidate];
            }
            ending {
                #[test] fn flush_on_disconnect() needs [Patience];
                #[test] fn flush_in_the_middle_of_a_transfer() needs [Windows];
                #[test] fn disconnect_completes_everything_once() needs [];
                #[test] fn peer_disconnect_seen() needs [Patience];
                #[test] fn peer_end_seen_without_receives() needs [Patience];
                #[test] fn a_probe_disturbs_no_peer_that_is_there() needs [];
                #[test] fn manager_disconnect_seen() needs [];
                #[test] fn post_after_error_refused() needs [];
                #[test] fn a_destroyed_queue_pair_is_unknown() needs [];
                #[test] fn late_message_of_an_old_connection_is_dropped() needs [Patience, SharedReceiveQueue];
                #[test] fn work_behind_a_failure_is_flushed() needs [Windows, Reads];
                #[test] fn an_ended_connection_harms_no_other() needs [SharedReceiveQueue];
                #[test] fn reads_are_flushed() needs [Windows, Reads];
            }
            connecting {
                #[test] fn private_data_both_ways() needs [];
                #[test] fn the_peer_is_named() needs [];
                #[test] fn reject_with_reason() needs [];
                #[test] fn connect_refused() needs [];
                #[test] fn a_malformed_address_is_refused() needs [];
                #[test] fn name_in_use() needs [];
                #[test] fn a_closed_listener_is_gone_and_its_connections_stay() needs [];
                #[test] fn many_connections() needs [SharedReceiveQueue];
                #[test] fn queue_pairs_are_used_again() needs [];
                #[test] fn queue_pairs_run_out() needs [SharedReceiveQueue];
                #[test] fn a_queue_pair_of_another_port_is_not_planted() needs [];
                #[test] fn a_send_before_established_arrives() needs [];
                #[test] fn a_waker_ends_a_wait() needs [];
            }
            bounds {
                #[test] fn poll_yields_at_most_eight() needs [];
                #[test] fn a_full_batch_loses_nothing() needs [];
                #[test] fn large_transfer_is_bounded_per_poll() needs [CopyBound];
                #[test] fn large_read_is_bounded_per_poll() needs [CopyBound, Windows, Reads];
                #[test] fn a_parked_core_is_woken() needs [];
            }
            faults {
                #[test] fn set_delay_is_one_way() needs [SetDelay];
                #[test] fn set_delay_is_paid_twice_by_a_read() needs [SetDelay, Windows, Reads];
                #[test] fn set_delay_keeps_the_order() needs [SetDelay];
                #[test] fn a_dropped_connection_ends_both_sides() needs [Faults, SharedReceiveQueue];
                #[test] fn a_work_request_fails_on_demand() needs [Faults];
                #[test] fn receiver_not_ready_on_demand() needs [Faults];
            }
        }
    };
}
