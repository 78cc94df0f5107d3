//! The reply to a call in a transmission group, as a group itself.

use rpcrdma_protocol::chunks::{Fill, Segment};
use rpcrdma_protocol::v2::connection::Connection as Protocol;
use rpcrdma_protocol::v2::connection::{Direction, SendRefused};
use rpcrdma_protocol::v2::rtr::TransmitResponse;

use super::call::{IncomingCall, Target};
use crate::bulk::Home;
use crate::connection::Connection;
use crate::core::group::{Body, Group, GroupItem, GroupItems, GroupSender, LaidOut, Shape};
use crate::core::step::Wait;
use crate::rpc::ConnectionKey;

impl GroupSender for IncomingCall {
    fn key(&self) -> ConnectionKey {
        self.connection
    }

    fn group(&mut self) -> (&mut Group, &[u8]) {
        (&mut self.group, self.reply.stream(&self.reply_space))
    }

    fn is_behind_others(&self, connection: &Connection) -> bool {
        connection.has_backlog_of_replies()
    }

    fn credits(&self, connection: &mut Connection) -> u32 {
        connection.protocol.credits_available()
    }

    fn begun(&mut self, _connection: &mut Connection) {
        self.wait.ends();
    }

    fn home(&self, part: u16) -> Home {
        let slot = self.index;
        Home::ReplyGroup { slot, part }
    }

    fn wait(&mut self) -> &mut Wait {
        &mut self.wait
    }

    fn heading(&self) -> (u32, Direction) {
        (self.xid, Direction::Reply)
    }

    #[inline(always)]
    fn body(&self, shape: Shape) -> Option<Body> {
        Some(Body {
            shape,
            displacement: self.group.items.first().map(|item| item.displacement),
            direction: None,
            minimum_bytes: 0,
            reply_transmissions_max: 0,
        })
    }

    fn encode_first(
        &self,
        protocol: &mut Protocol,
        out: &mut [u8],
        laid_out: &LaidOut,
    ) -> Result<usize, SendRefused> {
        let segments = |index: usize, item: GroupItem| {
            let offered = self
                .written_segments(Target::Chunk(index))
                .unwrap_or_default();
            Fill::new(offered, item.bytes).map(|filled| -> Segment { filled.target })
        };
        let response = TransmitResponse {
            items: GroupItems {
                group: &self.group,
                laid_out,
                segments,
            },
            transmissions: self.group.transmissions,
            stream_bytes: laid_out.stream_bytes,
        };
        protocol.encode_transmit_response(out, self.xid, &response, laid_out.behind_bytes)
    }
}
