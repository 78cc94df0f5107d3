//! The installed library as users of C, C++ and Python have it: what it exports, and the programs of examples/c,
//! examples/python and contract.c. It is installed by packaging/install-c, from the static library that cargo made for this
//! test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use rpcrdma_testkit::{Ended, Folder, Running, command};

/// Gives the examples more time, from the root of the repository on.
const PATIENT: &str = "src/capi/tests/patient.h";
/// What the clients of examples have to connect: they give up only when the test has failed.
const CONNECT_TIMEOUT_MS: &str = "600000";

/// The root of the repository.
fn root() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).expect("two folders below it")
}

/// The static library: the youngest beside this program, since older ones were made with other features.
fn archive() -> PathBuf {
    let program = std::env::current_exe().expect("a path");
    let folder = program.parent().expect("a folder");
    let files = std::fs::read_dir(folder).expect("a folder");
    let files = files.map(|file| file.expect("a file"));
    let archives = files.filter(|file| {
        let name = file.file_name().into_string().unwrap_or_default();
        name.starts_with("librpcrdma_c") && name.ends_with(".a")
    });
    let age = |file: &std::fs::DirEntry| {
        let metadata = file.metadata().expect("of a file");
        metadata.modified().expect("a time")
    };
    let archive = archives.max_by_key(age).map(|file| file.path());
    archive.unwrap_or_else(|| panic!("no librpcrdma_c*.a in {}", folder.display()))
}

/// The library, installed in a folder of the build that all tests share, and a folder for what one test makes.
struct Installed {
    prefix: PathBuf,
    folder: Folder,
}

impl Installed {
    fn new() -> Self {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capi");
        std::fs::create_dir_all(&prefix).expect("a folder of the build");
        let lock = std::fs::File::create(prefix.join("lock")).expect("a file");
        // Tests are processes, and the first of them installs it.
        lock.lock().expect("no other test keeps it");
        let archive = archive();
        let made = std::fs::metadata(&archive).and_then(|it| it.modified());
        let inputs = [
            "packaging/install-c",
            "packaging/rpcrdma.map",
            "packaging/rpcrdma.pc.in",
            "packaging/rpcrdma.supp",
        ];
        let inputs = inputs.map(|input| std::fs::read_to_string(root().join(input)).expect("text"));
        let header = include_str!("../include/rpcrdma.h");
        let stamp = format!("{archive:?} {made:?} {inputs:?} {header}");
        let stamp_file = prefix.join("stamp");
        if std::fs::read_to_string(&stamp_file).is_ok_and(|kept| kept == stamp) {
            return Self::of(prefix);
        }
        let mut install = Command::new(root().join("packaging/install-c"));
        install.arg("--archive").arg(archive).arg(&prefix);
        let lib = prefix.join("lib").display().to_string();
        let export = format!("export PKG_CONFIG_PATH={lib}/pkgconfig LD_LIBRARY_PATH={lib}\n");
        let installed = Ended::of(&mut install).with_code(0);
        assert!(installed.out.ends_with(&export), "{}", installed.out);
        std::fs::write(stamp_file, stamp).expect("a file");
        Self::of(prefix)
    }

    fn of(prefix: PathBuf) -> Self {
        let folder = Folder::new("capi");
        Self { prefix, folder }
    }

    fn path(&self, file: &str) -> String {
        self.prefix.join(file).display().to_string()
    }

    fn lib(&self) -> String {
        self.path("lib")
    }

    /// What pkg-config says.
    fn pkg_config(&self, line: &str) -> Vec<String> {
        let mut command = command("pkg-config", &format!("{line} rpcrdma"));
        command.env("PKG_CONFIG_PATH", self.path("lib/pkgconfig"));
        let ended = Ended::of(&mut command).with_code(0);
        ended.out.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program of the repository; returns its path.
    fn compile(&self, compiler: &str, flags: &str, source: &str) -> String {
        let stem = Path::new(source).file_stem().and_then(|stem| stem.to_str());
        let program = self.folder.path(stem.expect("a name"));
        let warnings = "-Wall -Wextra -Werror -pthread -g -O1";
        let mut compile = command(compiler, &format!("{warnings} {flags} -o {program}"));
        if source.starts_with("examples/") {
            compile.arg("-include").arg(root().join(PATIENT));
        }
        compile.arg(root().join(source));
        compile.args(self.pkg_config("--cflags --libs"));
        Ended::of(&mut compile).check_code(0);
        program
    }

    /// An address that no other test has, of this process or another.
    fn address(&self, name: &str) -> String {
        let unique = self.folder.file_name().and_then(|unique| unique.to_str());
        format!("shm:{}-{name}", unique.expect("a name"))
    }

    /// A program that finds the shared library, and whose client gives up connecting only when the test has failed.
    fn command(&self, program: &str, line: &str) -> Command {
        let mut command = command(program, line);
        command.env("LD_LIBRARY_PATH", self.lib());
        command.env("CONNECT_TIMEOUT_MS", CONNECT_TIMEOUT_MS);
        command
    }

    /// Runs the programs in C, each by `runner`, if that is one.
    fn run_all(&self, flags: &str, runner: &str) {
        let address = |name: &str| self.address(name);
        let run = |program: &str, line: &str| {
            let line = format!("{runner} {program} {line}");
            let (first, rest) = line
                .trim()
                .split_once(' ')
                .expect("a program and its words");
            self.command(first, rest)
        };
        for (source, said) in [
            (
                "examples/c/block_store.c",
                "1000 blocks are what was written",
            ),
            ("examples/c/reactor.c", "10000 calls on one thread"),
            ("src/capi/tests/contract.c", "kept"),
        ] {
            let program = self.compile("cc", flags, source);
            let ended = Ended::of(&mut run(&program, &address("alone")));
            ended.with_code(0).check_out(&[said]);
        }
        let echo = self.compile("cc", flags, "examples/c/echo.c");
        let (at, nowhere) = (address("echo"), address("nowhere"));
        let (_server, line) = Running::listening(&mut run(&echo, &format!("serve {at}")));
        assert_eq!(line, format!("listening on {at}"));
        let called = Ended::of(&mut run(&echo, &format!("call {at} ping"))).with_code(0);
        assert_eq!(called.out, "ping\n");
        // TIME: it takes all of the time that it has, and there is a reason when its first attempt has ended, after milliseconds.
        // On a machine that takes longer it has more time in the next round.
        for timeout_ms in ["1000", "10000", "100000"] {
            let mut call = run(&echo, &format!("call {nowhere} ping"));
            let failed = Ended::of(call.env("CONNECT_TIMEOUT_MS", timeout_ms)).with_code(1);
            failed.check_errors(&["RPCRDMA_E_NOT_CONNECTED"]);
            if failed.errors.contains("nobody listens") {
                return;
            }
        }
        panic!("the reason is not said");
    }
}

/// What a program of the binutils prints of the shared library.
fn listed(installed: &Installed, program: &str, line: &str) -> String {
    let library = format!("{}/librpcrdma.so", installed.lib());
    let ended = Ended::of(command(program, line).arg(library));
    ended.with_code(0).out
}

#[test]
fn exactly_the_functions_of_the_header_are_exported_with_a_version() {
    let installed = Installed::new();
    let header = include_str!("../include/rpcrdma.h");
    let lines = header
        .lines()
        .filter(|line| !line.starts_with([' ', '#', '/']));
    let declared =
        lines.filter_map(|line| line.split_once("rpcrdma_").filter(|_| line.contains('(')));
    let declared: BTreeSet<String> = declared
        .filter_map(|(_, rest)| {
            let words = format!("rpcrdma_{rest}");
            let (name, _) = words.split_once('(')?;
            name.split([' ', '*']).next_back().map(str::to_owned)
        })
        .collect();
    let symbols = listed(&installed, "nm", "--dynamic --defined-only");
    let symbols = symbols.lines().filter_map(|line| line.split(' ').nth(2));
    let exported: BTreeSet<String> = symbols
        .filter(|symbol| *symbol != "RPCRDMA_0.1")
        .map(|symbol| {
            let name = symbol.strip_suffix("@@RPCRDMA_0.1");
            let name = name.unwrap_or_else(|| panic!("{symbol} has another version"));
            name.to_owned()
        })
        .collect();
    let differing: Vec<_> = exported.symmetric_difference(&declared).take(20).collect();
    assert!(
        differing.is_empty(),
        "exported or declared, not both: {differing:?}"
    );
    assert!(exported.len() > 50, "{exported:?}");
    let dynamic = listed(&installed, "readelf", "--dynamic --wide");
    assert!(dynamic.contains("soname: [librpcrdma.so.0]"), "{dynamic}");
    let needed: Vec<&str> = (dynamic.lines())
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    let is_of_system = |name: &&str| {
        ["libgcc_s.so", "libc.so", "libm.so", "ld-linux"]
            .iter()
            .any(|it| name.starts_with(it))
    };
    assert!(
        needed.iter().all(is_of_system),
        "rdma-core is loaded when it is used: {needed:?}"
    );
    assert_eq!(
        installed.pkg_config("--modversion"),
        [env!("CARGO_PKG_VERSION")]
    );
}

#[test]
fn programs_in_c_run() {
    Installed::new().run_all("-std=c11 -D_POSIX_C_SOURCE=200809L", "");
}

#[test]
fn programs_in_c_run_under_the_address_sanitizer() {
    Installed::new().run_all("-fsanitize=address", "");
}

/// As docs/c.md advises: with the suppressions that are installed, nothing is lost, not even possibly.
#[test]
fn programs_in_c_run_under_valgrind() {
    let installed = Installed::new();
    let suppressions = installed.path("share/rpcrdma/rpcrdma.supp");
    let valgrind = format!(
        "valgrind --quiet --error-exitcode=99 --fair-sched=yes --leak-check=full --suppressions={suppressions}"
    );
    installed.run_all("", &valgrind);
}

#[test]
fn a_program_in_cpp_answers_from_another_thread() {
    let installed = Installed::new();
    let program = installed.compile("c++", "-std=c++17 -Wpedantic", "examples/c/later.cpp");
    let address = installed.address("later");
    let ended = Ended::of(&mut installed.command(&program, &address)).with_code(0);
    assert_eq!(ended.out, "the square of 12 is 144\n");
}

#[test]
fn a_program_links_the_static_library() {
    let installed = Installed::new();
    let program = installed.folder.path("static");
    let mut compile = command("cc", &format!("-Wall -Wextra -Werror -o {program}"));
    compile.arg("-include").arg(root().join(PATIENT));
    compile.arg(root().join("examples/c/echo.c"));
    let flags = installed.pkg_config("--cflags --libs --static").into_iter();
    compile.args(flags.map(|flag| flag.replace("-lrpcrdma", "-l:librpcrdma.a")));
    Ended::of(&mut compile).check_code(0);
    // Without the folder of the shared library, which it must not need.
    let address = installed.address("static");
    let _server = Running::listening(&mut command(&program, &format!("serve {address}")));
    let mut call = command(&program, &format!("call {address} ping"));
    let called = Ended::of(call.env("CONNECT_TIMEOUT_MS", CONNECT_TIMEOUT_MS)).with_code(0);
    assert_eq!(called.out, "ping\n");
}

#[test]
fn python_calls_in_batches() {
    let installed = Installed::new();
    let pythons = ["python3", "/usr/bin/python3"];
    let has_cffi = |python: &&str| {
        let tried = command(python, "-c").arg("import cffi").output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    let python = pythons.into_iter().find(has_cffi);
    let python = python.expect("a Python with cffi: apt-get install python3-cffi");
    let echo = installed.compile("cc", "", "examples/c/echo.c");
    let address = installed.address("python");
    let serve = format!("serve {address}");
    let _server = Running::listening(&mut installed.command(&echo, &serve));
    let mut call = installed.command(python, "");
    call.arg(root().join("examples/python/echo.py"))
        .arg(&address);
    // TIME: these limits end nothing on a machine that is slow.
    call.args(["connect_timeout_ms=600000", "call_timeout_ms=300000"])
        .args(["keep_alive_silent_ticks_max=255", "stall_timeout_ms=600000"]);
    call.env("PKG_CONFIG_PATH", installed.path("lib/pkgconfig"));
    assert_eq!(Ended::of(&mut call).with_code(0).out, "31 b'call 31'\n");
}
