//! The results of a reply by the directions of its call (RTR section 7.4).

use rpcrdma_protocol::v2::plan::ReplyItems;
use rpcrdma_protocol::v2::plan::layout::BulkItems;
use rpcrdma_protocol::v2::rtr::{ResponseSets, StreamRange};

/// A direction of the call that is being served.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenDirection {
    range: StreamRange,
    minimum_bytes: u32,
    is_used: bool,
}

/// A result that a service gave, attached or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyResult {
    /// Where the part of the call is that asks for it.
    pub(crate) request_position: u32,
    /// Bytes of the stream of the reply before it.
    pub(crate) stream_offset: u32,
    pub(crate) bytes: u32,
    /// It is sent outside the stream.
    pub(crate) is_attached: bool,
}

/// The directions of a call, in order.
pub(crate) fn open_directions(sets: ResponseSets<'_>) -> impl Iterator<Item = OpenDirection> {
    sets.flat_map(|set| {
        set.items.map(move |item| OpenDirection {
            range: set.range,
            minimum_bytes: item.minimum_bytes,
            is_used: false,
        })
    })
}

/// Uses up the next direction whose range has this position of the call. Returns whether a result of `bytes` bytes
/// leaves the stream, by the rule that the plan of the reply follows: the two must not disagree.
pub(crate) fn use_direction(directions: &mut [OpenDirection], position: u32, bytes: u32) -> bool {
    let next = directions.iter_mut().find(|direction| {
        let range = direction.range.begin..direction.range.end;
        !direction.is_used && range.contains(&position)
    });
    next.is_some_and(|direction| {
        // Used up also when the result is too short for it: directions and results match in order.
        direction.is_used = true;
        bytes >= direction.minimum_bytes.max(1)
    })
}

/// The results in the form in which a reply is planned: one that stays in the stream counts as no bytes.
pub(crate) struct Results<'a>(pub(crate) &'a [ReplyResult]);

impl BulkItems for Results<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn length_bytes(&self, item: usize) -> u32 {
        self.0
            .get(item)
            .filter(|result| result.is_attached)
            .map_or(0, |result| result.bytes)
    }
}

impl ReplyItems for Results<'_> {
    fn request_position(&self, item: usize) -> u32 {
        self.0.get(item).map_or(0, |result| result.request_position)
    }
}
