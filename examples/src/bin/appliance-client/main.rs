//! A client of the appliance: an application thread that keeps several calls in flight on a core, fills the
//! memory that they are sent from, and compares what comes back.
//!
//! `cargo run --release -p rpcrdma-examples --bin appliance-client -- --connect shm:disk --bytes 67108864`
//!
//! The core ([`mod@caller`]) is a thread of its own; this one never waits for it but by its own choice.
#![forbid(unsafe_code)]

mod caller;

use std::collections::VecDeque;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use rpcrdma_control::{ConnectOptions, Node, NodeConfig, ShmProvider};
use rpcrdma_engine::ConnectionKey;
use rpcrdma_examples::{DATA_BYTES_MAX, Status, end, pattern, profile};

use caller::{Answer, Asked, Caller, caller};

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

/// How long the thread sleeps at most before it looks for answers again.
const LOOK_PERIOD: Duration = Duration::from_millis(5);

/// One thread of the application, and what it needs for its calls.
struct Application {
    caller: Caller,
    connection: ConnectionKey,
    depth: usize,
}

impl Application {
    /// Makes a call for each block, several at a time. `ask` says which, or that memory for it is short at
    /// the moment; `check` looks at the answers. A call that found the appliance busy is made again.
    fn call_all(
        &mut self,
        mut blocks: VecDeque<Block>,
        mut ask: impl FnMut(&mut Caller, Block) -> Option<Asked>,
        mut check: impl FnMut(Block, &Answer) -> Result<(), String>,
    ) -> Result<(), Box<dyn Error>> {
        let mut in_flight: Vec<Option<Block>> = vec![None; self.depth];
        let mut free: Vec<usize> = (0..self.depth).collect();
        while !blocks.is_empty() || free.len() < self.depth {
            while let (Some(&tag), Some(&block)) = (free.last(), blocks.front()) {
                let Some(asked) = ask(&mut self.caller, block) else {
                    break;
                };
                self.caller.submit(self.connection, tag as u64, asked)?;
                in_flight[tag] = Some(block);
                free.pop();
                blocks.pop_front();
            }
            let Some(answer) = self.caller.answer() else {
                if self.caller.is_abandoned() {
                    return Err("the core is gone".into());
                }
                // The core wakes this thread with each answer. Memory comes back without a word.
                std::thread::park_timeout(LOOK_PERIOD);
                continue;
            };
            let tag = usize::try_from(answer.tag)?;
            let block = in_flight[tag].take().ok_or("an answer to no call")?;
            free.push(tag);
            match &answer.result {
                Ok(Status::Done) => check(block, &answer)?,
                Ok(Status::Busy) => blocks.push_back(block),
                Ok(status) => return Err(format!("{block:?}: {status}").into()),
                Err(error) => return Err(format!("{block:?}: {error}").into()),
            }
        }
        Ok(())
    }
}

/// What a WRITE of `block` is made of, in registered memory.
fn write(caller: &mut Caller, block: Block, is_durable: bool) -> Option<Asked> {
    let mut item = caller.item(block.bytes)?;
    let bytes = item.parts_mut().flat_map(|part| part.iter_mut());
    for (position, byte) in (block.offset_bytes..).zip(bytes) {
        *byte = pattern(position);
    }
    Some(Asked::Write {
        offset_bytes: block.offset_bytes,
        is_durable,
        item,
    })
}

/// Whether a READ of `block` brought what was written.
fn compare(block: Block, answer: &Answer) -> Result<(), String> {
    let mut position = block.offset_bytes;
    for byte in answer.data() {
        if *byte != pattern(position) {
            return Err(format!("byte {position} is not what was written"));
        }
        position += 1;
    }
    if position != block.offset_bytes + u64::from(block.bytes) {
        return Err(format!("{block:?} ends at byte {position}"));
    }
    Ok(())
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let profile = profile(1, 512);
    let config = NodeConfig::from_profile(&profile, vec![None]);
    let (caller, core) = caller(arguments.depth.into());
    let mut core = Some(core);
    let node = Node::start(ShmProvider::from_profile(&profile), &config, |_| {
        core.take().expect("one core, one application")
    })?;
    let connection = node.connect(&arguments.connect, ConnectOptions::default())?;
    let mut application = Application {
        caller: caller.woken_by(node.cores()[0].clone()),
        connection: connection.key,
        depth: arguments.depth.into(),
    };
    let ignore = |_: Block, _: &Answer| Ok(());

    let is_durable = arguments.durable;
    let as_write = |caller: &mut Caller, block| write(caller, block, is_durable);
    application.call_all(arguments.blocks(), as_write, ignore)?;
    let all = Block {
        offset_bytes: arguments.offset_bytes,
        bytes: 0,
    };
    application.call_all([all].into(), |_, _| Some(Asked::Sync), ignore)?;
    let as_read = |_: &mut Caller, block: Block| {
        Some(Asked::Read {
            offset_bytes: block.offset_bytes,
            bytes: block.bytes,
        })
    };
    application.call_all(arguments.blocks(), as_read, compare)?;

    println!(
        "{} bytes at {} were written, synced, read back and are the same",
        arguments.bytes, arguments.offset_bytes
    );
    node.close(&connection);
    Ok(())
}

fn main() -> ExitCode {
    end("appliance-client", run(&Arguments::parse()))
}
