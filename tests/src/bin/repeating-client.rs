//! A client that makes entries one after the other, repeats calls that were lost with their connection, and is killed.
//!
//! ```text
//! repeating-client ADDRESS PROGRAM PROCEDURE FIRST
//! ```
//!
//! It calls the procedure, of version 1, with FIRST and every number after it, and prints each number that was answered
//! with itself. It ends when standard output is closed, and with 1 when a call fails.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;
use std::time::Duration;

use rpcrdma::Reconnect;
use rpcrdma::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, program, procedure, first] = &words[..] else {
        return Err("usage: repeating-client ADDRESS PROGRAM PROCEDURE FIRST".into());
    };
    let procedure = Procedure::new(program.parse()?, 1, procedure.parse()?);
    let client = Client::builder()
        .knob("idle=park")
        // TIME: these limits exceed what its test waits, so they end nothing on a machine that is slow.
        .knob("call_timeout_ms=300000")
        .knob("keep_alive_silent_ticks_max=255")
        .knob("stall_timeout_ms=600000")
        .knob("path_suspect_ms=10000")
        .knob("path_probe_ms=10000")
        .connect_timeout(Duration::from_secs(600))
        .reconnect(Reconnect {
            first_ms: 1,
            most_ms: 20,
            ..Reconnect::default()
        })
        .repeat(true)
        .connect(address)?;
    let mut out = std::io::stdout().lock();
    for number in first.parse::<u32>()?.. {
        let mut answer = client.request(procedure).u32(number).call()?;
        let answered = answer.results().u32()?;
        if answered != number {
            return Err(format!("{number} was answered with {answered}").into());
        }
        if writeln!(out, "{number}")
            .and_then(|()| out.flush())
            .is_err()
        {
            break;
        }
    }
    Ok(())
}
