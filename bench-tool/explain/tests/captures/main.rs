//! Captures that the tests make themselves: files of every kind, and what is made of the packets in them.
#![forbid(unsafe_code)]

mod build;
mod containers;
mod traffic;
