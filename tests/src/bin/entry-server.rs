//! A server whose procedure makes an entry for each number, and prints it. A number that is printed twice was called twice.
//!
//! ```text
//! entry-server ADDRESS[,...] PROGRAM PROCEDURE
//! ```
//!
//! The procedure, of version 1, must not run twice: a repeated call gets the first reply again. Data behind the number is that
//! of its entry: bytes that are all the number, modulo 256. Anybody may connect. The server
//! ends when standard output is closed, or when it is killed.

#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Write as _;
use std::sync::mpsc;

use rpcrdma::Authentication;
use rpcrdma::prelude::*;
use rpcrdma_control::ServerAddresses;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [addresses, program, procedure] = &words[..] else {
        return Err("usage: entry-server ADDRESS[,...] PROGRAM PROCEDURE".into());
    };
    let addresses: ServerAddresses = addresses.parse()?;
    let procedure = Procedure::new(program.parse()?, 1, procedure.parse()?);
    // A core waits for nobody who reads what it prints.
    let (entered, entries) = mpsc::channel();
    let mut server = Server::builder()
        .knob("idle=park")
        // TIME: it exceeds what a test waits, so that silence ends nothing on a machine that is slow.
        .knob("keep_alive_silent_ticks_max=255")
        .authentication(Authentication::None)
        .procedure_once(procedure, move |call, reply| {
            let number = call.args().u32()?;
            if call.args().end().is_err() {
                let data = call.args().bulk()?;
                let byte = number.to_be_bytes()[3];
                if data.pieces().flatten().any(|it| *it != byte) {
                    return Err(Refusal::GarbageArgs);
                }
            }
            // The main thread receives as long as the process runs.
            let _ = entered.send(number);
            reply.u32(number);
            Ok(())
        });
    for address in addresses.iter().skip(1) {
        server = server.also_at(&address.to_string());
    }
    let server = server.listen(&addresses.first().to_string())?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "listening on {}", server.addresses().join(","))?;
    for number in entries {
        writeln!(out, "{number}")?;
    }
    Ok(())
}
