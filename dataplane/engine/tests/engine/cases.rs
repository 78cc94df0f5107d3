//! What every form of the engine is held to.

mod bulk;
mod bulk_hostile;
mod bulk_two_peers;
mod calls;
mod guarded;
mod hostile;
mod keep_alive;
mod lifecycle;
mod receives;
mod reverse;
mod threads;
