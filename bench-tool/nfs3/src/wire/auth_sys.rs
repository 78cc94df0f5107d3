//! AUTH_SYS: a caller states its user and groups (RFC 5531 appendix A).

use rpcrdma_protocol::EncodeError;
use rpcrdma_protocol::constants::{AUTH_NONE, AUTH_SYS};
use rpcrdma_protocol::rpc::{AuthStatus, OpaqueAuth};
use rpcrdma_protocol::xdr::{Reader, Writer};

use super::xdr::{Decode, Encode, Malformed};

/// The most groups after the first.
pub const GROUPS_MAX: usize = 16;

/// The longest name of a machine, in octets.
pub const MACHINE_NAME_BYTES_MAX: usize = 255;

/// The user and the group of callers without an identity.
pub const NOBODY: u32 = 65_534;

/// The user and the groups of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub uid: u32,
    /// The first group.
    pub gid: u32,
    groups: [u32; GROUPS_MAX],
    group_count: u8,
}

impl Identity {
    /// The superuser.
    pub const ROOT: Self = Self {
        uid: 0,
        gid: 0,
        groups: [0; GROUPS_MAX],
        group_count: 0,
    };

    /// A user with its groups; those above [`GROUPS_MAX`] are ignored.
    #[must_use]
    pub fn new(uid: u32, gid: u32, groups: &[u32]) -> Self {
        let mut identity = Self {
            uid,
            gid,
            groups: [0; GROUPS_MAX],
            group_count: 0,
        };
        for (slot, group) in identity.groups.iter_mut().zip(groups) {
            *slot = *group;
            identity.group_count += 1;
        }
        identity
    }

    /// Whether it is the superuser.
    #[must_use]
    pub const fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// The groups after the first.
    #[must_use]
    pub fn groups(&self) -> &[u32] {
        self.groups
            .get(..usize::from(self.group_count))
            .unwrap_or(&[])
    }

    /// Whether `gid` is one of its groups.
    #[must_use]
    pub fn is_of(&self, gid: u32) -> bool {
        self.gid == gid || self.groups().contains(&gid)
    }

    /// The identity in a credential; [`NOBODY`] for AUTH_NONE.
    ///
    /// # Errors
    /// AUTH_BADCRED for a body that cannot be decoded. AUTH_TOOWEAK for another flavor, which tells the
    /// client to use AUTH_SYS.
    pub fn of(credential: &OpaqueAuth<'_>) -> Result<Self, AuthStatus> {
        match credential.flavor {
            AUTH_NONE => Ok(Self::new(NOBODY, NOBODY, &[])),
            AUTH_SYS => super::xdr::decode_all::<AuthSys<'_>>(credential.body)
                .map(|body| body.identity)
                .ok_or(AuthStatus::BAD_CREDENTIAL),
            _ => Err(AuthStatus::TOO_WEAK),
        }
    }
}

/// The body of an AUTH_SYS credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthSys<'a> {
    /// An arbitrary number.
    pub stamp: u32,
    /// The name of the caller's machine.
    pub machine_name: &'a [u8],
    /// The caller.
    pub identity: Identity,
}

impl Encode for AuthSys<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        if self.machine_name.len() > MACHINE_NAME_BYTES_MAX {
            return Err(EncodeError::TooLong);
        }
        writer.write_u32(self.stamp)?;
        writer.write_opaque(self.machine_name)?;
        writer.write_u32(self.identity.uid)?;
        writer.write_u32(self.identity.gid)?;
        let groups = self.identity.groups();
        writer.write_count(groups.len())?;
        groups.iter().try_for_each(|group| writer.write_u32(*group))
    }
}

impl<'a> Decode<'a> for AuthSys<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let stamp = reader.read_u32()?;
        let machine_name = reader.read_opaque(MACHINE_NAME_BYTES_MAX)?;
        let (uid, gid) = (reader.read_u32()?, reader.read_u32()?);
        let count = reader.read_u32()?;
        if count > 16 {
            return Err(super::xdr::unknown_value(reader, count));
        }
        let mut groups = [0; GROUPS_MAX];
        let mut read = 0;
        for slot in groups.iter_mut().take(count as usize) {
            *slot = reader.read_u32()?;
            read += 1;
        }
        let identity = Identity::new(uid, gid, groups.get(..read).unwrap_or(&[]));
        Ok(Self {
            stamp,
            machine_name,
            identity,
        })
    }
}

const _: () = assert!(GROUPS_MAX == 16, "RFC 5531 appendix A");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_round_trips_and_says_who_calls() {
        let body = AuthSys {
            stamp: 7,
            machine_name: b"client",
            identity: Identity::new(1000, 100, &[4, 24]),
        };
        let mut space = [0; 400];
        let mut writer = Writer::new(&mut space);
        body.encode(&mut writer).unwrap();
        let bytes = writer.position();
        assert_eq!(bytes, 4 + 4 + 8 + 8 + 4 + 8);
        let credential = OpaqueAuth {
            flavor: AUTH_SYS,
            body: &space[..bytes],
        };
        let identity = Identity::of(&credential).unwrap();
        assert_eq!(identity, body.identity);
        assert!(identity.is_of(100) && identity.is_of(24) && !identity.is_of(1000));
        for end in 0..bytes {
            let credential = OpaqueAuth {
                flavor: AUTH_SYS,
                body: &space[..end],
            };
            assert_eq!(
                Identity::of(&credential),
                Err(AuthStatus::BAD_CREDENTIAL),
                "{end}"
            );
        }
    }

    #[test]
    fn seventeen_groups_are_too_many() {
        let mut body = vec![0; 16];
        body.extend_from_slice(&17_u32.to_be_bytes());
        body.extend_from_slice(&[0; 68]);
        let credential = OpaqueAuth {
            flavor: AUTH_SYS,
            body: &body,
        };
        assert_eq!(Identity::of(&credential), Err(AuthStatus::BAD_CREDENTIAL));
    }

    #[test]
    fn auth_none_is_nobody_and_another_flavor_is_too_weak() {
        assert_eq!(Identity::of(&OpaqueAuth::NONE).unwrap().uid, NOBODY);
        let other = OpaqueAuth {
            flavor: 6,
            body: &[],
        };
        assert_eq!(Identity::of(&other), Err(AuthStatus::TOO_WEAK));
    }
}
