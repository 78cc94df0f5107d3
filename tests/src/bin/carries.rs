//! A server and a client with the default profile of the device that has an address, in one process: null calls, and 4 KiB,
//! 64 KiB and 1 MiB to the server and back.
//!
//! ```text
//! carries ADDRESS [NAME KNOB=VALUE...]...
//! ```
//!
//! It does so with the profile as it is, under the name `default`, and once more with each group of knobs. A line for each
//! tells how the data travelled, there and back, by size. It ends with 1 when data did not come as it was sent, or, with the
//! profile as it is, did not come.

#![forbid(unsafe_code)]

use std::error::Error;

use rpcrdma::prelude::*;
use rpcrdma::{Authentication, Metrics, NodeBuilder};
use rpcrdma_control::{Fabric, Use};
use rpcrdma_testkit::{PATIENCE, pattern};

const PROGRAM: u32 = 0x2000_0f0c;
const NULL: Procedure = Procedure::new(PROGRAM, 1, 0);
/// Says whether the data is what it must be.
const PUT: Procedure = Procedure::new(PROGRAM, 1, 1);
/// Sends so much of it.
const GET: Procedure = Procedure::new(PROGRAM, 1, 2);

const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, words @ ..] = &words[..] else {
        return Err("usage: carries ADDRESS [NAME KNOB=VALUE...]...".into());
    };
    let mut groups = vec![("default", Vec::new())];
    for word in words {
        match groups.last_mut() {
            Some((_, knobs)) if word.contains('=') => knobs.push(word.as_str()),
            _ => groups.push((word, Vec::new())),
        }
    }
    for (name, knobs) in groups {
        carry(address, name, &knobs)?;
    }
    Ok(())
}

fn carry(address: &str, name: &str, knobs: &[&str]) -> Result<(), Box<dyn Error>> {
    let with = |builder: NodeBuilder| knobs.iter().fold(builder, |it, knob| it.knob(knob));
    let data: &[u8] = Vec::leak(data());
    let server = with(Server::builder())
        .authentication(Authentication::None)
        .procedure(NULL, |_, _| Ok(()))
        .procedure(PUT, |call, reply| {
            let came = call.args().bulk()?.to_vec();
            reply.u32((came == data[..came.len()]).into());
            Ok(())
        })
        .procedure(GET, |call, reply| {
            reply.bulk_copy(&data[..call.args().u32()? as usize]);
            Ok(())
        })
        .listen(address)?;
    let node = with(Node::builder()).start(server.address())?;
    let client = node
        .client()
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE)
        .connect(server.address())?;
    if name == "default" {
        let fabric = Fabric::of([&server.address().parse()?], None, Use::Listen)?;
        println!("profile: {}", fabric.layers(None)?.build()?.name);
        node.warnings()
            .iter()
            .for_each(|it| println!("warning: {it}"));
    }
    client.request(NULL).call()?;
    let mut ways = Vec::new();
    for bytes in SIZES {
        let put = || {
            let mut buffer = client.buffers().wait(bytes, PATIENCE)?;
            buffer.copy_from(&data[..bytes]);
            let mut answer = client.request(PUT).bulk(buffer).call()?;
            Ok(answer.results().u32()? == 1)
        };
        let size = u32::try_from(bytes)?;
        let get = || {
            let mut answer = client.request(GET).u32(size).expect_bulk(size).call()?;
            Ok(answer.results().bulk()?.to_vec() == data[..bytes])
        };
        let there = way(put, &server.metrics(), &server.metrics());
        let back = way(get, &server.metrics(), &node.metrics());
        let [there, back] = [there, back].map(|way| match way {
            // What was asked for need not be there.
            Err(error) if name != "default" && error.is::<rpcrdma::Error>() => Ok("refused"),
            other => other,
        });
        ways.push(format!("{}/{}", there?, back?));
    }
    println!("{name}: {}", ways.join(" "));
    Ok(())
}

/// 1 MiB of which no two blocks are the same.
fn data() -> Vec<u8> {
    let block = pattern(4092, 7);
    let blocks = (0..256_u32).map(|number| [&number.to_be_bytes(), &block[..]].concat());
    blocks.flatten().collect()
}

/// How the data of a call came to the node of `receiver`. The server posts all RDMA.
fn way(
    call: impl Fn() -> Result<bool, Box<dyn Error>>,
    server: &Metrics,
    receiver: &Metrics,
) -> Result<&'static str, Box<dyn Error>> {
    let total = |of: &Metrics, name| of.total(name).unwrap_or(0);
    let rdma = || total(server, "rdma_reads") + total(server, "rdma_writes");
    let placed = || total(receiver, "bulk_bytes_placed");
    let before = (rdma(), placed());
    if !call()? {
        return Err("data came otherwise than it was sent".into());
    }
    Ok(match (rdma() > before.0, placed() > before.1) {
        (true, false) => "rdma",
        (false, true) => "placed",
        (false, false) => "messages",
        (true, true) => "placed+rdma",
    })
}
