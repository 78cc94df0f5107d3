//! What makes a call the same when it comes again.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};

use rpcrdma_protocol::constants::RPCSEC_GSS;
use rpcrdma_protocol::rpc::OpaqueAuth;

use super::clients::Clients;
use super::window::Key;

/// How many bytes of bulk data the key covers at its begin, and how many at its end. No processor reads the rest of it, which is
/// why it is sent outside the stream.
const ENDS_BYTES: usize = 256;

/// Makes the [`Key`] of a call: of its XID, its procedure, its credential, and its arguments.
#[derive(Debug)]
pub struct KeyOf {
    key: Key,
    hasher: DefaultHasher,
}

impl<W> Clients<W> {
    /// The key of a call of this program, version and procedure, whose arguments have this stream. Bulk data is
    /// added then ([`KeyOf::add`]).
    ///
    /// A credential of RPCSEC_GSS counts without its number, which differs when the call is sent again (RFC 2203 section 5.3.3.1).
    #[must_use]
    pub fn key(
        &self,
        xid: u32,
        [program, version, procedure]: [u32; 3],
        credential: &OpaqueAuth<'_>,
        stream: &[u8],
    ) -> KeyOf {
        let mut hasher = self.hash.build_hasher();
        (xid, procedure, credential.flavor).hash(&mut hasher);
        let body = credential.body;
        if credential.flavor == RPCSEC_GSS {
            // Without the third word: version, procedure, number, service, context (RFC 2203 section 5.2.2).
            (body.get(..8), body.get(12..)).hash(&mut hasher);
        } else {
            body.hash(&mut hasher);
        }
        stream.hash(&mut hasher);
        let key = Key {
            xid,
            program,
            version,
            procedure,
            digest: 0,
        };
        KeyOf { key, hasher }
    }
}

impl KeyOf {
    /// Adds data that was sent outside the stream: behind so many bytes of the stream, of so many bytes in these pieces. Of the
    /// data the first and the last 256 bytes count.
    pub fn add<'a>(&mut self, at: usize, bytes: usize, pieces: impl Iterator<Item = &'a [u8]>) {
        (at, bytes).hash(&mut self.hasher);
        let behind = bytes.saturating_sub(ENDS_BYTES).max(ENDS_BYTES);
        let mut ends = [0; 2 * ENDS_BYTES];
        let mut from = 0;
        for piece in pieces {
            let first = ENDS_BYTES.saturating_sub(from).min(piece.len());
            if first > 0 {
                ends[from..from + first].copy_from_slice(&piece[..first]);
            }
            let skipped = behind.saturating_sub(from).min(piece.len());
            let last = piece.get(skipped..).unwrap_or(&[]);
            let place = ENDS_BYTES + (from + skipped).saturating_sub(behind);
            if let Some(space) = ends.get_mut(place..place + last.len()) {
                space.copy_from_slice(last);
            }
            from += piece.len();
        }
        self.hasher.write(&ends);
    }

    /// The key of the call.
    #[must_use]
    pub fn finish(self) -> Key {
        Key {
            digest: self.hasher.finish(),
            ..self.key
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const STREAM: [u8; 1000] = [7; 1000];
    const DATA: [u8; 2000] = [8; 2000];

    fn changed<const N: usize>(bytes: &[u8; N], at: usize) -> Vec<u8> {
        let mut changed = bytes.to_vec();
        changed[at] ^= 1;
        changed
    }

    #[test]
    fn key_covers_credential_and_stream_whole_and_the_ends_of_data() {
        let clients = Clients::<Infallible>::new(1);
        let auth = |flavor, body| OpaqueAuth { flavor, body };
        let key_of = |credential: OpaqueAuth<'_>, stream: &[u8], at, pieces: &[&[u8]]| {
            let mut key = clients.key(1, [2, 3, 4], &credential, stream);
            let bytes = pieces.iter().map(|piece| piece.len()).sum();
            key.add(at, bytes, pieces.iter().copied());
            key.finish()
        };
        let sys = auth(1, b"user");
        let key = key_of(sys, &STREAM, 4, &[&DATA]);
        let parts = key_of(
            sys,
            &STREAM,
            4,
            &[&DATA[..3], &[], &DATA[3..1900], &DATA[1900..]],
        );
        assert_eq!(key, parts, "in any pieces");
        let others = [
            key_of(auth(1, b"users"), &STREAM, 4, &[&DATA]),
            key_of(auth(1, b"uses"), &STREAM, 4, &[&DATA]),
            key_of(auth(0, b"user"), &STREAM, 4, &[&DATA]),
            key_of(sys, &STREAM[1..], 4, &[&DATA]),
            key_of(sys, &STREAM, 8, &[&DATA]),
            key_of(sys, &STREAM, 4, &[&DATA[1..]]),
        ];
        let of_stream = (0..STREAM.len()).map(|at| key_of(sys, &changed(&STREAM, at), 4, &[&DATA]));
        assert!(
            others
                .into_iter()
                .chain(of_stream)
                .all(|other| other != key)
        );
        for at in 0..DATA.len() {
            let changed = changed(&DATA, at);
            for piece in [1, 77, 2000] {
                let pieces: Vec<&[u8]> = changed.chunks(piece).collect();
                let other = key_of(sys, &STREAM, 4, &pieces);
                assert_eq!(other == key, (256..1744).contains(&at), "{at}");
            }
        }
        // Of short data all counts.
        let short = key_of(sys, &STREAM, 4, &[&DATA[..300]]);
        for at in 0..300 {
            assert_ne!(
                key_of(sys, &STREAM, 4, &[&changed(&DATA, at)[..300]]),
                short
            );
        }
        let gss = |body: &'static [u8]| key_of(auth(RPCSEC_GSS, body), &STREAM, 4, &[&DATA]);
        assert_eq!(gss(b"versproc1111context"), gss(b"versproc2222context"));
        for other in [&b"versproc1111others."[..], b"versprok1111context", b""] {
            assert_ne!(gss(other), gss(b"versproc1111context"));
        }
    }
}
