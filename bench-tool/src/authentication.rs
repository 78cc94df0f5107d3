//! Host authentication: keys and identity of this endpoint, and what it requires of its peers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rpcrdma_control::{Address, Authentication, HostAuthentication, PresharedKey, PresharedKeys};
use rpcrdma_engine::HostIdentity;

use crate::address::ListenAddress;
use crate::exit::Failure;

/// The identity and keys of this endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    file: PathBuf,
    identity: HostIdentity,
    mechanism: Arc<PresharedKey>,
}

impl Host {
    /// Reads the key file.
    ///
    /// # Errors
    /// A usage failure if the file cannot be used.
    pub(crate) fn new(file: &Path, identity: &HostIdentity) -> Result<Self, Failure> {
        let keys = PresharedKeys::read(file).map_err(|error| {
            Failure::usage("the keys of --psk-file cannot be used").because(error)
        })?;
        Ok(Self {
            file: file.to_owned(),
            identity: identity.clone(),
            mechanism: Arc::new(PresharedKey::new(identity.clone(), keys)),
        })
    }

    fn required(&self) -> Authentication {
        let mechanism: Arc<dyn HostAuthentication> = self.mechanism.clone();
        Authentication::Required(mechanism)
    }

    /// Command-line arguments that give another process of this program the same identity.
    #[must_use]
    pub(crate) fn arguments(&self) -> Vec<String> {
        self.arguments_as(self.identity.as_str())
    }

    /// Command-line arguments that give the run's own server the same keys and its own identity.
    ///
    /// # Errors
    /// A usage failure if the identity with its suffix is too long.
    pub(crate) fn server_arguments(&self) -> Result<Vec<String>, Failure> {
        let name = format!("{}.server", self.identity);
        if HostIdentity::new(&name).is_err() {
            return Err(Failure::usage(format!(
                "--identity {} is too long: the run's own server would be {name}",
                self.identity
            ))
            .advice("give a shorter --identity"));
        }
        Ok(self.arguments_as(&name))
    }

    fn arguments_as(&self, identity: &str) -> Vec<String> {
        vec![
            "--psk-file".to_owned(),
            self.file.to_string_lossy().into_owned(),
            "--identity".to_owned(),
            identity.to_owned(),
        ]
    }
}

/// What a client requires of its server: with keys, mutual authentication; without keys, nothing.
#[must_use]
pub(crate) fn of_server(host: Option<&Host>) -> Authentication {
    host.map_or(Authentication::None, Host::required)
}

/// Who may connect to a server: decided here for all its listeners, which serve the same data.
#[derive(Clone, Debug)]
pub(crate) struct Admission {
    host: Option<Host>,
}

impl Admission {
    /// The decision for a server with `listeners`, each with the option that gave its address.
    ///
    /// # Errors
    /// A usage failure if there are keys and a listener cannot ask for one: it would be a way around them.
    pub(crate) fn new<'a>(
        host: Option<Host>,
        listeners: impl IntoIterator<Item = (&'static str, &'a ListenAddress)>,
    ) -> Result<Self, Failure> {
        let admission = Self { host };
        for (option, address) in listeners {
            admission.to(address).map_err(|_| {
                Failure::usage(format!(
                    "{option} {address} is not possible with --psk-file: TCP asks for no key, so anybody who reaches it \
                     would be served"
                ))
                .advice(
                    "leave out the TCP address, and let clients with a key use rdma: or shm: for NFS and MOUNT (`bench-tool nfs`); \
                     or leave out --psk-file: the Linux client has no key",
                )
            })?;
        }
        Ok(admission)
    }

    /// What the listener on `address` requires of clients, and in words who may connect. With keys: authentication.
    /// Without keys on shm: the identity that the fabric guarantees. Without keys on RDMA and TCP: nothing, because
    /// these guarantee no identity.
    ///
    /// # Errors
    /// If there are keys, and the listener cannot ask for one.
    pub(crate) fn to(
        &self,
        address: &ListenAddress,
    ) -> Result<(Authentication, &'static str), Failure> {
        match (&self.host, address) {
            (Some(host), ListenAddress::Fabric(_)) => {
                Ok((host.required(), "hosts with a key of --psk-file"))
            }
            (Some(_), ListenAddress::Tcp { .. }) => {
                Err(Failure::usage(format!("{address} cannot ask for a key")))
            }
            (None, ListenAddress::Fabric(addresses)) => Ok(match addresses.first() {
                Address::Shm(_) => (Authentication::Fabric, "processes of this user"),
                Address::Rdma { .. } => (
                    Authentication::None,
                    "anybody who reaches it: there is no --psk-file",
                ),
            }),
            (None, ListenAddress::Tcp { .. }) => Ok((
                Authentication::None,
                "anybody who reaches it: TCP asks for no key",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use rpcrdma_testkit::{CheckWords, Folder};

    const TCP: &str = "tcp:192.0.2.1:20048";
    const LISTENERS: [&str; 3] = ["shm:x", "rdma:192.0.2.1:20049", TCP];

    fn address(text: &str) -> ListenAddress {
        text.parse().expect("an address")
    }

    #[test]
    fn without_keys_every_listener_but_shm_is_for_anybody() {
        let admission = Admission::new(None, []).expect("no key is needed");
        for text in LISTENERS {
            let (required, clients) = admission.to(&address(text)).expect("a listener");
            let is_anybody = matches!(required, Authentication::None);
            assert_eq!(is_anybody, text != "shm:x", "{text}");
            assert_eq!(is_anybody, clients.contains("anybody"), "{text}: {clients}");
        }
        assert!(matches!(of_server(None), Authentication::None));
    }

    #[test]
    fn with_keys_no_listener_is_for_anybody() {
        let folder = Folder::new("admission");
        let keys = folder.write("keys", format!("lab {}\n", "5a".repeat(32)));
        std::fs::set_permissions(&keys, Permissions::from_mode(0o600)).expect("a mode");
        let identity = HostIdentity::new("server").expect("a name");
        let host = Host::new(Path::new(&keys), &identity).expect("keys");
        let admission = Admission::new(Some(host.clone()), []).expect("no listener");
        for text in LISTENERS {
            match admission.to(&address(text)) {
                Ok((required, _)) => {
                    assert!(matches!(required, Authentication::Required(_)), "{text}");
                }
                Err(_) => assert_eq!(text, TCP),
            }
            let listeners = [("--mount-listen", &address(text))];
            let decided = Admission::new(Some(host.clone()), listeners);
            assert_eq!(decided.is_err(), text == TCP, "{text}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_a_usage_error() {
        let identity = HostIdentity::new("a").expect("a name");
        let failure = Host::new(Path::new("/nonexistent/keys"), &identity);
        let failure = failure.expect_err("no file").to_string();
        failure.check_words(&["--psk-file", "/nonexistent/keys"]);
    }
}
