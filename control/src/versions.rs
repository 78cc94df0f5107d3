//! Which version a connection begins with, and what is remembered of servers (RFC 8166 section 7, -00 section 4.3.3).

use std::collections::HashMap;
use std::time::{Duration, Instant};

pub use rpcrdma_protocol::connection::Versions;

/// How long a server is taken to speak version 1 alone after it said so, or after a connection to it was lost before
/// the first message was answered. It may be another one after that, or a newer one.
pub const VERSION_1_REMEMBERED: Duration = Duration::from_secs(60);

/// Servers remembered at most.
const SERVERS_MAX: usize = 1024;

/// The servers that speak version 1 alone, as far as is known.
#[derive(Debug, Default)]
pub(crate) struct VersionMemory {
    until: HashMap<String, Instant>,
}

impl VersionMemory {
    /// What a connection to `address` begins with, where the application permits `permitted`.
    pub(crate) fn choose(&mut self, address: &str, permitted: Versions, now: Instant) -> Versions {
        self.until.retain(|_, until| *until > now);
        if permitted == Versions::Both && self.until.contains_key(address) {
            return Versions::One;
        }
        permitted
    }

    /// The server at `address` speaks version 1, and as it seems no other.
    pub(crate) fn remember(&mut self, address: &str, now: Instant) {
        self.until.retain(|_, until| *until > now);
        if self.until.len() < SERVERS_MAX {
            self.until
                .insert(address.to_owned(), now + VERSION_1_REMEMBERED);
        }
    }

    /// The server at `address` does not speak version 1.
    pub(crate) fn forget(&mut self, address: &str) {
        self.until.remove(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_version_1_is_remembered_for_a_minute() {
        let mut memory = VersionMemory::default();
        let begin = Instant::now();
        let choose = |memory: &mut VersionMemory, address, after_s| {
            memory.choose(
                address,
                Versions::Both,
                begin + Duration::from_secs(after_s),
            )
        };
        assert_eq!(choose(&mut memory, "shm:a", 0), Versions::Both);
        memory.remember("shm:a", begin);
        assert_eq!(choose(&mut memory, "shm:a", 59), Versions::One);
        assert_eq!(choose(&mut memory, "shm:b", 59), Versions::Both);
        assert_eq!(choose(&mut memory, "shm:a", 60), Versions::Both);
        memory.remember("shm:a", begin);
        memory.forget("shm:a");
        assert_eq!(choose(&mut memory, "shm:a", 1), Versions::Both);
    }

    #[test]
    fn what_the_application_asks_for_stands() {
        let mut memory = VersionMemory::default();
        let now = Instant::now();
        memory.remember("shm:a", now);
        for asked in [Versions::One, Versions::Two] {
            assert_eq!(memory.choose("shm:a", asked, now), asked);
        }
    }

    #[test]
    fn no_more_than_so_many_servers_are_remembered() {
        let mut memory = VersionMemory::default();
        let now = Instant::now();
        for number in 0..2 * SERVERS_MAX {
            memory.remember(&format!("shm:{number}"), now);
        }
        assert_eq!(memory.until.len(), SERVERS_MAX);
    }
}
