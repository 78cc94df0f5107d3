//! Host authentication: keys and identity of this endpoint, and what it requires of its peers.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rpcrdma_control::{Authentication, HostAuthentication, PresharedKey, PresharedKeys};
use rpcrdma_engine::HostIdentity;

use crate::exit::Failure;
use rpcrdma_control::Address;

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

/// What a server on `address` requires of its clients, and the remark after its address. With keys: authentication.
/// Without keys on shm: the identity that the fabric guarantees. Without keys on RDMA: nothing, because the fabric
/// guarantees no identity and the bench program protects nothing.
#[must_use]
pub(crate) fn of_clients(host: Option<&Host>, address: &Address) -> (Authentication, &'static str) {
    match (host, address) {
        (Some(host), _) => (host.required(), " for hosts with a key of --psk-file"),
        (None, Address::Shm(_)) => (Authentication::Fabric, ""),
        (None, Address::Rdma { .. }) => (
            Authentication::None,
            " for anybody who reaches it: there is no --psk-file",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_testkit::CheckWords;

    #[test]
    fn without_keys_only_rdma_is_for_anybody_and_says_so() {
        let (policy, says) = of_clients(None, &Address::Shm("x".to_owned()));
        assert!(matches!(policy, Authentication::Fabric) && says.is_empty());
        let rdma = "rdma:192.0.2.1:20049".parse().expect("an address");
        let (policy, says) = of_clients(None, &rdma);
        assert!(matches!(policy, Authentication::None) && says.contains("anybody"));
        assert!(matches!(of_server(None), Authentication::None));
    }

    #[test]
    fn a_file_that_is_not_there_is_a_usage_error() {
        let identity = HostIdentity::new("a").expect("a name");
        let failure = Host::new(Path::new("/nonexistent/keys"), &identity);
        let failure = failure.expect_err("no file").to_string();
        failure.check_words(&["--psk-file", "/nonexistent/keys"]);
    }
}
