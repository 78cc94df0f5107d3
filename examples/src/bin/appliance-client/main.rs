//! A client of the appliance: a thread that keeps several calls under way, fills the memory that they are sent from, and
//! compares what comes back.
//!
//! `cargo run --release -p rpcrdma-examples --bin appliance-client -- --connect shm:disk --bytes 67108864`
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rpcrdma::prelude::*;
use rpcrdma::{Poller, Request, Response};
use rpcrdma_examples::{DATA_BYTES_MAX, READ, SYNC, Status, WRITE, end, pattern, profile};

/// What one call writes or reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    offset_bytes: u64,
    bytes: u32,
}

/// Writes a pattern to an appliance, has it made durable, reads it back, and compares it.
#[derive(Parser)]
struct Arguments {
    /// Where the appliance listens: shm:NAME
    #[arg(long, default_value = "shm:disk")]
    connect: String,
    /// How much to write, in bytes
    #[arg(long)]
    bytes: u64,
    /// Where on the disk to begin, in bytes
    #[arg(long, default_value_t = 0)]
    offset_bytes: u64,
    /// The data of one call, in bytes
    #[arg(long, default_value_t = 65_536)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(DATA_BYTES_MAX)))]
    block_bytes: u32,
    /// Calls in flight
    #[arg(long, default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=32))]
    depth: u16,
    /// Have each WRITE answered when it is durable, not only the last SYNC
    #[arg(long)]
    durable: bool,
}

impl Arguments {
    /// What is to be written and read, call by call.
    fn blocks(&self) -> VecDeque<Block> {
        let starts = (0..self.bytes).step_by(self.block_bytes as usize);
        let block = |start: u64| Block {
            offset_bytes: self.offset_bytes + start,
            bytes: u32::try_from(self.bytes - start)
                .map_or(self.block_bytes, |left| left.min(self.block_bytes)),
        };
        starts.map(block).collect()
    }
}

/// How long an appliance may take to be there, and a busy machine to connect to it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a call waits for an appliance that was stopped to come back.
const PATIENCE: Duration = Duration::from_secs(1);

/// Makes a call for each block, several at a time. `ask` makes the request, or says that there is no memory for it now;
/// `check` looks at the answers. A call that found the appliance busy is made again.
fn call_all(
    poller: &mut Poller,
    mut blocks: VecDeque<Block>,
    ask: impl Fn(&Poller, Block) -> Option<Request>,
    check: impl Fn(Block, &mut Response) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut calls = Vec::new();
    while !blocks.is_empty() || !poller.is_empty() {
        while let Some(&block) = blocks.front().filter(|_| !poller.is_full()) {
            let Some(mut request) = ask(poller, block) else {
                break;
            };
            poller.submit(&mut request, calls.len() as u64)?;
            calls.push(block);
            blocks.pop_front();
        }
        if poller.is_empty() {
            // The memory of answers comes back soon.
            std::thread::yield_now();
            continue;
        }
        let ended = poller.wait()?;
        let block = calls[usize::try_from(ended.tag)?];
        let mut answer = ended
            .result
            .map_err(|error| format!("{block:?}: {error}"))?;
        let status = answer.results().u32()?;
        match Status::from_word(status).ok_or("the appliance answers with no status")? {
            Status::Done => check(block, &mut answer)?,
            Status::Busy => blocks.push_back(block),
            status => return Err(format!("{block:?}: {status}").into()),
        }
    }
    Ok(())
}

/// A WRITE of `block`, its data in registered memory.
fn write(poller: &Poller, block: Block, is_durable: bool) -> Option<Request> {
    let mut request = poller.request(WRITE);
    let mut data = request.buffer_for(block.bytes as usize)?;
    let bytes = data.pieces_mut().flatten();
    for (position, byte) in (block.offset_bytes..).zip(bytes) {
        *byte = pattern(position);
    }
    request.u64(block.offset_bytes).bool(is_durable).bulk(data);
    Some(request)
}

/// Checks that a READ of `block`, whose status was read, brought what was written.
fn compare(block: Block, answer: &mut Response) -> Result<(), Box<dyn Error>> {
    let data = answer.results().bulk()?;
    let mut position = block.offset_bytes;
    for byte in data.pieces().flatten() {
        if *byte != pattern(position) {
            return Err(format!("byte {position} is not what was written").into());
        }
        position += 1;
    }
    if position != block.offset_bytes + u64::from(block.bytes) {
        return Err(format!("{block:?} ends at byte {position}").into());
    }
    Ok(())
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let client = Client::builder().profile(profile(1, 512));
    let client = client.connect_timeout(CONNECT_TIMEOUT).patience(PATIENCE);
    let client = client.connect(&arguments.connect)?;
    let mut poller = client.poller(arguments.depth.into())?;

    let as_write = |poller: &Poller, block| write(poller, block, arguments.durable);
    call_all(&mut poller, arguments.blocks(), as_write, |_, _| Ok(()))?;
    let answer = client.request(SYNC).call()?.results().u32()?;
    if Status::from_word(answer) != Some(Status::Done) {
        return Err("the disk cannot make the data durable".into());
    }
    let as_read = |poller: &Poller, block: Block| {
        let mut request = poller.request(READ);
        request.u64(block.offset_bytes).u32(block.bytes);
        request.expect_bulk(block.bytes);
        Some(request)
    };
    call_all(&mut poller, arguments.blocks(), as_read, compare)?;
    println!(
        "{} bytes at {} were written, synced, read back and are the same",
        arguments.bytes, arguments.offset_bytes
    );
    Ok(())
}

fn main() -> ExitCode {
    end("appliance-client", run(&Arguments::parse()))
}
