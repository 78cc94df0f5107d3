//! A client that makes entries one after the other, repeats calls that were lost with their connection, and is killed.
//!
//! ```text
//! repeating-client ADDRESS[,...] PROGRAM PROCEDURE FIRST [BYTES [KNOB=VALUE...]]
//! ```
//!
//! It calls the procedure, of version 1, with FIRST and every number after it, and prints each number that was answered
//! with itself. If BYTES is not 0, each second call sends so many bytes of data, which are all the number modulo 256. When its
//! connection is at another address, it prints on standard error how long the call in progress took: `moved MS ADDRESS`, or
//! `back MS ADDRESS` at the first one. The client ends when standard output is closed, and with 1 when a call fails.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;
use std::time::{Duration, Instant};

use rpcrdma::Reconnect;
use rpcrdma::prelude::*;

const USAGE: &str =
    "usage: repeating-client ADDRESS[,...] PROGRAM PROCEDURE FIRST [BYTES [KNOB=VALUE...]]";

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [address, program, procedure, first, more @ ..] = &words[..] else {
        return Err(USAGE.into());
    };
    let procedure = Procedure::new(program.parse()?, 1, procedure.parse()?);
    let data_bytes: usize = more.first().map_or(Ok(0), |bytes| bytes.parse())?;
    let mut client = Client::builder()
        .knob("idle=park")
        // TIME: these limits exceed what its test waits, so they end nothing on a machine that is slow.
        .knob("call_timeout_ms=300000")
        .knob("keep_alive_silent_ticks_max=255")
        .knob("stall_timeout_ms=600000")
        .knob("path_suspect_ms=10000")
        .knob("path_probe_ms=10000");
    for knob in more.iter().skip(1) {
        client = client.knob(knob);
    }
    let client = client
        .connect_timeout(Duration::from_secs(600))
        .reconnect(Reconnect {
            first_ms: 1,
            most_ms: 20,
            ..Reconnect::default()
        })
        .repeat(true)
        .connect(address)?;
    let mut out = std::io::stdout().lock();
    let (home, _) = address.split_once(',').unwrap_or((address, ""));
    let mut at = home.to_owned();
    for number in first.parse::<u32>()?.. {
        let mut request = client.request(procedure);
        request.u32(number);
        if data_bytes > 0 && number % 2 == 1 {
            // TIME: there is memory for more calls than this one.
            let mut data = client
                .buffers()
                .wait(data_bytes, Duration::from_secs(600))?;
            for piece in data.pieces_mut() {
                piece.fill(number.to_be_bytes()[3]);
            }
            request.bulk(data);
        }
        // TIME: it is printed, and is no limit.
        let begin = Instant::now();
        let mut answer = request.call()?;
        let took = begin.elapsed();
        let answered = answer.results().u32()?;
        if answered != number {
            return Err(format!("{number} was answered with {answered}").into());
        }
        if let Some(now) = client.connected_at().swap_remove(0)
            && now != at
        {
            let what = if now == home { "back" } else { "moved" };
            eprintln!("{what} {} {now}", took.as_millis());
            at = now;
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
