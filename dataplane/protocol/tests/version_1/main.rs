//! The state of version 1 connections, and of connections whose version is found out: by single messages, and as a
//! pair of ends.

mod credits;
mod messages;
mod pair;
mod robustness;
mod versions;
mod wire;
