//! Tests of how the bindings load rdma-core, with libraries built by a C compiler: complete ones, and some that lack
//! symbols.
#![cfg(not(feature = "rdma-sys"))]
#![allow(unsafe_code)]

use std::collections::BTreeMap;

use rpcrdma_testkit::{CheckWords, Ended, Folder, command};

// The bindings are private to the fabric, so include their source.
#[path = "../src/verbs/bindings/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub)]
mod bindings;

use bindings::{Facilities, Functions};

/// The functions of a library, with the versions of their symbols.
type Symbols = BTreeMap<String, String>;

/// The symbols that the bindings require from `library`.
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

/// A folder with both libraries, after `adjust`.
fn libraries(adjust: impl Fn(&mut Symbols)) -> Folder {
    let folder = Folder::new("rdma-core");
    for library in ["libibverbs", "librdmacm"] {
        let mut symbols = asked(library);
        assert!(symbols.len() > 10, "{library}: {symbols:?}");
        adjust(&mut symbols);
        make(&folder, library, &symbols);
    }
    folder
}

/// The error of loading the libraries in a folder.
fn error(folder: &Folder) -> String {
    let loaded = Functions::load(Some(folder));
    loaded.err().expect("something is missing").to_string()
}

/// Builds a library with these symbols, which do nothing.
fn make(folder: &Folder, library: &str, symbols: &Symbols) {
    let mut versions = BTreeMap::<&str, String>::new();
    let mut text = String::new();
    for (symbol, version) in symbols {
        text += &format!("void {symbol}(void) {{}}\n");
        *versions.entry(version).or_default() += &format!("{symbol};");
    }
    let map = versions
        .iter()
        .map(|(version, symbols)| format!("{version} {{ global: {symbols} }};\n"));
    let source = folder.write("stub.c", text);
    let script = folder.write("stub.map", map.collect::<String>());
    let mut compiler = command("cc", "-shared -fPIC -o");
    compiler
        .arg(folder.path(&format!("{library}.so.1")))
        .arg(source)
        .arg(format!("-Wl,--version-script={script}"));
    Ended::of(&mut compiler).check_code(0);
}

#[test]
fn libraries_with_every_symbol_are_loaded() {
    let folder = libraries(|_| {});
    assert!(Functions::load(Some(&folder)).is_ok());
}

#[test]
fn a_missing_library_is_named_with_the_packages_that_have_it() {
    let folder = Folder::new("rdma-core");
    error(&folder).check_words(&[
        "libibverbs.so.1 could not be loaded",
        "libibverbs1 librdmacm1 ibverbs-providers",
        "libibverbs librdmacm",
    ]);
    make(&folder, "libibverbs", &asked("libibverbs"));
    error(&folder).check_words(&["librdmacm.so.1 could not be loaded"]);
}

#[test]
fn a_missing_symbol_is_named_with_its_library() {
    for (library, symbol) in [
        ("libibverbs", "ibv_reg_mr"),
        ("librdmacm", "rdma_establish"),
    ] {
        let folder = libraries(|symbols| {
            symbols.remove(symbol);
        });
        let words = format!("{library}.so.1 has no {symbol} ");
        error(&folder).check_words(&[&words, "install a newer"]);
    }
}

/// The symbol exists, but in an older version.
#[cfg(target_env = "gnu")]
#[test]
fn a_symbol_of_another_version_is_not_taken() {
    let folder = libraries(|symbols| {
        if let Some(version) = symbols.get_mut("ibv_create_qp") {
            *version = "IBVERBS_1.0".to_owned();
        }
    });
    error(&folder).check_words(&["has no ibv_create_qp ", "IBVERBS_1.1"]);
}

/// Each optional facility is recognized by one symbol, in the version that rdma-core's libibverbs.map.in gives it.
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
        make(&folder, "libibverbs", &symbols);
        let found = bindings::facilities(Some(&folder)).expect("the library is loaded");
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
