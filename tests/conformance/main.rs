//! The device contract (`docs/device-contract.md`), the same cases for every provider.
//!
//! A case is a function over a [`Rig`](rig::Rig): three devices of one provider that hear each other.
//! [`conformance!`] makes the tests of one provider out of them. What a provider cannot show, a case says in
//! a line that begins with `skip:`.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod bench;
mod rig;

mod ah;
mod buffers;
mod counters;
mod events;
mod multicast;
mod qkey;
mod srq;
mod states;
mod teardown;

mod providers;
mod rules;

/// The tests of one provider: `conformance!(sim, SimBench)`.
macro_rules! conformance {
    ($(#[$attr:meta])* $provider:ident, $bench:ty) => {
        mod $provider {
            use super::*;

            conformance!(@topic [$(#[$attr])*] $bench, states: [
                a_new_queue_pair_is_in_reset,
                three_steps_lead_to_rts,
                steps_that_are_not_in_the_table_are_refused,
                incomplete_and_foreign_masks_are_refused,
                values_out_of_place_are_refused,
                a_key_can_change_in_rts_and_not_in_rtr,
                no_send_before_rts_and_none_of_it_later,
                nothing_arrives_before_rtr,
                err_ends_receiving_and_a_reset_brings_it_back,
                sqd_holds_sends_and_receives_on,
                a_failed_send_can_be_recovered_from,
                reset_and_err_flush_what_is_posted,
            ]);
            conformance!(@topic [$(#[$attr])*] $bench, buffers: [
                payloads_of_every_size_arrive_whole,
                sends_complete_in_order,
                a_full_send_queue_takes_no_more,
                a_refused_send_stays_at_the_front,
                poll_keeps_to_its_budget,
                every_buffer_is_as_large_as_the_device_says,
                an_oversize_send_is_refused,
                an_oversize_datagram_ends_its_receive,
            ]);
            conformance!(@topic [$(#[$attr])*] $bench, srq: [
                one_srq_serves_all_queue_pairs,
                receives_are_posted_from_the_end_as_many_as_fit,
                without_a_receive_a_datagram_is_dropped_for_good,
                the_limit_event_comes_once_each_time_it_is_armed,
            ]);
            conformance!(@topic [$(#[$attr])*] $bench, qkey: [
                a_datagram_with_another_key_is_dropped_and_counted,
                every_attached_queue_pair_counts_for_itself,
                a_privileged_key_takes_a_privilege,
                a_privileged_key_in_a_send_reaches_one_key_at_most,
            ]);
            conformance!(@topic [$(#[$attr])*] $bench, ah: [
                the_limit_is_kept_and_destroying_makes_room,
                a_handle_in_use_cannot_be_destroyed,
                the_other_address_family_is_refused,
                a_peer_that_is_not_there_harms_nobody,
                a_handle_that_is_gone_cannot_be_used,
            ]);
            conformance!(@topic [$(#[$attr])*] $bench, multicast: [
                members_hear_a_group_and_others_do_not,
                every_attached_queue_pair_takes_its_own_copy,
                joining_twice_is_joining_once,
                ones_own_multicast_comes_back_as_announced,
                addresses_that_are_no_groups_are_refused,
                after_leaving_nothing_arrives,
                an_attached_queue_pair_cannot_be_destroyed,
                membership_outlives_a_reset,
                receives_say_who_sent_them,
            ]);
            conformance!(@topic [$(#[$attr])*] $bench, events: [
                arm_says_again_while_there_is_something,
                what_arrives_after_arming_wakes_up,
                no_wake_up_is_missed_however_polls_fall,
            ]);
            conformance!(@topic [$(#[$attr])*] $bench, counters: [
                counters_begin_at_zero_and_count_what_happens,
                a_datagram_for_nobody_is_counted_and_takes_no_receive,
            ]);
            conformance!(@topic [$(#[$attr])*] $bench, teardown: [
                objects_can_be_made_and_destroyed_again_and_again,
                a_queue_pair_that_is_gone_is_unknown,
                buffers_outlive_their_device,
                a_device_that_is_gone_says_so_once_and_gives_sends_back,
            ]);
        }
    };
    (@topic $attrs:tt $bench:ty, $topic:ident: [$($case:ident,)*]) => {
        mod $topic {
            use super::*;

            $(conformance!(@case $attrs $bench, $topic $case);)*
        }
    };
    (@case [$(#[$attr:meta])*] $bench:ty, $topic:ident $case:ident) => {
        #[test]
        $(#[$attr])*
        fn $case() {
            crate::rig::run::<$bench>(crate::$topic::$case);
        }
    };
}
pub(crate) use conformance;
