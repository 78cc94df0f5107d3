//! What the appliance and its client have in common: a program of three procedures that makes a file or
//! block device a disk for others. `appliance` serves it, `appliance-client` uses it, and
//! docs/embedding.md walks through both. `nfs41-recall`, which docs/nfs.md explains, uses [`end`] alone.
//!
//! | procedure | arguments | results |
//! |---|---|---|
//! | [`WRITE`] | offset (hyper), durable (bool), data (opaque) | status |
//! | [`READ`] | offset (hyper), bytes | status, data (opaque) |
//! | [`SYNC`] | | status |
//!
//! The data of both are the program's DDP-eligible items: they may travel beside their messages.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::thread::Thread;

use rpcrdma_tuning::{Idle, Profile};

/// The program at the head of docs/embedding.md, which the documentation tests run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/embedding.md")]
mod embedding {}

/// The RPC program, of the range that RFC 5531 section 13 leaves to users.
pub const PROGRAM: u32 = 0x2000_0d15;
/// Its version.
pub const VERSION: u32 = 1;
/// Does nothing, as in every program.
pub const NULL: u32 = 0;
/// Writes data, and is answered when the disk has them.
pub const WRITE: u32 = 1;
/// Reads data.
pub const READ: u32 = 2;
/// Makes durable what was written before.
pub const SYNC: u32 = 3;

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

/// The arguments of [`WRITE`], before its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteArguments {
    /// Where on the disk, in bytes.
    pub offset_bytes: u64,
    /// Answer when the data survive a loss of power, not when the device has taken them.
    pub is_durable: bool,
    /// The length of the data.
    pub bytes: u32,
}

impl WriteArguments {
    /// Bytes of the stream before the data.
    pub const STREAM_BYTES: usize = 16;

    /// As they travel.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::STREAM_BYTES] {
        let mut stream = [0; Self::STREAM_BYTES];
        stream[..8].copy_from_slice(&self.offset_bytes.to_be_bytes());
        stream[8..12].copy_from_slice(&u32::from(self.is_durable).to_be_bytes());
        stream[12..].copy_from_slice(&self.bytes.to_be_bytes());
        stream
    }

    /// The arguments, and what follows them in the stream: the data, if they did not go beside it.
    #[must_use]
    pub fn decode(stream: &[u8]) -> Option<(Self, &[u8])> {
        let (offset_bytes, stream) = hyper(stream)?;
        let (is_durable, stream) = word(stream)?;
        let (bytes, stream) = word(stream)?;
        let arguments = Self {
            offset_bytes,
            is_durable: is_durable != 0,
            bytes,
        };
        Some((arguments, stream))
    }
}

/// The arguments of [`READ`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadArguments {
    /// Where on the disk, in bytes.
    pub offset_bytes: u64,
    /// How many bytes; fewer come at the end of the disk.
    pub bytes: u32,
}

impl ReadArguments {
    /// All of the argument stream: the part that asks for the data.
    pub const STREAM: Range<u32> = 0..12;

    /// As they travel.
    #[must_use]
    pub fn encode(&self) -> [u8; 12] {
        let mut stream = [0; 12];
        stream[..8].copy_from_slice(&self.offset_bytes.to_be_bytes());
        stream[8..].copy_from_slice(&self.bytes.to_be_bytes());
        stream
    }

    /// The arguments of this stream.
    #[must_use]
    pub fn decode(stream: &[u8]) -> Option<Self> {
        let (offset_bytes, stream) = hyper(stream)?;
        let (bytes, _) = word(stream)?;
        Some(Self {
            offset_bytes,
            bytes,
        })
    }
}

/// The results of [`READ`] before its data: the status, and the length of the data.
#[must_use]
pub fn read_results(status: Status, bytes: u32) -> [u8; 8] {
    let mut stream = [0; 8];
    stream[..4].copy_from_slice(&status.word().to_be_bytes());
    stream[4..].copy_from_slice(&bytes.to_be_bytes());
    stream
}

/// The word at the start of a stream, and what follows it.
#[must_use]
pub fn word(stream: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = stream.split_first_chunk()?;
    Some((u32::from_be_bytes(*word), rest))
}

fn hyper(stream: &[u8]) -> Option<(u64, &[u8])> {
    let (hyper, rest) = stream.split_first_chunk()?;
    Some((u64::from_be_bytes(*hyper), rest))
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
        ..Profile::default()
    }
}

/// How one thread wakes another that waits for what comes by a ring, with [`std::thread::park`].
#[derive(Debug, Default)]
pub struct Sleeper(OnceLock<Thread>);

impl Sleeper {
    /// `thread` is the one that sleeps: said once, and before anybody has a reason to wake it, or the first of
    /// them might miss it.
    pub fn set(&self, thread: Thread) {
        let _ = self.0.set(thread);
    }

    /// Has it look again. This calls the kernel only when that thread is asleep.
    pub fn wake(&self) {
        if let Some(thread) = self.0.get() {
            thread.unpark();
        }
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
