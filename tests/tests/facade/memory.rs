//! Memory of the program: a memfd that it made, from which calls and replies send, and into which results come.

use std::os::fd::OwnedFd;

use rpcrdma::prelude::*;
use rpcrdma::{Error, ExternalMemory};
use rpcrdma_testkit::pattern;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};

use crate::{PROGRAM, address, builder, profile};

/// Checks that the data is the pattern of its number.
const PUT: Procedure = Procedure::new(PROGRAM, 1, 20);
/// Sends a block of the server's memory.
const GET: Procedure = Procedure::new(PROGRAM, 1, 21);
pub(super) const BLOCK: usize = 65_536;

/// A file of so many blocks.
pub(super) fn file(blocks: usize) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("application", flags).unwrap();
    ftruncate(&file, (blocks * BLOCK) as u64).unwrap();
    file
}

pub(super) fn memory(file: &OwnedFd) -> ExternalMemory {
    let block = u32::try_from(BLOCK).unwrap();
    ExternalMemory::of_file(file.try_clone().unwrap(), block).unwrap()
}

fn block_of(file: &OwnedFd, number: usize) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    assert_eq!(pread(file, &mut block, (number * BLOCK) as u64), Ok(BLOCK));
    block
}

fn serve(at: &str, memory: &ExternalMemory) -> Server {
    let kept = memory.clone();
    Server::builder()
        .profile(profile())
        .memory(memory)
        .procedure(PUT, |call, _reply| {
            let number = call.args().u32()?;
            let expected = pattern(BLOCK, u64::from(number));
            let is_right = call.args().bulk()?.to_vec() == expected;
            is_right.then_some(()).ok_or(Refusal::GarbageArgs)
        })
        .procedure(GET, move |call, reply| {
            let at = u64::from(call.args().u32()?) * BLOCK as u64;
            let block = Buffer::of_memory(&kept, at, BLOCK);
            reply.bulk(block.map_err(|_| Refusal::SystemError)?);
            Ok(())
        })
        .listen(at)
        .unwrap()
}

fn connect(at: &str, memory: &ExternalMemory) -> Client {
    let client = builder().memory(memory);
    client.connect(at).unwrap()
}

fn total(client: &Client, name: &str) -> u64 {
    client.node().metrics().total(name).expect(name)
}

/// Blocks of 64 KiB go from the client's memory to the server, and from the server's memory into the client's: what the
/// program reads by its own descriptor, and the addresses, are those of its memory; nothing was copied on the way.
#[test]
fn blocks_go_from_and_into_memory_of_the_program_without_a_copy() {
    let (at, ours, theirs) = (address(), file(8), file(8));
    for number in 0..8 {
        let block = pattern(BLOCK, number);
        let place = number * BLOCK as u64;
        assert_eq!(pwrite(&theirs, &block, place), Ok(BLOCK));
        assert_eq!(pwrite(&ours, &block, place), Ok(BLOCK));
    }
    let (memory, server_memory) = (memory(&ours), memory(&theirs));
    let server = serve(&at, &server_memory);
    let client = connect(&at, &memory);
    for number in 0..8_u32 {
        let from = u64::from(number) * BLOCK as u64;
        let data = Buffer::of_memory(&memory, from, BLOCK).unwrap();
        client.request(PUT).u32(number).bulk(data).call().unwrap();

        // Into the block behind the next one.
        let into = usize::try_from((number + 2) % 8).unwrap();
        let target = Buffer::of_memory(&memory, (into * BLOCK) as u64, BLOCK).unwrap();
        let mut request = client.request(GET);
        let mut answer = request.u32(number).expect_bulk_into(target).call().unwrap();
        let got = answer.results().bulk().unwrap().take().expect("in memory");
        let start = got.pieces().next().unwrap().as_ptr().addr();
        assert_eq!(start, memory.start().addr() + into * BLOCK);
        assert_eq!(got.len(), BLOCK);
        assert!(block_of(&ours, into) == pattern(BLOCK, number.into()));
        // The program changes it back for the calls to come.
        let mut got = got;
        got.copy_from(&pattern(BLOCK, into as u64));
    }
    assert_eq!(total(&client, "bulk_bytes_copied"), 0);
    assert_eq!(server.metrics().total("bulk_bytes_copied"), Some(0));
    assert_eq!(total(&client, "bulk_bytes_received"), 8 * BLOCK as u64);
    assert_eq!(total(&client, "messages_gathered"), 0);
    assert_eq!(memory.leased(), 0);
}

/// A part of a block, and a range over several: a buffer has the blocks that it touches, and no other does.
#[test]
fn a_block_is_in_one_buffer_at_a_time() {
    let memory = memory(&file(4));
    let block = BLOCK as u64;
    let buffer = Buffer::of_memory(&memory, block - 100, BLOCK + 200).unwrap();
    let lengths: Vec<_> = buffer.pieces().map(<[u8]>::len).collect();
    assert_eq!(lengths, [100, BLOCK, 100]);
    let kind = |result: Result<Buffer, Error>| result.unwrap_err().kind();
    for (offset, bytes) in [(0, 1), (block, BLOCK), (2 * block + 100, 1), (0, 4 * BLOCK)] {
        let refused = Buffer::of_memory(&memory, offset, bytes);
        assert_eq!(kind(refused), ErrorKind::NoBuffers, "{bytes} from {offset}");
    }
    // What was refused after its first block took nothing.
    assert_eq!(memory.leased(), 3);
    for (offset, bytes) in [
        (3 * block, BLOCK + 1),
        (4 * block, 1),
        (u64::MAX, 1),
        (3 * block, 0),
    ] {
        let refused = Buffer::of_memory(&memory, offset, bytes);
        assert_eq!(kind(refused), ErrorKind::Usage, "{bytes} from {offset}");
    }
    assert_eq!(memory.leased(), 3);
    drop(buffer);
    assert_eq!(memory.leased(), 0);
}
