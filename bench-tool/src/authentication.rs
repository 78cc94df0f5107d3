//! Host authentication: the keys and the name of this end, and what follows for whom it talks to.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rpcrdma_control::{Authentication, HostAuthentication, PresharedKey, PresharedKeys};
use rpcrdma_engine::HostIdentity;

use crate::address::Address;
use crate::exit::Failure;

/// This end, as it proves itself.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    file: PathBuf,
    identity: HostIdentity,
    mechanism: Arc<PresharedKey>,
}

impl Host {
    /// Reads the file of keys.
    ///
    /// # Errors
    /// A usage failure when it cannot be used.
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

    /// The arguments by which another process of this program is the same host.
    #[must_use]
    pub(crate) fn arguments(&self) -> Vec<String> {
        self.arguments_as(self.identity.as_str())
    }

    /// The arguments by which the run's own server has the same keys, and a name of its own.
    ///
    /// # Errors
    /// A usage failure when there is no room for one.
    pub(crate) fn server_arguments(&self) -> Result<Vec<String>, Failure> {
        let name = format!("{}.server", self.identity);
        if HostIdentity::new(&name).is_err() {
            return Err(Failure::usage(format!(
                "--identity {} leaves no room for the name of the run's own server, {name}",
                self.identity
            ))
            .advice("give a shorter one"));
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

/// What a client asks of its server: a proof, if it has one to give.
#[must_use]
pub(crate) fn of_server(host: Option<&Host>) -> Authentication {
    host.map_or(Authentication::None, Host::required)
}

/// Whom a server on `address` takes, and how it says so behind its address. Without keys that is whom the fabric vouches
/// for, and where it vouches for nobody, everybody: the bench program has nothing to protect.
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
