// A pool of two buffers in ordinary pages, for the examples in the documentation of registered memory.
// Each takes this file in by `include!`, as a module of its own.

use rpcrdma_fabric::interface::SetupError;
use rpcrdma_fabric::memory::{Arena, ArenaOptions, HugePages, Pool, PoolShape};

/// An arena, and all of it that is carved.
pub fn pool() -> Result<(Arena, Pool), SetupError> {
    let mut arena = Arena::shared(&ArenaOptions {
        bytes: 4096,
        huge_pages: HugePages::Never,
    })?;
    let pool = arena.pool(PoolShape {
        buffers: 2,
        buffer_bytes: 512,
        stride_bytes: 512,
        align_bytes: 64,
    })?;
    Ok((arena, pool))
}
