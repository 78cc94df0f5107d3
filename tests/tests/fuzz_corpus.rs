//! Drives every fuzz target on stable: over its committed corpus, and over a bounded count of mutations of it.
//!
//! The mutations are the same in every run. `cargo +nightly fuzz run NAME --fuzz-dir tests/fuzz` goes further.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use rpcrdma_fabric::testing::HostileRing;
use rpcrdma_testkit::Random;
use rpcrdma_tests::fuzz_targets::{TARGETS, Target};

/// How many mutated inputs each target gets.
const MUTATIONS: usize = 20_000;
/// No mutated input is longer, in octets.
const INPUT_BYTES_MAX: usize = 2048;
/// What the committed corpora may take together, in octets.
const CORPUS_BYTES_MAX: u64 = 1 << 20;

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

/// The corpus of a target, in the order of the file names.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = fuzz_folder().join("corpus").join(name);
    let entries = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{name} has no corpus in {}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    files.sort();
    assert!(!files.is_empty(), "the corpus of {name} is empty");
    files
        .iter()
        .map(|file| fs::read(file).expect("a corpus file"))
        .collect()
}

/// Prints the input on the way out of a panic.
struct Input<'a> {
    name: &'a str,
    octets: &'a [u8],
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self
                .octets
                .iter()
                .map(|octet| format!("{octet:02x}"))
                .collect();
            eprintln!("fuzz target {} failed on {hex}", self.name);
        }
    }
}

fn run(name: &str, target: Target, octets: &[u8]) {
    let _input = Input { name, octets };
    target(octets);
}

#[test]
fn every_target_holds_over_its_corpus() {
    for (name, target) in TARGETS {
        for octets in corpus(name) {
            run(name, target, &octets);
        }
    }
}

#[test]
fn every_target_holds_over_mutations_of_its_corpus() {
    for (name, target) in TARGETS {
        let seeds = corpus(name);
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..MUTATIONS {
            let mut octets = random.pick(&seeds);
            for _ in 0..=random.below(4) {
                mutate(&mut octets, &seeds, &mut random);
            }
            octets.truncate(INPUT_BYTES_MAX);
            run(name, target, &octets);
        }
    }
}

#[test]
fn every_target_is_driven_here_and_by_libfuzzer() {
    let listed: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(listed.len(), TARGETS.len(), "a name stands twice");

    let mut files = BTreeSet::new();
    for entry in fs::read_dir(fuzz_folder().join("fuzz_targets")).expect("fuzz_targets") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let source = fs::read_to_string(&path).expect("a source file");
        assert!(
            source.contains(&format!("run(\"{name}\", data)")),
            "{name} runs another target"
        );
        files.insert(name);
    }
    assert_eq!(files, listed, "fuzz_targets/*.rs and TARGETS");

    let manifest = fs::read_to_string(fuzz_folder().join("Cargo.toml")).expect("Cargo.toml");
    let manifest: toml::Table = manifest.parse().expect("TOML");
    let binaries = manifest["bin"].as_array().expect("[[bin]]");
    let binaries: BTreeSet<String> = binaries
        .iter()
        .map(|bin| bin["name"].as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(binaries, listed, "[[bin]] and TARGETS");

    let mut folders = BTreeSet::new();
    let mut corpus_bytes = 0;
    for entry in fs::read_dir(fuzz_folder().join("corpus")).expect("corpus") {
        let entry = entry.expect("an entry");
        folders.insert(entry.file_name().to_string_lossy().into_owned());
        for file in fs::read_dir(entry.path()).expect("a folder") {
            corpus_bytes += file.and_then(|file| file.metadata()).expect("a file").len();
        }
    }
    assert_eq!(folders, listed, "corpus folders and TARGETS");
    assert!(
        corpus_bytes <= CORPUS_BYTES_MAX,
        "the corpora take {corpus_bytes} octets"
    );
}

/// What the port counts of records, pulled bytes, failures that it reports, and broken channels.
fn counted(records: &[u8]) -> [u64; 4] {
    let mut ring = HostileRing::new().expect("two small ports");
    ring.take(records).expect("a channel");
    let counters = ring.counters();
    ["records_in", "bytes_pulled", "naks_out", "channels_broken"].map(|name| {
        let found = counters.iter().find(|(known, _)| *known == name);
        found.expect("a counter of a port").1
    })
}

fn record(control: u8, op: u8, payload: &[u8]) -> Vec<u8> {
    let bytes = u8::try_from(payload.len()).expect("a short record");
    [&[control, 0, bytes, 0, op, 0], payload].concat()
}

/// A piece of the writer's arena: so many octets from its start.
fn piece(bytes: u8) -> [u8; 16] {
    let mut piece = [0; 16];
    piece[8] = bytes;
    piece
}

/// The target `shm_ring` would hold over anything if its records went nowhere.
#[test]
fn ring_records_reach_the_port_as_they_are_written() {
    const WINDOW: u8 = 2;
    let send = record(0, 2, b"abc");
    assert_eq!(counted(&[]), [0; 4]);
    assert_eq!(counted(&send), [1, 0, 0, 0]);
    assert_eq!(counted(&send.repeat(20)), [20, 0, 0, 0]);
    assert_eq!(counted(&record(0, 3, &piece(100))), [1, 100, 0, 0]);
    let write = [[0; 16], piece(64)].concat();
    assert_eq!(counted(&record(WINDOW, 4, &write)), [1, 64, 0, 0]);
    // Without the window there is no such key.
    assert_eq!(counted(&record(0, 4, &write))[1..], [0, 1, 0]);
    assert_eq!(counted(&record(0, 77, b"no"))[1..], [0, 0, 1]);
}

/// Words that sit at the edges of what the formats allow.
const WORDS: [u32; 21] = [
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    16,
    256,
    400,
    401,
    1024,
    1025,
    0x5254_5201,
    0x5254_5204,
    u32::MAX,
];

/// Changes the input in one way: most ways keep words whole, because words are what the formats are made of.
fn mutate(octets: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let words = octets.len() / 4;
    match random.below(8) {
        0 if !octets.is_empty() => {
            let at = random.below(octets.len());
            octets[at] ^= 1 << random.below(8);
        }
        1 | 2 if words > 0 => {
            let at = 4 * random.below(words);
            octets[at..at + 4].copy_from_slice(&random.pick(&WORDS).to_be_bytes());
        }
        3 => octets.truncate(random.below(octets.len() + 1)),
        4 => {
            let word = random.pick(&WORDS);
            let at = 4 * random.below(words + 1);
            octets.splice(at..at, word.to_be_bytes());
        }
        5 if words > 0 => {
            let at = 4 * random.below(words);
            octets.drain(at..at + 4);
        }
        6 if words > 0 => {
            // Once more what stands there: entries of lists, properties.
            let start = 4 * random.below(words);
            let end = start + 4 * random.below(words - start / 4 + 1);
            let copy = octets[start..end].to_vec();
            octets.splice(end..end, copy);
        }
        _ => {
            let other = random.pick(seeds);
            let (here, there) = (
                random.below(octets.len() + 1),
                random.below(other.len() + 1),
            );
            octets.truncate(here);
            octets.extend_from_slice(&other[there..]);
        }
    }
}
