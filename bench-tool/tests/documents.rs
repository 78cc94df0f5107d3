//! What the documents and `--help` tell people to type: every command line of this program in them is one that it
//! takes, and those that need nothing but shared memory and a moment are executed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use clap::error::ErrorKind;
use rpcrdma_testkit::{Ended, Folder, Running, command};

#[path = "support/page.rs"]
mod page;
#[path = "support/patient.rs"]
mod patient;

use self::page::page_at;
use self::patient::PATIENT;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The files below some folders of the repository that end in `extension`.
fn files(folders: &[&str], extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(|it| root().join(it)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == extension) {
                found.push(path);
            }
        }
    }
    found
}

/// README.md and everything under docs.
fn documents() -> Vec<(String, String)> {
    let mut paths = files(&["docs"], "md");
    paths.push(root().join("README.md"));
    let named = |path: &PathBuf| {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        (name, fs::read_to_string(path).unwrap())
    };
    paths.iter().map(named).collect()
}

/// A line that is to be typed, and what the document shows below it.
#[derive(Debug, PartialEq, Eq)]
struct Typed {
    line: String,
    shown: String,
}

/// What is to be typed in the fenced blocks of a document: all lines of a block without prompts, and in one with
/// prompts (`$ `) the lines behind them.
fn typed(markdown: &str) -> Vec<Typed> {
    let mut all = Vec::new();
    let mut block: Option<(String, Vec<&str>)> = None;
    for line in markdown.lines() {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut block, fence) {
            (None, Some(language)) => block = Some((language.trim().to_owned(), Vec::new())),
            (Some((_, lines)), None) => lines.push(line),
            (Some((language, lines)), Some(_)) => {
                if matches!(language.as_str(), "" | "sh" | "bash" | "console") {
                    add_typed(lines, !language.is_empty(), &mut all);
                }
                block = None;
            }
            (None, None) => {}
        }
    }
    assert!(block.is_none(), "a fenced block has no end");
    all
}

/// `is_shell` says that the block is said to be the shell's: in others, lines that are indented are drawings.
fn add_typed(lines: &[&str], is_shell: bool, all: &mut Vec<Typed>) {
    let has_prompts = lines.iter().any(|line| line.starts_with("$ "));
    let mut typed: Vec<Typed> = Vec::new();
    let mut continues = false;
    for line in lines {
        let is_drawn = !is_shell && line.starts_with(' ');
        let is_typed = continues || !(has_prompts || is_drawn);
        let text = line.strip_prefix("$ ").or(is_typed.then_some(line));
        match (text, typed.last_mut()) {
            (Some(text), last) => {
                let begun = text.strip_suffix('\\');
                let text = begun.unwrap_or(text);
                match last {
                    Some(last) if continues => last.line += text,
                    _ => typed.push(Typed {
                        line: text.to_owned(),
                        shown: String::new(),
                    }),
                }
                continues = begun.is_some();
            }
            (None, Some(last)) if has_prompts => last.shown += &format!("{line}\n"),
            (None, _) => {}
        }
    }
    all.append(&mut typed);
}

/// The simple commands of a line, each as its words, as the shell splits it: quotes and comments gone, redirections left out.
fn commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut is_target = false;
    let mut letters = line.chars().peekable();
    let end = |word: &mut Option<String>, is_target: &mut bool, commands: &mut Vec<Vec<_>>| {
        if let Some(word) = word.take()
            && !std::mem::take(is_target)
        {
            commands.last_mut().unwrap().push(word);
        }
    };
    while let Some(letter) = letters.next() {
        match letter {
            ' ' | '\t' => end(&mut word, &mut is_target, &mut commands),
            '#' if word.is_none() => break,
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                word.extend(letters.by_ref().take_while(|it| *it != letter));
            }
            '\\' => word.get_or_insert_default().extend(letters.next()),
            '>' | '<' => {
                // The number of a descriptor is no word.
                word = word.filter(|it| !it.chars().all(|it| it.is_ascii_digit()));
                end(&mut word, &mut is_target, &mut commands);
                while letters.next_if(|it| matches!(it, '>' | '&')).is_some() {}
                is_target = true;
            }
            '|' | '&' | ';' => {
                end(&mut word, &mut is_target, &mut commands);
                commands.push(Vec::new());
            }
            letter => word.get_or_insert_default().push(letter),
        }
    }
    end(&mut word, &mut is_target, &mut commands);
    commands.retain(|it| !it.is_empty());
    commands
}

/// The command lines of this program in one command, `bench-tool` first: those that `compare` makes too.
fn own(words: &[String]) -> Vec<Vec<String>> {
    let is_assignment = |it: &&String| {
        it.split_once('=')
            .is_some_and(|(name, _)| name.to_uppercase() == name)
    };
    let assignments = words.iter().take_while(is_assignment).count();
    let words = &words[assignments..];
    let first = words.first().map_or("", String::as_str);
    let arguments = match first {
        "sudo" | "taskset" | "numactl" | "nohup" | "time" => {
            let place = words.iter().position(|it| it == "bench-tool");
            place.map(|it| &words[it + 1..])
        }
        "cargo" if words.contains(&"bench-tool".to_owned()) && words[1] == "run" => {
            let place = words.iter().position(|it| it == "--");
            place.map(|it| &words[it + 1..])
        }
        _ => (first.rsplit('/').next() == Some("bench-tool")).then(|| &words[1..]),
    };
    let Some(arguments) = arguments else {
        return Vec::new();
    };
    let line = |arguments: &[String]| {
        let name = std::iter::once("bench-tool".to_owned());
        name.chain(arguments.iter().cloned()).collect::<Vec<_>>()
    };
    let mut all = vec![line(arguments)];
    if arguments.first().is_some_and(|it| it == "fleet")
        && let Some(place) = arguments.iter().position(|it| it == "--")
    {
        let client = arguments[place + 1..].iter();
        let client: Vec<String> = client
            .map(|it| it.replace("{target}", "shm:bench"))
            .collect();
        all.push(line(&client));
    }
    if arguments.first().is_some_and(|it| it == "compare") {
        for made in arguments.split(|it| it == "--").skip(1) {
            let made = match made {
                // Another build.
                [program, rest @ ..] if program.contains('/') => rest,
                made => made,
            };
            all.push(line(made));
        }
    }
    all
}

/// Why this program does not take a command line. Where it is only named, what it needs may be left out.
fn refused(words: &[String], is_named: bool) -> Option<String> {
    let error = bench_tool::command_line()
        .try_get_matches_from(words)
        .err()?;
    let is_allowed = match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => true,
        ErrorKind::MissingRequiredArgument => is_named,
        _ => false,
    };
    (!is_allowed).then(|| error.to_string())
}

/// Looks at every command line of this program in `line`: how many there are, and what is wrong with them.
fn look_at(place: &str, line: &str, is_named: bool, wrong: &mut Vec<String>) -> usize {
    let own: Vec<_> = commands(line).iter().flat_map(|it| own(it)).collect();
    let complaints = own.iter().filter_map(|it| refused(it, is_named));
    wrong.extend(complaints.map(|it| format!("{place}: {line}\n{it}")));
    own.len()
}

#[test]
fn every_command_line_of_the_documents_is_taken() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (name, text) in documents() {
        for typed in typed(&text) {
            seen += look_at(&name, &typed.line, false, &mut wrong);
        }
    }
    assert!(seen >= 70, "only {seen} command lines were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What stands between backticks within a line: a command line, unless a word of it stands for others.
#[test]
fn every_command_line_in_running_text_is_taken() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (name, text) in documents() {
        for line in text.lines() {
            let spans = line.split('`').skip(1).step_by(2);
            for span in spans.filter(|it| it.starts_with("bench-tool ")) {
                let stands_for_others =
                    |it: &str| it.len() > 1 && it.chars().all(|it| it.is_ascii_uppercase());
                if !span.split([' ', '=']).any(stands_for_others) {
                    seen += look_at(&name, span, true, &mut wrong);
                }
            }
        }
    }
    assert!(seen >= 30, "only {seen} command lines were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_example_of_help_is_taken() {
    fn examples(command: &clap::Command, all: &mut Vec<(String, String)>) {
        let after = command.get_after_help().map(ToString::to_string);
        let lines = after.iter().flat_map(|it| it.lines());
        // What an example does stands below it, or behind several spaces.
        let lines = lines.filter_map(|it| it.strip_prefix("  ")?.split("   ").next());
        let name = command.get_name();
        all.extend(lines.map(|it| (format!("{name} --help"), it.to_owned())));
        command.get_subcommands().for_each(|it| examples(it, all));
    }
    let mut all = Vec::new();
    examples(&bench_tool::command_line(), &mut all);
    let mut wrong = Vec::new();
    let seen: usize = all
        .iter()
        .map(|(place, line)| look_at(place, line, false, &mut wrong))
        .sum();
    assert!(seen >= 50, "only {seen} examples were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The guide explains messages by their words: each of them stands in a source, in one piece.
#[test]
fn every_message_that_the_guide_explains_can_be_said() {
    let sources = [
        "bench-tool/src",
        "bench-tool/doctor/src",
        "bench-tool/explain/src",
        "bench-tool/nfs3/src",
        "control/src",
        "dataplane/fabric/src",
        "dataplane/engine/src",
    ];
    let sources = files(&sources, "rs");
    // What only a test expects is not said.
    let is_of_program = |it: &&PathBuf| {
        let mut parts = it.strip_prefix(root()).unwrap().iter();
        !parts.any(|it| it == "tests" || it == "tests.rs")
    };
    let sources = sources.iter().filter(is_of_program);
    let sources: Vec<String> = sources.map(in_one_piece).collect();
    let guide = fs::read_to_string(root().join("docs/guide.md")).unwrap();
    let mut explained = 0;
    let mut is_of_messages = false;
    for line in guide.lines() {
        let Some(row) = line.strip_prefix('|') else {
            is_of_messages = false;
            continue;
        };
        let cell = row.split(" | ").next().unwrap_or_default().trim();
        is_of_messages |= matches!(cell, "It says" | "You see");
        let spans = cell.split('`').skip(1).step_by(2);
        for words in spans.filter(|it| is_of_messages && it.contains(' ')) {
            explained += 1;
            let is_said = sources.iter().any(|it| it.contains(words));
            assert!(is_said, "nothing says `{words}`");
        }
    }
    assert!(explained >= 20, "only {explained} messages were found");
}

/// A source without its tests, with the texts that go on in the next line in one.
fn in_one_piece(path: &PathBuf) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap_or_default();
    let mut pieces = text.split("\\\n");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |whole, piece| whole + piece.trim_start())
}

#[test]
fn command_lines_are_split_as_the_shell_does() {
    let split = |line: &str| -> Vec<String> {
        let commands = commands(line);
        commands.iter().map(|it| it.join("_")).collect()
    };
    assert_eq!(split("a 'b c' \"d'e\" f\\ g # h"), ["a_b c_d'e_f g"]);
    assert_eq!(split("a | b && c; d > e 2>f < g h"), ["a", "b", "c", "d_h"]);
    let own_of = |line: &str| -> Vec<String> {
        let own: Vec<_> = commands(line).iter().flat_map(|it| own(it)).collect();
        own.iter().map(|it| it.join(" ")).collect()
    };
    assert_eq!(own_of("A=1 bench-tool run | jq ."), ["bench-tool run"]);
    assert_eq!(
        own_of("sudo taskset -c 1 bench-tool run"),
        ["bench-tool run"]
    );
    assert_eq!(
        own_of("cargo run -p bench-tool -- doctor"),
        ["bench-tool doctor"]
    );
    assert_eq!(own_of("cargo build -p bench-tool"), [""; 0]);
    assert_eq!(own_of("cp target/release/bench-tool /usr/bin"), [""; 0]);
    assert_eq!(
        own_of("bench-tool compare -- run -- ./new nfs"),
        [
            "bench-tool compare -- run -- ./new nfs",
            "bench-tool run",
            "bench-tool nfs"
        ]
    );
    assert_eq!(
        own_of("bench-tool fleet --clients 2 -- run --connect {target}"),
        [
            "bench-tool fleet --clients 2 -- run --connect {target}",
            "bench-tool run --connect shm:bench"
        ]
    );
    let mut wrong = Vec::new();
    assert_eq!(
        look_at("here", "x | bench-tool run --no-such", true, &mut wrong),
        1
    );
    assert_eq!(wrong.len(), 1);
    let block = "```sh\na \\\n  b\n```\n```\n  drawn\n```\n```toml\nc\n```\n```\n$ d\ne\n```\n";
    let expected = [("a   b", ""), ("d", "e\n")].map(|(line, shown)| Typed {
        line: line.to_owned(),
        shown: shown.to_owned(),
    });
    assert_eq!(typed(block), expected);
}

/// Lines of the documents that are executed, in this order, in one folder; runs of theirs are made short.
const EXECUTED: &[&str] = &[
    "bench-tool run --op echo --size 4KiB --json run.json",
    "bench-tool run --op write --size 4KiB --placement rdma --delay 500us",
    "bench-tool run --op mix --read-percent 70 --sizes 4k=80,64k=20 --seed 7 --depth 8",
    "bench-tool run --rate 200k --depth 64 --hgrm run.hgrm",
    "bench-tool run --duration 1m --interval 5s --intervals --hlog run.hlog",
    "bench-tool run --duration 1m --html run.html",
    "bench-tool run --to-knee --depth 64 --html knee.html",
    "bench-tool sweep --op write --size 1k,4k,64k --placement send,rdma --duration 1s --plot sizes.svg",
    "bench-tool sweep --depth 1,2,4,8,16,32,64 --duration 1s --csv depths.csv --plot depths.svg",
    "bench-tool sweep --rate 100k,200k,400k,800k --depth 64 --figure p99 --plot load.svg",
    "bench-tool sweep --depth 8 --repeats 7 --json main.json",
    "bench-tool compare -- run --op write --placement send -- run --op write --placement rdma",
    "bench-tool compare -- run --op write --size 4k -- run --op write --size 4k --service-time 150ns",
    "bench-tool compare main.json branch.json --fail-if p99+5% --fail-if rate-3%",
    "bench-tool merge a.json b.json --json sum.json --hgrm sum.hgrm",
    "bench-tool floor --quick --json -",
    "echo 00000007 00000002 00000000 00000004 00000001 00000008 00000002 00001000 | bench-tool decode",
    "bench-tool decode --summary --slowest 3 mount.pcap",
    "bench-tool profile list",
    "bench-tool profile detect",
    "bench-tool profile show mlx5",
    "bench-tool profile show my.toml --set read_depth_max=8 --json -",
    "bench-tool profile check my.toml",
    "bench-tool doctor",
    "bench-tool doctor --json - | jq '.findings[] | select(.severity != \"ok\")'",
    "bench-tool completions bash > /usr/share/bash-completion/completions/bench-tool",
    "bench-tool completions zsh > /usr/local/share/zsh/site-functions/_bench-tool",
    "bench-tool completions fish > /usr/share/fish/vendor_completions.d/bench-tool.fish",
    "bench-tool man --out /usr/local/share/man/man1",
];

/// What these lines leave in their folder, and how each begins.
#[rustfmt::skip]
const WRITTEN: &[(&str, &[u8])] = &[
    ("run.json", b"{"),
    ("run.hgrm", b" "),
    ("sum.json", b"{"),
    ("sum.hgrm", b" "),
    ("run.hlog", b"#"),
    ("run.html", b"<!"),
    ("knee.html", b"<!"),
    ("sizes.svg", b"<svg"),
    ("depths.csv", b""),
    ("depths.svg", b"<svg"),
    ("load.svg", b"<svg"),
    ("main.json", b"{"),
    ("usr/share/bash-completion/completions/bench-tool", b"_bench"),
    ("usr/local/share/zsh/site-functions/_bench-tool", b"#compdef"),
    ("usr/share/fish/vendor_completions.d/bench-tool.fish", b"#"),
    ("usr/local/share/man/man1/bench-tool-profile-show.1", b"."),
];

/// Pairs of a server and a client of the documents.
#[rustfmt::skip]
const SERVED: &[(&str, &str)] = &[
    ("bench-tool serve --listen shm:bench", "bench-tool run --connect shm:bench"),
    (
        "bench-tool serve --listen rdma:0.0.0.0:20049 --psk-file keys --identity server",
        "bench-tool run --connect rdma:server:20049 --psk-file keys --identity client",
    ),
    (
        "bench-tool serve --listen shm:bench --set idle=park",
        "bench-tool fleet --clients 8 -- run --connect shm:bench --set idle=park --duration 2s",
    ),
    (
        "bench-tool serve --listen shm:bench --set idle=park",
        "bench-tool fleet --clients 4 --csv depths.csv --html depths.html -- sweep --connect shm:bench --set idle=park --depth 1,2,4,8 --duration 1s",
    ),
    ("bench-tool serve --listen shm:bench --metrics 127.0.0.1:9464", "curl http://127.0.0.1:9464/metrics"),
];

/// A line without its comment.
fn bare(line: &str) -> &str {
    line.split("  #").next().unwrap_or(line).trim_end()
}

/// The line without the filter of its JSON, which not all machines have, with runs of a hundred calls or a tenth of
/// a second, few of them, and cores that leave a busy machine to others.
fn short(line: &str) -> String {
    let patient = format!("{PATIENT} --set idle=park");
    let calls = if line.contains("--to-knee") {
        "--duration 100ms --warmup 0"
    } else {
        "--count 100 --warmup 0"
    };
    let line = line.split(" | jq ").next().unwrap_or(line);
    let is_of_files = line.contains("compare") && !line.contains(" -- ");
    let repeats = if line.contains("--repeats") { "2" } else { "1" };
    let mut words: Vec<String> = Vec::new();
    let mut given = line.split(' ');
    while let Some(word) = given.next() {
        let added = match (words.last().map(String::as_str), word) {
            (_, "--duration" | "--repeats") => {
                given.next();
                continue;
            }
            (Some("bench-tool" | "--"), "run") => format!("{calls} {patient}"),
            (Some("bench-tool"), "serve") => patient.clone(),
            (Some("bench-tool" | "--"), "sweep") => {
                format!("--repeats {repeats} {calls} {patient}")
            }
            (Some("bench-tool"), "compare") if !is_of_files => "--runs 2".to_owned(),
            _ => String::new(),
        };
        words.extend(
            [word.to_owned(), added]
                .into_iter()
                .filter(|it| !it.is_empty()),
        );
    }
    words.join(" ")
}

/// The shell's command for a line in this folder, with this program as `bench-tool`.
fn shell(folder: &Folder, line: &str) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_bench-tool"));
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    let mut shell = command("sh", "-c");
    shell.arg(line).current_dir(&**folder).env("PATH", path);
    shell
}

/// Held by the tests that execute lines: each has polling cores, and they are not to wait for each other's.
static POLLING: Mutex<()> = Mutex::new(());

#[test]
fn command_lines_that_need_no_device_do_what_they_say() {
    let _alone = POLLING.lock().unwrap_or_else(PoisonError::into_inner);
    let all: Vec<Typed> = documents().iter().flat_map(|(_, it)| typed(it)).collect();
    let known: BTreeSet<&str> = all.iter().map(|it| bare(&it.line)).collect();
    let folder = Folder::new("executed");
    let tuning = fs::read_to_string(root().join("docs/tuning.md")).unwrap();
    let profile = tuning.split("```toml\n").nth(1).unwrap();
    let profile = profile.split("```").next().unwrap();
    folder.write("my.toml", profile);
    let capture = root().join("tests/corpus/requester-knfsd.pcap");
    fs::copy(capture, folder.join("mount.pcap")).unwrap();
    for (file, _) in WRITTEN {
        fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
    }
    for line in EXECUTED {
        assert!(known.contains(line), "no document has: {line}");
        let here = short(line).replace("/usr/", "usr/");
        let output = Ended::of(&mut shell(&folder, &here));
        // What the doctor finds is the machine's affair.
        let is_done = output.code == Some(0) || (line.contains("doctor") && output.code == Some(1));
        assert!(is_done, "{line}: {output}");
        let shown = all.iter().find(|it| bare(&it.line) == *line);
        let shown = shown.map_or("", |it| it.shown.as_str());
        if !shown.is_empty() {
            assert_eq!(output.out, shown, "{line}");
        }
        if line.contains(" | jq ") {
            let json: Result<serde_json::Value, _> = serde_json::from_str(&output.out);
            assert!(json.is_ok_and(|it| it.is_object()), "{output}");
        }
        if line.ends_with(" run.json") {
            folder.write("a.json", folder.read("run.json"));
            // Of another command, so that the two are not one report.
            let other = folder
                .read("run.json")
                .replace("bench-tool run", "bench-tool  run");
            folder.write("b.json", other);
        }
        if line.ends_with("main.json") {
            folder.write("branch.json", folder.read("main.json"));
        }
    }
    for (file, begin) in WRITTEN {
        let held = fs::read(folder.join(file)).unwrap();
        assert!(held.len() > 100 && held.starts_with(begin), "{file}");
    }
}

/// What a server that said this when it listened answers to a GET of `path` at the address of its metrics.
fn page(listening: &str, path: &str) -> String {
    let address = listening.split_once("(metrics at http://").unwrap().1;
    let address = address.split([')', '/', ' ']).next().unwrap();
    let (head, body) = page_at(address, path);
    head + "\n\n" + &body
}

#[test]
fn servers_and_clients_of_the_documents_find_each_other() {
    let _alone = POLLING.lock().unwrap_or_else(PoisonError::into_inner);
    let all: Vec<Typed> = documents().iter().flat_map(|(_, it)| typed(it)).collect();
    let known = |line: &str| all.iter().find(|it| bare(&it.line) == line);
    let folder = Folder::new("served");
    let keys = all.iter().find(|it| it.line.contains("> keys"));
    // Not all machines have openssl.
    let keys = bare(&keys.unwrap().line).replace("$(openssl rand -hex 32)", &"5e".repeat(32));
    Ended::of(&mut shell(&folder, &keys)).check_code(0);
    for (number, (serve, client)) in SERVED.iter().enumerate() {
        for line in [serve, client] {
            assert!(known(line).is_some(), "no document has: {line}");
        }
        // Others may run the same test beside.
        let name = format!("shm:documents-{}-{number}", std::process::id());
        let here = |line: &str| {
            let places = ["shm:bench", "rdma:0.0.0.0:20049", "rdma:server:20049"];
            let line = short(line).replace("127.0.0.1:9464", "127.0.0.1:0");
            places
                .iter()
                .fold(line, |it, place| it.replace(place, &name))
        };
        let serve = format!("exec {}", here(serve));
        let (_server, said) = Running::listening(&mut shell(&folder, &serve));
        assert!(said.starts_with("listening on shm:"), "{serve}: {said}");
        if let Some((_, path)) = client.split_once(":9464") {
            let page = page(&said, path);
            let is_found = page.lines().next().is_some_and(|it| it.ends_with("200 OK"));
            assert!(is_found && page.contains("# TYPE rpcrdma_ready"), "{page}");
        } else {
            let output = Ended::of(&mut shell(&folder, &here(client))).with_code(0);
            let is_sweep = client.contains(" -- sweep ");
            output.check_out(&[if is_sweep {
                "; one run of each"
            } else {
                "round-trip time"
            }]);
        }
    }
}
