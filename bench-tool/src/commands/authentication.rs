//! Options of host authentication.

use std::path::PathBuf;

use clap::Args;
use rpcrdma_engine::HostIdentity;

use crate::authentication::Host;
use crate::exit::Failure;

const HEADING: &str = "Host authentication";

/// The options of every command that connects or listens.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AuthenticationArgs {
    /// Pre-shared keys: both ends prove, before any call, that they have the same
    ///
    /// One line for each key, its name and 64 hexadecimal digits: `umask 077; echo "lab $(openssl rand -hex 32)" > keys` makes one. The client uses its first key, the server takes any that it has. Nobody but the owner may have rights to the file
    #[arg(long, value_name = "FILE", help_heading = HEADING, requires = "identity")]
    pub psk_file: Option<PathBuf>,

    /// What this end calls itself in that, without spaces; each end needs a name of its own
    #[arg(long, value_name = "NAME", help_heading = HEADING, requires = "psk_file")]
    pub identity: Option<HostIdentity>,
}

impl AuthenticationArgs {
    /// This end, if it has keys.
    ///
    /// # Errors
    /// Those of [`Host::new`].
    pub(super) fn host(&self) -> Result<Option<Host>, Failure> {
        // Clap takes both or neither.
        let keys = self.psk_file.as_deref().zip(self.identity.as_ref());
        keys.map(|(file, identity)| Host::new(file, identity))
            .transpose()
    }
}
