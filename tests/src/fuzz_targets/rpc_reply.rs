//! RPC reply headers against the reference.

use rpcrdma_protocol::rpc::{
    self, AcceptStatus, AuthStatus, Direction, RejectStatus, ReplyBody, ReplyHeader,
};

use super::{assert_refused, assert_within, encoded, reference};

pub(super) fn run(data: &[u8]) {
    let expected = reference_reply(data);
    match ReplyHeader::decode(data) {
        Ok((header, header_bytes)) => {
            assert_eq!(
                expected.expect("the reference refuses it"),
                plain(&header, header_bytes)
            );
            if let ReplyBody::Accepted { verifier, .. } = header.body {
                assert_within(verifier.body, data);
            }
            assert_eq!(rpc::peek(data), Ok((header.xid, Direction::Reply)));
            let again = encoded(|space| header.encode(space), header_bytes);
            assert_eq!(ReplyHeader::decode(&again), Ok((header, header_bytes)));
        }
        Err(error) => assert_refused(expected, error, data),
    }
}

/// XID, flavor and body of the verifier, the status words from reply_stat on, and the length of the header.
type Reply = (u32, Option<(u32, Vec<u8>)>, Vec<u32>, usize);

fn plain(header: &ReplyHeader<'_>, header_bytes: usize) -> Reply {
    let (verifier, status) = match header.body {
        ReplyBody::Accepted { verifier, status } => {
            let status = match status {
                AcceptStatus::Success => vec![0, 0],
                AcceptStatus::ProgUnavail => vec![0, 1],
                AcceptStatus::ProgMismatch { low, high } => vec![0, 2, low, high],
                AcceptStatus::ProcUnavail => vec![0, 3],
                AcceptStatus::GarbageArgs => vec![0, 4],
                AcceptStatus::SystemErr => vec![0, 5],
            };
            (Some((verifier.flavor, verifier.body.to_vec())), status)
        }
        ReplyBody::Denied(RejectStatus::RpcMismatch { low, high }) => (None, vec![1, 0, low, high]),
        ReplyBody::Denied(RejectStatus::AuthError(AuthStatus(status))) => {
            (None, vec![1, 1, status])
        }
    };
    (header.xid, verifier, status, header_bytes)
}

fn reference_reply(data: &[u8]) -> Option<Reply> {
    let mut at = 0;
    let take = |at: &mut usize| reference::take(data, at);
    let xid = take(&mut at)?;
    (take(&mut at)? == 1).then_some(())?;
    let accepted = match take(&mut at)? {
        0 => true,
        1 => false,
        _ => return None,
    };
    let mut verifier = None;
    if accepted {
        let flavor = take(&mut at)?;
        verifier = Some((flavor, reference::take_opaque(data, &mut at, 400)?));
    }
    let status = take(&mut at)?;
    let mut words = vec![u32::from(!accepted), status];
    let arguments = match (accepted, status) {
        (true, 2) | (false, 0) => 2,
        (true, 0..=5) => 0,
        (false, 1) => 1,
        _ => return None,
    };
    for _ in 0..arguments {
        words.push(take(&mut at)?);
    }
    Some((xid, verifier, words, at))
}
