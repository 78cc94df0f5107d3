//! Tests of the connection manager with two managers in one thread, with raw sockets that break the protocol, and with
//! child processes that die.

mod channels;
mod children;
mod faults;
mod limits;
mod memory;
mod steps;
mod support;
mod wire;
