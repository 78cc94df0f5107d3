//! Runs the campaign of hostile messages and prints what was met.
//!
//! ```text
//! hostile [--cases NUMBER] [--seed NUMBER]
//! ```
//!
//! Exit status: 0 when every case came out as the oracle says and every reason came up often enough, 1 otherwise,
//! 2 when the command line is wrong. A case that comes out otherwise ends the program with the messages that led to
//! it.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use rpcrdma_tests::hostile;

const USAGE: &str = "usage: hostile [--cases NUMBER] [--seed NUMBER]
  --cases NUMBER  how many hostile messages (10000000)
  --seed NUMBER   which ones (1)";

fn options() -> Option<(u64, u64)> {
    let (mut cases, mut seed) = (10_000_000, 1);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next()?.parse().ok()?;
        match argument.as_str() {
            "--cases" => cases = value,
            "--seed" => seed = value,
            _ => return None,
        }
    }
    Some((cases, seed))
}

fn main() -> ExitCode {
    let Some((cases, seed)) = options() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // TIME: the program prints it, and compares it with nothing.
    let start = Instant::now();
    let report = hostile::run(cases, seed);
    print!("{report}");
    println!("seed {seed}, {:.1} s", start.elapsed().as_secs_f64());
    let shortfalls = report.shortfalls();
    for shortfall in &shortfalls {
        eprintln!("hostile: {shortfall}");
    }
    ExitCode::from(u8::from(!shortfalls.is_empty()))
}
