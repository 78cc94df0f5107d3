//! Memory of the program on an RDMA device: runs in the lab (tests/lab), on the address that `LAB_IP` gives.

#![allow(
    unsafe_code,
    reason = "memory is registered by its address, which the caller answers for"
)]

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use rpcrdma::prelude::*;
use rpcrdma::{Authentication, ClientBuilder, ExternalMemory, NodeBuilder};
use rpcrdma_testkit::{PATIENCE, pattern};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::pwrite;

const PROGRAM: u32 = 0x2000_0099;
/// Checks that the data is the pattern of its number.
const PUT: Procedure = Procedure::new(PROGRAM, 1, 1);
/// Sends a block of the server's memory.
const GET: Procedure = Procedure::new(PROGRAM, 1, 2);
const BLOCK: usize = 65_536;
const BLOCKS: usize = 8;

fn address() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(20_900);
    let ip = std::env::var("LAB_IP").expect("LAB_IP: run this in the lab, tests/lab");
    format!("rdma:{ip}:{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn file() -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("application", flags).unwrap();
    ftruncate(&file, (BLOCKS * BLOCK) as u64).unwrap();
    file
}

fn of_file() -> ExternalMemory {
    ExternalMemory::of_file(file(), u32::try_from(BLOCK).unwrap()).unwrap()
}

/// TIME: limits that exceed what a test waits, so that they end nothing on a device that is slow.
const UNHURRIED: [&str; 4] = [
    "connect_timeout_ms=600000",
    "call_timeout_ms=300000",
    "keep_alive_silent_ticks_max=255",
    "stall_timeout_ms=600000",
];

fn serve(at: &str, memory: &ExternalMemory) -> Server {
    let kept = memory.clone();
    UNHURRIED
        .into_iter()
        .fold(Server::builder(), NodeBuilder::knob)
        .authentication(Authentication::None)
        .memory(memory)
        .procedure(PUT, |call, _reply| {
            let number = call.args().u32()?;
            let is_right = call.args().bulk()?.to_vec() == pattern(BLOCK, u64::from(number));
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

/// Blocks of `memory` go to a server, and blocks of a server's file come into it: at their addresses, without a copy.
fn check_both_ways(memory: &ExternalMemory) {
    let (at, theirs) = (address(), file());
    for number in 0..BLOCKS as u64 {
        let place = number * BLOCK as u64;
        assert_eq!(pwrite(&theirs, &pattern(BLOCK, number), place), Ok(BLOCK));
    }
    let stored = ExternalMemory::of_file(theirs, u32::try_from(BLOCK).unwrap()).unwrap();
    let server = serve(&at, &stored);
    let client = Client::builder().memory(memory).connect_timeout(PATIENCE);
    let client = UNHURRIED.into_iter().fold(client, ClientBuilder::knob);
    let client = client.connect(&at).unwrap();
    let total = |name| client.node().metrics().total(name).expect(name);
    for number in 0..u32::try_from(BLOCKS).unwrap() {
        let from = u64::from(number) * BLOCK as u64;
        let mut data = Buffer::of_memory(memory, from, BLOCK).unwrap();
        data.copy_from(&pattern(BLOCK, number.into()));
        client.request(PUT).u32(number).bulk(data).call().unwrap();
        let into = (number as usize + 2) % BLOCKS;
        let target = Buffer::of_memory(memory, (into * BLOCK) as u64, BLOCK).unwrap();
        let mut request = client.request(GET);
        let mut answer = request.u32(number).expect_bulk_into(target).call().unwrap();
        let got = answer.results().bulk().unwrap().take().expect("in memory");
        let start = got.pieces().next().unwrap().as_ptr().addr();
        assert_eq!(start, memory.start().addr() + into * BLOCK);
        assert!(got.to_vec() == pattern(BLOCK, number.into()));
    }
    assert_eq!(total("bulk_bytes_copied"), 0);
    assert_eq!(server.metrics().total("bulk_bytes_copied"), Some(0));
    assert_eq!(total("bulk_bytes_received"), (BLOCKS * BLOCK) as u64);
    assert_eq!(memory.leased(), 0);
}

#[test]
fn blocks_go_from_and_into_a_file_of_the_program() {
    check_both_ways(&of_file());
}

/// As a file of hugetlbfs, which has no seals.
#[test]
fn blocks_go_from_and_into_a_file_without_seals() {
    let file = memfd_create("plain", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, (BLOCKS * BLOCK) as u64).unwrap();
    // SAFETY: nothing else uses the file.
    let memory = unsafe { ExternalMemory::of_unsealed_file(file, u32::try_from(BLOCK).unwrap()) };
    check_both_ways(&memory.unwrap());
}

#[test]
fn blocks_go_from_and_into_an_address_of_the_program_which_gets_it_back() {
    let bytes = BLOCKS * BLOCK;
    let mut own = vec![0_u8; bytes + 4096];
    let offset = own.as_ptr().align_offset(4096);
    let start = NonNull::from(&mut own[offset]);
    let released = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&released);
    // SAFETY: the vector is dropped at the end of this test, after `released` was called; it is not touched before.
    let memory = unsafe {
        ExternalMemory::at_address(start, bytes, u32::try_from(BLOCK).unwrap(), move || {
            told.store(true, Ordering::SeqCst);
        })
    };
    check_both_ways(memory.as_ref().unwrap());
    assert!(!released.load(Ordering::SeqCst), "this test has it still");
    drop(memory);
    // The last core that had it registered ends on its own thread.
    rpcrdma_testkit::until("the memory to be given back", || {
        released.load(Ordering::SeqCst).then_some(())
    });
    assert!(own.iter().any(|byte| *byte != 0), "it came into the vector");
}

/// Soft-RoCE and software iWARP register no dma-buf, and this file is none: the node says so, and does not start.
#[test]
fn a_dma_buf_that_the_device_does_not_take_is_named() {
    let block = u32::try_from(BLOCK).unwrap();
    // SAFETY: nothing else uses the file.
    let memory = unsafe { ExternalMemory::of_dma_buf(file(), block) }.unwrap();
    let server = Server::builder()
        .authentication(Authentication::None)
        .memory(&memory)
        .procedure(PUT, |_call, _reply| Ok(()))
        .listen(&address());
    let error = server.map(drop).expect_err("no device takes it");
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    assert!(text.contains("dma-buf"), "{text}");
}
