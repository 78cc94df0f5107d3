//! The command lines of `bench-tool completions` and `bench-tool man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

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
pub struct CompletionsArgs {
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
pub struct ManArgs {
    /// Write all pages into this folder, which is made where there is none [default: the main page, to standard output]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}
