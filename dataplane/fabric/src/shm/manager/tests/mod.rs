//! Tests of the connection manager: two managers in one thread, raw sockets that break the
//! protocol, and child processes that die.

mod channels;
mod children;
mod faults;
mod limits;
mod memory;
mod steps;
mod support;
mod wire;
