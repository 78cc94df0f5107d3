//! Hours of lost connections, in no time.

mod links;

use super::*;
use crate::error::Stage;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn steady() -> Reconnect {
    Reconnect {
        jitter_percent: 0,
        ..Reconnect::default()
    }
}

fn refused() -> ConnectError {
    ManagerError::Refused {
        address: "shm:a".to_owned(),
    }
    .into()
}

fn other_device() -> ConnectError {
    ManagerError::OtherDevice {
        address: "rdma:a:1".to_owned(),
        device: "rxe1".to_owned(),
        port_device: "rxe0".to_owned(),
    }
    .into()
}

fn unknown_name() -> ConnectError {
    ManagerError::BadAddress {
        address: "rdma:a:1".to_owned(),
        why: "the name server does not answer".to_owned(),
    }
    .into()
}

fn mismatch() -> ConnectError {
    ConnectError::VersionMismatch {
        address: "shm:a".to_owned(),
        low: 1,
        high: 1,
    }
}

/// Targets whose time goes by as it must.
struct World {
    targets: Targets,
    now: Instant,
    added: u64,
}

impl World {
    fn new(per_second_max: u32, seed: u64) -> Self {
        Self {
            targets: Targets::new(per_second_max, seed),
            // TIME: a beginning, to which the test itself adds what passes.
            now: Instant::now(),
            added: 0,
        }
    }

    fn add(&mut self, address: &str, reconnect: Reconnect) -> TargetId {
        self.add_all(&[address], reconnect)
    }

    fn add_all(&mut self, addresses: &[&str], reconnect: Reconnect) -> TargetId {
        self.added += 1;
        let id = TargetId(self.added);
        let versions = Versions::Two;
        let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
        let added = self
            .targets
            .add(id, &addresses, versions, reconnect, self.now);
        added.expect("its server said nothing");
        id
    }

    /// Goes on to the next attempt; how long that took.
    fn until_tried(&mut self, wanted: TargetId) -> Duration {
        let before = self.now;
        let due = self.targets.next_due().expect("something is due");
        assert!(
            due <= self.now || self.targets.poll(due - Duration::from_nanos(1)).is_none(),
            "not before it is due"
        );
        self.now = self.now.max(due);
        assert_eq!(self.targets.poll(self.now), Some(wanted));
        self.now - before
    }

    /// As [`World::until_tried`], and it is tried at this address.
    fn until_tried_at(&mut self, wanted: TargetId, address: &str) -> Duration {
        let waited = self.until_tried(wanted);
        assert_eq!(self.targets.address(wanted), Some(address));
        waited
    }

    fn fails(&mut self, id: TargetId) -> Step {
        self.targets.handle_failed(id, &refused(), self.now)
    }

    fn is_lost_after(&mut self, id: TargetId, lived: Duration) -> Step {
        self.targets.handle_established(id, self.now);
        self.now += lived;
        self.targets.handle_lost(id, CloseReason::Peer, self.now)
    }
}

#[test]
fn waits_grow_by_the_factor_up_to_the_most() {
    let mut world = World::new(1000, 0);
    let id = world.add("shm:a", steady());
    assert_eq!(world.until_tried(id), Duration::ZERO, "the first at once");
    for wait_ms in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 10_000] {
        let after = MS * wait_ms;
        assert_eq!(world.fails(id), Step::Retry { after });
        assert_eq!(world.until_tried(id), after);
    }
    // A connection that lives begins the waits anew.
    let after = 100 * MS;
    assert_eq!(
        world.is_lost_after(id, 3600 * SECOND),
        Step::Retry { after }
    );
    assert_eq!(world.until_tried(id), after);
    let after = 200 * MS;
    assert_eq!(world.fails(id), Step::Retry { after });
}

#[test]
fn a_peer_that_drops_what_it_accepts_is_tried_ever_later() {
    let mut world = World::new(1000, 0);
    let id = world.add("shm:a", steady());
    world.until_tried(id);
    for wait_ms in [100, 200, 400, 800] {
        let after = MS * wait_ms;
        assert_eq!(world.is_lost_after(id, MS), Step::Retry { after });
        world.until_tried(id);
    }
    // The last wait was 800 ms.
    let after = 1600 * MS;
    assert_eq!(world.is_lost_after(id, 799 * MS), Step::Retry { after });
    world.until_tried(id);
    let after = 100 * MS;
    assert_eq!(world.is_lost_after(id, 1600 * MS), Step::Retry { after });
}

#[test]
fn waits_vary_within_their_bounds_and_by_the_seed_alone() {
    let waits = |seed| {
        let mut world = World::new(1000, seed);
        let id = world.add("shm:a", Reconnect::default());
        let mut waits = Vec::new();
        for longest_ms in [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000] {
            world.until_tried(id);
            let Step::Retry { after } = world.fails(id) else {
                panic!("it may fail for ever");
            };
            let longest = MS * longest_ms;
            assert!(after <= longest && after >= longest / 2, "{after:?}");
            waits.push(after);
        }
        waits
    };
    assert_eq!(waits(1), waits(1));
    assert_ne!(waits(1), waits(2));
}

#[test]
fn wrong_numbers_are_taken_for_the_nearest_that_mean_something() {
    let mut world = World::new(1000, 0);
    let nonsense = Reconnect {
        first_ms: 0,
        most_ms: 0,
        factor: 0,
        jitter_percent: 1000,
        attempts_max: None,
    };
    let id = world.add("shm:a", nonsense);
    for _ in 0..100 {
        world.until_tried(id);
        let Step::Retry { after } = world.fails(id) else {
            panic!("it may fail for ever");
        };
        assert!(after <= MS, "{after:?}");
    }
    let huge = Reconnect {
        first_ms: u32::MAX,
        most_ms: u32::MAX,
        factor: u32::MAX,
        ..steady()
    };
    assert_eq!(huge.wait(u32::MAX), MS * u32::MAX);
}

/// A server with a thousand connections dies, and comes back after a minute. No second sees more
/// attempts than are allowed, all are connected in the end, and none was tried twice at a time.
#[test]
fn the_loss_of_a_thousand_connections_is_no_storm() {
    const PER_SECOND: usize = 50;
    let mut world = World::new(50, 7);
    let ids: Vec<_> = (0..1000)
        .map(|_| world.add("shm:a", Reconnect::default()))
        .collect();
    for &id in &ids {
        world.until_tried(id);
        world.targets.handle_established(id, world.now);
    }
    world.now += 600 * SECOND;
    for &id in &ids {
        let step = world.targets.handle_lost(id, CloseReason::Peer, world.now);
        assert!(matches!(step, Step::Retry { .. }));
    }
    let back = world.now + 60 * SECOND;
    let mut begun: Vec<Instant> = Vec::new();
    let mut connected = 0;
    while connected < ids.len() {
        let due = world.targets.next_due().expect("some are not connected");
        world.now = world.now.max(due);
        let id = world.targets.poll(world.now).expect("it is due");
        begun.push(world.now);
        if world.now < back {
            assert!(matches!(world.fails(id), Step::Retry { .. }));
        } else {
            world.targets.handle_established(id, world.now);
            connected += 1;
        }
    }
    for window in begun.windows(PER_SECOND + 1) {
        assert!(window[PER_SECOND] - window[0] >= SECOND, "a storm");
    }
    assert_eq!(world.targets.next_due(), None);
    // The longest wait, and the time that a thousand attempts take.
    assert!(world.now < back + 31 * SECOND, "{:?}", world.now - back);
}

/// Attempts that were under way together fail together, and are one failure of their peer.
#[test]
fn targets_of_one_peer_share_its_failures() {
    let mut world = World::new(1_000_000, 0);
    let ids = [(); 10].map(|()| world.add("shm:a", steady()));
    let other = world.add("shm:b", steady());
    for id in ids.into_iter().chain([other]) {
        world.until_tried(id);
    }
    for id in ids {
        world.now += MS;
        let after = 100 * MS;
        assert_eq!(world.fails(id), Step::Retry { after });
    }
    for id in ids {
        world.until_tried(id);
    }
    let after = 200 * MS;
    assert_eq!(world.fails(ids[0]), Step::Retry { after });
    let after = 100 * MS;
    assert_eq!(
        world.fails(other),
        Step::Retry { after },
        "a peer of its own"
    );
    // A new target of a peer that fails is tried at once, and then waits like the others.
    let new = world.add("shm:a", steady());
    world.now += 20 * MS;
    assert_eq!(world.until_tried(new), Duration::ZERO);
    let after = 400 * MS;
    assert_eq!(world.fails(new), Step::Retry { after });
}

#[test]
fn so_many_attempts_in_a_row_may_fail_and_no_more() {
    let mut world = World::new(1000, 0);
    let thrice = Reconnect {
        attempts_max: Some(3),
        ..steady()
    };
    let id = world.add("shm:a", thrice);
    for _ in 0..5 {
        for _ in 0..2 {
            world.until_tried(id);
            assert!(matches!(world.fails(id), Step::Retry { .. }));
        }
        world.until_tried(id);
        let lost = world.is_lost_after(id, 3600 * SECOND);
        assert!(
            matches!(lost, Step::Retry { .. }),
            "what succeeds ends the row"
        );
    }
    for _ in 0..2 {
        world.until_tried(id);
        assert!(matches!(world.fails(id), Step::Retry { .. }));
    }
    world.until_tried(id);
    assert_eq!(world.fails(id), Step::GiveUp);
    assert_eq!(world.targets.next_due(), None);
}

/// The server's address moves to another device for a while, or its name is not known, and comes back.
#[test]
fn an_address_that_cannot_be_used_ends_only_a_target_that_was_never_connected() {
    for error in [other_device(), unknown_name()] {
        let mut world = World::new(1000, 0);
        let id = world.add("rdma:a:1", steady());
        world.until_tried(id);
        world.is_lost_after(id, 3600 * SECOND);
        for _ in 0..20 {
            world.until_tried(id);
            let step = world.targets.handle_failed(id, &error, world.now);
            assert!(matches!(step, Step::Retry { .. }));
        }
        world.until_tried(id);
        world.is_lost_after(id, 3600 * SECOND);
        let wrong = world.add("rdma:b:1", steady());
        world.until_tried(wrong);
        let step = world.targets.handle_failed(wrong, &error, world.now);
        assert_eq!(step, Step::GiveUp);
    }
}

#[test]
fn target_gives_up_on_permanent_errors_and_retries_others() {
    let address = || "shm:a".to_owned();
    let rejected = |reason| ConnectError::Rejected {
        address: address(),
        reason,
    };
    let unauthenticated = |failure| ConnectError::Unauthenticated {
        address: address(),
        failure,
    };
    let (stage, after) = (Stage::Requesting, SECOND);
    #[rustfmt::skip]
    let errors = [
        (mismatch(), true),
        (rejected(RejectReason::NotPermitted), true),
        (rejected(RejectReason::VersionMismatch), true),
        (rejected(RejectReason::ConnectionsExhausted), false),
        (rejected(RejectReason::PeerLimit), false),
        (rejected(RejectReason::Draining), false),
        (rejected(RejectReason::Other(1)), false),
        (refused(), false),
        (other_device(), true),
        (ManagerError::DeviceRemoved { address: address() }.into(), false),
        (ManagerError::DeviceReplaced { address: address(), device: "rxe0".to_owned() }.into(), true),
        (unauthenticated(AuthenticationFailure::WrongProof), true),
        (unauthenticated(AuthenticationFailure::TimedOut), false),
        (ConnectError::ShuttingDown, true),
        (ConnectError::NoSuchCore { asked: 1, cores: 1 }, true),
        (ConnectError::NoRoom { limit: 1 }, false),
        (ConnectError::PeerGone { address: address(), stage }, false),
        (ConnectError::Timeout { address: address(), after, stage }, false),
    ];
    for (error, is_permanent) in errors {
        let mut world = World::new(1000, 0);
        let id = world.add("shm:a", steady());
        world.until_tried(id);
        let step = world.targets.handle_failed(id, &error, world.now);
        assert_eq!(step == Step::GiveUp, is_permanent, "{error}");
    }
    for (reason, is_final) in [
        (CloseReason::Local, true),
        (CloseReason::Stopped, true),
        (CloseReason::Peer, false),
        (CloseReason::PeerSilent { silent_ms: 1 }, false),
    ] {
        let mut world = World::new(1000, 0);
        let id = world.add("shm:a", steady());
        world.until_tried(id);
        world.targets.handle_established(id, world.now);
        let step = world.targets.handle_lost(id, reason, world.now);
        assert_eq!(step == Step::GiveUp, is_final, "{reason}");
    }
}

#[test]
fn a_server_of_another_version_is_not_asked_again_for_a_minute() {
    let mut world = World::new(1000, 0);
    let id = world.add("shm:a", steady());
    world.until_tried(id);
    let step = world.targets.handle_failed(id, &mismatch(), world.now);
    assert_eq!(step, Step::GiveUp);
    world.add("shm:b", steady());
    world.now += 60 * SECOND - MS;
    let mut add_again = |versions| {
        let (id, now) = (TargetId(99), world.now);
        let addresses = ["shm:a".to_owned()];
        world.targets.add(id, &addresses, versions, steady(), now)
    };
    add_again(Versions::Both).expect("they have version 1 in common");
    let error = add_again(Versions::Two).expect_err("it is remembered");
    assert!(
        matches!(
            error,
            ConnectError::VersionMismatch {
                low: 1,
                high: 1,
                ..
            }
        ),
        "{error}"
    );
    world.now += MS;
    world.add("shm:a", steady());
}

#[test]
fn a_server_that_was_asked_for_the_wrong_one_of_its_versions_is_asked_again() {
    let (low, high) = (2, 2);
    for (versions, is_asked_again) in [(Versions::Both, true), (Versions::One, false)] {
        let mut world = World::new(1000, 0);
        let connected = TargetId(1);
        let failed = TargetId(2);
        for id in [connected, failed] {
            let now = world.now;
            let addresses = ["shm:a".to_owned()];
            let added = world.targets.add(id, &addresses, versions, steady(), now);
            added.expect("its server said nothing");
            world.until_tried(id);
        }
        // Its first call is answered by ERR_VERS.
        world.targets.handle_established(connected, world.now);
        let reason = CloseReason::VersionMismatch { low, high };
        let lost = world.targets.handle_lost(connected, reason, world.now);
        let error = ConnectError::VersionMismatch {
            address: "shm:a".to_owned(),
            low,
            high,
        };
        for step in [lost, world.targets.handle_failed(failed, &error, world.now)] {
            let is_retried = matches!(step, Step::Retry { .. });
            assert_eq!(is_retried, is_asked_again, "{versions:?}");
        }
    }
}

#[test]
fn a_target_that_is_removed_is_not_tried_whatever_it_was_doing() {
    let mut world = World::new(1000, 0);
    let waiting = world.add("shm:a", steady());
    let trying = world.add("shm:a", steady());
    let connected = world.add("shm:a", steady());
    for id in [waiting, trying, connected] {
        world.until_tried(id);
    }
    assert!(matches!(world.fails(waiting), Step::Retry { .. }));
    world.targets.handle_established(connected, world.now);
    for id in [waiting, trying, connected] {
        world.targets.remove(id);
    }
    assert_eq!(world.targets.next_due(), None);
    assert_eq!(world.fails(trying), Step::GiveUp);
    let step = world
        .targets
        .handle_lost(connected, CloseReason::Peer, world.now);
    assert_eq!(step, Step::GiveUp);
    assert!(world.targets.peers.is_empty(), "nothing is left of them");
}

const NOW: Step = Step::Retry {
    after: Duration::ZERO,
};

#[test]
fn another_address_is_tried_immediately_and_each_has_its_own_wait() {
    let mut world = World::new(1_000_000, 0);
    let id = world.add_all(&["shm:a", "shm:b", "shm:c"], steady());
    let begin = world.now;
    for at_ms in [0, 100, 300, 700] {
        for (address, is_last) in [("shm:a", false), ("shm:b", false), ("shm:c", true)] {
            world.until_tried_at(id, address);
            let passed = world.now - begin;
            assert!(
                passed >= at_ms * MS && passed < (at_ms + 1) * MS,
                "{passed:?}"
            );
            let Step::Retry { after } = world.fails(id) else {
                panic!("it may fail for ever");
            };
            assert_eq!(after > MS, is_last, "{after:?}: all have failed");
        }
    }
}

#[test]
fn lost_connection_goes_on_by_the_next_address_and_stays_there() {
    let mut world = World::new(1_000_000, 0);
    let id = world.add_all(&["shm:a", "shm:b"], steady());
    world.until_tried_at(id, "shm:a");
    assert_eq!(world.is_lost_after(id, 3600 * SECOND), NOW);
    assert!(world.until_tried_at(id, "shm:b") < MS);
    // The first one works again, and the second is not given up for it.
    world.targets.handle_established(id, world.now);
    world.now += 3600 * SECOND;
    assert_eq!(world.targets.next_due(), None);
    assert_eq!(
        world.targets.handle_lost(id, CloseReason::Peer, world.now),
        NOW
    );
    assert!(world.until_tried_at(id, "shm:a") < MS);
}

/// The one by which a connection goes back: another address would be no way back, however long the first one is away.
#[test]
fn target_for_its_first_address_is_tried_nowhere_else_until_it_was_connected_there() {
    let mut world = World::new(1000, 0);
    let id = TargetId(1);
    let addresses = ["shm:a", "shm:b"].map(str::to_owned);
    let (versions, now) = (Versions::Both, world.now);
    let targets = &mut world.targets;
    targets.add_for_first(id, &addresses, versions, steady(), 2 * SECOND, now);
    assert_eq!(world.until_tried_at(id, "shm:a"), 2 * SECOND);
    let waits = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
    for wait_ms in waits {
        assert_eq!(
            world.fails(id),
            Step::Retry {
                after: wait_ms * MS
            }
        );
        assert_eq!(world.until_tried_at(id, "shm:a"), wait_ms * MS);
    }
    // As any other from now on.
    let after = Duration::ZERO;
    assert_eq!(world.is_lost_after(id, 60 * SECOND), Step::Retry { after });
    assert_eq!(world.until_tried_at(id, "shm:b"), after);
}

/// A time without end is a long one, the way back of many is no storm, and a server of another version is left alone.
#[test]
fn target_for_its_first_address_is_due_after_its_time_and_jitter() {
    let mut world = World::new(1000, 7);
    let addresses = ["shm:a", "shm:b"].map(str::to_owned);
    let mut due = |after: Duration| {
        let (id, now) = (TargetId(world.added), world.now);
        world.added += 1;
        let (targets, reconnect) = (&mut world.targets, Reconnect::default());
        targets.add_for_first(id, &addresses, Versions::Two, reconnect, after, now);
        let due = targets.next_due().unwrap() - now;
        targets.remove(id);
        due
    };
    assert!(due(Duration::MAX) > 300 * 24 * 60 * 60 * SECOND);
    let waits: Vec<_> = (0..100).map(|_| due(2 * SECOND)).collect();
    let (least, most) = (*waits.iter().min().unwrap(), *waits.iter().max().unwrap());
    assert!((2 * SECOND..2200 * MS).contains(&least), "{least:?}");
    assert!((2800 * MS..=3 * SECOND).contains(&most), "{most:?}");
    let id = world.add("shm:a", steady());
    world.until_tried(id);
    let of_version_1 = world.targets.handle_failed(id, &mismatch(), world.now);
    assert_eq!(of_version_1, Step::GiveUp);
    let (id, now) = (TargetId(500), world.now);
    let targets = &mut world.targets;
    targets.add_for_first(id, &addresses, Versions::Two, steady(), SECOND, now);
    assert_eq!(
        world.until_tried_at(id, "shm:a"),
        VERSION_MISMATCH_REMEMBERED
    );
}

/// Both accept, and drop what they have accepted: that is no reason to try without a wait.
#[test]
fn addresses_that_drop_what_they_accept_are_tried_ever_later() {
    let mut world = World::new(1_000_000, 0);
    let id = world.add_all(&["shm:a", "shm:b"], steady());
    let begin = world.now;
    let mut attempts = 0;
    while world.now < begin + 60 * SECOND {
        world.until_tried(id);
        attempts += 1;
        assert!(matches!(world.is_lost_after(id, MS), Step::Retry { .. }));
    }
    // One address would be tried eleven times: after 100, 200, ..., 6400, and then 10,000 ms.
    assert!((12..=26).contains(&attempts), "{attempts}");
}

#[test]
fn target_is_given_up_when_no_address_is_of_use() {
    let mut world = World::new(1_000_000, 0);
    let id = world.add_all(&["rdma:a:1", "rdma:b:1"], steady());
    for _ in 0..5 {
        world.until_tried_at(id, "rdma:a:1");
        assert!(matches!(world.fails(id), Step::Retry { .. }));
        // It is no use, and is tried all the same, with the longest wait.
        if world.targets.next_due() < Some(world.now + MS) {
            world.until_tried_at(id, "rdma:b:1");
            let step = world.targets.handle_failed(id, &other_device(), world.now);
            assert!(matches!(step, Step::Retry { .. }));
        }
    }
    world.until_tried_at(id, "rdma:a:1");
    let step = world.targets.handle_failed(id, &unknown_name(), world.now);
    assert_eq!(step, Step::GiveUp, "neither is of use");
    assert_eq!(world.targets.address(id), None);

    // What is wrong with this end is so at each address.
    let id = world.add_all(&["rdma:c:1", "rdma:d:1"], steady());
    world.until_tried(id);
    let error = ConnectError::ShuttingDown;
    let step = world.targets.handle_failed(id, &error, world.now);
    assert_eq!(step, Step::GiveUp);
}

#[test]
fn attempts_are_counted_at_each_address() {
    let mut world = World::new(1_000_000, 0);
    let twice = Reconnect {
        attempts_max: Some(2),
        ..steady()
    };
    let id = world.add_all(&["shm:a", "shm:b"], twice);
    for address in ["shm:a", "shm:b", "shm:a"] {
        world.until_tried_at(id, address);
        assert!(matches!(world.fails(id), Step::Retry { .. }));
    }
    world.until_tried_at(id, "shm:b");
    assert_eq!(world.fails(id), Step::GiveUp);
}

#[test]
fn address_of_another_version_is_left_alone_for_a_minute() {
    let mut world = World::new(1_000_000, 0);
    let id = world.add_all(&["shm:a", "shm:b"], Reconnect::default());
    world.until_tried_at(id, "shm:a");
    let step = world.targets.handle_failed(id, &mismatch(), world.now);
    assert_eq!(step, NOW);
    let begin = world.now;
    while world.now < begin + 50 * SECOND {
        world.until_tried_at(id, "shm:b");
        assert!(matches!(world.fails(id), Step::Retry { .. }));
    }
    // One that is added begins with the other one, too.
    let other = world.add_all(&["shm:a", "shm:b"], steady());
    assert_eq!(world.targets.address(other), Some("shm:b"));
}

/// What is known of a server's versions from another target, and what fails at this end, is no failure of an address.
#[test]
fn target_waits_for_its_own_failures_alone() {
    let mut world = World::new(1_000_000, 0);
    let [first, second] = [(); 2].map(|()| world.add("shm:a", steady()));
    let third = world.add("shm:a", steady());
    world.until_tried(first);
    let step = world.targets.handle_failed(first, &mismatch(), world.now);
    assert_eq!(step, Step::GiveUp);
    world.until_tried(second);
    let step = world
        .targets
        .handle_failed(second, &ConnectError::ShuttingDown, world.now);
    assert_eq!(step, Step::GiveUp);
    world.until_tried(third);
    let after = 100 * MS;
    assert_eq!(world.fails(third), Step::Retry { after });
    // It is of our version by now.
    world.until_tried(third);
    world.targets.handle_established(third, world.now);
    world.add("shm:a", steady());
}

proptest::proptest! {
    /// Attempts fail, or connections live for a while. No address is tried within its wait after it has failed, but once after a
    /// connection at another one that lived for longer than any wait; and one that has not failed is tried immediately.
    #[test]
    fn each_address_has_its_wait(
        count in 1_usize..5,
        outcomes in proptest::collection::vec((0_u32..4, 0_u64..20_000), 1..200),
    ) {
        let mut world = World::new(1_000_000, 0);
        let addresses: Vec<_> = (0..count).map(|it| format!("shm:{it}")).collect();
        let named: Vec<_> = addresses.iter().map(String::as_str).collect();
        let id = world.add_all(&named, steady());
        // Failures in a row of each, and when the last one was.
        let mut failed = vec![(0_u32, world.now); count];
        let mut is_due = vec![false; count];
        for (outcome, lived_ms) in outcomes {
            let asked = world.now;
            let waited = world.until_tried(id);
            let at = named.iter().position(|it| Some(*it) == world.targets.address(id)).unwrap();
            let (failures, last) = failed[at];
            let wait = match failures {
                0 => Duration::ZERO,
                more => steady().wait(more),
            };
            let is_early = world.now < last + wait;
            proptest::prop_assert!(!is_early || is_due[at], "{at} after {failures} failures");
            is_due[at] = false;
            if failed.iter().any(|(failures, _)| *failures == 0) {
                proptest::prop_assert!(waited < MS, "{:?}", world.now - asked);
            }
            let (step, lived) = if outcome == 0 {
                let lived = MS * u32::try_from(lived_ms).unwrap();
                (world.is_lost_after(id, lived), Some(lived))
            } else {
                (world.fails(id), None)
            };
            let is_retry = matches!(step, Step::Retry { .. });
            proptest::prop_assert!(is_retry);
            // One that lived for longer than the wait before it begins the row anew.
            let before = match failures {
                0 => steady().wait(0),
                more => steady().wait(more),
            };
            let has_lasted = lived.is_some_and(|lived| lived >= before);
            if let Some(lived) = lived {
                let is_long = lived >= steady().longest();
                is_due = (0..count).map(|other| is_long && other != at).collect();
            }
            let row = if has_lasted { 0 } else { failures };
            failed[at] = (row + 1, world.now);
        }
    }
}
