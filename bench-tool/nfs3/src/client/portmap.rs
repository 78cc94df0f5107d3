//! The port mapper, version 2 (RFC 1833 section 3), which returns the port of a program.

use rpcrdma_protocol::error::{DecodeError, EncodeError, Reason};
use rpcrdma_protocol::xdr::{Reader, Writer};

/// The port of the port mapper itself.
pub(crate) const PORT: u16 = 111;
/// Its program number.
pub(crate) const PROGRAM: u32 = 100_000;
/// The version that every implementation has.
pub(crate) const VERSION: u32 = 2;
/// The procedure GETPORT.
pub(crate) const GETPORT: u32 = 3;

/// The port mapper's number for TCP.
const TCP: u32 = 6;

/// Writes the arguments of GETPORT for a program on TCP. Returns their length in bytes.
///
/// # Errors
/// `NoSpace`.
pub(crate) fn program_on_tcp(
    program: u32,
    version: u32,
    space: &mut [u8],
) -> Result<usize, EncodeError> {
    let mut writer = Writer::new(space);
    for word in [program, version, TCP, 0] {
        writer.write_u32(word)?;
    }
    Ok(writer.position())
}

/// The port in the results of GETPORT; `None` if the program is not registered.
///
/// # Errors
/// When the bytes are not results of GETPORT.
pub(crate) fn port(results: &[u8]) -> Result<Option<u16>, DecodeError> {
    let mut reader = Reader::new(results);
    let before = reader;
    let port = reader.read_u32()?;
    if !reader.is_at_end() {
        return Err(reader.error(Reason::TrailingBytes));
    }
    match u16::try_from(port) {
        Ok(0) => Ok(None),
        Ok(port) => Ok(Some(port)),
        Err(_) => Err(before.error(Reason::OpaqueTooLong)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_by_its_number() {
        let mut space = [0; 16];
        assert_eq!(program_on_tcp(100_005, 3, &mut space), Ok(16));
        assert_eq!(
            space,
            [0, 1, 0x86, 0xa5, 0, 0, 0, 3, 0, 0, 0, 6, 0, 0, 0, 0]
        );
        assert_eq!(port(&[0, 0, 0x4e, 0x50]), Ok(Some(20_048)));
        assert_eq!(port(&[0; 4]), Ok(None));
        for wrong in [&[0, 1, 0, 0][..], &[0, 0, 1], &[0, 0, 0, 1, 0, 0, 0, 0]] {
            assert!(port(wrong).is_err(), "{wrong:?}");
        }
    }
}
