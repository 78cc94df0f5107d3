//! Plans for messages with bulk data: pure functions of sizes, properties and limits, which move nothing.
//!
//! [`layout`] says where each octet of a message goes in the Sends of a transmission group, so that bulk items land
//! in segments of the receiver that were made for them.

pub mod layout;

pub use layout::{
    BulkItems, Layout, LayoutError, LayoutRequest, Piece, Placement, Placements, SendLimits,
    Transmission,
};
