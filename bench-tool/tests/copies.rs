//! What placement saves is a copy, and what files in registered memory save is another: every long `memcpy` of a client and a server is counted while they
//! talk, by a library that stands before that of the C library (`copies/count_copies.c`).
#![forbid(unsafe_code)]

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use rpcrdma_testkit::{Ended, Folder, Running, command, until};

#[path = "support/patient.rs"]
mod patient;

use self::patient::PATIENT;

/// Calls of a run.
const CALLS: usize = 500;

/// Bytes of a payload.
const PAYLOAD_BYTES: u64 = 4096;

/// The copies of which the library takes note, as it says.
const LONG_BYTES: u64 = 1024;
const COPIES_MAX: usize = 65_536;

/// A copy that a process made.
#[derive(Clone, Copy, Debug)]
struct Copied {
    bytes: u64,
    from: u64,
    to: u64,
}

/// Compiles the library, in a folder of this test's own; its path.
fn library(folder: &Folder) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/copies/count_copies.c");
    let library = folder.path("count_copies.so");
    // Whoever builds Rust programs has a C compiler, which links them.
    let mut compiler = command("cc", "-O2 -fno-builtin -shared -fPIC -o");
    Ended::of(compiler.arg(&library).arg(source).arg("-ldl")).check_code(0);
    library
}

/// A server whose copies are counted.
struct Server {
    process: Running,
    address: String,
    folder: Folder,
    library: String,
}

/// What the library noted in this file.
fn noted(notes: &str) -> Vec<Copied> {
    let notes = std::fs::read(notes).expect("the notes of the library");
    let mut words = notes.chunks_exact(8).map(|word| {
        let word: [u8; 8] = word.try_into().expect("of eight bytes");
        u64::from_ne_bytes(word)
    });
    let count = words.next().expect("a count");
    let count = usize::try_from(count).expect("a count that memory holds");
    assert!(count <= COPIES_MAX, "there was room for all notes");
    let words: Vec<u64> = words.take(4 * count).collect();
    let copies = words.chunks_exact(4).map(|words| Copied {
        bytes: words[0],
        from: words[1],
        to: words[2],
    });
    let copies: Vec<Copied> = copies.collect();
    assert!(copies.iter().all(|copy| copy.bytes >= LONG_BYTES));
    copies
}

/// What a run copied.
struct Copies {
    /// By the server's fabric in place of a device: what it took out of the client's memory.
    taken: Vec<Copied>,
    /// By the server otherwise.
    server: Vec<Copied>,
    /// By the client.
    client: Vec<Copied>,
    /// How many the metrics made at most.
    by_metrics_max: usize,
}

impl Server {
    fn start(what: &str, service: &str) -> Self {
        let folder = Folder::new(&format!("{what}-copies"));
        let name = folder.file_name().and_then(|name| name.to_str());
        let address = format!("shm:{}", name.expect("a name of this test's own"));
        let library = library(&folder);
        let mut serve = tool(
            &format!("serve --listen {address} {PATIENT} {service}"),
            &library,
            &folder.path("server"),
        );
        let (process, _) = Running::listening(&mut serve);
        Self {
            process,
            address,
            folder,
            library,
        }
    }

    /// What the process has mapped: addresses, and what else is said of them.
    fn mappings(&self) -> Vec<(Range<u64>, String)> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.process.id()));
        let maps = maps.expect("it runs");
        let mappings = maps.lines().map(|line| {
            let (range, rest) = line.split_once(' ').expect("a range");
            let (start, end) = range.split_once('-').expect("two addresses");
            let address = |digits| u64::from_str_radix(digits, 16).expect("an address");
            (address(start)..address(end), rest.to_owned())
        });
        mappings.collect()
    }

    /// The registered memory of its one core: that of others it cannot write.
    fn arena(&self) -> Range<u64> {
        let mappings = self.mappings().into_iter();
        let mut arenas =
            mappings.filter(|(_, what)| what.starts_with("rw") && what.contains("rpcrdma-arena"));
        let (range, _) = arenas.next().expect("a core has one");
        assert!(arenas.next().is_none(), "one core");
        range
    }

    /// Whether it still reads memory of a client.
    fn has_client(&self) -> bool {
        let mut mappings = self.mappings().into_iter();
        mappings.any(|(_, what)| what.starts_with("r--s") && what.contains("rpcrdma-arena"))
    }

    /// Has [`CALLS`] calls made.
    fn run(&self, op: &str, placement: &str) -> Copies {
        self.copies_of(&format!(
            "run --op {op} --size {PAYLOAD_BYTES} --placement {placement}"
        ))
    }

    /// Has [`CALLS`] calls made with these arguments.
    fn copies_of(&self, arguments: &str) -> Copies {
        let [own, others] = ["server", "client"].map(|it| self.folder.path(it));
        let before = noted(&own).len();
        let _ = std::fs::remove_file(&others);
        let line = format!(
            "{arguments} --connect {} {PATIENT} --set idle=park --warmup 0 --count {CALLS} --interval 1h --quiet",
            self.address
        );
        // TIME: metrics are published, and so copied, five times a second. A slow run is allowed more of them, so that it
        // cannot fail for its time.
        let begin = Instant::now();
        Ended::of(&mut tool(&line, &self.library, &others)).check_code(0);
        // Then all that is mapped, and was, is the server's own.
        until("the memory of a client that is gone is let go", || {
            (!self.has_client()).then_some(())
        });
        let seconds = usize::try_from(begin.elapsed().as_secs()).expect("a run of some minutes");
        let mapped = self.mappings();
        let is_own = |address| mapped.iter().any(|(range, _)| range.contains(&address));
        let copies = noted(&own).split_off(before).into_iter();
        let (taken, server) = copies.partition(|copy| !is_own(copy.from));
        Copies {
            taken,
            server,
            client: noted(&others),
            by_metrics_max: 10 * (seconds + 1),
        }
    }
}

impl Copies {
    /// Whether there is far less than one of these copies for each call: making a connection copies, too.
    fn is_beside_calls(&self, copies: &[Copied]) -> bool {
        copies.len() < CALLS / 4 + self.by_metrics_max
    }
}

/// This program with a library that notes its copies in a file.
fn tool(line: &str, library: &str, notes: &str) -> Command {
    let mut tool = command(env!("CARGO_BIN_EXE_bench-tool"), line);
    tool.env("LD_PRELOAD", library).env("COPIES_LOG", notes);
    tool
}

/// Whether each payload was taken to where it stays, in one piece.
fn is_each_payload_once(taken: &[Copied]) -> bool {
    // The client tries a call first.
    (CALLS..=CALLS + 2).contains(&taken.len())
        && taken.iter().all(|copy| copy.bytes == PAYLOAD_BYTES)
}

#[test]
fn payloads_beside_their_messages_are_never_copied_by_either_end() {
    let server = Server::start("bench", "");
    for placement in ["send", "rdma"] {
        let copies = server.run("write", placement);
        assert!(is_each_payload_once(&copies.taken), "{placement}");
        let arena = server.arena();
        assert!(copies.taken.iter().all(|copy| arena.contains(&copy.to)));
        assert!(copies.is_beside_calls(&copies.server), "{placement}");
        assert!(copies.is_beside_calls(&copies.client), "{placement}");
        let copies = server.run("read", placement);
        assert!(copies.is_beside_calls(&copies.taken), "{placement}");
        assert!(copies.is_beside_calls(&copies.server), "{placement}");
        // The client's fabric takes them, or puts them where they stay.
        let of_payloads = copies.client.iter().copied();
        let (taken, others): (Vec<_>, Vec<_>) =
            of_payloads.partition(|copy| copy.bytes == PAYLOAD_BYTES);
        assert!(is_each_payload_once(&taken), "{placement}");
        assert!(copies.is_beside_calls(&others), "{placement}");
    }
    // The library does see copies: in the message, a payload is copied by both operations.
    for op in ["write", "read"] {
        let copies = server.run(op, "inline");
        let whole = copies.server.iter().map(|copy| copy.bytes).sum::<u64>();
        assert!(copies.server.len() >= CALLS, "{op}");
        assert!(
            whole >= CALLS as u64 * (PAYLOAD_BYTES - 64),
            "{op}: {whole} bytes"
        );
    }
}

/// READs and WRITEs as long as a buffer of the server, and as long as any.
const FILE_CALLS: [(&str, u64); 2] = [("64KiB", 64 << 10), ("1MiB", 1 << 20)];

/// Data of NFS calls goes between the client and the memory that files are made of, with no copy on its
/// way; the files themselves were made so, in longer WRITEs.
#[test]
fn data_of_files_is_never_copied_by_their_server() {
    let server = Server::start("nfs", "--service nfs3 --space 64MiB");
    let run = |op: &str, protocol: &str, size: &str| {
        server.copies_of(&format!(
            "nfs --export /export --files 4 --file-size 2MiB --depth 4 --op {op} \
             --size {size} --protocol {protocol}"
        ))
    };
    let both = ["v1", "v2"].into_iter();
    for (protocol, (size, bytes)) in both.flat_map(|it| FILE_CALLS.map(|call| (it, call))) {
        for op in ["write", "read"] {
            let copies = run(op, protocol, size);
            let what = format!("{protocol} {op} {size}");
            let count = copies.server.len();
            assert!(copies.is_beside_calls(&copies.server), "{what}: {count}");
            let taken: u64 = copies.taken.iter().map(|copy| copy.bytes).sum();
            let calls = if op == "write" { CALLS as u64 } else { 0 };
            assert!(taken >= calls * bytes, "{what}: {taken}");
        }
    }
    // The library does see copies: what is shorter than half a buffer is copied into pages.
    let copies = run("write", "v2", "4KiB");
    assert!(copies.server.len() >= CALLS, "{}", copies.server.len());
}
