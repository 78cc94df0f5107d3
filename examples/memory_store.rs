//! A store of 64 KiB blocks in memory that the program owns, and a client whose data is in such memory too: blocks are read
//! out of one into the other without a copy. `cargo run --example memory_store`, with `-- rdma:HOST:PORT` for a device.

use std::os::fd::OwnedFd;

use rpcrdma::prelude::*;
use rpcrdma::{Authentication, ExternalMemory};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const WRITE: Procedure = Procedure::new(0x2000_0003, 1, 1);
const READ: Procedure = Procedure::new(0x2000_0003, 1, 2);
const BLOCK_BYTES: u32 = 65_536;
const BLOCKS: u64 = 16;

/// A file in memory. With `MemfdFlags::HUGETLB` it is in hugepages. Its registration seals it.
fn file() -> std::io::Result<OwnedFd> {
    let file = memfd_create("store", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, BLOCKS * u64::from(BLOCK_BYTES))?;
    Ok(file)
}

/// The buffer that is block `number`. While it exists, nobody else has the block.
fn block(memory: &ExternalMemory, number: u64) -> rpcrdma::Result<Buffer> {
    let offset = number.saturating_mul(BLOCK_BYTES.into());
    Buffer::of_memory(memory, offset, BLOCK_BYTES as usize)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shm = format!("shm:memory-{}", std::process::id());
    let address = std::env::args().nth(1).unwrap_or(shm);
    let stored = ExternalMemory::of_file(file()?, BLOCK_BYTES)?;
    let (kept, sent) = (stored.clone(), stored.clone());
    let server = Server::builder()
        .authentication(Authentication::None)
        .memory(&stored)
        .procedure(WRITE, move |call, _reply| {
            let number = call.args().u64()?;
            let mut block = block(&kept, number).map_err(|_| Refusal::SystemError)?;
            block.copy_from(&call.args().bulk()?.to_bytes());
            Ok(())
        })
        .procedure(READ, move |call, reply| {
            let block = block(&sent, call.args().u64()?);
            reply.bulk(block.map_err(|_| Refusal::SystemError)?);
            Ok(())
        });
    let _server = server.listen(&address)?;
    let memory = ExternalMemory::of_file(file()?, BLOCK_BYTES)?;
    let client = Client::builder().memory(&memory).connect(&address)?;
    for number in 0..BLOCKS {
        let (byte, mut data) = (u8::try_from(number)?, block(&memory, number)?);
        data.copy_from(&[byte; BLOCK_BYTES as usize]);
        client.request(WRITE).u64(number).bulk(data).call()?;
        let mut read = client.request(READ);
        let target = block(&memory, BLOCKS - 1 - number)?;
        let mut answer = read.u64(number).expect_bulk_into(target).call()?;
        assert_eq!(answer.results().bulk()?.to_bytes()[0], byte);
    }
    println!("{BLOCKS} blocks are what was written");
    Ok(())
}
