//! Rings by which other threads reach a core.
