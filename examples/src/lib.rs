//! What the appliance and its client have in common: a program of three procedures that makes a file or
//! block device a disk for others. `appliance` serves it, `appliance-client` uses it, and
//! docs/embedding.md walks through both. `nfs41-recall`, which docs/nfs.md explains, uses [`end`] alone.
//!
//! | procedure | arguments | results |
//! |---|---|---|
//! | [`WRITE`] | offset (hyper), durable (bool), data (opaque) | status |
//! | [`READ`] | offset (hyper), bytes (word) | status, data (opaque) |
//! | [`SYNC`] | | status |
//!
//! The data of both are the program's DDP-eligible items: they may go beside the stream of their message.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use rpcrdma::{Idle, Procedure, Profile};

/// The program at the head of docs/embedding.md, which the documentation tests run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/embedding.md")]
mod embedding {}

/// The programs in docs/migration.md.
#[cfg(doctest)]
#[doc = include_str!("../../docs/migration.md")]
mod migration {}

/// The RPC program, of the range that RFC 5531 section 13 leaves to users.
pub const PROGRAM: u32 = 0x2000_0d15;
/// Its version.
pub const VERSION: u32 = 1;
/// Writes data, and is answered when the disk has it.
pub const WRITE: Procedure = Procedure::new(PROGRAM, VERSION, 1);
/// Reads data.
pub const READ: Procedure = Procedure::new(PROGRAM, VERSION, 2);
/// Makes durable what was written before.
pub const SYNC: Procedure = Procedure::new(PROGRAM, VERSION, 3);

/// The most data of one call, in bytes.
pub const DATA_BYTES_MAX: u32 = 1 << 20;

/// How a call ended at the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// It is done.
    Done = 0,
    /// The disk failed.
    Failed = 5,
    /// There is no memory for it at the moment: ask again.
    Busy = 11,
    /// The disk takes no such request, or it is for more than [`DATA_BYTES_MAX`].
    Invalid = 22,
    /// It goes beyond the end of the disk, or the disk is full.
    NoSpace = 28,
}

impl Status {
    /// As it travels.
    #[must_use]
    pub const fn word(self) -> u32 {
        self as u32
    }

    /// The status of this word, if there is one.
    #[must_use]
    pub fn from_word(word: u32) -> Option<Self> {
        let all = [
            Self::Done,
            Self::Failed,
            Self::Busy,
            Self::Invalid,
            Self::NoSpace,
        ];
        all.into_iter().find(|status| status.word() == word)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "it is done",
            Self::Failed => "the disk failed",
            Self::Busy => "the appliance has no memory for it at the moment",
            Self::Invalid => "the disk takes no such request",
            Self::NoSpace => "there is no space for it on the disk",
        })
    }
}

/// The sizes of both ends: room for data placed by Sends and for data moved by RDMA, and a core that
/// sleeps when nothing comes. One that has a processor to itself spins (`Idle::Spin`).
#[must_use]
pub fn profile(connections_max: u32, bulk_buffers: u32) -> Profile {
    Profile {
        connections_max,
        placement_segments: 1,
        placement_spares: 256,
        bulk_buffers,
        idle: Idle::Park,
        idle_park_after_us: 50,
        // In seconds: an end that a busy machine keeps from its work for less is not taken for dead.
        keep_alive_silent_ticks_max: 120,
        ..Profile::default()
    }
}

/// Says on standard error what went wrong, and why, and ends the program with it.
pub fn end(program: &str, result: Result<(), Box<dyn Error>>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        // Some errors say their cause themselves.
        if !said.ends_with(&why) {
            said = format!("{said}: {why}");
        }
        cause = error.source();
    }
    eprintln!("{program}: {said}");
    ExitCode::FAILURE
}

/// The byte at `position` of what the client writes, so that each block is unlike all others.
#[must_use]
pub fn pattern(position: u64) -> u8 {
    let word = (position / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let bytes = (word ^ (word >> 29)).to_le_bytes();
    bytes[usize::try_from(position % 8).unwrap_or_default()]
}
