//! `bench-tool completions` and `bench-tool man`: shell completions and manual pages, generated from the same
//! definitions as `--help`.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::exit::{Failure, written};
use crate::report::output::Output;

/// `bench-tool completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Writes to standard output. Put it where the shell looks for completions, and write it again after an upgrade of \
bench-tool.\n\n\
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
There is a page for bench-tool and one for each command: bench-tool.1, bench-tool-run.1 and so on, with the text of \
--help.\n\n\
Examples:
  bench-tool man | man -l -
  bench-tool man --out ~/.local/share/man/man1
      then: man bench-tool-run")]
pub(crate) struct ManArgs {
    /// Write all pages into this folder, and create it if necessary [default: the main page, to standard output]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Runs `completions`.
///
/// # Errors
/// If standard output cannot be written.
pub(super) fn completions(args: &CompletionsArgs, command: &Command) -> Result<(), Failure> {
    print(&completions_for(args.shell, command))
}

/// Runs `man`.
///
/// # Errors
/// If a page cannot be written.
pub(super) fn man(args: &ManArgs, command: Command) -> Result<(), Failure> {
    let pages = pages(command);
    let Some(folder) = &args.out else {
        return print(pages[0].1.as_bytes());
    };
    std::fs::create_dir_all(folder).map_err(|error| {
        Failure::failed(format!("cannot make the folder {}", folder.display()))
            .because(error)
            .advice("give --out another folder")
    })?;
    for (file, text) in &pages {
        Output::check("--out", &folder.join(file))?.write(text)?;
    }
    Ok(())
}

fn print(bytes: &[u8]) -> Result<(), Failure> {
    // WAIT: for the reader of standard output; a second signal ends the process.
    written(io::stdout().lock().write_all(bytes))
}

fn completions_for(shell: Shell, command: &Command) -> Vec<u8> {
    let mut command = shown(command);
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    match shell {
        Shell::Bash => agreed(&script),
        _ => script,
    }
}

/// The bash script with consistent names. For a program name with a hyphen, clap_complete 4.6 sets a state under one
/// name and checks another, and then completes nothing.
fn agreed(script: &[u8]) -> Vec<u8> {
    let script = String::from_utf8_lossy(script);
    script
        .replace("bench__subcmd__tool", "bench__tool")
        .into_bytes()
}

/// The command without its hidden parts: the generator of completions would include them.
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

/// The main page and then those of the commands, each with its file name (`bench-tool-run.1`).
fn pages(command: Command) -> Vec<(String, String)> {
    fn add(command: &Command, pages: &mut Vec<(String, String)>) {
        pages.push(page(command));
        let commands = command.get_subcommands().filter(|it| !it.is_hide_set());
        commands.for_each(|it| add(it, pages));
    }
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages);
    pages
}

fn page(command: &Command) -> (String, String) {
    let man = Man::new(command.clone())
        .source(format!("rpcrdma {}", crate::VERSION))
        .manual("RPC-over-RDMA");
    let mut text = Vec::new();
    // Writing to memory cannot fail.
    let _ = man.render(&mut text);
    let mut text = String::from_utf8_lossy(&text).into_owned();
    // clap_mangen puts all text after the options into one section, fills the lines of examples, and omits an empty
    // date.
    for (in_help, in_manual) in [
        (" 1  \"", " 1 \"\" \""),
        ("\nExamples:\n", "\n.SH EXAMPLES\n.nf\n"),
        ("\nFaults:\n", "\n.SH FAULTS\n"),
        ("\nExit status: ", "\n.SH \"EXIT STATUS\"\n"),
        (".SH EXTRA\n.SH", ".SH"),
        (".SH EXTRA\n", ".SH NOTES\n"),
    ] {
        text = text.replace(in_help, in_manual);
    }
    text += concat!(
        ".SH \"SEE ALSO\"\ndocs/guide.md and docs/bench\\-tool.md of ",
        env!("CARGO_PKG_REPOSITORY"),
        "\n"
    );
    (man.get_filename(), text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::Cli;
    use clap::CommandFactory;
    use clap::ValueEnum;
    use std::process::{Command as Process, Stdio};

    /// Every visible command, by its path of words.
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

    /// A program's output for `input`, both streams together; `None` if the program is not installed.
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
            // Fails if the program ends before it has read everything.
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
            let script = String::from_utf8(completions_for(shell, &Cli::command())).unwrap();
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
            let script = completions_for(shell, &Cli::command());
            assert!(script.len() > 10_000, "{shell}");
            // Every machine that builds this has bash; the other shells are checked if they are installed.
            match told(&shell.to_string(), &["-n"], &script) {
                Some(told) => assert_eq!(told, (true, String::new()), "{shell}"),
                None => assert_ne!(shell, Shell::Bash, "bash is not installed"),
            }
        }
    }

    #[test]
    fn bash_completes_every_option_of_every_command() {
        let script = String::from_utf8(completions_for(Shell::Bash, &Cli::command())).unwrap();
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
    fn plain(text: &str) -> String {
        let fonts = ["\\fB", "\\fI", "\\fR", "\\fP"];
        let text = fonts
            .iter()
            .fold(text.to_owned(), |it, font| it.replace(font, ""));
        text.replace("\\-", "-").replace("\\*(Aq", "'")
    }

    #[test]
    fn every_command_has_a_page_with_its_options_and_examples() {
        let pages = pages(Cli::command());
        let commands = commands();
        assert_eq!(pages.len(), commands.len());
        assert_eq!(pages[0].0, "bench-tool.1");
        for (words, command) in commands {
            let file = format!("{}.1", words.join("-"));
            let page = pages.iter().find(|it| it.0 == file);
            let text = plain(&page.unwrap_or_else(|| panic!("no page {file}")).1);
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
        for (file, text) in pages(Cli::command()) {
            let title = format!("\n.TH {} 1 \"\" \"rpcrdma ", file.trim_end_matches(".1"));
            assert!(text.contains(&title), "{file}: {text}");
            assert!(!text.contains(".SH EXTRA"), "{file}");
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
                assert!(first.is_some() && first < second, "{file}: {pair:?}");
            }
            let known = [
                "TH", "SH", "TP", "PP", "IP", "RS", "RE", "nf", "fi", "ie", "el", "br",
            ];
            for request in &requests {
                let name = request.split(' ').next().unwrap_or_default();
                assert!(known.contains(&name), "{file}: .{request}");
            }
            // The shells' own syntax checks, if they are installed.
            for (program, arguments) in [
                ("groff", &["-man", "-ww", "-z", "-Kutf8"][..]),
                ("mandoc", &["-Tlint", "-Werror"]),
            ] {
                if let Some(told) = told(program, arguments, text.as_bytes()) {
                    assert_eq!(told, (true, String::new()), "{program}: {file}");
                }
            }
        }
    }
}
