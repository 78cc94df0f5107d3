//! Checks of sizes.

use rpcrdma_fabric::interface::SetupError;

pub(crate) fn at_least(what: &'static str, asked: u64, least: u64) -> Result<(), SetupError> {
    if asked >= least {
        return Ok(());
    }
    Err(SetupError::System {
        doing: format!("{what}: {asked} asked for, at least {least} needed"),
        source: std::io::Error::from(std::io::ErrorKind::InvalidInput),
    })
}

pub(crate) fn at_most(what: &'static str, asked: u64, limit: u64) -> Result<(), SetupError> {
    if asked <= limit {
        return Ok(());
    }
    Err(SetupError::Limit { what, asked, limit })
}

/// The longest transport header of a call with chunks, bytes. With lists of a hundred segments it is shorter.
pub(crate) const HEADER_BYTES_MAX: usize = 4096;

/// Pieces that all items of one transmission group lie in at most.
pub(crate) const LANDINGS_MAX: usize = 256;

/// Directions of a call that are looked at.
pub(crate) const DIRECTIONS_MAX: usize = 256;
