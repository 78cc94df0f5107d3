//! `bench-tool nfs`: an NFS version 3 client that puts a load on any server, to qualify it.
//!
//! | module | contents |
//! |---|---|
//! | [`address`], `config` | the address of the server, and the options |
//! | `mounted` | the export, by which way it is mounted |
//! | `files` | the test files |
//! | `session` | connections to a server, and the measured calls |
//! | `report` | the report |
//!
//! [`crate::workloads::nfs`] decides which call comes next, and checks replies. `rpcrdma_nfs3::client` encodes calls,
//! decodes replies, and speaks MOUNT.

pub(crate) mod address;
pub(crate) mod config;
mod files;
mod mounted;
mod report;
mod session;

pub(crate) use self::report::{Report, SCHEMA};

use std::sync::Arc;
use std::time::Duration;

use rpcrdma_control::{Fabric, ServerAddresses, Use};
use rpcrdma_tuning::Loaded;

use self::address::NfsAddress;
use self::config::{FILL_BYTES_MAX, FILL_DEPTH, NfsConfig, Stable};
use self::files::{Files, FilesPlan, file_system};
use self::mounted::Mounted;
use self::report::{Outcome, Transport};
use self::session::Session;
use self::session::fabric::FabricSession;
use self::session::tcp::{TcpServer, TcpSession};
use crate::exit::Failure;
use crate::load::gate::Gate;
use crate::load::measure::Checkpoints;
use crate::load::measured::{Beginning, Measured};
use crate::load::pace::Rate;
use crate::load::{Amount, Limit, Watch};
use crate::machine::Machine;
use crate::progress::{Progress, ProgressLine, say};
use crate::record::Record;
use crate::report::climb::climb;
use crate::report::finish::{put, put_checkpoint, put_knee};
use crate::report::output::Outputs;
use crate::signals::Stop;
use crate::workloads::nfs::Work;
use crate::workloads::nfs::steps::{Access, NfsOp, StepPlan};
use crate::workloads::nfs::tally::Tally;
use rpcrdma_nfs3::client::credential::Credential;
use rpcrdma_nfs3::wire::results::Fsinfo;
use rpcrdma_nfs3::wire::types::Stability;

/// Runs the load at one rate or in a closed loop, and writes the report. The calls begin when `gate` opens.
///
/// # Errors
/// A configuration outside the server's limits, a server that cannot be reached or refuses, a report that cannot be
/// written, and failed calls (after the report).
pub(crate) fn execute(
    config: &NfsConfig,
    machine: &Machine,
    outputs: &Outputs,
    gate: Gate,
) -> Result<(), Failure> {
    let mut outcome = None;
    let stop = Stop::on_signals()?;
    let begin = (&stop, gate);
    let driven = drive(config, outputs.is_quiet(), begin, &mut |run| {
        let show = &mut |outcome: &Outcome| {
            let report = Report::new(config, machine, outcome);
            let latency = outcome.timeline.latency();
            put_checkpoint(&report, (&latency, &outcome.timeline), outputs);
        };
        outcome = Some(run.outcome_at(config.load.rate_per_s, show)?);
        Ok(())
    });
    // A server that is gone takes the clean-up with it, too. What was measured before is reported.
    let Some(outcome) = outcome else {
        return driven;
    };
    let report = Report::new(config, machine, &outcome);
    let table = report.table(config.load.shows_intervals);
    let measured = (&outcome.timeline.latency(), &outcome.timeline);
    let failure = outcome.measured.failure.clone().or(driven.err());
    put(
        &report,
        &table,
        measured,
        outputs,
        failure.as_ref(),
        ERRORS_ADVICE,
    )
}

/// Runs the load at one rate or in a closed loop, and returns the report, with the failure if it broke off. The calls
/// begin when `gate` opens.
///
/// # Errors
/// Those of [`execute`] before the first call.
pub(crate) fn measure(
    config: &NfsConfig,
    machine: &Machine,
    stop: &Stop,
    gate: &Gate,
) -> Result<(Report, Option<Failure>), Failure> {
    let mut found = None;
    let driven = drive(config, true, (stop, gate.clone()), &mut |run| {
        found = Some(run.report_at(config.load.rate_per_s, machine)?);
        Ok(())
    });
    match found {
        Some((report, failure)) => Ok((report, failure.or(driven.err()))),
        None => Err(driven
            .err()
            .unwrap_or_else(|| Failure::failed("the calls were not made"))),
    }
}

/// Runs the load at rising rates up to the knee, where latency turns upward, and writes the report.
///
/// # Errors
/// Those of [`execute`].
pub(crate) fn to_knee(
    config: &NfsConfig,
    machine: &Machine,
    outputs: &Outputs,
    gate: Gate,
) -> Result<(), Failure> {
    let stop = Stop::on_signals()?;
    let mut found = None;
    let begin = (&stop, gate);
    let driven = drive(config, outputs.is_quiet(), begin, &mut |run| {
        let report_at = |rate_per_s| run.report_at(rate_per_s, machine);
        found = Some(climb(&stop, 0, report_at)?);
        Ok(())
    });
    let Some((report, failure)) = found else {
        return driven;
    };
    put_knee(&report, outputs, failure.or(driven.err()), ERRORS_ADVICE)
}

const ERRORS_ADVICE: &str =
    "the warnings of the report say which error came first, its `errors_by_name` counts all";

/// The measurement: called when server and files are prepared.
type Calls<'a> = &'a mut dyn FnMut(&mut Run<'_>) -> Result<(), Failure>;

/// Mounts the export, prepares files, runs `calls`, and cleans up, also after a failure.
fn drive(
    config: &NfsConfig,
    quiet: bool,
    (stop, gate): (&Stop, Gate),
    calls: Calls<'_>,
) -> Result<(), Failure> {
    let machine_name = rustix::system::uname();
    let machine_name = machine_name.nodename().to_string_lossy();
    let credential = Credential::new(config.uid, config.gid, &machine_name);
    let plan = FilesPlan {
        folder: format!("bench-tool-{machine_name}-{}", std::process::id()),
        files: config.files,
        file_bytes: config.file_bytes,
        seed: config.seed,
    };
    let manner = Manner {
        config,
        credential: &credential,
        quiet,
        stop,
        gate: &gate,
    };
    match &config.server {
        NfsAddress::Tcp { host, port } => {
            let server = TcpServer {
                host: host.clone(),
                port: *port,
                credential: credential.clone(),
                retry: config.load.retry,
                stop: stop.clone(),
            };
            let mut session = TcpSession {
                server,
                connections: config.load.connections,
                cores: config.load.cores.clone(),
            };
            manner.run(&mut session, plan, Transport::KernelTcp, calls)
        }
        NfsAddress::Fabric(address) => {
            let fabric = Fabric::of(address.iter(), config.device.as_deref(), Use::Connect)?;
            let loaded = session::fabric::profile(config, &fabric)?;
            let job = OverFabric {
                manner,
                plan,
                address,
                fabric: &fabric,
                loaded: &loaded,
                calls,
            };
            job.run()
        }
    }
}

/// A run over RPC-over-RDMA.
struct OverFabric<'a> {
    manner: Manner<'a>,
    plan: FilesPlan,
    address: &'a ServerAddresses,
    fabric: &'a Fabric,
    loaded: &'a Loaded,
    calls: Calls<'a>,
}

impl OverFabric<'_> {
    fn run(self) -> Result<(), Failure> {
        let Manner {
            config, credential, ..
        } = self.manner;
        let mut session =
            // WAIT: see `Connections::connect`.
            FabricSession::connect(
                self.fabric,
                config,
                credential,
                self.address,
                self.loaded,
                self.manner.stop,
            )?;
        let transport = Transport::Fabric {
            fabric: self.fabric.name(),
            device: self.fabric.devices().map(ToString::to_string),
            version: session.version(),
            profile: self.loaded.name.clone(),
            warnings: session.warnings(self.loaded),
            client: Box::new(Record::new(
                &Machine::detect(),
                &config.load.cores,
                self.loaded,
                self.fabric,
            )),
        };
        self.manner
            .run(&mut session, self.plan, transport, self.calls)
    }
}

/// The configuration, and how the run interacts with the user.
#[derive(Clone, Copy)]
pub(crate) struct Manner<'a> {
    config: &'a NfsConfig,
    credential: &'a Credential,
    quiet: bool,
    stop: &'a Stop,
    gate: &'a Gate,
}

impl Manner<'_> {
    fn run(
        self,
        session: &mut dyn Session,
        plan: FilesPlan,
        transport: Transport,
        calls: Calls<'_>,
    ) -> Result<(), Failure> {
        let mounted = Mounted::new(self.config, self.credential, session)?;
        let mut run = Run {
            config: self.config,
            session,
            files: Files::new(mounted.root(), plan),
            quiet: self.quiet,
            stop: self.stop,
            gate: self.gate,
            transport,
            info: None,
            is_given_up: false,
        };
        // Remove the files even if the calls failed; the first failure is the one to report.
        let done = run.prepare().and_then(|()| calls(&mut run));
        let done = match run.is_given_up {
            true => done,
            false => done.and(run.remove()),
        };
        // A server that let other calls fail would let this one wait until its time is over.
        let session = done.is_ok().then_some(run.session);
        mounted.unmount(&self.config.export, session);
        done
    }
}

/// A run with a mounted export.
pub(crate) struct Run<'a> {
    config: &'a NfsConfig,
    session: &'a mut dyn Session,
    files: Files,
    quiet: bool,
    stop: &'a Stop,
    /// Where the measured calls wait for their start.
    gate: &'a Gate,
    transport: Transport,
    /// The server's FSINFO, set by [`Run::prepare`].
    info: Option<Fsinfo>,
    /// Whether a load was stopped and the server answers no more. Its files are left: who stopped it waits for no limits of
    /// further calls.
    is_given_up: bool,
}

impl Run<'_> {
    /// Makes the files that the calls need, and fills those that are read.
    fn prepare(&mut self) -> Result<(), Failure> {
        let config = self.config;
        let mut caller = self.session.caller()?;
        let info = file_system(&mut *caller, self.files.root())?;
        config.check_against(&info)?;
        if config.files > 0 {
            self.files.make(&mut *caller, self.stop)?;
        }
        // The caller borrows the session, which fills the files.
        drop(caller);
        if config.is_read() && !self.stop.is_asked() {
            self.fill(&info)?;
        }
        self.info = Some(info);
        Ok(())
    }

    /// Runs the measured calls at a rate or in a closed loop, then commits and checks what they wrote. `show` gets the
    /// results so far at the checkpoints of the configuration.
    fn outcome_at(
        &mut self,
        rate_per_s: Option<u64>,
        show: &mut dyn FnMut(&Outcome),
    ) -> Result<Outcome, Failure> {
        let info = self.info;
        let info = info.ok_or_else(|| Failure::failed("the server did not report its limits"))?;
        // Of a load that never began.
        let began = Beginning::after(self.config.load.warmup);
        let (interval, transport) = (self.config.load.interval, self.transport.clone());
        let outcome = |mut measured: Measured, tally| {
            let timeline = measured
                .began
                .unwrap_or(began)
                .timeline(interval, &measured);
            measured.timelines.clear();
            Outcome::new((measured, tally), timeline, info, transport.clone())
        };
        let mut show = |measured| show(&outcome(measured, Tally::default()));
        let (measured, tally) = self.measure(rate_per_s, &mut show)?;
        let mut outcome = outcome(measured, tally);
        if self.config.is_written() && outcome.measured.failure.is_none() {
            outcome.measured.failure = self.settle(&mut outcome).err();
        }
        Ok(outcome)
    }

    /// Runs the calls at a rate or in a closed loop, and returns the report, with the failure if it broke off.
    fn report_at(
        &mut self,
        rate_per_s: Option<u64>,
        machine: &Machine,
    ) -> Result<(Report, Option<Failure>), Failure> {
        let outcome = self.outcome_at(rate_per_s, &mut |_| {})?;
        let mut config = self.config.clone();
        config.load.rate_per_s = rate_per_s;
        let report = Report::new(&config, machine, &outcome);
        Ok((report, outcome.measured.failure))
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
        let connections = self.config.load.connections as usize;
        let call_bytes = self.config.call_bytes();
        Watch {
            stop: self.stop.clone(),
            progress: Progress::new(connections).with_call_bytes(call_bytes),
            server_process: None,
            gate: Gate::default(),
        }
    }

    /// Writes the content of all files. This is a load too, but the report does not include it.
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
            rate: None,
            ..self.config.load.amount()
        };
        let work = self.work(plan, Stability::Unstable);
        let (watch, mut nobody) = (self.watch(), |_| {});
        let mut unseen = Checkpoints::new(None, &mut nobody);
        let (filled, tally) = self.session.measure(work, &amount, &watch, &mut unseen)?;
        self.note_given_up(&filled);
        if let Some(failure) = filled.failure {
            return Err(failure);
        }
        if let Some(first) = filled.errors.first {
            return Err(Failure::failed("the files could not be filled")
                .because(first)
                .advice(
                    "the export must have room for them (--files times --file-size): look at the server's messages",
                ));
        }
        if tally.short > 0 {
            return Err(Failure::failed(
                "the files could not be filled: WRITEs of the server are short",
            )
            .advice("look at the server's messages; --op write needs no filling"));
        }
        let mut caller = self.session.caller()?;
        (0..self.config.files)
            .try_for_each(|number| self.files.commit(&mut *caller, number).map(|_| ()))
    }

    fn measure(
        &mut self,
        rate_per_s: Option<u64>,
        show: &mut dyn FnMut(Measured),
    ) -> Result<(Measured, Tally), Failure> {
        let config = self.config;
        let amount = Amount {
            rate: rate_per_s.map(Rate::new),
            ..config.load.amount()
        };
        if self.stop.is_asked() {
            let nothing = Measured {
                interrupted: true,
                ..Measured::default()
            };
            return Ok((nothing, Tally::default()));
        }
        let work = self.work(config.steps(), config.stable.stability());
        let watch = Watch {
            gate: self.gate.clone(),
            ..self.watch()
        };
        let line = ProgressLine::start(
            &watch.progress,
            config.load.limit.expected(config.load.warmup),
            self.quiet,
        );
        let mut checkpoints = Checkpoints::new(config.load.checkpoint, show);
        let measured = self
            .session
            .measure(work, &amount, &watch, &mut checkpoints)?;
        drop(line);
        self.note_given_up(&measured.0);
        Ok(measured)
    }

    fn note_given_up(&mut self, measured: &Measured) {
        if self.stop.is_asked() && measured.failure.is_some() && self.files.is_there() {
            say("bench-tool: the files of this run are left on the server, which does not answer");
            self.is_given_up = true;
        }
    }

    /// Commits the written data, and reads it back with `--verify`.
    fn settle(&mut self, outcome: &mut Outcome) -> Result<(), Failure> {
        let is_unstable = self.config.stable == Stable::Unstable;
        let mut caller = self.session.caller()?;
        if is_unstable {
            for number in 0..self.config.files {
                if let Some(verifier) = self.files.commit(&mut *caller, number)? {
                    outcome.tally.note_verifier(verifier);
                }
            }
        }
        // A restarted server may lose uncommitted data; NFS clients then write it again. So a difference would be no
        // error, and nothing is read back.
        outcome.is_lost_by_right = is_unstable && outcome.tally.verifier_changes > 0;
        if self.config.verify && !outcome.is_lost_by_right {
            let plan = self.config.steps();
            for place in outcome.tally.written.blocks() {
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
