//! What every form of the engine is held to.

mod application;
mod bulk;
mod bulk_hostile;
mod bulk_long_results;
mod bulk_refused;
mod calls;
mod fairness;
mod guarded;
mod hostile;
mod keep_alive;
mod lending;
mod levels;
mod lifecycle;
mod obligations;
mod receives;
mod reverse;
mod threads;
mod version_1;

#[test]
fn engine_skip_list_names_existing_tests() {
    crate::support::fabric::check_skipped();
}
