//! Which lost connections are re-established, and when.
//!
//! A *target* is a server to which a node stays connected, by one of its addresses at a time. [`Targets`] decides when the next
//! attempt at one is made: after a wait that grows with the failures in a row at its address, varied so that clients of one
//! server do not come back in step, and never more attempts in a second, over all targets, than were allowed. It performs no
//! I/O: time is an argument, and decisions are results.
//!
//! Each address has its own wait, so that one that has not failed is tried immediately when another one has. That is what the
//! second address is for. When a connection is lost that had lasted for longer than any wait, each other address is tried once without its
//! wait: it may work again since the last attempt there. A target is given up only when trying again cannot help at any of its addresses.
//!
//! The order of calls: [`Targets::add`]; then [`Targets::poll`] names a target that is due, and [`Targets::address`] the address
//! that is tried; report the outcome of its attempt with [`Targets::handle_established`] or [`Targets::handle_failed`], and the
//! end of an established connection with [`Targets::handle_lost`].

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use rpcrdma_engine::{AuthenticationFailure, CloseReason};
use rpcrdma_fabric::interface::{ManagerError, RejectReason};

use crate::error::ConnectError;
use crate::versions::{Versions, have_common};

/// How a connection is retried after it was lost, or could not be established.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnect {
    /// Milliseconds to wait after a loss, or after the first failure; at least 1.
    pub first_ms: u32,
    /// Milliseconds to wait at most.
    pub most_ms: u32,
    /// Each further failure multiplies the wait by this; at least 1.
    pub factor: u32,
    /// Each wait is shortened by a random part of up to this many percent.
    pub jitter_percent: u32,
    /// Attempts in a row that may fail; `None` is any number. Of several addresses of a server each has so many, and one whose
    /// attempts are used up is tried as long as another has some.
    pub attempts_max: Option<u32>,
}

impl Default for Reconnect {
    /// 50 to 100 ms, then doubled each time up to 10 s, without end.
    fn default() -> Self {
        Self {
            first_ms: 100,
            most_ms: 10_000,
            factor: 2,
            jitter_percent: 50,
            attempts_max: None,
        }
    }
}

impl Reconnect {
    /// The longest wait of all.
    fn longest(&self) -> Duration {
        Duration::from_millis(self.most_ms.max(self.first_ms).max(1).into())
    }

    /// The longest wait after so many failures in a row.
    fn wait(&self, failures: u32) -> Duration {
        let first_ms = u64::from(self.first_ms.max(1));
        let most_ms = u64::from(self.most_ms).max(first_ms);
        let factor = u64::from(self.factor.max(1));
        let growth = factor.saturating_pow(failures.saturating_sub(1));
        Duration::from_millis(first_ms.saturating_mul(growth).min(most_ms))
    }
}

/// Names a target of a node. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId(pub u64);

/// The next step for a target without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is tried again after this time, or a little later if many targets are due.
    Retry {
        /// From now.
        after: Duration,
    },
    /// It is given up and forgotten.
    GiveUp,
}

/// How long a peer that speaks no version of ours is not tried again. The time is limited because the peer may be
/// replaced.
pub const VERSION_MISMATCH_REMEMBERED: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Tried when this time comes.
    Waiting(Instant),
    /// An attempt is under way since then.
    Trying(Instant),
    /// Connected since then.
    Connected(Instant),
}

#[derive(Debug)]
struct Target {
    paths: Vec<Path>,
    /// The number of the one that is tried or connected, or is tried next.
    at: usize,
    /// No other than the first is tried, until it was connected there.
    is_for_first: bool,
    /// The versions that it may speak.
    versions: Versions,
    reconnect: Reconnect,
    state: State,
}

/// An address of a target.
#[derive(Debug)]
struct Path {
    address: String,
    /// Attempts that failed since the target was connected.
    failed: u32,
    /// It was connected before.
    was_connected: bool,
    /// A connection at another address was lost since it was tried: it is tried once without its wait. It may work again, and nobody
    /// knows how long a wait another one began there.
    is_due: bool,
    /// Trying again does not help, or its attempts are used up. It is tried again as long as there is another address where it may:
    /// what is wrong with this one may change meanwhile.
    is_hopeless: bool,
}

/// What the targets of one address share.
#[derive(Debug, Default)]
struct Peer {
    targets: u32,
    /// Failures in a row. Attempts that were under way together count as one.
    failures: u32,
    last_failure: Option<Instant>,
}

impl Peer {
    /// Something that began at `begin` has failed.
    fn fail(&mut self, begin: Instant, now: Instant) {
        if self.last_failure.is_none_or(|last| begin >= last) {
            self.failures = self.failures.saturating_add(1);
            self.last_failure = Some(now);
        }
    }
}

/// All targets of a node. See the module for the order of calls.
#[derive(Debug)]
pub struct Targets {
    targets: HashMap<TargetId, Target>,
    /// The targets that wait, by when they are due.
    due: BTreeSet<(Instant, TargetId)>,
    peers: HashMap<String, Peer>,
    /// Addresses of servers without a version in common: their lowest and highest version, and the end of this
    /// knowledge.
    mismatched: HashMap<String, (u32, u32, Instant)>,
    /// The time between the beginnings of two attempts.
    spacing: Duration,
    /// When the next attempt may begin.
    next_start: Option<Instant>,
    chance: Chance,
}

impl Targets {
    /// Without targets. At most `per_second_max` attempts begin in a second, over all of them; `seed` decides by how
    /// much waits vary.
    #[must_use]
    pub fn new(per_second_max: u32, seed: u64) -> Self {
        Self {
            targets: HashMap::new(),
            due: BTreeSet::new(),
            peers: HashMap::new(),
            mismatched: HashMap::new(),
            spacing: Duration::from_secs(1) / per_second_max.max(1),
            next_start: None,
            chance: Chance(seed),
        }
    }

    /// Adds a target that may speak `versions`, at these addresses. It is due immediately, at the first one.
    ///
    /// # Errors
    /// [`ConnectError::VersionMismatch`] when its server lately said at each address that it speaks none of these
    /// versions; it is not asked again for [`VERSION_MISMATCH_REMEMBERED`].
    pub fn add(
        &mut self,
        id: TargetId,
        addresses: &[String],
        versions: Versions,
        reconnect: Reconnect,
        now: Instant,
    ) -> Result<(), ConnectError> {
        let paths = self.paths_of(addresses, versions, now);
        let Some(at) = paths.iter().position(|path| !path.is_hopeless) else {
            let address = addresses.first().cloned().unwrap_or_default();
            let (low, high, _) = self.mismatch(&address, versions).unwrap_or((0, 0, now));
            return Err(ConnectError::VersionMismatch { address, low, high });
        };
        let state = State::Waiting(now);
        self.insert(
            id,
            Target {
                paths,
                at,
                is_for_first: false,
                versions,
                reconnect,
                state,
            },
        );
        Ok(())
    }

    /// Adds a target that is tried at the first of its addresses only, until it is connected there. It is due after this time, and up to
    /// `jitter_percent` of it later; and not while it is known of the server there that it speaks none of these versions.
    pub fn add_for_first(
        &mut self,
        id: TargetId,
        addresses: &[String],
        versions: Versions,
        reconnect: Reconnect,
        after: Duration,
        now: Instant,
    ) {
        let paths = self.paths_of(addresses, versions, now);
        // Longer than anybody waits, and no time overflows.
        let after = after.min(Duration::from_secs(365 * 24 * 60 * 60));
        let jitter = after * reconnect.jitter_percent.min(100) / 100;
        let due = now + after + self.chance.up_to(jitter);
        let first = paths.first();
        let refused = first.and_then(|path| self.mismatch(&path.address, versions));
        let due = refused.map_or(due, |(_, _, until)| due.max(until));
        self.insert(
            id,
            Target {
                paths,
                at: 0,
                is_for_first: true,
                versions,
                reconnect,
                state: State::Waiting(due),
            },
        );
    }

    fn paths_of(&mut self, addresses: &[String], versions: Versions, now: Instant) -> Vec<Path> {
        self.mismatched.retain(|_, (_, _, until)| *until > now);
        let path = |address: &String| Path {
            address: address.clone(),
            failed: 0,
            was_connected: false,
            is_due: false,
            is_hopeless: self.mismatch(address, versions).is_some(),
        };
        addresses.iter().map(path).collect()
    }

    fn insert(&mut self, id: TargetId, target: Target) {
        for path in &target.paths {
            self.peers.entry(path.address.clone()).or_default().targets += 1;
        }
        if let State::Waiting(due) = target.state {
            self.due.insert((due, id));
        }
        self.targets.insert(id, target);
    }

    /// What the server at an address lately said, if none of `versions` is among its own.
    fn mismatch(&self, address: &str, versions: Versions) -> Option<(u32, u32, Instant)> {
        let known = self.mismatched.get(address);
        known
            .filter(|(low, high, _)| !have_common(versions, *low, *high))
            .copied()
    }

    /// Removes a target in any state. Later reports about it are ignored.
    pub fn remove(&mut self, id: TargetId) {
        let Some(target) = self.targets.remove(&id) else {
            return;
        };
        if let State::Waiting(due) = target.state {
            self.due.remove(&(due, id));
        }
        for path in target.paths {
            if let Some(peer) = self.peers.get_mut(&path.address) {
                peer.targets -= 1;
                if peer.targets == 0 {
                    self.peers.remove(&path.address);
                }
            }
        }
    }

    /// The address at which a target is tried or connected, or is tried next.
    #[must_use]
    pub fn address(&self, id: TargetId) -> Option<&str> {
        let target = self.targets.get(&id)?;
        target.paths.get(target.at).map(|path| &*path.address)
    }

    /// All addresses of a target.
    pub fn addresses(&self, id: TargetId) -> impl Iterator<Item = &str> {
        let target = self.targets.get(&id);
        let paths = target.into_iter().flat_map(|target| &target.paths);
        paths.map(|path| &*path.address)
    }

    /// The next target that is due now.
    pub fn poll(&mut self, now: Instant) -> Option<TargetId> {
        if self.next_due()? > now {
            return None;
        }
        let (_, id) = self.due.pop_first()?;
        let target = self.targets.get_mut(&id)?;
        target.state = State::Trying(now);
        if let Some(path) = target.paths.get_mut(target.at) {
            path.is_due = false;
        }
        self.next_start = Some(now + self.spacing);
        Some(id)
    }

    /// The time at which [`Targets::poll`] next returns a target.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let (due, _) = self.due.first()?;
        Some(self.next_start.map_or(*due, |next| next.max(*due)))
    }

    /// The attempt has led to a connection.
    pub fn handle_established(&mut self, id: TargetId, now: Instant) {
        if let Some(target) = self.targets.get_mut(&id) {
            target.state = State::Connected(now);
            target.is_for_first = false;
            for (number, path) in target.paths.iter_mut().enumerate() {
                path.failed = 0;
                path.is_hopeless = false;
                if number == target.at {
                    path.was_connected = true;
                    // It is another server by now, or has another version.
                    self.mismatched.remove(&path.address);
                }
            }
        }
    }

    /// The attempt has failed.
    pub fn handle_failed(&mut self, id: TargetId, error: &ConnectError, now: Instant) -> Step {
        // Not a failure of the address: others that use it do not wait for it.
        if error.is_of_this_end() {
            self.remove(id);
        }
        let Some(target) = self.targets.get_mut(&id) else {
            return Step::GiveUp;
        };
        let State::Trying(begin) = target.state else {
            return Step::GiveUp;
        };
        let (versions, attempts_max) = (target.versions, target.reconnect.attempts_max);
        let Some(path) = target.paths.get_mut(target.at) else {
            return Step::GiveUp;
        };
        // An address that was reached through the device of the node once can be: its name, its route or its zone is another
        // only for a while. One that never was may be wrong.
        let mut is_permanent =
            error.is_permanent() && !(path.was_connected && error.is_of_the_address());
        if let ConnectError::VersionMismatch { low, high, .. } = *error {
            // The server may speak a permitted version that was not tried: then a retry can succeed.
            is_permanent = !have_common(versions, low, high);
            let until = now + VERSION_MISMATCH_REMEMBERED;
            self.mismatched
                .insert(path.address.clone(), (low, high, until));
        }
        path.failed = path.failed.saturating_add(1);
        let is_last = attempts_max.is_some_and(|most| path.failed >= most);
        path.is_hopeless = is_last || is_permanent;
        self.go_on(id, begin, now)
    }

    /// The connection has ended. A connection closed from this side is not retried.
    pub fn handle_lost(&mut self, id: TargetId, reason: CloseReason, now: Instant) -> Step {
        let Some(target) = self.targets.get_mut(&id) else {
            return Step::GiveUp;
        };
        let State::Connected(since) = target.state else {
            return Step::GiveUp;
        };
        let is_hopeless = match reason {
            CloseReason::Local | CloseReason::Stopped => {
                self.remove(id);
                return Step::GiveUp;
            }
            // The server may have been assumed to speak version 1 because it did not answer version 2.
            CloseReason::VersionMismatch { low, high } => !have_common(target.versions, low, high),
            CloseReason::Unauthenticated(failure) => is_refusal(failure),
            CloseReason::Peer
            | CloseReason::PeerSilent { .. }
            | CloseReason::PathDead { .. }
            | CloseReason::Replaced
            | CloseReason::PeerStalled { .. }
            | CloseReason::Protocol(_)
            | CloseReason::ErrorsUnread
            | CloseReason::CallUnanswered
            | CloseReason::PropertiesRefused(_)
            | CloseReason::PropertiesUnawaited
            | CloseReason::PropertiesChanged => false,
        };
        let Some(path) = target.paths.get_mut(target.at) else {
            return Step::GiveUp;
        };
        path.is_hopeless = is_hopeless;
        let lasted = now.duration_since(since);
        // A connection resets the failures only if it lasted longer than the wait before it. Otherwise a peer that
        // accepts and soon drops connections would be retried without growing waits.
        if let Some(peer) = self.peers.get_mut(&path.address)
            && lasted >= target.reconnect.wait(peer.failures)
        {
            *peer = Peer {
                targets: peer.targets,
                ..Peer::default()
            };
        }
        // As long as any wait is: so no address is tried more often than by its own waits.
        let has_lasted = lasted >= target.reconnect.longest();
        for (number, path) in target.paths.iter_mut().enumerate() {
            path.is_due = has_lasted && number != target.at;
        }
        self.go_on(id, since, now)
    }

    /// What began at `begin` has failed at the address of a target. Chooses the address that it is tried at next, and when: the one
    /// that may be tried first, and of several the next in their order.
    fn go_on(&mut self, id: TargetId, begin: Instant, now: Instant) -> Step {
        let Some(target) = self.targets.get(&id) else {
            return Step::GiveUp;
        };
        if !target.is_for_first && target.paths.iter().all(|path| path.is_hopeless) {
            self.remove(id);
            return Step::GiveUp;
        }
        let failed = target.paths.get(target.at);
        if let Some(peer) = failed.and_then(|path| self.peers.get_mut(&path.address)) {
            peer.fail(begin, now);
        }
        let count = target.paths.len();
        // Of a single address the versions were looked at when it failed.
        let refused_until = |path: &Path| match count {
            1 => None,
            _ => self.mismatch(&path.address, target.versions).map(|it| it.2),
        };
        // Of several that are due, one that has not failed comes first, since an attempt may take seconds. Then comes one that was not
        // tried since the loss of the connection.
        let due_of = |number: usize| {
            let path = &target.paths[number];
            let peer = self.peers.get(&path.address);
            let failures = peer.map_or(1, |peer| peer.failures);
            let is_untried = path.is_due && !path.is_hopeless;
            let (wait, rank) = match failures {
                0 => (Duration::ZERO, 0),
                _ if is_untried => (Duration::ZERO, 1),
                _ if path.is_hopeless => (target.reconnect.longest(), 2),
                failures => (target.reconnect.wait(failures), 2),
            };
            // The address that has failed waits from now on, also if others failed there before, whose failures count once.
            let from = match peer.and_then(|peer| peer.last_failure) {
                Some(last) if number != target.at => last,
                _ => now,
            };
            let due = (from + wait).max(now);
            let due = refused_until(path).map_or(due, |until| due.max(until));
            (due, rank)
        };
        let tried = if target.is_for_first { 1 } else { count };
        let in_order = (1..=tried).map(|step| (target.at + step) % tried);
        let Some((next, due)) = in_order
            .map(|number| (number, due_of(number)))
            .min_by_key(|(_, due)| *due)
            .map(|(number, (due, _))| (number, due))
        else {
            return Step::GiveUp;
        };
        let longest = due - now;
        let jitter = longest * target.reconnect.jitter_percent.min(100) / 100;
        let refused = target.paths.get(next).and_then(refused_until);
        let least = refused.map_or(Duration::ZERO, |until| until.saturating_duration_since(now));
        let after = (longest - self.chance.up_to(jitter)).max(least);
        if let Some(target) = self.targets.get_mut(&id) {
            target.at = next;
            target.state = State::Waiting(now + after);
            self.due.insert((now + after, id));
        }
        Step::Retry { after }
    }
}

impl ConnectError {
    /// Whether a retry is useless until the address, the permission, the keys, the version or the sizes of an end
    /// change. An address whose name is not known, or that is reached through another device than that of the node, is so for
    /// a first connection; a target that was connected before is tried again.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::VersionMismatch { .. }
            | Self::ReceiveBufferTooSmall { .. }
            | Self::NoSuchCore { .. }
            | Self::ShuttingDown
            | Self::Ended {
                reason: CloseReason::PropertiesRefused(_),
                ..
            } => true,
            Self::Unauthenticated { failure, .. } => is_refusal(*failure),
            Self::Rejected { reason, .. } => matches!(
                reason,
                RejectReason::VersionMismatch | RejectReason::NotPermitted
            ),
            Self::Fabric(error) => matches!(
                error,
                ManagerError::BadAddress { .. }
                    | ManagerError::OtherDevice { .. }
                    | ManagerError::DeviceReplaced { .. }
            ),
            Self::Timeout { .. }
            | Self::PeerGone { .. }
            | Self::Ended { .. }
            | Self::NoRoom { .. }
            | Self::Setup(_) => false,
        }
    }
}

impl ConnectError {
    /// Whether the address decided: its name or its zone is not known, or its route uses another device than the node.
    const fn is_of_the_address(&self) -> bool {
        matches!(
            self,
            Self::Fabric(ManagerError::BadAddress { .. } | ManagerError::OtherDevice { .. })
        )
    }

    /// Whether it is the same at any address: this end is the reason.
    const fn is_of_this_end(&self) -> bool {
        matches!(self, Self::NoSuchCore { .. } | Self::ShuttingDown)
    }

    /// Whether the peer only did not answer: it gave no reason, and nothing failed at this end.
    pub(crate) fn says_nothing(&self) -> bool {
        match self {
            Self::PeerGone { .. } | Self::Timeout { .. } => true,
            Self::Fabric(error) => matches!(error, ManagerError::Refused { .. }),
            _ => false,
        }
    }
}

/// Whether an end was refused for its identity, and not because an end was too slow or failed locally.
fn is_refusal(failure: AuthenticationFailure) -> bool {
    !matches!(
        failure,
        AuthenticationFailure::TimedOut | AuthenticationFailure::Local
    )
}

/// A generator of numbers that look random (SplitMix64): the same ones for the same seed.
#[derive(Debug)]
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A time from nothing to `most`.
    fn up_to(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        match most.checked_add(1) {
            Some(count) => Duration::from_nanos(self.next() % count),
            None => Duration::from_nanos(self.next()),
        }
    }
}

#[cfg(test)]
mod tests;
