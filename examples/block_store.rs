//! A store of 4 KiB blocks and its client, with data in registered memory both ways: `cargo run --example block_store`, with
//! `-- rdma:HOST:PORT` for a device of this machine.
//!
//! The client is async. It runs on any runtime: with tokio, `main` is `#[tokio::main] async fn main`.

use std::collections::HashMap;

use rpcrdma::Authentication;
use rpcrdma::prelude::*;

const PROGRAM: u32 = 0x2000_0002;
const WRITE: Procedure = Procedure::new(PROGRAM, 1, 1);
const READ: Procedure = Procedure::new(PROGRAM, 1, 2);
const BLOCK_BYTES: usize = 4096;

/// Blocks by number. Each core has a store, so nothing is locked; this program has one core.
#[derive(Default)]
struct Store(HashMap<u64, Vec<u8>>);

impl Service for Store {
    fn call(&mut self, call: &mut Incoming<'_>, reply: &mut Reply<'_, '_>) -> Result<(), Refusal> {
        let number = call.args().u64()?;
        match call.named() {
            WRITE => {
                // The data is where RDMA put it. `Bulk::take` would keep that memory without a copy.
                let data = call.args().bulk()?;
                if data.len() != BLOCK_BYTES {
                    return Err(Refusal::GarbageArgs);
                }
                self.0.insert(number, data.to_vec());
            }
            READ => {
                let block = self.0.get(&number);
                reply.bulk_copy(block.map_or(&[0; BLOCK_BYTES], |block| block));
            }
            _ => return Err(Refusal::ProcedureUnavailable),
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    pollster::block_on(run())
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let shm = format!("shm:blocks-{}", std::process::id());
    let address = std::env::args().nth(1).unwrap_or(shm);
    let server = Server::builder()
        .authentication(Authentication::None)
        .program(PROGRAM, 1..=1, |_core| Store::default());
    let _server = server.listen(&address)?;
    let client = Client::connect(&address)?;
    for number in 0..1000_u64 {
        let data = [number.to_le_bytes(); BLOCK_BYTES / 8].concat();
        let mut write = client.request(WRITE);
        write.u64(number).bulk_copy(&data).call_async().await?;
        let mut read = client.request(READ);
        let mut answer = read.u64(number).expect_bulk(4096).call_async().await?;
        assert!(*answer.results().bulk()?.to_bytes() == data);
    }
    println!("1000 blocks are what was written");
    Ok(())
}
