//! Transmission groups: what calls and replies have in common whose bulk data is placed by the Sends that carry them
//! (RTR). [`arrival`] and [`receive`] are for groups that come in; [`pieces`], [`laid_out`], [`encode`] and [`send`] for
//! those that go out.

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
