//! Checks the memory that connections are guaranteed against the memory that this process can have.

use rpcrdma_fabric::interface::SetupError;
use rpcrdma_fabric::memory::MemoryLimit;

use crate::config::CoreConfig;
use crate::ledger::MESSAGE_BUFFERS;

const MIB: u64 = 1 << 20;

impl CoreConfig {
    /// Bytes of the message buffers that connections are guaranteed. They take physical memory only when a peer's
    /// messages use them; but all peers together may do that.
    fn message_bytes_guaranteed(&self) -> u64 {
        let buffers = u64::from(self.connections_max) * u64::from(MESSAGE_BUFFERS);
        buffers.saturating_mul(self.message_bytes_max.into())
    }

    /// Checks that this process can have the most memory that `cores` cores of this configuration may use: that of the
    /// machine, or less in a control group. Without this check peers could use so much guaranteed memory that the
    /// system kills the process.
    ///
    /// # Errors
    /// [`SetupError::Guarantees`], with the sum and how to lower it.
    pub fn check_memory(&self, cores: usize) -> Result<(), SetupError> {
        // If the system does not report a limit, there is nothing to check against.
        MemoryLimit::find().map_or(Ok(()), |limit| self.fits(cores, &limit))
    }

    fn fits(&self, cores: usize, limit: &MemoryLimit) -> Result<(), SetupError> {
        let messages = self.message_bytes_guaranteed();
        let shared = u64::from(self.message_buffers) * u64::from(self.message_bytes_max);
        let registered = self.arena_bytes();
        let of_core = messages.saturating_add(shared).saturating_add(registered);
        let bytes = of_core.saturating_mul(u64::try_from(cores).unwrap_or(u64::MAX));
        if bytes <= limit.bytes {
            return Ok(());
        }
        let factor = match cores {
            1 => String::new(),
            _ => format!("{cores} cores × "),
        };
        let [messages, shared, registered] = [messages, shared, registered].map(mib);
        Err(SetupError::Guarantees {
            what: "memory for the messages of all connections",
            sum: format!(
                "{factor}({messages} MiB for {} connections (connections_max) × {MESSAGE_BUFFERS} messages × \
                 {} bytes (message_bytes_max) + {shared} MiB that they share + {registered} MiB registered)",
                self.connections_max, self.message_bytes_max
            ),
            needed: mib(bytes),
            available: limit.bytes / MIB,
            of: limit.of,
            remedy: "lower message_bytes_max or connections_max, or use fewer cores",
        })
    }
}

/// Bytes in MiB, rounded up.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(MIB)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: MemoryLimit = MemoryLimit {
        bytes: 24 << 30,
        of: "MiB of memory in this machine",
    };

    #[test]
    fn the_last_byte_of_what_is_guaranteed_must_be_there() {
        let config = CoreConfig {
            connections_max: 100,
            message_bytes_max: 1 << 20,
            message_buffers: 3,
            ..CoreConfig::default()
        };
        let bytes = (100 * 4 + 3) * (1 << 20) + config.arena_bytes();
        for cores in [1, 3] {
            let all = bytes * u64::try_from(cores).unwrap();
            let limit = |bytes| MemoryLimit { bytes, ..MACHINE };
            assert!(config.fits(cores, &limit(all)).is_ok());
            assert!(config.fits(cores, &limit(all - 1)).is_err());
        }
    }

    #[test]
    fn the_refusal_has_the_sum_and_the_knobs_that_lower_it() {
        let config = CoreConfig {
            connections_max: 20_000,
            ..CoreConfig::default()
        };
        let told = config.fits(1, &MACHINE).unwrap_err().to_string();
        let registered = config.arena_bytes().div_ceil(1 << 20);
        let expected = format!(
            "memory for the messages of all connections cannot be guaranteed: (80313 MiB for 20000 connections \
             (connections_max) × 4 messages × 1052672 bytes (message_bytes_max) + 33 MiB that they share + {registered} \
             MiB registered) = "
        );
        assert!(told.starts_with(&expected), "{told}");
        let end = "needed, and there are 24576 MiB of memory in this machine; lower message_bytes_max or connections_max, \
                   or use fewer cores";
        assert!(told.ends_with(end), "{told}");
        let told = config.fits(2, &MACHINE).unwrap_err().to_string();
        assert!(told.contains("guaranteed: 2 cores × (80313 MiB"), "{told}");
    }

    #[test]
    fn the_largest_sizes_do_not_overflow() {
        let config = CoreConfig {
            connections_max: u32::MAX,
            message_bytes_max: u32::MAX,
            ..CoreConfig::default()
        };
        assert!(config.fits(usize::MAX, &MACHINE).is_err());
    }
}
