//! Connections to a server, over any transport.

pub(crate) mod fabric;
pub(crate) mod tcp;

use std::sync::Arc;
use std::time::Instant;

use self::tcp::{ATTEMPT_PAUSE, TcpServer};
use crate::exit::Failure;
use crate::load::measure::Checkpoints;
use crate::load::measured::Measured;
use crate::load::{Amount, Watch};
use crate::workloads::nfs::Work;
use crate::workloads::nfs::tally::Tally;
use rpcrdma_nfs3::client::CALL_TIMEOUT;
use rpcrdma_nfs3::client::caller::{CallFailed, NfsCaller, Results};
use rpcrdma_nfs3::client::request::{ARGUMENTS_BYTES_MAX, Request};
use rpcrdma_nfs3::client::tcp::{TcpCaller, TcpCallerConfig};
use rpcrdma_nfs3::wire as nfs;

/// Upper bound of the READs that check written data, in bytes.
const READ_BYTES_MAX: u32 = 256 << 10;

/// Room in their replies for everything but the data.
const REPLY_OVERHEAD_BYTES: usize = 4096;

/// Connections to a server.
pub(crate) trait Session {
    /// Runs a load and returns the results, also those of a load that broke off.
    fn measure(
        &mut self,
        work: Arc<Work>,
        amount: &Amount,
        watch: &Watch,
        checkpoints: &mut Checkpoints<'_>,
    ) -> Result<(Measured, Tally), Failure>;

    /// A connection for single calls. Each part of a run takes a new one: servers close idle connections, and the one
    /// before may be broken.
    fn caller(&mut self) -> Result<Box<dyn NfsCaller + '_>, Failure>;
}

/// Connections to a server over TCP.
pub(crate) struct TcpSession {
    pub(crate) server: TcpServer,
    pub(crate) connections: u32,
    pub(crate) cores: Vec<usize>,
}

impl Session for TcpSession {
    fn measure(
        &mut self,
        work: Arc<Work>,
        amount: &Amount,
        watch: &Watch,
        checkpoints: &mut Checkpoints<'_>,
    ) -> Result<(Measured, Tally), Failure> {
        tcp::measure(
            &self.server,
            work,
            amount,
            self.connections,
            &self.cores,
            watch,
            checkpoints,
        )
    }

    fn caller(&mut self) -> Result<Box<dyn NfsCaller + '_>, Failure> {
        let caller = connect(&self.server)?;
        Ok(Box::new(OverTcp {
            caller,
            server: &self.server,
        }))
    }
}

fn connect(server: &TcpServer) -> Result<TcpCaller, Failure> {
    let connected = TcpCaller::connect(&TcpCallerConfig {
        host: &server.host,
        port: server.port,
        what: "NFS",
        timeout: CALL_TIMEOUT,
        reply_bytes_max: READ_BYTES_MAX as usize + REPLY_OVERHEAD_BYTES,
    });
    Ok(connected?)
}

/// NFS calls over TCP, one at a time.
struct OverTcp<'a> {
    caller: TcpCaller,
    server: &'a TcpServer,
}

impl NfsCaller for OverTcp<'_> {
    fn call_once(&mut self, request: &Request<'_>, _: u32) -> Result<Results, CallFailed> {
        let mut args = [0; ARGUMENTS_BYTES_MAX];
        let bytes = request.encode(&mut args)?;
        let procedure = request.procedure().number();
        let stream = self.caller.call(
            (nfs::PROGRAM, nfs::VERSION, procedure),
            self.server.credential.auth(),
            args.get(..bytes).unwrap_or(&[]),
        )?;
        Ok(Results {
            stream,
            ..Results::default()
        })
    }

    fn restore(&mut self) -> bool {
        let deadline = Instant::now() + self.server.retry;
        while Instant::now() < deadline {
            if let Ok(caller) = connect(self.server) {
                self.caller = caller;
                return true;
            }
            std::thread::sleep(ATTEMPT_PAUSE);
        }
        false
    }

    fn read_bytes_max(&self) -> u32 {
        READ_BYTES_MAX
    }
}
