//! Calls and replies whose bulk data is placed by the Sends that carry them (RTR): calls of ours
//! ([`call`], [`end`]), those of peers ([`serve`], [`reply`]), what is common to sending them
//! ([`send`]) and to receiving them ([`receive`]).

mod call;
mod encode;
mod end;
mod laid_out;
mod memo;
mod plain;
mod receive;
mod reply;
mod resend;
mod send;
mod serve;

pub(in crate::core) use call::Items;
pub(in crate::core) use laid_out::LaidOutKinds;
pub(in crate::core) use memo::PlanMemo;
pub(in crate::core) use receive::TransmissionNote;

/// What a step of a call can do next, as in [`super::bulk`].
use super::bulk::Step;
