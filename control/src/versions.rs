//! The version with which a connection begins, and a memory of servers with version 1 only (RFC 8166 section 7, -00
//! section 4.3.3).

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

pub use rpcrdma_protocol::connection::Versions;
use rpcrdma_protocol::constants::{RPCRDMA_VERSION_1, RPCRDMA_VERSION_2};

/// How long a server is assumed to speak version 1 only, after it said so, or after it did not answer the first message
/// of a connection. The time is limited because the server may be replaced or upgraded. An assumption from silence ends
/// sooner: when the server refuses version 1 with ERR_VERS, does not answer version 1 either, or takes no connection.
pub const VERSION_1_REMEMBERED: Duration = Duration::from_secs(60);

/// Servers remembered at most.
const SERVERS_MAX: usize = 1024;

/// Whether an end that may speak `permitted` and one that speaks versions `low` to `high` have a version in common.
pub(crate) fn have_common(permitted: Versions, low: u32, high: u32) -> bool {
    let (lowest, highest) = match permitted {
        Versions::One => (RPCRDMA_VERSION_1, RPCRDMA_VERSION_1),
        Versions::Two => (RPCRDMA_VERSION_2, RPCRDMA_VERSION_2),
        Versions::Both => (RPCRDMA_VERSION_1, RPCRDMA_VERSION_2),
    };
    low <= high && low <= highest && lowest <= high
}

/// The reason to assume that a server speaks version 1 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It said so, by ERR_VERS.
    Server,
    /// It did not answer version 2, or closed the connection instead. It may just have been slow, or have died.
    Silence,
}

/// The servers that are assumed to speak version 1 only.
///
/// One that has ever answered version 2 is not assumed so from silence: who can make it silent, or close its connections,
/// does not choose the version.
#[derive(Debug, Default)]
pub(crate) struct VersionMemory {
    until: HashMap<String, (Instant, Source)>,
    /// The addresses at which version 2 was answered.
    answered: HashSet<String>,
}

impl VersionMemory {
    /// The versions for a connection to `address`, if the application permits `permitted`.
    pub(crate) fn choose(&mut self, address: &str, permitted: Versions, now: Instant) -> Versions {
        self.until.retain(|_, (until, _)| *until > now);
        if permitted == Versions::Both && self.until.contains_key(address) {
            return Versions::One;
        }
        permitted
    }

    /// The server at `address` has answered version 2.
    pub(crate) fn note_version_2(&mut self, address: &str) {
        if self.answered.len() < SERVERS_MAX && !self.answered.contains(address) {
            self.answered.insert(address.to_owned());
        }
    }

    /// The server at `address` seems to speak version 1 only. False when silence says nothing of it: version 2 was answered
    /// there, or at so many addresses that not all of them are known.
    pub(crate) fn remember(&mut self, address: &str, source: Source, now: Instant) -> bool {
        let is_unknown = self.answered.len() < SERVERS_MAX && !self.answered.contains(address);
        if source == Source::Silence && !is_unknown {
            return false;
        }
        self.until.retain(|_, (until, _)| *until > now);
        // Without the bound, an application that connects to ever new addresses would grow this map.
        if self.until.len() < SERVERS_MAX {
            let known = (now + VERSION_1_REMEMBERED, source);
            self.until.insert(address.to_owned(), known);
        }
        true
    }

    /// The server at `address` does not speak version 1.
    pub(crate) fn forget(&mut self, address: &str) {
        self.until.remove(address);
    }

    /// No connection of version 1 could be made to the server at `address`, or it did not answer there either: its silence
    /// says nothing about its versions.
    pub(crate) fn doubt(&mut self, address: &str) {
        if matches!(self.until.get(address), Some((_, Source::Silence))) {
            self.until.remove(address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_version_1_is_remembered_for_a_minute() {
        let mut memory = VersionMemory::default();
        // TIME: a beginning, to which the test itself adds what passes.
        let begin = Instant::now();
        let choose = |memory: &mut VersionMemory, address, after_s| {
            memory.choose(
                address,
                Versions::Both,
                begin + Duration::from_secs(after_s),
            )
        };
        assert_eq!(choose(&mut memory, "shm:a", 0), Versions::Both);
        memory.remember("shm:a", Source::Server, begin);
        assert_eq!(choose(&mut memory, "shm:a", 59), Versions::One);
        assert_eq!(choose(&mut memory, "shm:b", 59), Versions::Both);
        assert_eq!(choose(&mut memory, "shm:a", 60), Versions::Both);
        memory.remember("shm:a", Source::Server, begin);
        memory.forget("shm:a");
        assert_eq!(choose(&mut memory, "shm:a", 1), Versions::Both);
    }

    #[test]
    fn version_inferred_from_silence_is_forgotten_when_doubted() {
        let mut memory = VersionMemory::default();
        // TIME: a beginning, to which the test itself adds what passes.
        let now = Instant::now();
        for (source, expected) in [
            (Source::Silence, Versions::Both),
            (Source::Server, Versions::One),
        ] {
            memory.remember("shm:a", source, now);
            let chosen = memory.choose("shm:a", Versions::Both, now);
            assert_eq!(chosen, Versions::One);
            memory.doubt("shm:a");
            assert_eq!(
                memory.choose("shm:a", Versions::Both, now),
                expected,
                "{source:?}"
            );
        }
    }

    #[test]
    fn nothing_is_inferred_from_the_silence_of_a_server_that_answered_version_2() {
        let mut memory = VersionMemory::default();
        // TIME: a beginning, to which the test itself adds what passes.
        let now = Instant::now();
        memory.note_version_2("shm:a");
        for (address, source, is_inferred) in [
            ("shm:a", Source::Silence, false),
            ("shm:b", Source::Silence, true),
            ("shm:a", Source::Server, true),
        ] {
            assert_eq!(memory.remember(address, source, now), is_inferred);
            let chosen = memory.choose(address, Versions::Both, now);
            let expected = [Versions::Both, Versions::One][usize::from(is_inferred)];
            assert_eq!(chosen, expected, "{address}, {source:?}");
        }
        // Nothing that was answered is forgotten: what is not known any more counts as answered.
        for number in 0..2 * SERVERS_MAX {
            memory.note_version_2(&format!("shm:{number}"));
        }
        assert_eq!(memory.answered.len(), SERVERS_MAX);
        assert!(!memory.remember("shm:c", Source::Silence, now));
    }

    #[test]
    fn ends_with_a_common_version_are_distinguished_from_others() {
        use Versions::{Both, One, Two};
        for (permitted, low, high, common) in [
            (One, 1, 1, true),
            (One, 1, 2, true),
            (One, 2, 2, false),
            (Two, 1, 1, false),
            (Two, 2, 2, true),
            (Two, 3, 5, false),
            (Both, 1, 1, true),
            (Both, 2, 3, true),
            (Both, 3, 3, false),
            (Both, 0, 0, false),
            (Both, 2, 1, false),
        ] {
            let told = have_common(permitted, low, high);
            assert_eq!(told, common, "{permitted:?}, {low} to {high}");
        }
    }

    #[test]
    fn requested_version_overrides_the_remembered_one() {
        let mut memory = VersionMemory::default();
        // TIME: a beginning, to which the test itself adds what passes.
        let now = Instant::now();
        memory.remember("shm:a", Source::Server, now);
        for asked in [Versions::One, Versions::Two] {
            assert_eq!(memory.choose("shm:a", asked, now), asked);
        }
    }

    #[test]
    fn no_more_than_so_many_servers_are_remembered() {
        let mut memory = VersionMemory::default();
        // TIME: a beginning, to which the test itself adds what passes.
        let now = Instant::now();
        for number in 0..2 * SERVERS_MAX {
            memory.remember(&format!("shm:{number}"), Source::Server, now);
        }
        assert_eq!(memory.until.len(), SERVERS_MAX);
    }
}
