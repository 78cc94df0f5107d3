//! Answers RPC calls of NFS and MOUNT, by either transport.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;

use rpcrdma::once::{Clients, Peer};
use rpcrdma_engine::Outcome;
use rpcrdma_protocol::rpc::{
    AcceptStatus, Program, Programs, ReplyBody, ReplyHeader, Verdict, judge,
};
use rpcrdma_protocol::xdr::padding_bytes;

use super::Service;
use super::call::{Call, Items, NoItems, Reply};
use super::mount::Mounts;
use super::tcp::Answers;
use crate::store::Pages;
use crate::wire::mount::MountProcedure;
use crate::wire::{self, Procedure, mount, record};

/// The longest header of an RPC reply, in octets.
const REPLY_HEADER_BYTES_MAX: usize = 64;

/// The index of NFS among the [`programs`].
const NFS_INDEX: usize = 0;

/// NFS and MOUNT, as every transport judges calls by them. Both take callers without an identity, and AUTH_SYS.
#[must_use]
pub fn programs() -> Programs {
    let numbers = |version, is_there: fn(u32) -> bool| {
        let numbers = (0..u32::from(u8::MAX)).filter(move |number| is_there(*number));
        numbers.map(move |number| (version, number))
    };
    let (nfs, mount) = (wire::VERSION, mount::VERSION);
    Programs::new([
        Program::new(wire::PROGRAM, [nfs..=nfs])
            .with_procedures(numbers(nfs, |it| Procedure::from_number(it).is_some())),
        Program::new(mount::PROGRAM, [mount..=mount]).with_procedures(numbers(mount, |it| {
            MountProcedure::from_number(it).is_some()
        })),
    ])
}

/// NFS and MOUNT.
#[derive(Debug)]
pub struct RpcService<P> {
    /// The service.
    pub(super) service: Service<P>,
    mounts: Mounts,
    /// The reply in hand.
    pub(super) reply: Reply,
    programs: Programs,
    /// Messages on TCP that were no calls.
    messages_ignored: u64,
}

impl<P: Pages> RpcService<P> {
    /// Answers with `service`.
    #[must_use]
    pub fn new(service: Service<P>) -> Self {
        Self {
            service,
            mounts: Mounts::default(),
            reply: Reply::new(),
            programs: programs(),
            messages_ignored: 0,
        }
    }

    /// Answers a call of the program with this index among the [`programs`]. The reply has results only with
    /// [`Outcome::Success`].
    pub fn call<I: Items>(&mut self, program: usize, call: &Call<'_>, items: &I) -> Outcome {
        if program == NFS_INDEX {
            self.service.call(call, items, &mut self.reply)
        } else if items.count() == 0 {
            self.mounts.call(call, &self.service, &mut self.reply)
        } else {
            // No argument of MOUNT may leave the stream.
            Outcome::GarbageArgs
        }
    }

    /// Messages on TCP that were no calls, and so had no answer.
    #[must_use]
    pub const fn messages_ignored(&self) -> u64 {
        self.messages_ignored
    }
}

impl<P: Pages> Answers for RpcService<P> {
    fn answer(&mut self, peer: IpAddr, message: &[u8], output: &mut Vec<u8>) -> io::Result<()> {
        let routed = match judge(message, &self.programs) {
            Verdict::Call(routed) => routed,
            Verdict::Null { xid } => {
                self.reply.clear();
                return self.append(&ReplyHeader::success(xid), output);
            }
            Verdict::Refuse(reply) => return self.append(&reply, output),
            Verdict::Ignore => {
                self.messages_ignored += 1;
                return Ok(());
            }
        };
        let header = routed.header;
        let call = Call {
            peer: Peer::Host(peer),
            session: None,
            xid: header.xid,
            procedure: header.procedure,
            credential: header.credential,
            args: message.get(routed.header_bytes..).unwrap_or(&[]),
        };
        let outcome = self.call(routed.program, &call, &NoItems);
        self.append(&outcome.reply_header(header.xid), output)
    }

    fn clients(&self) -> Option<&Clients<Infallible>> {
        Some(&self.service.clients)
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rpcrdma_protocol::constants::{AUTH_NONE, AUTH_SYS, RPC_CALL, RPC_REPLY, RPCSEC_GSS};
    use rpcrdma_protocol::rpc::{AuthStatus, RejectStatus};

    use super::*;
    use crate::server::EXPORT;
    use crate::store::{HeapPages, Limits};

    const XID: u32 = 7;
    const NFS: u32 = wire::PROGRAM;
    const MOUNT: u32 = mount::PROGRAM;
    /// A stamp, no name of a machine, user 1, group 1, no further groups.
    const SYS: [u32; 5] = [0, 0, 1, 1, 0];

    fn service() -> RpcService<HeapPages> {
        let pages = HeapPages::new(1 << 20, 4096);
        RpcService::new(Service::new(pages, Limits { files_max: 10 }, 4))
    }

    fn octets(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn call(named: [u32; 3], flavor: u32, body: &[u32], args: &[u8]) -> Vec<u8> {
        let [program, version, procedure] = named;
        let bytes = u32::try_from(4 * body.len()).unwrap();
        let head = [XID, RPC_CALL, 2, program, version, procedure, flavor, bytes];
        let head = octets(&[&head[..], body, &[AUTH_NONE, 0]].concat());
        [&head, args].concat()
    }

    /// The body of the reply on TCP; `None` without a reply.
    fn answer(rpc: &mut RpcService<HeapPages>, message: &[u8]) -> Option<ReplyBody<'static>> {
        let mut output = Vec::new();
        let peer = Ipv4Addr::LOCALHOST.into();
        rpc.answer(peer, message, &mut output).unwrap();
        let reply = output.get(record::HEADER_BYTES..)?;
        let (header, _) = ReplyHeader::decode(reply).unwrap();
        assert_eq!(header.xid, XID);
        Some(match header.body {
            ReplyBody::Accepted { status, .. } => ReplyHeader::accepted(XID, status).body,
            ReplyBody::Denied(status) => ReplyBody::Denied(status),
        })
    }

    fn accepted(status: AcceptStatus) -> Option<ReplyBody<'static>> {
        Some(ReplyHeader::accepted(XID, status).body)
    }

    fn auth_error(status: AuthStatus) -> Option<ReplyBody<'static>> {
        Some(ReplyBody::Denied(RejectStatus::AuthError(status)))
    }

    #[test]
    fn both_programs_refuse_the_same_credentials() {
        let rpc = &mut service();
        let path = [
            &octets(&[u32::try_from(EXPORT.len()).unwrap()]),
            EXPORT.as_bytes(),
            &[0][..],
        ];
        let path = path.concat();
        for (named, args) in [([NFS, 3, 1], &[][..]), ([MOUNT, 3, 1], &path)] {
            let denied = [
                (AUTH_SYS, &[][..], AuthStatus::BAD_CREDENTIAL),
                (AUTH_SYS, &SYS[..4], AuthStatus::BAD_CREDENTIAL),
                (RPCSEC_GSS, &[1, 0, 1, 1, 0], AuthStatus::TOO_WEAK),
                (99, &[], AuthStatus::TOO_WEAK),
            ];
            for (flavor, body, status) in denied {
                let message = call(named, flavor, body, args);
                assert_eq!(
                    answer(rpc, &message),
                    auth_error(status),
                    "{named:?} {flavor}"
                );
            }
            let message = call(named, AUTH_SYS, &SYS, args);
            let right = if args.is_empty() {
                AcceptStatus::GarbageArgs
            } else {
                AcceptStatus::Success
            };
            assert_eq!(answer(rpc, &message), accepted(right), "{named:?}");
        }
    }

    #[test]
    fn both_programs_answer_null_alike() {
        let rpc = &mut service();
        let garbage = accepted(AcceptStatus::GarbageArgs);
        for program in [NFS, MOUNT] {
            let null =
                |flavor, body: &[u32], args: &[u8]| call([program, 3, 0], flavor, body, args);
            let success = accepted(AcceptStatus::Success);
            assert_eq!(answer(rpc, &null(AUTH_NONE, &[], &[])), success);
            assert_eq!(answer(rpc, &null(AUTH_SYS, &SYS, &[])), success);
            assert_eq!(answer(rpc, &null(AUTH_NONE, &[], &[0; 4])), garbage);
            let init = null(RPCSEC_GSS, &[1, 1, 0, 1, 0], &[0; 4]);
            assert_eq!(answer(rpc, &init), auth_error(AuthStatus::TOO_WEAK));
        }
    }

    #[test]
    fn calls_of_others_are_refused() {
        let rpc = &mut service();
        let mismatch = AcceptStatus::ProgMismatch { low: 3, high: 3 };
        for (named, status) in [
            ([wire::ACL_PROGRAM, 3, 0], AcceptStatus::ProgUnavail),
            ([NFS, 4, 0], mismatch),
            ([MOUNT, 1, 0], mismatch),
            ([NFS, 3, 22], AcceptStatus::ProcUnavail),
            ([MOUNT, 3, 6], AcceptStatus::ProcUnavail),
        ] {
            let message = call(named, AUTH_NONE, &[], &[]);
            assert_eq!(answer(rpc, &message), accepted(status), "{named:?}");
        }
    }

    #[test]
    fn message_that_is_no_call_is_counted_and_the_next_call_is_answered() {
        let rpc = &mut service();
        let whole = call([NFS, 3, 0], AUTH_NONE, &[], &[]);
        let mut stray = whole.clone();
        stray[4..8].copy_from_slice(&RPC_REPLY.to_be_bytes());
        assert_eq!(answer(rpc, &stray), None);
        assert_eq!(answer(rpc, &whole[..7]), None);
        assert_eq!(rpc.messages_ignored(), 2);
        // Credential and verifier beyond the end.
        assert_eq!(
            answer(rpc, &whole[..28]),
            auth_error(AuthStatus::BAD_CREDENTIAL)
        );
        assert_eq!(
            answer(rpc, &whole[..36]),
            auth_error(AuthStatus::BAD_VERIFIER)
        );
        assert_eq!(answer(rpc, &whole), accepted(AcceptStatus::Success));
    }
}
