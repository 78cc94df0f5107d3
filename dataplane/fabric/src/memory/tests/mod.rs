//! Tests of arenas, pools, leases and buffers.

mod arenas;
mod external;
mod pools;
mod shared;
