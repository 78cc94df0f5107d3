//! How the bindings load rdma-core, tried on libraries that a C compiler makes: whole ones, and some that lack something.
#![cfg(not(feature = "rdma-sys"))]
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

// The fabric's own bindings, which it does not export.
#[path = "../src/verbs/bindings/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub)]
mod bindings;

use bindings::{Facilities, Functions};

/// The functions of a library, with the versions of their symbols.
type Symbols = BTreeMap<String, String>;

/// What the bindings ask of `library`.
fn asked(library: &str) -> Symbols {
    let text = include_str!("../src/verbs/bindings/functions.rs");
    let block = text.split(&format!("{library} = c\"")).nth(1);
    let block = block.expect("the library").split("\n    }\n").next();
    let lines = block.expect("its functions").lines();
    lines
        .filter_map(|line| {
            let (version, rest) = line.trim().strip_prefix("c\"")?.split_once("\" fn ")?;
            Some((rest.split_once('(')?.0.to_owned(), version.to_owned()))
        })
        .collect()
}

/// A folder that goes with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let id = std::process::id();
        let path = std::env::temp_dir().join(format!("rpcrdma-rdma-core-{name}-{id}"));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// A folder with both libraries, adjusted.
    fn with(name: &str, adjust: impl Fn(&mut Symbols)) -> Self {
        let folder = Self::new(name);
        for library in ["libibverbs", "librdmacm"] {
            let mut symbols = asked(library);
            assert!(symbols.len() > 10, "{library}: {symbols:?}");
            adjust(&mut symbols);
            make(&folder.0, library, &symbols);
        }
        folder
    }

    fn error(&self) -> String {
        let loaded = Functions::load(Some(&self.0));
        loaded.err().expect("something is missing").to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("the folder is ours");
    }
}

/// A library with these symbols, which do nothing.
fn make(folder: &Path, library: &str, symbols: &Symbols) {
    let (source, script) = (folder.join("stub.c"), folder.join("stub.map"));
    let mut versions = BTreeMap::<&str, String>::new();
    let mut text = String::new();
    for (symbol, version) in symbols {
        text += &format!("void {symbol}(void) {{}}\n");
        *versions.entry(version).or_default() += &format!("{symbol};");
    }
    let map = versions
        .iter()
        .map(|(version, symbols)| format!("{version} {{ global: {symbols} }};\n"));
    std::fs::write(&source, text).expect("the source is written");
    std::fs::write(&script, map.collect::<String>()).expect("the versions are written");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(folder.join(format!("{library}.so.1")))
        .arg(&source)
        .arg(format!("-Wl,--version-script={}", script.display()))
        .output()
        .expect("a C compiler");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn libraries_with_every_symbol_are_loaded() {
    let folder = Folder::with("whole", |_| {});
    assert!(Functions::load(Some(&folder.0)).is_ok());
}

#[test]
fn a_missing_library_is_named_with_the_packages_that_have_it() {
    let folder = Folder::new("empty");
    let error = folder.error();
    for words in [
        "libibverbs.so.1 could not be loaded",
        "libibverbs1 librdmacm1 ibverbs-providers",
        "libibverbs librdmacm",
    ] {
        assert!(error.contains(words), "{error}");
    }
    make(&folder.0, "libibverbs", &asked("libibverbs"));
    let error = folder.error();
    assert!(
        error.contains("librdmacm.so.1 could not be loaded"),
        "{error}"
    );
}

#[test]
fn a_missing_symbol_is_named_with_its_library() {
    for (library, symbol) in [
        ("libibverbs", "ibv_reg_mr"),
        ("librdmacm", "rdma_establish"),
    ] {
        let folder = Folder::with(symbol, |symbols| {
            symbols.remove(symbol);
        });
        let error = folder.error();
        let words = format!("{library}.so.1 has no {symbol} ");
        assert!(error.contains(&words), "{error}");
        assert!(error.contains("install a newer"), "{error}");
    }
}

/// The symbol is there, as an older library has it.
#[cfg(target_env = "gnu")]
#[test]
fn a_symbol_of_another_version_is_not_taken() {
    let folder = Folder::with("older", |symbols| {
        if let Some(version) = symbols.get_mut("ibv_create_qp") {
            *version = "IBVERBS_1.0".to_owned();
        }
    });
    let error = folder.error();
    assert!(error.contains("has no ibv_create_qp "), "{error}");
    assert!(error.contains("IBVERBS_1.1"), "{error}");
}

/// Each is found by one symbol, in the version that rdma-core's libibverbs.map.in gives it.
#[test]
fn a_facility_is_reported_where_the_library_has_its_symbol() {
    let newer = [
        ("ibv_reg_dmabuf_mr", "IBVERBS_1.12"),
        ("ibv_reg_mr_ex", "IBVERBS_1.15"),
        ("ibv_create_comp_cntr", "IBVERBS_1.18"),
    ];
    for (index, (symbol, version)) in newer.into_iter().enumerate() {
        let folder = Folder::new(symbol);
        let symbols = [(symbol.to_owned(), version.to_owned())].into();
        make(&folder.0, "libibverbs", &symbols);
        let found = bindings::facilities(Some(&folder.0)).expect("the library is loaded");
        let Facilities {
            registers_dmabuf,
            registers_by_attributes,
            counts_completions,
        } = found;
        let found = [
            registers_dmabuf,
            registers_by_attributes,
            counts_completions,
        ];
        assert_eq!(found, [0, 1, 2].map(|it| it == index), "{symbol}");
    }
}

/// Of the machine that the tests run on: every rdma-core since version 34 registers memory by dma-buf.
#[test]
fn facilities_are_those_of_the_library() {
    let facilities = bindings::facilities(None).expect("rdma-core is installed for the tests");
    assert!(facilities.registers_dmabuf);
}
