//! `bench-tool nfs`: an NFS version 3 requester that drives any server, to qualify it.
//!
//! | module | what |
//! |---|---|
//! | [`address`], `config` | where the server is, and what is to be done there |
//! | `mount`, `portmap`, `credential` | from a path to a file handle |
//! | `request`, `reply` | the calls that are made, and what is believed of the answers |
//! | `caller`, `tcp` | calls one at a time, for what is not measured |
//! | `files`, `content` | the files that are called for, and what they hold |
//! | `steps`, `work` | which call comes next, and whether its answer is right |
//! | `load` | the calls that are measured |
//! | `report` | what is told of them |

pub mod address;
mod caller;
mod config;
mod content;
mod credential;
mod files;
mod load;
mod mount;
mod portmap;
mod reply;
mod report;
mod request;
pub(crate) mod steps;
mod tcp;
mod work;

use std::sync::Arc;
use std::time::Duration;

use self::address::NfsAddress;
use self::caller::{CallFailed, NfsCaller};
use self::config::NfsConfig;
use self::credential::Credential;
use self::files::{Files, FilesPlan, file_system};
use self::load::tcp::TcpServer;
use self::load::{Amount, Measured};
use self::mount::MountService;
use self::report::{Outcome, Report};
use self::request::{ARGUMENTS_BYTES_MAX, Request};
use self::tcp::{TcpCaller, TcpCallerConfig};
use self::work::Work;
use crate::cli::NfsArgs;
use crate::cli::nfs::Stable;
use crate::exit::Failure;
use crate::machine::Machine;
use crate::nfs::results::Fsinfo;
use crate::nfs::types::Stability;
use crate::nfs::{self};
use crate::progress::{Progress, ProgressLine};
use crate::report::output::Outputs;
use crate::run::Watch;
use crate::signals::Stop;

/// How long a connect may take, and the answer to a call that is not measured: a COMMIT of much may take a while.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest reply to such a call: a READ of 1 MiB.
const REPLY_BYTES_MAX: usize = (1 << 20) + 4096;

/// Runs the command.
///
/// # Errors
/// Arguments that do not fit each other or the server, a server that cannot be reached or refuses, a report that
/// cannot be written, and calls that ended in errors (after the report).
pub fn execute(args: &NfsArgs, command: String) -> Result<(), Failure> {
    let machine = Machine::detect();
    let config = NfsConfig::new(args, &machine, command)?;
    let outputs = Outputs::check(args.json.as_deref(), args.hgrm.as_deref())?;
    let stop = Stop::on_signals()?;
    let outcome = drive(&config, args.quiet, &stop)?;
    let (calls, errors) = (outcome.measured.calls(), outcome.errors());
    let hgrm = crate::report::hgrm::text(&outcome.measured.latency());
    let report = Report::new(&config, &machine, &outcome);
    outputs.write(
        &report.to_json(),
        &report.table(),
        &report.warnings,
        &hgrm,
        args.quiet,
    )?;
    if errors > 0 {
        return Err(Failure::failed(format!(
            "{errors} calls ended in an error, {calls} completed"
        ))
        .advice("the warnings of the report say which error came first, its `errors_by_name` counts all"));
    }
    if calls == 0 {
        return Err(Failure::failed("no call completed in the measured time")
            .advice("measure for longer, or lower --size"));
    }
    Ok(())
}

/// Mounts, prepares, calls, and cleans up, whatever became of the calls.
fn drive(config: &NfsConfig, quiet: bool, stop: &Stop) -> Result<Outcome, Failure> {
    let machine_name = rustix::system::uname();
    let machine_name = machine_name.nodename().to_string_lossy();
    let credential = Credential::new(config.uid, config.gid, &machine_name);
    let NfsAddress::Tcp { host, port } = &config.server;
    let mut mountd = MountService::connect(host, config.mount_port, &credential, CALL_TIMEOUT)?;
    let mounted = mountd.mount(&config.export)?;
    let server = TcpServer {
        host: host.clone(),
        port: *port,
        credential,
        retry: config.retry,
    };
    let mut caller = TcpNfs::connect(&server)?;
    let info = file_system(&mut caller, mounted.root)?;
    config.check_against(&info)?;
    let plan = FilesPlan {
        folder: format!("bench-tool-{machine_name}-{}", std::process::id()),
        files: config.files,
        file_bytes: config.file_bytes,
        is_filled: config.is_read(),
        seed: config.seed,
    };
    let mut files = Files::new(mounted.root, plan);
    let outcome = prepare_and_measure(config, &server, &mut caller, &info, &mut files, quiet, stop);
    // Over a connection of its own: the one before may be the reason why the calls failed.
    let removed = files.remove(&mut caller).or_else(|failure| {
        let mut caller = TcpNfs::connect(&server).map_err(|_| failure)?;
        files.remove(&mut caller)
    });
    mountd.unmount(&config.export);
    let outcome = outcome?;
    removed.map(|()| outcome)
}

fn prepare_and_measure(
    config: &NfsConfig,
    server: &TcpServer,
    caller: &mut TcpNfs,
    info: &Fsinfo,
    files: &mut Files,
    quiet: bool,
    stop: &Stop,
) -> Result<Outcome, Failure> {
    if config.files > 0 {
        files.make(caller, info, stop)?;
    }
    let work = Arc::new(Work {
        plan: config.steps(),
        targets: files.targets.clone(),
        stability: match config.stable {
            Stable::Unstable => Stability::Unstable,
            Stable::Data => Stability::DataSync,
            Stable::File => Stability::FileSync,
        },
        verify: config.verify,
    });
    let amount = Amount {
        depth: config.depth,
        warmup: config.warmup,
        limit: config.limit,
        rate_per_s: config.rate_per_s,
    };
    let watch = Watch {
        stop: stop.clone(),
        progress: Progress::new(config.connections as usize),
    };
    let measured = if stop.is_asked() {
        let mut measured = Measured::new(&[]);
        measured.interrupted = true;
        measured
    } else {
        let line = ProgressLine::start(&watch.progress, config.expected(), quiet);
        let connections = config.connections;
        let measured = load::tcp::measure(
            server,
            Arc::clone(&work),
            &amount,
            connections,
            &config.cores,
            &watch,
        );
        drop(line);
        measured?
    };
    let mut outcome = Outcome::new(measured, *info);
    if config.is_written() {
        // The connection may have been idle for longer than a server keeps one.
        *caller = TcpNfs::connect(server)?;
        settle(config, caller, files, &work, &mut outcome)?;
    }
    Ok(outcome)
}

/// Makes what was written last, and reads it back where that was asked for.
fn settle(
    config: &NfsConfig,
    caller: &mut TcpNfs,
    files: &Files,
    work: &Work,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    if config.stable == Stable::Unstable {
        for number in 0..config.files {
            if let Some(verifier) = files.commit(caller, number)? {
                outcome.measured.note_verifier(verifier);
            }
        }
    }
    // What a server that was restarted had not committed is lost by right: a client writes it again.
    outcome.is_lost_by_right =
        config.stable == Stable::Unstable && outcome.measured.verifier_changes > 0;
    if config.verify && !outcome.is_lost_by_right {
        for place in outcome.measured.written.blocks() {
            outcome.blocks_checked += 1;
            outcome.blocks_wrong += u64::from(!files.check(caller, work, place)?);
        }
    }
    Ok(())
}

/// NFS calls over TCP, one at a time.
struct TcpNfs {
    caller: TcpCaller,
    credential: Credential,
}

impl TcpNfs {
    fn connect(server: &TcpServer) -> Result<Self, Failure> {
        let caller = TcpCaller::connect(&TcpCallerConfig {
            host: &server.host,
            port: server.port,
            what: "NFS",
            timeout: CALL_TIMEOUT,
            reply_bytes_max: REPLY_BYTES_MAX,
        })?;
        Ok(Self {
            caller,
            credential: server.credential.clone(),
        })
    }
}

impl NfsCaller for TcpNfs {
    fn call(&mut self, request: &Request<'_>, payload: &[u8]) -> Result<Vec<u8>, CallFailed> {
        let mut args = [0; ARGUMENTS_BYTES_MAX];
        let bytes = request.encode(&mut args)?;
        let program = (nfs::PROGRAM, nfs::VERSION, request.procedure().number());
        let args = args.get(..bytes).unwrap_or(&[]);
        self.caller
            .call(program, self.credential.auth(), &[args, payload])
    }
}
