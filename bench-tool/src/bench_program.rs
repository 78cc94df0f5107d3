//! The bench program: the RPC program that `run` calls and `serve` answers.
//!
//! | procedure | number | arguments | results |
//! |---|---|---|---|
//! | NULL | 0 | none | none |
//! | ECHO | 1 | `opaque payload<>` | the same |

use rpcrdma_engine::{Application, Call, Outcome, ReplyWriter, Request};

use crate::cli::Op;

/// RPC program number, of the range that RFC 5531 section 13.1 leaves to users: "BEN" in ASCII.
pub const PROGRAM: u32 = 0x2042_454e;

/// The one version of the program.
pub const VERSION: u32 = 1;

/// Procedure NULL.
pub const NULL: u32 = 0;

/// Procedure ECHO.
pub const ECHO: u32 = 1;

impl Op {
    /// The call that this operation makes.
    #[must_use]
    pub const fn call(self) -> Call {
        Call {
            program: PROGRAM,
            version: VERSION,
            procedure: match self {
                Self::Null => NULL,
                Self::Echo => ECHO,
            },
        }
    }
}

/// Bytes of an XDR opaque of `payload_bytes` (RFC 4506 section 4.10).
#[must_use]
pub const fn opaque_bytes(payload_bytes: usize) -> usize {
    4 + payload_bytes.next_multiple_of(4)
}

/// The payload of an XDR opaque that is all of `stream`; `None` when its length does not say so.
#[must_use]
pub fn opaque_payload(stream: &[u8]) -> Option<&[u8]> {
    let (length, rest) = stream.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let whole = rest.len() < length.checked_next_multiple_of(4)?;
    if whole || rest.len() - length > 3 {
        return None;
    }
    rest.get(..length)
}

/// Answers the bench program.
#[derive(Debug, Default)]
pub struct BenchService;

impl Application for BenchService {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    #[inline]
    fn call(&mut self, request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
        answer(request, reply)
    }
}

/// Answers one call of the bench program.
#[inline]
pub fn answer(request: &Request<'_>, reply: &mut ReplyWriter<'_>) -> Outcome {
    if request.program != PROGRAM {
        return Outcome::ProgramUnavailable;
    }
    if request.version != VERSION {
        return Outcome::ProgramMismatch {
            low: VERSION,
            high: VERSION,
        };
    }
    match request.procedure {
        NULL if request.args.is_empty() => Outcome::Success,
        ECHO if opaque_payload(request.args).is_some() => {
            if reply.write(request.args).is_ok() {
                Outcome::Success
            } else {
                Outcome::SystemError
            }
        }
        NULL | ECHO => Outcome::GarbageArgs,
        _ => Outcome::ProcedureUnavailable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opaque_is_the_whole_stream_or_nothing() {
        let good: [(&[u8], &[u8]); 3] = [
            (&[0, 0, 0, 0], &[]),
            (&[0, 0, 0, 4, 1, 2, 3, 4], &[1, 2, 3, 4]),
            (&[0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0], &[1, 2, 3, 4, 5]),
        ];
        for (stream, payload) in good {
            assert_eq!(opaque_payload(stream), Some(payload));
            assert_eq!(opaque_bytes(payload.len()), stream.len());
        }
        let bad: [&[u8]; 6] = [
            &[],
            &[0, 0, 0],
            &[0, 0, 0, 1],
            &[0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0],
            &[0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 0],
            &[0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4],
        ];
        for stream in bad {
            assert_eq!(opaque_payload(stream), None, "{stream:?}");
        }
    }
}
