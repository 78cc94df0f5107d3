//! The credential of the calls: AUTH_SYS (RFC 5531 appendix A).

use rpcrdma_protocol::constants::AUTH_SYS;
use rpcrdma_protocol::rpc::OpaqueAuth;
use rpcrdma_protocol::xdr::Writer;

use crate::wire::auth_sys::{AuthSys, Identity, MACHINE_NAME_BYTES_MAX};
use crate::wire::xdr::Encode;

/// The longest body of a credential (RFC 5531 section 8.2).
const BODY_BYTES_MAX: usize = 400;

/// An AUTH_SYS credential, encoded once.
#[derive(Clone, Debug)]
pub struct Credential {
    body: Vec<u8>,
}

impl Credential {
    /// The credential of a user and its group, on the machine with this name.
    pub fn new(uid: u32, gid: u32, machine_name: &str) -> Self {
        let name = machine_name.as_bytes();
        let body = AuthSys {
            stamp: std::process::id(),
            machine_name: name.get(..MACHINE_NAME_BYTES_MAX).unwrap_or(name),
            identity: Identity::new(uid, gid, &[]),
        };
        let mut space = vec![0; BODY_BYTES_MAX];
        let mut writer = Writer::new(&mut space);
        let written = body.encode(&mut writer);
        debug_assert!(written.is_ok(), "the longest name and no groups fit");
        let bytes = writer.position();
        space.truncate(bytes);
        Self { body: space }
    }

    /// The credential in the form for the header of a call.
    pub fn auth(&self) -> OpaqueAuth<'_> {
        OpaqueAuth {
            flavor: AUTH_SYS,
            body: &self.body,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_who_calls_even_from_a_machine_with_a_long_name() {
        for name in ["client", &"x".repeat(300)] {
            let credential = Credential::new(1000, 100, name);
            let identity = Identity::of(&credential.auth()).unwrap();
            assert_eq!((identity.uid, identity.gid), (1000, 100));
            assert!(credential.auth().body.len() <= BODY_BYTES_MAX);
        }
    }
}
