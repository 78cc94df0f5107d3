//! `bench-tool`: the command line. All of it lives in the library, where it can be tested.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    bench_tool::main()
}
