//! The command line of `bench-tool serve`.

use clap::{Args, ValueEnum};
use rpcrdma_control::{Fault, ServerAddresses};
use rpcrdma_doctor::{CoreList, core_list};

use super::authentication::AuthenticationArgs;
use super::common::{OPERATIONS_MAX, SlowedArgs};
use super::nfs3::Nfs3Args;
use super::operate::OperateArgs;
use super::profile::ProfileChoiceArgs;
use super::values;
use crate::address::ListenAddress;
use crate::authentication::Admission;
use crate::exit::Failure;
use crate::machine::Machine;
use crate::serve::config::{ServeConfig, Service};
use crate::serve::operate::Operation;
use crate::serve::{self, nfs3};
use crate::sizing::{BulkNeed, Need, payload_bytes_max};
use rpcrdma_units::size;

/// Default of `--bulk-calls`.
const BULK_CALLS_DEFAULT: u32 = 32;

/// The RPC programs that `serve` can serve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServiceName {
    /// The calls of `bench-tool run`
    #[default]
    Bench,
    /// NFS version 3: /export, with files in memory
    Nfs3,
}

/// `bench-tool serve`.
#[derive(Args, Debug)]
#[command(after_help = "\
Prints one line that begins with `listening on ADDR` when it is ready. Ctrl-C, SIGTERM or, without \
--limits, SIGHUP lets calls in progress finish, then ends; a second Ctrl-C or SIGTERM ends immediately.\n\n\
Faults: --fault KIND or --fault KIND:OPTION=VALUE,... injects faults, to see how clients handle them. The log counts \
them at the end, the metrics at any time.
  delay-message:for=TIME  an arrived message reaches its core TIME late, such as for=10ms
  late-receive:for=TIME   a Receive is posted again TIME late, after its credit was granted
  disconnect              the connection is lost instead of a Send
  refuse-connect          a connection request is rejected
  drop-reply              a call is accepted and never answered
  error-reply             a call is answered with SYSTEM_ERR
  fail-read, fail-write   the client's device refuses an RDMA Read or Write: the connection is lost\n\n\
Without an option a fault occurs at every occasion: message, Receive, Send, request, call, RDMA Read or Write. \
Each core counts its occasions, so the same traffic gets the same faults.
  every=N                 at each Nth occasion
  one-in=N                at each occasion with probability 1/N, drawn by seed=N
  after=N                 not at the first N occasions
  times=N                 at most N times\n\n\
Examples:
  bench-tool serve --listen shm:bench
  bench-tool serve --listen shm:bench --cores 2,3 --max-connections 4200 --set message_bytes_max=65536
      each connection is guaranteed memory for four messages of that size
  bench-tool serve --listen rdma:0.0.0.0:20049
  bench-tool serve --listen rdma:[2001:db8::7]:0        the system chooses the port, and the line shows it
  bench-tool serve --listen rdma:0.0.0.0:20049 --psk-file keys --identity server
      accepts clients that hold a key of the file; without keys it accepts any client
  bench-tool serve --listen rdma:0.0.0.0:20049 --reverse
      for `bench-tool run --reverse` too: calls clients that request it
  bench-tool serve --listen rdma:0.0.0.0:20049 --metrics 127.0.0.1:9464
      curl http://127.0.0.1:9464/metrics
  bench-tool serve --service nfs3 --listen rdma:0.0.0.0:20049 --space 8GiB
      bench-tool nfs --connect rdma:server:20049 --export /export
  bench-tool serve --service nfs3 --listen rdma:0.0.0.0:20049 --mount-listen 0.0.0.0:20048
      mount -t nfs -o vers=3,proto=rdma,port=20049,mountport=20048,mountproto=tcp,nolock server:/export /mnt
  bench-tool serve --service nfs3 --listen tcp:0.0.0.0:2049
      mount -t nfs -o vers=3,proto=tcp,port=2049,mountport=2049,mountproto=tcp,nolock server:/export /mnt
  bench-tool serve --listen shm:bench --fault drop-reply:every=1000
      each 1000th call of a core gets no reply, and its client times out
  bench-tool serve --service nfs3 --listen rdma:0.0.0.0:20049 --fault disconnect:every=5000
      each 5000th Send of a core loses its connection")]
pub(crate) struct ServeArgs {
    /// Address to listen on: shm:NAME or rdma:HOST:PORT, for nfs3 tcp:HOST:PORT; `0.0.0.0` and `[::]` are all addresses, port 0 is any free port; several with commas, as in shm:a,b
    #[arg(long, value_name = "ADDR[,...]")]
    pub listen: ListenAddress,

    /// What to serve
    #[arg(long, value_enum, default_value_t = ServiceName::Bench)]
    pub service: ServiceName,

    /// Limits of the NFS server
    #[command(flatten)]
    pub nfs3: Nfs3Args,

    /// RDMA devices, separated by commas, without their ports (mlx5_0, not mlx5_0/1); or all [default: those that have the addresses]
    #[arg(long, value_name = "NAME[,...]")]
    pub device: Option<String>,

    /// Cores to poll on, such as 0,1 or 2-3 [default: the last core that this process may use]
    #[arg(long, value_name = "LIST", value_parser = core_list)]
    pub cores: Option<CoreList>,

    /// Tuning
    #[command(flatten)]
    pub profile: ProfileChoiceArgs,

    /// Concurrent connections; receive memory for all of them is reserved at start-up [default: the profile's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub max_connections: Option<u32>,

    /// Calls that each connection may have outstanding [default: the profile's, or fewer if many connections share the memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub credits: Option<u32>,

    /// The largest payload of one call [default: 1 MiB]
    #[arg(long, value_name = "BYTES", value_parser = values::size_bytes)]
    pub max_payload: Option<u64>,

    /// Host authentication of this end and its clients
    #[command(flatten)]
    pub authentication: AuthenticationArgs,

    /// Maximum number of reads and writes in one call; memory is reserved for them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=OPERATIONS_MAX))]
    pub max_operations: u32,

    /// Concurrent calls with reads and writes on each core; each needs registered memory of --max-payload [default: 32; with 0, payloads travel in messages only]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=65_535))]
    pub bulk_calls: Option<u32>,

    /// Call clients that request it (`run --reverse`), on their own connections; in version 1 a quarter of --credits is then reserved for these calls
    #[arg(long)]
    pub reverse: bool,

    /// Artificial delays
    #[command(flatten)]
    pub slowed: SlowedArgs,

    /// Inject a fault, such as drop-reply:every=100 or delay-message:for=10ms; may be repeated; see below
    #[arg(long = "fault", value_name = "KIND[:OPTION=VALUE,...]")]
    pub faults: Vec<Fault>,

    /// Metrics, limits and log
    #[command(flatten)]
    pub operate: OperateArgs,

    /// End when standard input closes: how `run` makes sure that its server never outlives it
    #[arg(long, hide = true)]
    pub exit_with_stdin: bool,
}

/// Runs the command.
///
/// # Errors
/// Contradictory options, cores that this process may not use, keys that cannot be read, and those of
/// [`serve::execute`].
pub(super) fn execute(args: &ServeArgs) -> Result<(), Failure> {
    match &args.listen {
        ListenAddress::Fabric(listen) => {
            let config = args.config(listen)?;
            let options = match args.exit_with_stdin {
                // A run without payloads gives 1.
                true => knobs_of_run(args.max_payload > Some(1)),
                false => KNOBS_OF_OPTIONS,
            };
            serve::execute(&config).map_err(|failure| failure.naming_options(options))
        }
        ListenAddress::Tcp { .. } if args.service == ServiceName::Nfs3 => {
            check_tcp(args)?;
            let (config, operation) = (args.nfs3.config(), args.operation());
            let admission = args.admission()?;
            nfs3::serve_on_tcp(&config, &operation, &admission, args.max_connections)
        }
        ListenAddress::Tcp { .. } => Err(Failure::usage(format!(
            "the bench service cannot be served at {}: it measures RPC-over-RDMA",
            args.listen
        ))
        .advice("listen on shm:NAME or rdma:HOST:PORT, or serve --service nfs3")),
    }
}

/// The knobs that options of `run` set, for a load with payloads or without. Its own server names them too, because its user
/// gave those.
pub(super) const fn knobs_of_run(has_payloads: bool) -> &'static [(&'static str, &'static str)] {
    const ALL: [(&str, &str); 5] = [
        ("connections_max", "--connections"),
        ("credits_per_connection", "--depth"),
        ("message_bytes_max", "--size"),
        ("bulk_buffers", "--size, --operations and --depth"),
        ("bulk_buffer_bytes", "--size and --operations"),
    ];
    match has_payloads {
        true => &ALL,
        false => ALL.split_at(2).0,
    }
}

/// The knobs that options of `serve` set.
const KNOBS_OF_OPTIONS: &[(&str, &str)] = &[
    ("connections_max", "--max-connections"),
    ("credits_per_connection", "--credits"),
    ("message_bytes_max", "--max-payload"),
    (
        "bulk_buffers",
        "--max-payload, --max-operations and --bulk-calls",
    ),
    ("bulk_buffer_bytes", "--max-payload and --max-operations"),
];

impl ServeArgs {
    /// Refuses a payload that no profile has room for, before the profile does: its text names knobs.
    fn check_payload(&self, bulk_calls: u32) -> Result<(), Failure> {
        let most = payload_bytes_max(self.max_operations, bulk_calls > 0);
        let Some(payload) = self.max_payload.filter(|&payload| payload > most) else {
            return Ok(());
        };
        let (of_each, fewer) = match self.max_operations {
            1 => (String::new(), ""),
            operations => (
                format!(" with {operations} of them in a call (--max-operations)"),
                ", or a lower --max-operations",
            ),
        };
        Err(Failure::usage(format!(
            "--max-payload {} is more than one call can carry{of_each}",
            size(payload).replace(' ', "")
        ))
        .advice(format!(
            "give --max-payload {} at most{fewer}",
            // A round number is easier to give.
            size(most >> 20 << 20).replace([' ', ','], "")
        )))
    }

    pub(crate) fn config(&self, listen: &ServerAddresses) -> Result<ServeConfig, Failure> {
        if let Some(fault) = given_twice(&self.faults) {
            return Err(Failure::usage(format!("--fault {fault} is given twice")));
        }
        let cores = cores(self, &Machine::detect())?;
        let service = match self.service {
            ServiceName::Bench if self.nfs3.mount_listen.is_some() => {
                let what = "--mount-listen is an option of nfs3, and has no effect with bench";
                return Err(Failure::usage(what));
            }
            ServiceName::Bench => Service::Bench {
                time: self.slowed.service_time,
                reverse: self.reverse,
            },
            ServiceName::Nfs3 if !self.slowed.service_time.is_zero() => {
                let what = "--service-time slows the bench service, and has no effect with nfs3";
                return Err(Failure::usage(what));
            }
            ServiceName::Nfs3 if cores.len() != 1 => {
                let what = "one core owns the files of nfs3: give --cores one";
                return Err(Failure::usage(what));
            }
            ServiceName::Nfs3 => Service::Nfs3(self.nfs3.config()),
        };
        let core_count = u32::try_from(cores.len()).unwrap_or(u32::MAX);
        let bulk_calls = self.bulk_calls.unwrap_or(BULK_CALLS_DEFAULT);
        self.check_payload(bulk_calls)?;
        Ok(ServeConfig {
            listen: listen.clone(),
            device: self.device.clone(),
            delay: self.slowed.delay,
            cores,
            need: Need {
                connections_per_core: self.max_connections.map(|all| all.div_ceil(core_count)),
                credits: self.credits,
                payload_bytes: self.max_payload,
                is_known: self.exit_with_stdin,
                bulk: BulkNeed {
                    calls: bulk_calls,
                    payloads: self.max_operations,
                },
                calls_per_core: None,
                cores: core_count,
                park: false,
            },
            profile: self.profile.choice(),
            admission: self.admission()?,
            service,
            operation: self.operation(),
        })
    }

    /// Who may connect to the listeners that the options ask for.
    fn admission(&self) -> Result<Admission, Failure> {
        let mount = self.nfs3.mount_address();
        let mount = mount.iter().map(|address| ("--mount-listen", address));
        let listeners = [("--listen", &self.listen)].into_iter().chain(mount);
        Admission::new(self.authentication.host()?, listeners)
    }

    fn operation(&self) -> Operation {
        Operation {
            listen: self.listen.clone(),
            service: match self.service {
                ServiceName::Bench => "bench",
                ServiceName::Nfs3 => "nfs3",
            },
            faults: self.faults.clone(),
            metrics: self.operate.metrics.clone(),
            limits: self.operate.limits.clone(),
            log_format: self.operate.log_format,
            log_level: self.operate.log_level,
            is_of_run: self.exit_with_stdin,
        }
    }
}

/// Refuses options that have no effect over TCP, instead of ignoring them.
fn check_tcp(args: &ServeArgs) -> Result<(), Failure> {
    let given = [
        ("--device", args.device.is_some()),
        ("--cores", args.cores.is_some()),
        (
            "--profile and --set",
            args.profile.choice().given().is_some(),
        ),
        ("--credits", args.credits.is_some()),
        ("--reverse", args.reverse),
        ("--max-payload", args.max_payload.is_some()),
        ("--bulk-calls", args.bulk_calls.is_some()),
        ("--delay", !args.slowed.delay.is_zero()),
        ("--service-time", !args.slowed.service_time.is_zero()),
        ("--fault", !args.faults.is_empty()),
        ("--limits", args.operate.limits.is_some()),
        ("--mount-listen", args.nfs3.mount_listen.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::usage(format!(
            "{option} is an option of RPC-over-RDMA, and has no effect on {}",
            args.listen
        ))),
        None => Ok(()),
    }
}

/// The first repeated fault. Repetitions are refused, because metrics could not distinguish them.
fn given_twice(faults: &[Fault]) -> Option<&Fault> {
    let mut before = faults.iter().enumerate();
    let twice = before.find(|(place, fault)| faults.iter().take(*place).any(|it| it == *fault));
    twice.map(|(_, fault)| fault)
}

fn cores(args: &ServeArgs, machine: &Machine) -> Result<Vec<usize>, Failure> {
    if let Some(cores) = &args.cores {
        machine.check_cores(cores)?;
        return Ok(cores.0.clone());
    }
    machine
        .cores_usable
        .last()
        .map(|core| vec![*core])
        .ok_or_else(|| Failure::failed("this process may use no core"))
}
