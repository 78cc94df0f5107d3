//! Names of procedures.

use rpcrdma_engine::Call;

/// What is called: a procedure of a version of a program (RFC 5531 section 8.1).
///
/// Numbers of programs from 0x2000_0000 to 0x3fff_ffff are for anybody's use (RFC 5531 section 8.2). Procedure 0
/// is the null procedure of every program: no arguments, no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Procedure {
    /// The program.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// The number of the procedure.
    pub number: u32,
}

impl Procedure {
    /// Procedure `number` of `version` of `program`.
    #[must_use]
    pub const fn new(program: u32, version: u32, number: u32) -> Self {
        Self {
            program,
            version,
            number,
        }
    }
}

impl From<Procedure> for Call {
    fn from(procedure: Procedure) -> Self {
        Self {
            program: procedure.program,
            version: procedure.version,
            procedure: procedure.number,
        }
    }
}
