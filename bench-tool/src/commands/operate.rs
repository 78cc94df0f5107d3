//! The options of `bench-tool serve` for operators.

use std::path::PathBuf;

use clap::Args;

use super::nfs3::host_port;
use crate::serve::log::{LogFormat, LogLevel};

/// The options for metrics, limits and log.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Operation")]
pub(crate) struct OperateArgs {
    /// Serve Prometheus metrics at http://HOST:PORT/metrics, and /healthz and /ready; port 0 is any free port
    #[arg(long, value_name = "HOST:PORT", value_parser = host_port)]
    pub metrics: Option<(String, u16)>,

    /// TOML file with max_connections, max_connections_per_client and credits, read at start-up and at every SIGHUP
    #[arg(long, value_name = "FILE")]
    pub limits: Option<PathBuf>,

    /// Format of the log on standard error
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Least severe level that is logged
    #[arg(long, value_enum, default_value_t = LogLevel::Warn)]
    pub log_level: LogLevel,
}
