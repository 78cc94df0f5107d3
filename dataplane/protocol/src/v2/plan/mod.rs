//! Plans for messages with bulk data: pure functions of sizes, properties and limits, which move no data.
//!
//! [`layout`] says where each octet of a message goes in the Sends of a transmission group, so that bulk items arrive
//! in segments of the receiver that were made for them. [`policy`] chooses how a message and its items are sent.

pub mod layout;
pub mod policy;

pub use layout::{
    BulkItems, Layout, LayoutError, LayoutRequest, Piece, Placement, Placements, SendLimits,
    Transmission,
};
pub use policy::{
    CallFacts, CallForm, CallPlan, CallRefused, Demand, Direction, Directions, ExpectedResult,
    PlacedItems, ReplyFacts, ReplyForm, ReplyItems, ReplyOffer, ReplyPlan, RequesterOffer,
    ResultWay, SenderMeans, Thresholds, plan_call, plan_reply,
};
