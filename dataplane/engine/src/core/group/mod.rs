//! Transmission groups (RTR): the common part of calls and replies whose bulk data is placed by the Sends that carry
//! them. [`arrival`], [`note`] and [`receive`] are for incoming groups; [`pieces`], [`laid_out`], [`encode`] and
//! [`send`] for outgoing ones.

mod arrival;
mod encode;
mod laid_out;
mod note;
mod pieces;
mod receive;
mod send;

pub(in crate::core) use arrival::{FirstHeader, GroupArrival};
pub(in crate::core) use encode::GroupItems;
pub(in crate::core) use laid_out::{Body, LaidOut, Shape};
pub(in crate::core) use note::TransmissionNote;
pub(crate) use pieces::{Group, GroupItem, Way};

pub(in crate::core) use send::{GroupSender, Sending};
