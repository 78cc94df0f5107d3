//! What every fabric, and every form of receive queues, is held to.

mod alike;
mod both_ways;
pub(crate) mod calls;
mod credits;
mod hostile;
mod hostile_replies;
mod last_credit;
mod mixed;

#[test]
fn placement_skip_list_names_existing_tests() {
    crate::support::fabric::check_skipped();
}
