//! The program `bench-tool`. All of its code is in the library, where tests can reach it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bench_tool::main()
}
