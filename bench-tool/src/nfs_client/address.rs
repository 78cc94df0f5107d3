//! Addresses of NFS servers.

use std::fmt;
use std::str::FromStr;

use rpcrdma_control::{Address, AddressError, AddressFault, ServerAddresses, host_and_port};

/// The address of an NFS server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NfsAddress {
    /// Over the kernel's TCP.
    Tcp {
        /// Host name or address; an IPv6 address without brackets.
        host: String,
        /// Port; NFS uses 2049.
        port: u16,
    },
    /// Over RPC-over-RDMA: `rdma:HOST:PORT`, where NFS uses port 20049, or `shm:NAME`; also several of one server.
    Fabric(ServerAddresses),
}

impl NfsAddress {
    /// The host of the port mapper and of a mount port, both on TCP.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Tcp { host, .. } => host,
            Self::Fabric(addresses) => match addresses.first() {
                Address::Rdma { host, .. } => host,
                Address::Shm(_) => "localhost",
            },
        }
    }
}

/// Why a text is not the address of an NFS server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NfsAddressError {
    /// It does not start with a known scheme.
    #[error(
        "`{0}` has no known scheme: write rdma:HOST:PORT, as in rdma:server:20049, or tcp:HOST:PORT, as in tcp:server:2049"
    )]
    Scheme(String),
    /// Host or port is missing or wrong.
    #[error(
        "`{0}` names no host and port: write tcp:HOST:PORT, as in tcp:192.0.2.7:2049 or tcp:[2001:db8::7]:2049"
    )]
    HostPort(String),
    /// It is a malformed `rdma:` or `shm:` address.
    #[error(transparent)]
    Fabric(AddressError),
}

impl FromStr for NfsAddress {
    type Err = NfsAddressError;

    fn from_str(text: &str) -> Result<Self, NfsAddressError> {
        let Some(rest) = text.strip_prefix("tcp:") else {
            return match ServerAddresses::to_connect(text) {
                Ok(address) => Ok(Self::Fabric(address)),
                Err(error) if error.fault == AddressFault::Scheme => {
                    Err(NfsAddressError::Scheme(error.address))
                }
                Err(error) => Err(NfsAddressError::Fabric(error)),
            };
        };
        match host_and_port(rest) {
            Ok((host, port)) if port != 0 => Ok(Self::Tcp { host, port }),
            _ => Err(NfsAddressError::HostPort(text.to_owned())),
        }
    }
}

impl fmt::Display for NfsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
            Self::Fabric(address) => write!(f, "{address}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_print_as_they_were_written_or_say_what_is_wrong() {
        for text in [
            "tcp:server:2049",
            "tcp:192.0.2.7:1",
            "tcp:[2001:db8::7]:2049",
            "rdma:server:20049",
            "shm:nfs",
            "rdma:server:20049,192.0.2.7:20049",
        ] {
            assert_eq!(text.parse::<NfsAddress>().unwrap().to_string(), text);
        }
        for text in ["tcp:server", "tcp::2049", "tcp:server:0", "tcp:a:b:1"] {
            let error = text.parse::<NfsAddress>().unwrap_err();
            assert!(matches!(error, NfsAddressError::HostPort(_)), "{text}");
        }
        let error = "server:2049".parse::<NfsAddress>().unwrap_err();
        assert!(error.to_string().contains("tcp:HOST:PORT"), "{error}");
    }
}
