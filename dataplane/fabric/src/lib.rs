//! The fabric.
