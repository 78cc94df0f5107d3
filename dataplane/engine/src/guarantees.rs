//! What each connection of a core can always have of what the core shares, whatever the others take. The rest is
//! borrowed, first come, first served. `docs/security.md` has this table.

/// Send buffers: one for a message, and one for a grant or an error, which lets its peer go on.
pub(crate) const SEND_BUFFERS: u32 = 2;

/// Message buffers for each use.
pub(crate) const MESSAGE_BUFFERS_OF_A_USE: u32 = 1;

/// Message buffers for all uses.
pub(crate) const MESSAGE_BUFFERS: u32 = 4 * MESSAGE_BUFFERS_OF_A_USE;

/// Calls of its peer that its service answers later.
pub(crate) const DEFERRED_CALLS: u32 = 1;

/// Calls of ours to it that wait for their replies.
pub(crate) const OUTSTANDING_CALLS: u32 = 1;
