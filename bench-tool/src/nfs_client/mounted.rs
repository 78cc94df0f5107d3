//! The export as it is mounted: by the connection that NFS uses, where the server has MOUNT there, and else by a TCP port.

use rpcrdma_control::Address;

use super::address::NfsAddress;
use super::config::NfsConfig;
use super::session::Session;
use crate::exit::Failure;
use rpcrdma_nfs3::client::CALL_TIMEOUT;
use rpcrdma_nfs3::client::credential::Credential;
use rpcrdma_nfs3::client::mount::{self, MountPort};
use rpcrdma_nfs3::wire::FileHandle;

/// A mounted export.
#[derive(Debug)]
pub(crate) struct Mounted {
    root: FileHandle,
    /// `None`: by the connection that NFS uses.
    port: Option<MountPort>,
}

impl Mounted {
    /// Mounts the export: at the TCP port of the configuration; without one by `session`, and if the server has no MOUNT
    /// there, at the TCP port that its port mapper returns.
    ///
    /// # Errors
    /// If there is no MOUNT, or it refuses.
    pub(crate) fn new(
        config: &NfsConfig,
        credential: &Credential,
        session: &mut dyn Session,
    ) -> Result<Self, Failure> {
        let export = &config.export;
        if config.mount_port.is_none() {
            let server = config.server.to_string();
            if let Some(root) = mount::mount(&mut *session.caller()?, &server, export)? {
                return Ok(Self { root, port: None });
            }
            // A port mapper of this machine knows nothing of a server on shm, and none proves a key.
            let is_shm = matches!(
                &config.server,
                NfsAddress::Fabric(addresses) if matches!(addresses.first(), Address::Shm(_))
            );
            if is_shm || config.host.is_some() {
                let failure = Failure::failed(format!("{server} has no MOUNT version 3"));
                return Err(failure.advice(
                    "`bench-tool serve --service nfs3` has; give --mount-port if a TCP port of the server has, without keys",
                ));
            }
        }
        let host = config.server.host();
        // WAIT: `CALL_TIMEOUT`.
        let mut port = MountPort::connect(host, config.mount_port, credential, CALL_TIMEOUT)?;
        Ok(Self {
            root: port.mount(export)?,
            port: Some(port),
        })
    }

    /// The handle of its root.
    pub(crate) const fn root(&self) -> FileHandle {
        self.root
    }

    /// Notifies the server: at its port, or by `session` if there is one.
    pub(crate) fn unmount(self, export: &str, session: Option<&mut dyn Session>) {
        match (self.port, session) {
            (Some(port), _) => port.unmount(export),
            (None, Some(session)) => {
                if let Ok(mut caller) = session.caller_now() {
                    mount::unmount(&mut *caller, export);
                }
            }
            (None, None) => {}
        }
    }
}
