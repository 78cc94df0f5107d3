//! The round-trip-reduction extension of version 2 (draft-dnoveck-nfsv4-rpcrdma-rtrext-03, "RTR").
//!
//! | module | content | RTR section |
//! |---|---|---|
//! | [`support`] | which messages of the extension an endpoint speaks | 8.2 |
//! | [`buffer_structure`] | the structure of an endpoint's receive buffers, by which its peer places bulk data | 7.2, 8.3 |
//! | [`items`] | the bulk data that was taken out of a message, and where it is | 7.3 |
//! | [`counted`] | lists of a count and entries: those of items, and of directions | 7.3, 7.4 |
//! | [`item_checks`] | a receiver's checks on items, and where their pieces are | 6.2, 7.3 |
//! | [`stream`] | the message as it would be had nothing been taken out of it | 6.2 |
//! | [`directions`] | where a request wants the bulk data of its response | 7.4 |
//! | [`tables`] | the placement types, and where each is allowed | 6.2, 7.4 |
//! | [`lists`] | where the lists are in a header that was decoded and kept | 9.2, 9.3 |
//! | [`memory`] | a responder's checks on memory for explicit RDMA | 7.3, 7.4 |
//! | [`messages`] | Transmit Request, Transmit Response, Transmit Continue | 9.2 to 9.4 |
//! | [`report`] | Report Error | 9.5 |
//!
//! The numbers, and every choice that the draft leaves open, are in `docs/extension/README.md`.

pub mod buffer_structure;
pub mod counted;
pub mod directions;
pub mod item_checks;
pub mod items;
pub mod lists;
pub mod memory;
pub mod messages;
pub mod report;
pub mod stream;
pub mod support;
pub mod tables;

pub use buffer_structure::{
    BufferSegment, LocatedSegment, LocatedSegments, NumberedSegment, ReceiveBufferStructure,
    SegmentGroup, StructureError,
};
pub use counted::CountedList;
pub use directions::{
    EncodeResponseSets, ResponseItem, ResponseItemRepr, ResponseItemView, ResponseItems,
    ResponseLocation, ResponseSet, ResponseSetRepr, ResponseSetView, ResponseSets, StreamRange,
    write_response_sets,
};
pub use item_checks::{Arrival, PlacedPiece, placed_pieces};
pub use items::{
    EncodeItems, Location, MessageItem, MessageItemRepr, MessageItemView, MessageItems,
    MessageKind, SegmentNumbers, write_items,
};
pub use lists::TransmitLists;
pub use memory::check_explicit_memory;
pub use messages::{
    TransmitContinue, TransmitRequest, TransmitRequestView, TransmitResponse, TransmitResponseView,
};
pub use report::{Mismatch, OutOfRange, Problem, ReportError, TransmissionId};
pub use stream::{
    ItemExtent, StreamPiece, StreamPieces, StreamPlace, VirtualStream, displacements, excised,
    rounded_up,
};
pub use support::RtrSupport;
pub use tables::{Answer, Context, PlacementType, Validity};
