//! Mistakes in the limits and rights of clients, and in what a node knows of its buckets: the tests of these find them.

#[path = "../../../simulation/src/known.rs"]
mod known;

use known::{Simulator, must_find};

use super::{
    answers_keep_their_order_unless_agreed_otherwise, bucket_snapshots, closing, durable_answers,
    lost_rights, roles, strangers_are_answered_a_little_at_a_time, turns,
};
use crate::cluster::{adoption, apply, founding, noted, serving};
use crate::config::descriptors;
use crate::replication::{following, login};
use crate::{connection_memory, data_dir, http_connections, login_throttle, long_work, reaper};

/// They panic where they find something.
const TESTS: [fn(); 27] = [
    adoption::tests::numbers_of_a_bucket_do_not_go_back_with_an_older_state,
    apply::tests::what_fails_for_one_bucket_keeps_no_other_one_from_its_turn,
    noted::tests::a_bucket_that_the_node_has_had_is_known_by_its_identity,
    serving::tests::a_node_that_has_not_begun_to_join_its_cluster_decides_nothing,
    founding::tests::a_founder_is_known_until_it_has_noted_a_state,
    http_connections::tests::a_head_has_one_deadline_however_it_trickles,
    http_connections::tests::a_reader_that_takes_almost_nothing_is_given_up,
    reaper::tests::who_takes_nothing_of_what_is_sent_is_cut,
    reaper::tests::a_deadline_moves_with_what_is_done_and_not_beyond_its_length,
    descriptors::tests::all_shares_and_the_reserve_fit,
    connection_memory::tests::what_is_reserved_stays_within_the_limit,
    long_work::tests::a_job_that_comes_while_the_last_thread_leaves_is_done,
    closing::a_client_that_would_misread_a_late_answer_is_not_waited_for,
    login_throttle::tests::who_guesses_waits_and_others_do_not,
    strangers_are_answered_a_little_at_a_time,
    turns::short_requests_about_large_documents_end_a_turn,
    turns::what_takes_long_leaves_its_worker,
    data_dir::tests::files_that_a_node_makes_are_for_its_owner_alone,
    following::tests::a_link_takes_over_no_more_vbuckets_at_once_than_its_limit,
    login::tests::a_node_that_wants_the_password_as_it_is_does_not_get_it,
    roles::streams_need_the_privilege_in_all_that_they_are_about,
    roles::each_command_is_for_the_roles_of_the_table,
    bucket_snapshots::changes_wait_until_the_moment_is_taken,
    answers_keep_their_order_unless_agreed_otherwise,
    durable_answers::touch_and_return_meta_are_answered_behind_their_commit,
    lost_rights::a_session_ends_with_its_bucket,
    lost_rights::what_a_lost_role_allowed_is_refused_with_the_next_request,
];

/// Mistakes in the product that tests of this crate show (`base::planted`).
#[test]
fn mistakes_in_the_product_are_found() {
    must_find(Simulator::Node, |seed| {
        // Nothing in them depends on it.
        if seed == 0 {
            TESTS.iter().for_each(|test| test());
        }
        Ok(())
    });
}
