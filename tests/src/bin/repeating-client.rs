//! A client that makes entries one after the other, repeats calls that were lost with their connection, and is killed.
//!
//! ```text
//! repeating-client ADDRESS PROGRAM PROCEDURE FIRST [BYTES]
//! ```
//!
//! It calls the procedure, of version 1, with FIRST and every number after it, and prints each number that was answered
//! with itself. With BYTES, each second call sends so many bytes of data, which are all the number modulo 256. The client ends when
//! standard output is closed, and with 1 when a call fails.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;
use std::time::Duration;

use rpcrdma::Reconnect;
use rpcrdma::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ([address, program, procedure, first] | [address, program, procedure, first, _]) =
        &words[..]
    else {
        return Err("usage: repeating-client ADDRESS PROGRAM PROCEDURE FIRST [BYTES]".into());
    };
    let data_bytes = words.get(4).map(|bytes| bytes.parse()).transpose()?;
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
        let mut request = client.request(procedure);
        request.u32(number);
        if let Some(bytes) = data_bytes.filter(|_| number % 2 == 1) {
            // TIME: there is memory for more calls than this one.
            let mut data = client.buffers().wait(bytes, Duration::from_secs(600))?;
            for piece in data.pieces_mut() {
                piece.fill(number.to_be_bytes()[3]);
            }
            request.bulk(data);
        }
        let mut answer = request.call()?;
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
