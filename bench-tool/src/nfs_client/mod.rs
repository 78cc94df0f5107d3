//! `bench-tool nfs`: an NFS version 3 requester that drives any server, to qualify it.
//!
//! | module | what |
//! |---|---|
//! | [`address`], `config` | where the server is, and what is to be done there |
//! | `mount`, `portmap`, `credential` | from a path to a file handle |
//! | `request`, `reply` | the calls that are made, and what is believed of the answers |
//! | `caller`, `tcp` | calls one at a time, for what is not measured |
//! | `files`, `content` | the files that are called for, and what they hold |
//! | `steps`, `workload` | which call comes next, and whether its answer is right |
//! | `session`, `load` | connections to a server, and the calls that are measured |
//! | `report` | what is told of them |

pub(crate) mod address;
mod config;
mod content;
mod files;
mod load;
mod report;
mod session;
pub(crate) mod steps;
mod workload;

pub(crate) use self::report::SCHEMA;

use std::sync::Arc;
use std::time::Duration;

use rpcrdma_control::Provider;
use rpcrdma_tuning::Loaded;

use self::address::NfsAddress;
use self::config::NfsConfig;
use self::files::{Files, FilesPlan, file_system};
use self::load::tcp::TcpServer;
use self::load::{Amount, Measured};
use self::report::{Outcome, Report, Transport};
use self::session::fabric::FabricSession;
use self::session::{Session, TcpSession};
use self::steps::StepPlan;
use self::workload::Work;
use crate::address::Address;
use crate::commands::NfsArgs;
use crate::commands::nfs::{Access, NfsOp, Stable};
use crate::exit::Failure;
use crate::fabric::{Fabric, Job};
use crate::machine::Machine;
use crate::progress::{Progress, ProgressLine};
use crate::report::output::{Outputs, verdict};
use crate::run::Watch;
use crate::run::config::Limit;
use crate::signals::Stop;
use rpcrdma_nfs3::client::CALL_TIMEOUT;
use rpcrdma_nfs3::client::credential::Credential;
use rpcrdma_nfs3::client::mount::MountService;
use rpcrdma_nfs3::wire::results::Fsinfo;
use rpcrdma_nfs3::wire::types::Stability;

/// Calls outstanding on each connection while files are filled.
pub(crate) const FILL_DEPTH: u32 = 8;

/// The most bytes of a WRITE that fills.
pub(crate) const FILL_BYTES_MAX: u32 = 64 << 10;

/// Runs the command.
///
/// # Errors
/// Arguments that do not fit each other or the server, a server that cannot be reached or refuses, a report that
/// cannot be written, and calls that ended in errors (after the report).
pub(crate) fn execute(args: &NfsArgs, command: String) -> Result<(), Failure> {
    let machine = Machine::detect();
    let config = NfsConfig::new(args, &machine, command)?;
    let outputs = Outputs::check(&[
        ("--json", args.json.as_deref()),
        ("--hgrm", args.hgrm.as_deref()),
    ])?;
    let stop = Stop::on_signals()?;
    let outcome = drive(&config, args.quiet, &stop)?;
    let (calls, errors) = (outcome.measured.calls(), outcome.errors());
    let report = Report::new(&config, &machine, &outcome);
    let text_of = |option: &str| match option {
        "--hgrm" => crate::report::hgrm::text(&outcome.measured.latency()),
        _ => report.to_json(),
    };
    outputs.write(&report.table(), &report.warnings, args.quiet, text_of)?;
    verdict(
        calls,
        errors,
        "the warnings of the report say which error came first, its `errors_by_name` counts all",
    )
}

/// Mounts, prepares, calls, and cleans up, whatever became of the calls.
fn drive(config: &NfsConfig, quiet: bool, stop: &Stop) -> Result<Outcome, Failure> {
    let machine_name = rustix::system::uname();
    let machine_name = machine_name.nodename().to_string_lossy();
    let credential = Credential::new(config.uid, config.gid, &machine_name);
    let host = config.server.host();
    let mut mountd = MountService::connect(host, config.mount_port, &credential, CALL_TIMEOUT)?;
    let root = mountd.mount(&config.export)?.root;
    let plan = FilesPlan {
        folder: format!("bench-tool-{machine_name}-{}", std::process::id()),
        files: config.files,
        file_bytes: config.file_bytes,
        seed: config.seed,
    };
    let files = Files::new(root, plan);
    let manner = Manner {
        config,
        quiet,
        stop,
    };
    let outcome = match &config.server {
        NfsAddress::Tcp { host, port } => {
            let server = TcpServer {
                host: host.clone(),
                port: *port,
                credential,
                retry: config.retry,
            };
            let mut session = TcpSession {
                server,
                connections: config.connections,
                cores: config.cores.clone(),
            };
            manner.run(&mut session, files, Transport::KernelTcp)
        }
        NfsAddress::Fabric(address) => {
            let fabric = Fabric::to_connect(address, config.device.as_deref())?;
            let loaded = session::fabric::profile(config, &fabric)?;
            let job = OverFabric {
                manner,
                files,
                address,
                credential: &credential,
                fabric: &fabric,
                loaded: &loaded,
            };
            fabric.run(&loaded.profile, job)
        }
    };
    mountd.unmount(&config.export);
    outcome
}

/// A run over a fabric, whichever it is.
struct OverFabric<'a> {
    manner: Manner<'a>,
    files: Files,
    address: &'a Address,
    credential: &'a Credential,
    fabric: &'a Fabric,
    loaded: &'a Loaded,
}

impl Job for OverFabric<'_> {
    type Output = Outcome;

    fn run<V: Provider>(self, provider: V) -> Result<Outcome, Failure> {
        let config = self.manner.config;
        let mut session =
            FabricSession::connect(provider, config, self.credential, self.address, self.loaded)?;
        let transport = Transport::Fabric {
            fabric: self.fabric.name(),
            device: self.fabric.device().map(str::to_owned),
            version: session.version(),
            profile: self.loaded.name.clone(),
            warnings: crate::profile::warnings_here(self.loaded),
        };
        self.manner.run(&mut session, self.files, transport)
    }
}

/// What is to be done, and how it is shown.
#[derive(Clone, Copy)]
pub(crate) struct Manner<'a> {
    config: &'a NfsConfig,
    quiet: bool,
    stop: &'a Stop,
}

impl Manner<'_> {
    fn run(
        self,
        session: &mut dyn Session,
        files: Files,
        transport: Transport,
    ) -> Result<Outcome, Failure> {
        let mut run = Run {
            config: self.config,
            session,
            files,
            quiet: self.quiet,
            stop: self.stop,
            transport,
        };
        let outcome = run.prepare_and_measure();
        let removed = run.remove();
        let outcome = outcome?;
        removed.map(|()| outcome)
    }
}

/// A run whose export is mounted.
struct Run<'a> {
    config: &'a NfsConfig,
    session: &'a mut dyn Session,
    files: Files,
    quiet: bool,
    stop: &'a Stop,
    transport: Transport,
}

impl Run<'_> {
    fn prepare_and_measure(&mut self) -> Result<Outcome, Failure> {
        let config = self.config;
        let mut caller = self.session.caller()?;
        let info = file_system(&mut *caller, self.files.root())?;
        config.check_against(&info)?;
        if config.files > 0 {
            self.files.make(&mut *caller, self.stop)?;
        }
        drop(caller);
        if config.is_read() && !self.stop.is_asked() {
            self.fill(&info)?;
        }
        let mut outcome = Outcome::new(self.measure()?, info, self.transport.clone());
        if config.is_written() {
            self.settle(&mut outcome)?;
        }
        Ok(outcome)
    }

    fn work(&self, plan: StepPlan, stability: Stability) -> Arc<Work> {
        Arc::new(Work {
            plan,
            targets: self.files.targets.clone(),
            stability,
            verify: self.config.verify,
        })
    }

    fn watch(&self) -> Watch {
        Watch {
            stop: self.stop.clone(),
            progress: Progress::new(self.config.connections as usize),
            server_process: None,
        }
    }

    /// Writes the content of all files: a load too, which nobody is told of.
    fn fill(&mut self, info: &Fsinfo) -> Result<(), Failure> {
        let plan = StepPlan {
            op: NfsOp::Write,
            access: Access::Sequential,
            bytes: info.write_bytes_max.clamp(1, FILL_BYTES_MAX),
            ..self.config.steps()
        };
        let amount = Amount {
            depth: FILL_DEPTH,
            warmup: Duration::ZERO,
            limit: Limit::Count(plan.blocks()),
            rate_per_s: None,
            patience: self.config.retry,
        };
        let work = self.work(plan, Stability::Unstable);
        let filled = self.session.measure(work, &amount, &self.watch())?;
        if let Some(first) = filled.errors.first {
            return Err(Failure::failed("the files could not be filled")
                .because(first)
                .advice(
                    "the export must have room for them (--files times --file-size): look at the server's messages",
                ));
        }
        if filled.short > 0 {
            return Err(Failure::failed(
                "the files could not be filled: WRITEs of the server are short",
            )
            .advice("look at the server's messages; --op write goes without filling"));
        }
        let mut caller = self.session.caller()?;
        (0..self.config.files)
            .try_for_each(|number| self.files.commit(&mut *caller, number).map(|_| ()))
    }

    fn measure(&mut self) -> Result<Measured, Failure> {
        let config = self.config;
        let stability = match config.stable {
            Stable::Unstable => Stability::Unstable,
            Stable::Data => Stability::DataSync,
            Stable::File => Stability::FileSync,
        };
        let amount = Amount {
            depth: config.depth,
            warmup: config.warmup,
            limit: config.limit,
            rate_per_s: config.rate_per_s,
            patience: self.config.retry,
        };
        if self.stop.is_asked() {
            return Ok(Measured {
                interrupted: true,
                ..Measured::new(&[])
            });
        }
        let (work, watch) = (self.work(config.steps(), stability), self.watch());
        let line = ProgressLine::start(&watch.progress, config.expected(), self.quiet);
        let measured = self.session.measure(work, &amount, &watch);
        drop(line);
        measured
    }

    /// Makes what was written last, and reads it back where that was asked for.
    fn settle(&mut self, outcome: &mut Outcome) -> Result<(), Failure> {
        let is_unstable = self.config.stable == Stable::Unstable;
        let mut caller = self.session.caller()?;
        if is_unstable {
            for number in 0..self.config.files {
                if let Some(verifier) = self.files.commit(&mut *caller, number)? {
                    outcome.measured.note_verifier(verifier);
                }
            }
        }
        // What a server that was restarted had not committed is lost by right: a client writes it again.
        outcome.is_lost_by_right = is_unstable && outcome.measured.verifier_changes > 0;
        if self.config.verify && !outcome.is_lost_by_right {
            let plan = self.config.steps();
            for place in outcome.measured.written.blocks() {
                outcome.blocks_checked += 1;
                let is_right = self.files.check(&mut *caller, &plan, place)?;
                outcome.blocks_wrong += u64::from(!is_right);
            }
        }
        Ok(())
    }

    fn remove(&mut self) -> Result<(), Failure> {
        if !self.files.is_there() {
            return Ok(());
        }
        self.files.remove(&mut *self.session.caller()?)
    }
}
