//! The round-trip-reduction extension of version 2 (draft-dnoveck-nfsv4-rpcrdma-rtrext-03, "RTR").
//!
//! [`buffer_structure`] tells how an endpoint's receive buffers are made, so that its peer can lay bulk data out to
//! land where it belongs.

pub mod buffer_structure;

pub use buffer_structure::{
    BufferSegment, LocatedSegment, NumberedSegment, ReceiveBufferStructure, SegmentGroup,
    StructureError,
};
