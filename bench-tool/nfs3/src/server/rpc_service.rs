//! Answers RPC calls of NFS and MOUNT that arrive as whole messages, as on TCP.

use std::io;
use std::net::IpAddr;

use rpcrdma_protocol::Reason;
use rpcrdma_protocol::constants::RPC_VERSION;
use rpcrdma_protocol::rpc::{AcceptStatus, CallHeader, RejectStatus, ReplyBody, ReplyHeader};
use rpcrdma_protocol::xdr::padding_bytes;

use super::Service;
use super::call::{Call, NoItems, Peer, Reply};
use super::mount::Mounts;
use super::tcp::Answers;
use crate::store::Pages;
use crate::wire::{mount, record};

/// The longest header of an RPC reply, in octets.
const REPLY_HEADER_BYTES_MAX: usize = 64;

/// Decodes RPC messages, and has NFS or MOUNT answer them.
#[derive(Debug)]
pub struct RpcService<P> {
    /// The service.
    pub(super) service: Service<P>,
    mounts: Mounts,
    /// The reply in hand.
    pub(super) reply: Reply,
}

impl<P: Pages> RpcService<P> {
    /// Answers with `service`.
    #[must_use]
    pub fn new(service: Service<P>) -> Self {
        Self {
            service,
            mounts: Mounts::default(),
            reply: Reply::new(),
        }
    }
}

impl<P: Pages> Answers for RpcService<P> {
    fn answer(&mut self, peer: IpAddr, message: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
        let (header, header_bytes) = match CallHeader::decode(message) {
            Ok(decoded) => decoded,
            Err(error) if error.reason == Reason::UnsupportedRpcVersion => {
                let denied = RejectStatus::RpcMismatch {
                    low: RPC_VERSION,
                    high: RPC_VERSION,
                };
                let reply = ReplyHeader {
                    xid: message
                        .first_chunk()
                        .map_or(0, |xid| u32::from_be_bytes(*xid)),
                    body: ReplyBody::Denied(denied),
                };
                return self.append(&reply, output);
            }
            Err(_) => return Err(io::ErrorKind::InvalidData.into()),
        };
        let call = Call {
            peer: Peer::Host(peer),
            xid: header.xid,
            program: header.program,
            version: header.version,
            procedure: header.procedure,
            credential: header.credential,
            args: message.get(header_bytes..).unwrap_or(&[]),
        };
        let outcome = if call.program == mount::PROGRAM {
            self.mounts.call(&call, &self.service, &mut self.reply)
        } else {
            self.service.call(&call, &NoItems, &mut self.reply)
        };
        self.append(&outcome.reply_header(header.xid), output)
    }
}

impl<P: Pages> RpcService<P> {
    /// Appends a reply. Only a reply of success has results.
    fn append(&self, header: &ReplyHeader<'_>, output: &mut Vec<u8>) -> io::Result<()> {
        let start = output.len();
        let mut space = [0; record::HEADER_BYTES + REPLY_HEADER_BYTES_MAX];
        let (_, header_space) = space.split_at_mut(record::HEADER_BYTES);
        let header_bytes = header.encode(header_space).map_err(io::Error::other)?;
        let all = record::HEADER_BYTES + header_bytes;
        output.extend_from_slice(space.get(..all).unwrap_or(&[]));
        let is_success = matches!(
            header.body,
            ReplyBody::Accepted {
                status: AcceptStatus::Success,
                ..
            }
        );
        if is_success {
            self.append_results(output);
        }
        let message_bytes = output.len() - start - record::HEADER_BYTES;
        let mark = record::header(message_bytes).ok_or(io::ErrorKind::InvalidData)?;
        if let Some(space) = output.get_mut(start..).and_then(<[u8]>::first_chunk_mut) {
            *space = mark;
        }
        Ok(())
    }

    fn append_results(&self, output: &mut Vec<u8>) {
        let stream = self.reply.stream();
        let Some(payload) = self.reply.payload() else {
            output.extend_from_slice(stream);
            return;
        };
        let (before, after) = stream
            .split_at_checked(payload.stream_offset)
            .unwrap_or((stream, &[]));
        output.extend_from_slice(before);
        for piece in self.service.payload(payload) {
            output.extend_from_slice(piece);
        }
        let padding = padding_bytes(payload.bytes as usize);
        output.extend_from_slice([0; 3].get(..padding).unwrap_or(&[]));
        output.extend_from_slice(after);
    }
}
