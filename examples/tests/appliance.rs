//! The appliance and its client, as processes: what the client writes is on the disk, byte for byte, and got
//! there from the memory that RDMA put it into.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rpcrdma_examples::pattern;
use rpcrdma_testkit::{Seen, reach, until};
use rustix::process::{Pid, Signal, kill_process};

/// A folder of this test's own, on the file system that the tests are built on; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(what: &str) -> Self {
        let name = format!("appliance-{what}-{}", std::process::id());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What an appliance said of its work in the end.
#[derive(Debug, PartialEq, Eq)]
struct Figures {
    direct_bytes: u64,
    buffered_bytes: u64,
    copied_bytes: u64,
    engine_copied_bytes: u64,
    errors: u64,
}

impl Figures {
    fn parse(line: &str) -> Self {
        let value = |name: &str| {
            let mut words = line.split_whitespace().filter_map(|it| it.split_once('='));
            let (_, value) = words
                .find(|(found, _)| *found == name)
                .unwrap_or_else(|| panic!("no {name} in {line:?}"));
            value.parse().expect("a number")
        };
        Self {
            direct_bytes: value("direct_bytes"),
            buffered_bytes: value("buffered_bytes"),
            copied_bytes: value("copied_bytes"),
            engine_copied_bytes: value("engine_copied_bytes"),
            errors: value("errors"),
        }
    }
}

/// An appliance that serves a file.
struct Appliance {
    process: Child,
    address: String,
    /// The appliance itself, which is not `process` when that traces it.
    pid: i32,
}

impl Appliance {
    /// Starts one on `file`, by `command`, which ends with the program. Where there is no io_uring, or no direct
    /// I/O on this file system, it says what to do, and so does this.
    fn start_by(mut command: Command, folder: &Folder, file: &Path, options: &[&str]) -> Self {
        let name = folder.0.file_name().and_then(|name| name.to_str());
        let address = format!("shm:{}", name.expect("a name of this test's own"));
        command.args(["--listen", &address]).arg("--file").arg(file);
        command.args(options);
        Self::started(command, address)
    }

    /// The one that `command` starts at `address`.
    fn started(mut command: Command, address: String) -> Self {
        let mut process = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?} (is strace installed?): {error}"));
        let mut line = String::new();
        let stdout = process.stdout.as_mut().expect("it is piped");
        let read = BufReader::new(stdout).read_line(&mut line);
        read.expect("it says when it listens");
        let pid = line.rsplit("(process ").next();
        let pid = pid.and_then(|rest| rest.trim_end().strip_suffix(')'));
        let Some(pid) = pid.and_then(|pid| pid.parse().ok()) else {
            let output = process.wait_with_output().expect("it ended");
            panic!("{}", String::from_utf8_lossy(&output.stderr));
        };
        Self {
            process,
            address,
            pid,
        }
    }

    fn start(folder: &Folder, file: &Path, options: &[&str]) -> Self {
        let program = Command::new(env!("CARGO_BIN_EXE_appliance"));
        Self::start_by(program, folder, file, options)
    }

    /// Has a client write and read, with these arguments.
    fn client(&self, arguments: &str) -> Output {
        Command::new(env!("CARGO_BIN_EXE_appliance-client"))
            .args(["--connect", &self.address])
            .args(arguments.split_whitespace())
            .output()
            .expect("the client starts")
    }

    /// As [`Appliance::client`], which is to find all as it wrote it.
    fn client_succeeds(&self, arguments: &str) {
        let output = self.client(arguments);
        assert!(output.status.success(), "{arguments}: {output:?}");
    }

    /// As [`Appliance::client`], which is told that there is no space.
    fn has_no_space(&self, arguments: &str) {
        let output = self.client(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_told = said.contains("there is no space for it on the disk");
        assert!(!output.status.success() && is_told, "{output:?}");
    }

    /// Stops it; what it says of its work.
    fn stop(self) -> Figures {
        self.stop_and_say().0
    }

    /// As [`Appliance::stop`], with what stands on standard error.
    fn stop_and_say(mut self) -> (Figures, String) {
        self.signal(Signal::TERM);
        let mut said = String::new();
        let stdout = self.process.stdout.as_mut().expect("it is piped");
        stdout.read_to_string(&mut said).expect("its figures");
        let status = self.process.wait().expect("it ends");
        assert!(status.success(), "{status}: {said}");
        let mut errors = String::new();
        let stderr = self.process.stderr.as_mut().expect("it is piped");
        stderr.read_to_string(&mut errors).expect("its messages");
        (Figures::parse(&said), errors)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid).expect("no process has the number zero");
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Appliance {
    fn drop(&mut self) {
        // A process that was waited for is gone, and its number may be another's.
        if matches!(self.process.try_wait(), Ok(None)) {
            self.signal(Signal::KILL);
            let _ = self.process.wait();
        }
    }
}

/// Whether `file` begins with so many bytes of what the client writes.
fn holds_pattern(file: &Path, bytes: u64) {
    let disk = BufReader::new(File::open(file).expect("the disk"));
    let mut count = 0;
    for (position, byte) in (0..bytes).zip(disk.bytes()) {
        assert_eq!(
            byte.expect("the disk"),
            pattern(position),
            "byte {position}"
        );
        count += 1;
    }
    assert_eq!(count, bytes, "the disk is that long");
}

const MIB: u64 = 1 << 20;

/// A disk that nobody writes wholly in these tests, in bytes.
const LONG: u64 = 1 << 30;

#[test]
fn placed_data_go_to_the_disk_and_back_without_a_copy() {
    let folder = Folder::new("direct");
    let file = folder.file("disk");
    let size = (16 * MIB).to_string();
    let appliance = Appliance::start(&folder, &file, &["--size-bytes", &size]);
    // By the Sends themselves, and, since they are long, by RDMA.
    appliance.client_succeeds("--bytes 4194304 --block-bytes 65536");
    appliance
        .client_succeeds("--bytes 8388608 --block-bytes 1048576 --offset-bytes 4194304 --durable");
    holds_pattern(&file, 12 * MIB);
    let expected = Figures {
        direct_bytes: 2 * 12 * MIB,
        buffered_bytes: 0,
        copied_bytes: 0,
        engine_copied_bytes: 0,
        errors: 0,
    };
    assert_eq!(appliance.stop(), expected);
}

#[test]
fn bytes_unfit_for_direct_io_reach_the_disk_too() {
    let folder = Folder::new("odd");
    let file = folder.file("disk");
    let size = (4 * MIB + 1).to_string();
    let appliance = Appliance::start(&folder, &file, &["--size-bytes", &size]);
    // Odd lengths at odd places, over one another and up to the end of an odd disk.
    appliance.client_succeeds("--bytes 1000003 --block-bytes 10007 --offset-bytes 77");
    appliance.client_succeeds("--bytes 131172 --block-bytes 65536 --offset-bytes 1048576");
    appliance.client_succeeds("--bytes 4194305 --block-bytes 262144");
    // So short that they come in the stream.
    appliance.client_succeeds("--bytes 3000 --block-bytes 100 --offset-bytes 5");
    holds_pattern(&file, 4 * MIB + 1);
    let figures = appliance.stop();
    assert!(figures.direct_bytes >= 8 * MIB, "{figures:?}");
    assert!(figures.buffered_bytes >= 2 * 1_000_003, "{figures:?}");
    // And the ends of what was written before: a hundred bytes, and one.
    assert_eq!((figures.copied_bytes, figures.errors), (3101, 0));
}

#[test]
fn an_appliance_without_direct_io_works_through_the_page_cache() {
    let folder = Folder::new("buffered");
    let file = folder.file("disk");
    let options = ["--size-bytes", "1048576", "--buffered"];
    // Longer than the disk, and what is beyond that is somebody else's.
    std::fs::write(&file, [7; (1 << 20) + 10]).expect("a file");
    let appliance = Appliance::start(&folder, &file, &options);
    appliance.client_succeeds("--bytes 1048576");
    holds_pattern(&file, MIB);
    let stored = std::fs::read(&file).expect("the disk");
    assert_eq!(stored[1 << 20..], [7; 10]);
    let figures = appliance.stop();
    assert_eq!((figures.direct_bytes, figures.buffered_bytes), (0, 2 * MIB));
}

#[test]
fn errors_of_the_disk_are_errors_of_the_call() {
    let folder = Folder::new("errors");
    let options = ["--size-bytes", "1048576", "--buffered"];
    let appliance = Appliance::start(&folder, Path::new("/dev/full"), &options);
    appliance.has_no_space("--bytes 65536");
    // Beyond its end it is not asked.
    appliance.has_no_space("--bytes 8192 --offset-bytes 1044480 --block-bytes 8192");
    // The next client is served as if nothing had been.
    appliance.has_no_space("--bytes 4096 --block-bytes 4096");
    let figures = appliance.stop();
    assert_eq!((figures.errors, figures.buffered_bytes), (2, 0));
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_of_the_call() {
    let folder = Folder::new("limit");
    let file = folder.file("disk");
    File::create(&file)
        .and_then(|file| file.set_len(LONG))
        .expect("a long file");
    let mut command = Command::new("sh");
    // In blocks of 512 bytes: half of the disk.
    let limited = format!("ulimit -f {} && exec \"$0\" \"$@\"", LONG / 2 / 512);
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_appliance")]);
    let options = ["--size-bytes", &LONG.to_string()];
    let appliance = Appliance::start_by(command, &folder, &file, &options);
    let before = LONG / 2 - 8192;
    // The second half of each call is beyond it.
    let odd = format!("--bytes 16384 --offset-bytes {before} --block-bytes 16384");
    appliance.has_no_space(&odd);
    appliance.client_succeeds(&format!("--bytes 8192 --offset-bytes {before}"));
    assert_eq!(appliance.stop().errors, 1);
}

/// Starts a client that writes for a long time, and waits until it has written.
fn writing(appliance: &Appliance, file: &Path) -> Child {
    let mut client = Command::new(env!("CARGO_BIN_EXE_appliance-client"))
        .args(["--connect", &appliance.address])
        .args(["--bytes", &LONG.to_string(), "--durable"])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the client starts");
    reach("something is written", || {
        let has_ended = client.try_wait().expect("it is a child").is_some();
        match std::fs::metadata(file).expect("the disk").blocks() {
            0 if has_ended => Seen::Passed("the client has ended"),
            0 => Seen::NotYet,
            _ => Seen::Reached(()),
        }
    });
    client
}

#[test]
fn either_end_may_go_with_writes_in_flight() {
    let folder = Folder::new("gone");
    let file = folder.file("disk");
    // A machine may keep this test from its work until the client has written all: then another one is tried.
    until("a client that is killed while it writes", || {
        let _ = std::fs::remove_file(&file);
        let appliance = Appliance::start(&folder, &file, &["--size-bytes", &LONG.to_string()]);
        let mut client = writing(&appliance, &file);
        client.kill().expect("it was not waited for");
        let status = client.wait().expect("it is gone");
        // Others are served as before.
        appliance.client_succeeds("--bytes 4194304");
        holds_pattern(&file, 4 * MIB);
        assert_eq!(appliance.stop().errors, 0);
        is_killed(status).then_some(())
    });
    let output = until("an appliance that ends while a client writes", || {
        let _ = std::fs::remove_file(&file);
        let appliance = Appliance::start(&folder, &file, &["--size-bytes", &LONG.to_string()]);
        let client = writing(&appliance, &file);
        let figures = appliance.stop();
        assert_eq!(figures.errors, 0, "what was under way is done: {figures:?}");
        let output = client.wait_with_output().expect("it ends");
        (!output.status.success()).then_some(output)
    });
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // A call was under way, or the next ones found no connection.
    let is_told = said.contains("the connection ended") || said.contains("no connection to");
    assert!(is_told, "{output:?}");
}

/// Whether a process was killed at its work, and had not ended before.
fn is_killed(status: ExitStatus) -> bool {
    match status.signal() {
        Some(signal) => signal == Signal::KILL.as_raw(),
        None => {
            assert!(status.success(), "{status}");
            false
        }
    }
}

/// The system calls by which a program moves bytes itself.
const MOVING: &str = "read,write,pread64,pwrite64,readv,writev,preadv,pwritev,preadv2,pwritev2,\
                      sendfile,splice,vmsplice,tee,copy_file_range,process_vm_readv,process_vm_writev,\
                      sendto,recvfrom,sendmsg,recvmsg,sendmmsg,recvmmsg";

/// Bytes that the system calls of a trace by strace moved.
fn moved_bytes(trace: &str) -> u64 {
    let results = trace.lines().filter_map(|line| line.rsplit_once(" = "));
    let counts = results.filter_map(|(_, result)| result.split_whitespace().next());
    counts.filter_map(|count| count.parse::<u64>().ok()).sum()
}

#[test]
fn no_system_call_of_the_appliance_carries_data() {
    let folder = Folder::new("traced");
    let (file, trace) = (folder.file("disk"), folder.file("trace"));
    let command = traced(&trace, &["--trace", MOVING]);
    let size = (8 * MIB).to_string();
    let appliance = Appliance::start_by(command, &folder, &file, &["--size-bytes", &size]);
    appliance.client_succeeds("--bytes 8388608");
    let figures = appliance.stop();
    holds_pattern(&file, 8 * MIB);
    assert_eq!(figures.direct_bytes, 16 * MIB);
    let trace = std::fs::read_to_string(&trace).expect("the trace");
    // It does see such calls: the programs that are loaded, and what the appliance says.
    assert!(trace.contains("listening on"), "{trace}");
    let moved = moved_bytes(&trace);
    assert!(moved < MIB / 8, "{moved} bytes were moved: {trace}");
}

/// The program under strace, which follows its threads and writes what it sees to `trace`.
fn traced(trace: &Path, options: &[&str]) -> Command {
    let mut command = Command::new("strace");
    command.args(["--follow-forks", "--quiet=all", "--output"]);
    command.arg(trace).args(options);
    command.arg(env!("CARGO_BIN_EXE_appliance"));
    command
}

#[test]
fn a_file_that_is_made_is_durable_under_its_name() {
    let folder = Folder::new("made");
    let (file, trace) = (folder.file("disk"), folder.file("trace"));
    let start = || {
        let command = traced(&trace, &["--decode-fds=path", "--trace", "fsync"]);
        let appliance = Appliance::start_by(command, &folder, &file, &["--size-bytes", "4096"]);
        appliance.stop();
        std::fs::read_to_string(&trace).expect("the trace")
    };
    let made = start();
    let synced = |path: &Path| made.contains(&format!("<{}>) = 0", path.display()));
    assert!(synced(&file) && synced(&folder.0), "{made}");
    assert!(!start().contains("fsync"), "it was there");
}

#[test]
fn a_file_that_is_made_and_of_no_use_does_not_stay() {
    let folder = Folder::new("useless");
    let (file, trace) = (folder.file("disk"), folder.file("trace"));
    let path = file.display().to_string();
    // It is looked for, made, and opened for direct I/O.
    let failing = ["--trace-path", &path, "--inject=openat:error=EINVAL:when=3"];
    let output = traced(&trace, &failing)
        .args(["--listen", "shm:never", "--size-bytes", "4096", "--file"])
        .arg(&file)
        .output()
        .expect("strace is installed");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_told = said.contains("takes no direct I/O");
    assert!(!output.status.success() && is_told, "{said}");
    let made = std::fs::read_to_string(&trace).expect("the trace");
    assert!(made.contains("O_CREAT|O_EXCL"), "{made}");
    assert!(!file.exists());
}

/// How much shorter the disk of the document is here.
const SHORTER: u64 = 16;

/// The three command lines of docs/embedding.md that start the two programs, as they stand there but for sizes, and
/// for where the programs and the disk are.
#[test]
fn the_command_lines_of_the_document_do_what_it_says() {
    let document = include_str!("../../docs/embedding.md");
    let lines = document.lines().filter(|it| it.contains("target/release/"));
    let lines: Vec<&str> = lines.collect();
    let &[serves, calls, traces] = &lines[..] else {
        panic!("the document has other lines: {lines:?}");
    };
    let folder = Folder::new("document");
    let address = format!("shm:document-{}", std::process::id());
    let command = |line: &str| {
        let bytes = 64 * MIB;
        let line = line
            .trim_end_matches(" &")
            .replace(&bytes.to_string(), &(bytes / SHORTER).to_string())
            .replace("shm:disk", &address)
            .replace(
                "target/release/appliance-client",
                env!("CARGO_BIN_EXE_appliance-client"),
            )
            .replace(
                "target/release/appliance ",
                concat!(env!("CARGO_BIN_EXE_appliance"), " "),
            );
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("exec {line}")])
            .current_dir(&folder.0);
        command
    };
    let shown = document.lines().find(|it| it.starts_with("direct_bytes="));
    let mut shown = Figures::parse(shown.expect("what the appliance says"));
    shown.direct_bytes /= SHORTER;
    for (line, is_traced) in [(serves, false), (traces, true)] {
        let appliance = Appliance::started(command(line), address.clone());
        let output = command(calls).output().expect("the client starts");
        assert!(output.status.success(), "{calls}: {output:?}");
        let (figures, said) = appliance.stop_and_say();
        assert_eq!(figures, shown, "{line}");
        assert_eq!(said.contains("io_uring_enter"), is_traced, "{said}");
    }
}

#[test]
fn bytes_moved_in_a_trace_are_summed() {
    let trace = "7 read(3, \"\\177ELF\"..., 832) = 832\n\
                 7 write(1, \"a = 5\", 5) = 5\n\
                 7 read(4, 0x7f, 8) = -1 EAGAIN (Resource temporarily unavailable)\n\
                 8 pread64(3, \"\", 64, 9) = 0\n";
    assert_eq!(moved_bytes(trace), 837);
}
