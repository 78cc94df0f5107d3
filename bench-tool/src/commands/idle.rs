//! The command line of `bench-tool idle`.

use clap::Args;
use rpcrdma_control::ServerAddresses;

use super::authentication::AuthenticationArgs;
use crate::exit::Failure;
use crate::protocol::Protocol;
use crate::run::idle::{self, IdleConfig};

/// `bench-tool idle`, a hidden command that `run` starts.
#[derive(Args, Debug)]
pub(crate) struct IdleArgs {
    /// The server
    #[arg(long, value_name = "ADDR[,...]", value_parser = ServerAddresses::to_connect)]
    pub connect: ServerAddresses,

    /// RDMA devices
    #[arg(long, value_name = "NAME[,...]")]
    pub device: Option<String>,

    /// Host authentication of this end and the server
    #[command(flatten)]
    pub authentication: AuthenticationArgs,

    /// Version of RPC-over-RDMA
    #[arg(long, value_enum, default_value_t = Protocol::Auto)]
    pub protocol: Protocol,

    /// Connections to hold
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub connections: u32,
}

/// Runs the command.
///
/// # Errors
/// Keys that cannot be read, and those of [`idle::execute`].
pub(super) fn execute(args: &IdleArgs) -> Result<(), Failure> {
    idle::execute(&IdleConfig {
        connect: args.connect.clone(),
        device: args.device.clone(),
        host: args.authentication.host()?,
        protocol: args.protocol,
        connections: args.connections,
    })
}
