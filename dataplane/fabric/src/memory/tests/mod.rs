//! Tests of arenas, pools, leases and buffers.

mod arenas;
mod pools;
mod shared;
