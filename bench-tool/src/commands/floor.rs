//! The command line of `bench-tool floor`.

use std::path::PathBuf;

use clap::Args;
use rpcrdma_doctor::{CoreList, core_list};
use rpcrdma_units::size;

use super::values;
use crate::exit::Failure;
use crate::floor::CopyShape;
use crate::floor::command::{self, FloorConfig};
use crate::machine::Machine;
use crate::report::output::Output;

/// `bench-tool floor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Four measurements on two pinned cores, without any transport:
  round trip  one cache line each way, through a ring of 64: no call is faster
  copy        one core rewrites a payload, the other copies it: no bulk data is faster
  clock       the cost of a clock reading, and so of measuring
  gaps        time that the system took from a polling core: it causes the far tail

Examples:
  bench-tool floor                     all of it, about 8 s
  bench-tool floor --quick --json -    about 2 s, JSON for a script
  bench-tool floor --cores 2,6         another pair of cores
  bench-tool floor --size 4KiB,1M --depth 32 --buffers 64")]
pub(crate) struct FloorArgs {
    /// The two cores, such as 0,1 [default: two that share no physical core]
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    pub cores: Option<CoreList>,

    /// Payload sizes of the copy
    #[arg(
        long,
        value_name = "BYTES,...",
        value_delimiter = ',',
        default_value = "64KiB,1MiB",
        value_parser = values::size_bytes
    )]
    pub size: Vec<u64>,

    /// Payloads in flight in the copy
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub depth: u32,

    /// Buffers that the copy's receiver rotates through; many do not fit its cache [default: the depth]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub buffers: Option<u32>,

    /// Take a quarter of the time, with less certain results
    #[arg(long)]
    pub quick: bool,

    /// Write the report as JSON; `-` is standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Cores that this process may not use, and those of [`command::execute`].
pub(super) fn execute(args: &FloorArgs, command: String) -> Result<(), Failure> {
    let machine = Machine::detect();
    let config = FloorConfig {
        command,
        shapes: shapes(args)?,
        cores: cores(args, &machine)?,
        is_quick: args.quick,
    };
    let json = Output::check_json(args.json.as_deref())?;
    command::execute(config, &machine, json.as_ref())
}

fn cores(args: &FloorArgs, machine: &Machine) -> Result<[usize; 2], Failure> {
    let Some(list) = &args.cores else {
        return machine.default_pair();
    };
    machine.check_cores(list)?;
    <[usize; 2]>::try_from(list.0.as_slice()).map_err(|_| {
        Failure::usage(format!(
            "the floor is between two cores, and --cores names {}",
            list.0.len()
        ))
        .advice("give two, as in --cores 0,1")
    })
}

fn shapes(args: &FloorArgs) -> Result<Vec<CopyShape>, Failure> {
    let whole = |value: u32| usize::try_from(value).unwrap_or(usize::MAX);
    args.size
        .iter()
        .map(|&bytes| match usize::try_from(bytes) {
            Ok(size_bytes) if size_bytes > 0 => Ok(CopyShape {
                size_bytes,
                depth: whole(args.depth),
                buffers: whole(args.buffers.unwrap_or(args.depth)),
            }),
            _ => Err(
                Failure::usage(format!("a payload of {} cannot be copied", size(bytes)))
                    .advice("give --size one byte or more"),
            ),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Cli, Command};
    use super::*;
    use crate::exit::Status;
    use clap::Parser;

    fn args(line: &str) -> FloorArgs {
        let line = ["bench-tool", "floor"]
            .into_iter()
            .chain(line.split_whitespace());
        let Command::Floor(args) = Cli::parse_from(line).command else {
            panic!("not a floor")
        };
        args
    }

    fn machine() -> Machine {
        Machine {
            cores_usable: vec![900, 901, 902],
            ..Machine::detect()
        }
    }

    #[test]
    fn two_cores_no_more_and_no_less() {
        assert_eq!(cores(&args(""), &machine()).unwrap(), [900, 901]);
        assert_eq!(
            cores(&args("--cores 902,900"), &machine()).unwrap(),
            [902, 900]
        );
        for line in ["--cores 900", "--cores 900-902", "--cores 0,1"] {
            assert_eq!(
                cores(&args(line), &machine()).unwrap_err().status(),
                Status::Usage
            );
        }
    }

    #[test]
    fn shapes_come_from_the_command_line() {
        let shape = |size_bytes, depth, buffers| CopyShape {
            size_bytes,
            depth,
            buffers,
        };
        assert_eq!(
            shapes(&args("")).unwrap(),
            [shape(65_536, 8, 8), shape(1 << 20, 8, 8)]
        );
        assert_eq!(
            shapes(&args("--size 4K --depth 2 --buffers 64")).unwrap(),
            [shape(4096, 2, 64)]
        );
        assert!(shapes(&args("--size 0")).is_err());
    }
}
