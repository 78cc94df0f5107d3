//! Records the git revision that the binary was built from, so that every report can name it, and what `--version` says
//! of the build.
//!
//! Building outside a checkout, or without git, is ordinary (a source archive): the revision is then "unknown".

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // HEAD moves on checkout, the reflog on every commit; a path that is absent would rerun this always.
    for path in ["../.git/HEAD", "../.git/logs/HEAD"] {
        if Path::new(path).exists() {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let revision =
        git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=BENCH_TOOL_REVISION={revision}");
    let profile = std::env::var("PROFILE").unwrap_or_else(|_| "unknown".to_owned());
    println!("cargo:rustc-env=BENCH_TOOL_BUILD_PROFILE={profile}");
    let rdma_core = match std::env::var_os("CARGO_FEATURE_RDMA_SYS") {
        Some(_) => "rdma-core linked by rdma-sys",
        None => "rdma-core loaded at run time",
    };
    println!("cargo:rustc-env=BENCH_TOOL_RDMA_CORE={rdma_core}");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}
