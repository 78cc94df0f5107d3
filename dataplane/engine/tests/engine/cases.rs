//! What every form of the engine is held to.

mod bulk;
mod bulk_hostile;
mod bulk_refused;
mod bulk_two_peers;
mod calls;
mod fairness;
mod guarded;
mod hostile;
mod keep_alive;
mod levels;
mod lifecycle;
mod receives;
mod reverse;
mod threads;
mod version_1;

/// What is skipped is told, and the list of it is of tests that there are.
#[test]
fn what_is_skipped_is_there() {
    use crate::support::fabric::{Fabric, skips};
    let program = std::env::current_exe().expect("a test program");
    let listed = std::process::Command::new(program).arg("--list").output();
    let listed = listed.expect("it names its tests").stdout;
    let listed = String::from_utf8(listed).expect("names");
    for (test, _) in crate::TestFabric::SKIPPED {
        let name = format!("::{test}: test");
        assert!(listed.lines().any(|line| line.ends_with(&name)), "{test}");
        assert!(skips(test), "it is told");
    }
}
