//! What librpcrdma adds to a call of the crate `rpcrdma`: the p50 of a null call and of an echo of 4 KiB over shm, in C
//! (calls.c, with the installed shared library) and in Rust, by turns, each round in new processes. One core serves and calls.
//!
//! `packaging/install-c PREFIX && cargo bench -p rpcrdma-bench --bench against_c -- PREFIX [ROUNDS]`, where PREFIX is
//! absolute.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rpcrdma::prelude::*;

const PROGRAM: u32 = 0x2000_0001;
const CALLS: usize = 20_000;
const BYTES: usize = 4096;

/// The p50 of a call, in nanoseconds.
fn p50(mut call: impl FnMut()) -> u128 {
    let timed = |_| {
        let begin = Instant::now();
        call();
        begin.elapsed().as_nanos()
    };
    let mut taken: Vec<_> = (0..CALLS).map(timed).collect();
    taken.sort_unstable();
    taken[CALLS / 2]
}

/// The same as calls.c.
fn in_rust(address: &str) -> rpcrdma::Result<()> {
    let echo = Procedure::new(PROGRAM, 1, 1);
    let server = Server::builder()
        .knob("idle=pause")
        .knob("connections_max=4")
        .procedure(echo, |call, reply| {
            reply.opaque(call.args().opaque()?);
            Ok(())
        })
        .listen(address)?;
    let client = server.node().client().connect(address)?;
    let null = p50(|| {
        let answer = client.request(Procedure::new(PROGRAM, 1, 0)).call();
        answer.expect("the server answers");
    });
    let sent = [0; BYTES];
    let echoed = p50(|| {
        let mut request = client.request(echo);
        request.opaque(&sent).results_bytes_max(BYTES + 4);
        let mut answer = request.call().expect("the server answers");
        assert_eq!(answer.results().opaque().map(<[u8]>::len), Ok(BYTES));
    });
    println!("{null} {echoed}");
    Ok(())
}

/// The two figures that a program prints.
fn figures(program: &Path, words: &[&str], library: &Path) -> [f64; 2] {
    let mut command = Command::new(program);
    let command = command.args(words).env("LD_LIBRARY_PATH", library);
    let ended = command.output().expect("a program");
    assert!(ended.status.success(), "{program:?}: {ended:?}");
    let text = String::from_utf8(ended.stdout).expect("text");
    let mut numbers = text
        .split_whitespace()
        .map(|word| word.parse().expect("a number"));
    [(); 2].map(|()| numbers.next().expect("two numbers"))
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> rpcrdma::Result<()> {
    let words: Vec<_> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    if let [mode, address] = words.as_slice()
        && mode == "--rust"
    {
        return in_rust(address);
    }
    let prefix = words.first().map(PathBuf::from);
    let prefix = prefix.expect("the first argument is the prefix of packaging/install-c");
    let rounds = words
        .get(1)
        .map_or(15, |word| word.parse().expect("rounds"));
    let library = prefix.join("lib");
    let program = std::env::temp_dir().join(format!("calls-{}", std::process::id()));
    let compiled = Command::new("cc")
        .args([
            "-O2",
            "-std=c11",
            "-D_POSIX_C_SOURCE=200809L",
            "-Wall",
            "-Wextra",
            "-o",
        ])
        .arg(&program)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("calls.c"))
        .args([
            format!("-I{}", prefix.join("include").display()),
            format!("-L{}", library.display()),
            "-lrpcrdma".to_owned(),
        ])
        .status();
    assert!(compiled.expect("cc").success(), "calls.c is not compiled");
    let ours = std::env::current_exe().expect("a path");
    let address = format!("shm:against-c-{}", std::process::id());
    let measured: Vec<_> = (0..rounds)
        .map(|_| {
            let rust = figures(&ours, &["--rust", &address], &library);
            (rust, figures(&program, &[&address], &library))
        })
        .collect();
    std::fs::remove_file(&program).expect("it is there");
    for (index, name) in ["null call", "echo of 4 KiB"].into_iter().enumerate() {
        let rust = median(measured.iter().map(|(rust, _)| rust[index]));
        let c = median(measured.iter().map(|(_, c)| c[index]));
        let ratio = median(measured.iter().map(|(rust, c)| c[index] / rust[index]));
        println!(
            "{name:<16}Rust {rust:>7.0} ns   C {c:>7.0} ns   ratio of each round, median {ratio:.3}"
        );
    }
    Ok(())
}
