//! `bench-tool completions` and `bench-tool man`: what shells and `man` know of the commands, made from the same
//! definitions as `--help`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use super::Cli;
use crate::exit::{Failure, Status, written};
use crate::report::output::Output;

/// `bench-tool completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes to standard output. The shell reads it from then on where it looks for completions; a new version of \
bench-tool wants it made anew.\n\n\
Examples:
  bench-tool completions bash > ~/.local/share/bash-completion/completions/bench-tool
  bench-tool completions zsh > ~/.zfunc/_bench-tool
      where ~/.zshrc has fpath=(~/.zfunc $fpath) before compinit
  bench-tool completions fish > ~/.config/fish/completions/bench-tool.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `bench-tool man`.
#[derive(Args, Debug)]
#[command(after_help = "\
There is a page for bench-tool and one for each command: bench-tool.1, bench-tool-run.1 and so on. They say what \
--help says.\n\n\
Examples:
  bench-tool man | man -l -
  bench-tool man --out ~/.local/share/man/man1
      then: man bench-tool-run")]
pub(crate) struct ManArgs {
    /// Write all pages into this folder, which is made where there is none [default: the main page, to standard output]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Runs `completions`.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<Status, Failure> {
    print(&completions_for(args.shell))
}

/// Runs `man`.
///
/// # Errors
/// When a page cannot be written.
pub(crate) fn man(args: &ManArgs) -> Result<Status, Failure> {
    let pages = pages();
    match &args.out {
        Some(folder) => pages
            .iter()
            .try_for_each(|page| page.write(folder))
            .map(|()| Status::Success),
        None => pages
            .first()
            .map_or(Ok(Status::Success), |main| print(&main.text)),
    }
}

fn print(bytes: &[u8]) -> Result<Status, Failure> {
    written(io::stdout().lock().write_all(bytes)).map(|()| Status::Success)
}

fn completions_for(shell: Shell) -> Vec<u8> {
    let mut command = shown(&Cli::command());
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    match shell {
        Shell::Bash => agreed(&script),
        _ => script,
    }
}

/// The script for bash with one name for each command: clap_complete 4.6 sets a state by one name and looks for
/// another where the program's name has a hyphen, and completes nothing then.
fn agreed(script: &[u8]) -> Vec<u8> {
    let script = String::from_utf8_lossy(script);
    script
        .replace("bench__subcmd__tool", "bench__tool")
        .into_bytes()
}

/// The command as users are shown it: the generator of completions takes no notice of what is hidden.
fn shown(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let commands = command.get_subcommands().filter(|it| !it.is_hide_set());
    let mut shown = Command::new(command.get_name().to_owned())
        .args(arguments.cloned())
        .subcommands(commands.map(shown))
        .disable_help_subcommand(true);
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    shown
}

/// A page of the manual.
struct Page {
    /// As `man` looks for it: `bench-tool-run.1`.
    file: String,
    text: Vec<u8>,
}

impl Page {
    fn write(&self, folder: &Path) -> Result<(), Failure> {
        std::fs::create_dir_all(folder).map_err(|error| {
            Failure::failed(format!("cannot make the folder {}", folder.display()))
                .because(error)
                .advice("give --out another folder")
        })?;
        Output::check("--out", &folder.join(&self.file))?.write(&self.text)
    }
}

/// The main page, and behind it those of the commands.
fn pages() -> Vec<Page> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages);
    pages
}

fn add_pages(command: &Command, pages: &mut Vec<Page>) {
    pages.push(page(command));
    let commands = command.get_subcommands().filter(|it| !it.is_hide_set());
    commands.for_each(|it| add_pages(it, pages));
}

fn page(command: &Command) -> Page {
    let man = Man::new(command.clone());
    let file = man.get_filename();
    let mut text = Vec::new();
    // Writing to memory cannot fail. The date is empty, and has to be there: clap_mangen would leave it out.
    let _ = writeln!(
        text,
        r#".TH "{}" 1 "" "rpcrdma {}" "RPC-over-RDMA""#,
        file.trim_end_matches(".1"),
        crate::VERSION
    );
    let _ = man.render_name_section(&mut text);
    let _ = man.render_synopsis_section(&mut text);
    let _ = man.render_description_section(&mut text);
    let _ = man.render_options_section(&mut text);
    if command.get_subcommands().any(|it| !it.is_hide_set()) {
        let _ = man.render_subcommands_section(&mut text);
    }
    if let Some(more) = command.get_after_help() {
        let _ = sections(&more.to_string()).to_writer(&mut text);
    }
    let _ = see_also(command).to_writer(&mut text);
    Page { file, text }
}

/// What `--help` says behind the options: paragraphs, some of which are sections, and indented lines that stay as they are.
fn sections(text: &str) -> Roff {
    let mut roff = Roff::default();
    let mut has_heading = false;
    for paragraph in text.split("\n\n") {
        let (heading, lines) = match paragraph.split_once(':') {
            Some(("Examples", lines)) => (Some("EXAMPLES"), lines),
            Some(("Faults", lines)) => (Some("FAULTS"), lines),
            Some(("Exit status", lines)) => (Some("EXIT STATUS"), lines),
            _ => ((!has_heading).then_some("NOTES"), paragraph),
        };
        match heading {
            Some(heading) => roff.control("SH", [heading]),
            None => roff.control("PP", []),
        };
        has_heading = true;
        let mut is_filled = true;
        for line in lines.lines().filter(|it| !it.is_empty()) {
            let fill = !line.starts_with("  ");
            if fill != is_filled {
                roff.control(if fill { "fi" } else { "nf" }, []);
                is_filled = fill;
            }
            roff.text([roman(if fill { line.trim() } else { line })]);
        }
        if !is_filled {
            roff.control("fi", []);
        }
    }
    roff
}

fn see_also(command: &Command) -> Roff {
    let mut roff = Roff::default();
    roff.control("SH", ["SEE ALSO"]);
    let mut named: Vec<Inline> = Vec::new();
    if command.get_name() != "bench-tool" {
        named.extend([bold("bench-tool"), roman("(1), ")]);
    }
    named.push(roman(format!(
        "docs/guide.md and docs/bench-tool.md of {}",
        env!("CARGO_PKG_REPOSITORY")
    )));
    roff.text(named);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use std::process::{Command as Process, Stdio};

    /// Every command that users are shown, by the words that lead to it.
    fn commands() -> Vec<(Vec<String>, Command)> {
        fn add(words: &[String], command: &Command, all: &mut Vec<(Vec<String>, Command)>) {
            let words = [words, &[command.get_name().to_owned()]].concat();
            for below in command.get_subcommands().filter(|it| !it.is_hide_set()) {
                add(&words, below, all);
            }
            all.push((words, command.clone()));
        }
        let mut all = Vec::new();
        add(&[], &Cli::command(), &mut all);
        assert!(all.len() > 12, "{}", all.len());
        all
    }

    fn options(command: &Command) -> Vec<String> {
        let shown = command.get_arguments().filter(|it| !it.is_hide_set());
        shown
            .filter_map(|it| it.get_long())
            .map(str::to_owned)
            .collect()
    }

    /// What a program says when it is given `input`, both streams in one; `None` where there is no such program.
    fn told(program: &str, arguments: &[&str], input: &[u8]) -> Option<(bool, String)> {
        let mut child = Process::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_vec();
        let writer = std::thread::spawn(move || {
            // A program that has seen enough may have gone.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().unwrap();
        writer.join().unwrap();
        let both = [output.stdout, output.stderr].concat();
        Some((
            output.status.success(),
            String::from_utf8_lossy(&both).into_owned(),
        ))
    }

    #[test]
    fn completions_of_every_shell_know_every_option_and_nothing_hidden() {
        for &shell in Shell::value_variants() {
            let script = String::from_utf8(completions_for(shell)).unwrap();
            for (words, command) in commands() {
                for word in &words {
                    assert!(script.contains(word), "{shell}: {word}");
                }
                for option in options(&command) {
                    let forms = [format!("--{option}"), format!("-l {option}")];
                    let is_there = forms.iter().any(|it| script.contains(it));
                    assert!(is_there, "{shell}: {words:?} --{option}");
                }
            }
            for hidden in ["idle'", "exit-with-stdin", "bench__tool__subcmd__idle"] {
                assert!(!script.contains(hidden), "{shell}: {hidden}");
            }
        }
    }

    #[test]
    fn shells_read_their_completions() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completions_for(shell);
            assert!(script.len() > 10_000, "{shell}");
            // bash is on every machine that builds this; the others where they are installed.
            match told(&shell.to_string(), &["-n"], &script) {
                Some(told) => assert_eq!(told, (true, String::new()), "{shell}"),
                None => assert_ne!(shell, Shell::Bash, "bash is not installed"),
            }
        }
    }

    #[test]
    fn bash_completes_every_option_of_every_command() {
        let script = String::from_utf8(completions_for(Shell::Bash)).unwrap();
        let (_, function) = script.rsplit_once("complete -F ").unwrap();
        let function = function.split(' ').next().unwrap();
        for (words, command) in commands() {
            let ask = format!(
                "{script}\nCOMP_WORDS=({} --)\nCOMP_CWORD={}\n{function} bench-tool -- {}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n",
                words.join(" "),
                words.len(),
                words.last().unwrap(),
            );
            let (done, offered) = told("bash", &["-s"], ask.as_bytes()).unwrap();
            assert!(done, "{words:?}: {offered}");
            let offered: Vec<&str> = offered.lines().collect();
            for option in options(&command) {
                let option = format!("--{option}");
                assert!(
                    offered.contains(&option.as_str()),
                    "{words:?} {option}: {offered:?}"
                );
            }
        }
    }

    /// A page's text without roff's escapes.
    fn plain(page: &Page) -> String {
        let text = std::str::from_utf8(&page.text).unwrap();
        let fonts = ["\\fB", "\\fI", "\\fR", "\\fP"];
        let text = fonts
            .iter()
            .fold(text.to_owned(), |it, font| it.replace(font, ""));
        text.replace("\\-", "-").replace("\\*(Aq", "'")
    }

    #[test]
    fn every_command_has_a_page_with_its_options_and_examples() {
        let pages = pages();
        let commands = commands();
        assert_eq!(pages.len(), commands.len());
        assert_eq!(pages[0].file, "bench-tool.1");
        for (words, command) in commands {
            let file = format!("{}.1", words.join("-"));
            let page = pages.iter().find(|it| it.file == file);
            let text = plain(page.unwrap_or_else(|| panic!("no page {file}")));
            for option in options(&command) {
                assert!(text.contains(&format!("--{option}")), "{file}: --{option}");
            }
            let after = command.get_after_help().map(ToString::to_string);
            let indented = after.iter().flat_map(|it| it.lines());
            for line in indented.filter(|it| it.starts_with("  ")) {
                let line = line.replace('\\', "\\\\");
                assert!(text.lines().any(|it| it == line), "{file}: {line}");
            }
            assert!(!text.contains("exit-with-stdin"), "{file}");
        }
    }

    #[test]
    fn pages_have_the_form_of_a_manual_page() {
        for page in pages() {
            let text = std::str::from_utf8(&page.text).unwrap();
            assert!(text.starts_with(".TH \"bench-tool"), "{}", page.file);
            let mut requests: Vec<&str> = Vec::new();
            for line in text.lines() {
                if let Some(request) = line.strip_prefix('.') {
                    requests.push(request);
                }
            }
            let place = |wanted: &str| requests.iter().position(|it| *it == wanted);
            for pair in [
                "SH NAME",
                "SH SYNOPSIS",
                "SH DESCRIPTION",
                "SH OPTIONS",
                "SH \"SEE ALSO\"",
            ]
            .windows(2)
            {
                let (first, second) = (place(pair[0]), place(pair[1]));
                assert!(first.is_some() && first < second, "{}: {pair:?}", page.file);
            }
            let known = [
                "TH", "SH", "TP", "PP", "IP", "RS", "RE", "nf", "fi", "ie", "el", "br",
            ];
            for request in &requests {
                let name = request.split(' ').next().unwrap_or_default();
                assert!(known.contains(&name), "{}: .{request}", page.file);
            }
            let count = |wanted: &str| requests.iter().filter(|it| **it == wanted).count();
            assert_eq!(count("nf"), count("fi"), "{}", page.file);
            // Their own checks, where they are installed.
            for (program, arguments) in [
                ("groff", &["-man", "-ww", "-z", "-Kutf8"][..]),
                ("mandoc", &["-Tlint", "-Werror"]),
            ] {
                if let Some(told) = told(program, arguments, &page.text) {
                    assert_eq!(told, (true, String::new()), "{program}: {}", page.file);
                }
            }
        }
    }
}
