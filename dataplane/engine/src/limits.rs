//! Limits of the engine, and the check of sizes against bounds.

use std::ops::{Bound, RangeBounds};

use rpcrdma_fabric::interface::SetupError;

/// Checks a size against the bounds of `range`, which include them.
pub(crate) fn within<T: Copy + PartialOrd + Into<u64>>(
    what: &'static str,
    asked: T,
    range: impl RangeBounds<T>,
) -> Result<(), SetupError> {
    match (range.start_bound(), range.end_bound()) {
        (Bound::Included(&least), _) if asked < least => {
            let (asked, least) = (asked.into(), least.into());
            Err(SetupError::System {
                doing: format!("{what}: {asked} asked for, at least {least} needed"),
                source: std::io::ErrorKind::InvalidInput.into(),
            })
        }
        (_, Bound::Included(&limit)) if asked > limit => Err(SetupError::Limit {
            what,
            asked: asked.into(),
            limit: limit.into(),
        }),
        _ => Ok(()),
    }
}

/// The longest transport header of a call with chunks, in bytes. A header with a hundred segments is shorter.
pub(crate) const HEADER_BYTES_MAX: usize = 4096;

/// The most pieces of all items of one transmission group.
pub(crate) const LANDINGS_MAX: usize = 256;

/// The most directions of a call that are used.
pub(crate) const DIRECTIONS_MAX: usize = 256;

/// The alignment of pools, in bytes.
pub(crate) const PAGE_BYTES: u32 = 4096;
