//! The cases, by what they are about.

pub(super) mod bounds;
pub(super) mod connecting;
pub(super) mod ending;
pub(super) mod faults;
pub(super) mod receiving;
pub(super) mod remote;
pub(super) mod sending;
pub(super) mod windows;
