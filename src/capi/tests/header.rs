//! That include/rpcrdma.h is what cbindgen makes of the crate, and documents all of it.

use std::path::Path;

/// What cbindgen makes of the crate.
fn generated() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config =
        cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("a configuration");
    let made = cbindgen::Builder::new()
        .with_crate(folder)
        .with_config(config)
        .generate();
    let mut text = Vec::new();
    made.expect("a header").write(&mut text);
    String::from_utf8(text).expect("UTF-8")
}

/// To take over a change: run this test with RPCRDMA_WRITE_HEADER=1 in the environment.
#[test]
fn the_header_is_that_of_the_crate() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/rpcrdma.h");
    let generated = generated();
    if std::env::var_os("RPCRDMA_WRITE_HEADER").is_some() {
        std::fs::write(&path, &generated).expect("it can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == generated,
        "{} is not what the crate says: run this test with RPCRDMA_WRITE_HEADER=1, and look at the difference",
        path.display()
    );
}

#[test]
fn the_document_names_what_the_header_has() {
    let header = generated();
    let document = include_str!("../../../docs/c.md");
    let is_of_name = |byte: char| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == '_';
    let words = document.split(|byte| !is_of_name(byte));
    let names = words.filter(|word| word.starts_with("rpcrdma_"));
    let mut found = 0;
    // Those that end so stand for several.
    for name in names.filter(|name| !name.ends_with('_')) {
        found += 1;
        let is_there = header
            .split(|byte| !is_of_name(byte))
            .any(|word| word == name);
        assert!(is_there, "docs/c.md names {name}");
    }
    assert!(found > 40, "{found} names");
}

#[test]
fn every_function_is_in_the_header_with_its_description() {
    let header = generated();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut functions = 0;
    for file in std::fs::read_dir(folder).expect("a folder") {
        let source = std::fs::read_to_string(file.expect("a file").path()).expect("text");
        let names = source.split("extern \"C\" fn rpcrdma_").skip(1);
        for rest in names {
            let name: String = rest.chars().take_while(|&it| it != '(').collect();
            functions += 1;
            // Descriptions name functions too, on lines that begin with a blank.
            let declares =
                |line: &&str| !line.starts_with(' ') && line.contains(&format!("rpcrdma_{name}("));
            let mut lines = header.lines();
            let before = lines.by_ref().take_while(|line| !declares(line)).last();
            assert_eq!(before, Some(" */"), "rpcrdma_{name} has no description");
        }
    }
    assert!(functions > 50, "{functions} functions");
}
