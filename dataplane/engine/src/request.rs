//! A call of a peer, as the application gets it.

use rpcrdma_protocol::rpc::OpaqueAuth;

use crate::deferrals::Deferrals;
use crate::rpc::{ConnectionKey, DeferToken};

/// A call of a peer.
#[derive(Debug)]
pub struct Request<'a> {
    /// Its connection.
    pub connection: ConnectionKey,
    /// Whether it came in the reverse direction: from the server of the connection to its client
    /// (RFC 8167 section 2). An example is a call of a callback program, which a client offers only to its
    /// server.
    pub is_reverse: bool,
    /// Whether it came by version 1 of RPC-over-RDMA (RFC 8166). There a requester may send the round-up of an
    /// item with it ([`BulkArguments::is_of`](crate::BulkArguments::is_of)).
    pub is_version_1: bool,
    /// Its XID, which is meaningful only on this connection.
    pub xid: u32,
    /// RPC program (RFC 5531 section 9).
    pub program: u32,
    /// The index of the program among those of [`Application::programs`](crate::Application::programs); 0 if the
    /// application has no list of them.
    pub program_index: usize,
    /// Version of the program.
    pub version: u32,
    /// Procedure of the program.
    pub procedure: u32,
    /// The caller's credential. If RPCSEC_GSS protects arguments and results
    /// ([`OpaqueAuth::permits_reduction`]), all items of the reply stay in its stream.
    pub credential: OpaqueAuth<'a>,
    /// The caller's verifier, which the engine does not check. [`ReplyWriter::set_verifier`](crate::ReplyWriter::set_verifier)
    /// sets that of the reply.
    pub verifier: OpaqueAuth<'a>,
    /// The arguments: an XDR stream.
    pub args: &'a [u8],
    /// The whole message, if [`Request::signed`] needs it.
    pub(crate) message: &'a [u8],
    /// Makes the token for [`Request::defer`]; on demand, because few calls are deferred.
    pub(crate) deferrals: &'a Deferrals,
}

impl<'a> Request<'a> {
    /// The octets of the call from its XID to the end of its credential: what the verifier of a call with RPCSEC_GSS is computed
    /// over (RFC 2203 section 5.3.1). Empty if the verifier is AUTH_NONE and has no body.
    #[must_use]
    pub fn signed(&self) -> &'a [u8] {
        if self.verifier == OpaqueAuth::NONE {
            return &[];
        }
        let behind = self.verifier.encoded_bytes() + self.args.len();
        let signed_bytes = self.message.len().saturating_sub(behind);
        self.message.get(..signed_bytes).unwrap_or(&[])
    }

    /// The token with which this call is answered later, if [`Outcome::Deferred`](crate::Outcome::Deferred) is returned now.
    /// `None` when the core has no room for another deferred call.
    #[must_use]
    pub fn defer(&self) -> Option<DeferToken> {
        self.deferrals.next(self.connection.index).map(DeferToken)
    }
}
