//! What every fabric, and every form of receive queues, is held to.

mod alike;
pub(crate) mod calls;
mod credits;
mod hostile;
mod hostile_replies;
mod last_credit;
mod mixed;
