//! RPC call headers against the reference.

use rpcrdma_protocol::rpc::{self, CallHeader, Direction};

use super::{assert_refused, assert_within, encoded, reference};

pub(super) fn run(data: &[u8]) {
    let decoded = CallHeader::decode(data);
    let expected = reference_call(data);
    match decoded {
        Ok((header, header_bytes)) => {
            let (words, bodies, end) = expected.expect("the reference refuses it");
            let found = [
                header.xid,
                header.program,
                header.version,
                header.procedure,
                header.credential.flavor,
                header.verifier.flavor,
            ];
            assert_eq!((found, header_bytes), (words, end));
            assert_eq!([header.credential.body, header.verifier.body], bodies);
            assert_within(header.credential.body, data);
            assert_within(header.verifier.body, data);
            assert_eq!(rpc::peek(data), Ok((header.xid, Direction::Call)));
            assert_eq!(header.encoded_bytes(), header_bytes);
            // The padding may have held anything, so that the octets may differ; the header may not.
            let again = encoded(|space| header.encode(space), header_bytes);
            assert_eq!(CallHeader::decode(&again), Ok((header, header_bytes)));
        }
        Err(error) => assert_refused(expected, error, data),
    }
}

type Call = ([u32; 6], [Vec<u8>; 2], usize);

fn reference_call(data: &[u8]) -> Option<Call> {
    let mut at = 0;
    let xid = reference::take(data, &mut at)?;
    let (call, rpc_version) = (
        reference::take(data, &mut at)?,
        reference::take(data, &mut at)?,
    );
    (call == 0 && rpc_version == 2).then_some(())?;
    let program = reference::take(data, &mut at)?;
    let version = reference::take(data, &mut at)?;
    let procedure = reference::take(data, &mut at)?;
    let credential_flavor = reference::take(data, &mut at)?;
    let credential = reference::take_opaque(data, &mut at, 400)?;
    let verifier_flavor = reference::take(data, &mut at)?;
    let verifier = reference::take_opaque(data, &mut at, 400)?;
    let words = [
        xid,
        program,
        version,
        procedure,
        credential_flavor,
        verifier_flavor,
    ];
    Some((words, [credential, verifier], at))
}
