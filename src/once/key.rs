//! What makes a call the same when it comes again.

use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};

use rpcrdma_engine::StreamPiece;
use rpcrdma_protocol::constants::RPCSEC_GSS;
use rpcrdma_protocol::rpc::OpaqueAuth;

use super::clients::Clients;
use super::window::Key;

/// How many bytes of bulk data the key covers at its begin and at its end, together. No processor reads the rest of it, which is
/// why it is sent outside the stream.
const DATA_BYTES: usize = 512;

/// The same of arguments with their bulk data in its place.
const ARGUMENTS_BYTES: usize = 2048;

/// Makes the [`Key`] of a call: of its XID, its procedure, its credential, and its arguments.
#[derive(Debug)]
pub struct KeyOf {
    key: Key,
    hasher: DefaultHasher,
}

impl<W> Clients<W> {
    /// The key of a call of this program, version and procedure, whose arguments have this stream. Bulk data is
    /// added then ([`KeyOf::add`]). The caller decides what is data, by the procedure: when a call comes again, its data may be outside
    /// the stream that was in it the first time.
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
        let mut ends = Ends::<DATA_BYTES>::of(bytes);
        pieces.for_each(|piece| ends.push(piece));
        self.hasher.write(ends.used());
    }

    /// Adds arguments of any procedure, with their bulk data in its place: of so many bytes together, data padded. Their first and
    /// last 1,024 bytes count. So a call is the same one, whether its data is in the stream or outside: that is another choice
    /// each time that the call is sent.
    pub(crate) fn add_arguments<'a>(
        &mut self,
        bytes: usize,
        pieces: impl Iterator<Item = StreamPiece<'a>>,
    ) {
        bytes.hash(&mut self.hasher);
        let mut ends = Ends::<ARGUMENTS_BYTES>::of(bytes);
        let mut in_item = None;
        for piece in pieces {
            let (item, bytes) = match piece {
                StreamPiece::Stream(bytes) => (None, bytes),
                StreamPiece::Item { index, bytes } => (Some(index), bytes),
            };
            if std::mem::replace(&mut in_item, item) != item {
                ends.pad();
            }
            ends.push(bytes);
        }
        ends.pad();
        self.hasher.write(ends.used());
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

/// The first and the last bytes of what comes in pieces, so many together.
struct Ends<const BYTES: usize> {
    bytes: [u8; BYTES],
    /// How many bytes came.
    from: usize,
    /// Where the last bytes begin.
    behind: usize,
}

impl<const BYTES: usize> Ends<BYTES> {
    const HALF: usize = BYTES / 2;

    /// Of so many bytes.
    fn of(bytes: usize) -> Self {
        Self {
            bytes: [0; BYTES],
            from: 0,
            behind: bytes.saturating_sub(Self::HALF).max(Self::HALF),
        }
    }

    fn push(&mut self, piece: &[u8]) {
        let (from, behind) = (self.from, self.behind);
        let first = Self::HALF.saturating_sub(from).min(piece.len());
        if first > 0 {
            self.bytes[from..from + first].copy_from_slice(&piece[..first]);
        }
        let skipped = behind.saturating_sub(from).min(piece.len());
        let last = piece.get(skipped..).unwrap_or(&[]);
        let place = Self::HALF + (from + skipped).saturating_sub(behind);
        if let Some(space) = self.bytes.get_mut(place..place + last.len()) {
            space.copy_from_slice(last);
        }
        self.from += piece.len();
    }

    /// What came of them: all of a short whole.
    fn used(&self) -> &[u8] {
        let last = self.from.saturating_sub(self.behind).min(Self::HALF);
        let end = match last {
            0 => self.from.min(Self::HALF),
            _ => Self::HALF + last,
        };
        &self.bytes[..end]
    }

    /// To the next multiple of four bytes, with zeros.
    fn pad(&mut self) {
        let bytes = self.from.next_multiple_of(4) - self.from;
        self.push(&[0; 3][..bytes]);
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

    /// Where data of any length is in its stream, or outside it in any pieces.
    #[test]
    fn key_does_not_depend_on_what_is_outside_the_stream() {
        let clients = Clients::<Infallible>::new(1);
        let key_of = |bytes, pieces: &[StreamPiece<'_>]| {
            let mut key = clients.key(1, [2, 3, 4], &OpaqueAuth::NONE, &[]);
            key.add_arguments(bytes, pieces.iter().copied());
            key.finish()
        };
        for bytes in [1, 2, 3, 4, 7, 100, 1016, 1017, 1500, 1999, 2000] {
            let (first, second) = (&DATA[..bytes], &STREAM[..bytes / 2]);
            let padded = |data: &[u8]| {
                let mut data = data.to_vec();
                data.resize(data.len().next_multiple_of(4), 0);
                data
            };
            let whole = [&[1; 8], &padded(first)[..], &padded(second)[..], &[2; 12]].concat();
            let key = key_of(whole.len(), &[StreamPiece::Stream(&whole)]);
            let item = |index, bytes| StreamPiece::Item { index, bytes };
            let (one, other) = first.split_at(bytes / 3);
            let outside = [
                StreamPiece::Stream(&[1; 8]),
                item(0, one),
                item(0, other),
                item(1, second),
                StreamPiece::Stream(&[2; 12]),
            ];
            assert_eq!(key_of(whole.len(), &outside), key, "{bytes}");
            let partly = [
                StreamPiece::Stream(&whole[..8 + padded(first).len()]),
                item(0, second),
                StreamPiece::Stream(&[2; 12]),
            ];
            assert_eq!(key_of(whole.len(), &partly), key, "{bytes}");
            let changed = (0..whole.len()).map(|at| {
                let mut changed = whole.clone();
                changed[at] ^= 1;
                key_of(whole.len(), &[StreamPiece::Stream(&changed)]) == key
            });
            let same = changed.filter(|is_same| *is_same).count();
            assert_eq!(same, whole.len().saturating_sub(ARGUMENTS_BYTES), "{bytes}");
            assert_ne!(key_of(whole.len() + 4, &outside), key);
        }
    }
}
