//! Help for the tests of other crates, which may not contain `unsafe` code themselves.

mod counting_allocator;

pub use counting_allocator::CountingAllocator;
