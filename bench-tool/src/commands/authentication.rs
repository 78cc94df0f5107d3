//! The options of host authentication.

use std::path::PathBuf;

use clap::Args;
use rpcrdma_engine::HostIdentity;

use crate::authentication::Host;
use crate::exit::Failure;

const HEADING: &str = "Host authentication";

/// The options of every command that connects or listens.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct AuthenticationArgs {
    /// Pre-shared keys: before any call, client and server prove to each other that they have the same key
    ///
    /// One line per key: its name and 64 hexadecimal digits; `umask 077; echo "lab $(openssl rand -hex 32)" > keys`
    /// makes one. The client uses its first key, the server accepts any of its keys. Only the owner may have access
    /// to the file
    #[arg(long, value_name = "FILE", help_heading = HEADING, requires = "identity")]
    pub psk_file: Option<PathBuf>,

    /// Name of this end for --psk-file, without spaces; client and server need different names
    #[arg(long, value_name = "NAME", help_heading = HEADING, requires = "psk_file")]
    pub identity: Option<HostIdentity>,
}

impl AuthenticationArgs {
    /// The identity of this endpoint; `None` without keys.
    ///
    /// # Errors
    /// Those of [`Host::new`].
    pub(super) fn host(&self) -> Result<Option<Host>, Failure> {
        // Clap requires both options or neither.
        let keys = self.psk_file.as_deref().zip(self.identity.as_ref());
        keys.map(|(file, identity)| Host::new(file, identity))
            .transpose()
    }
}
