//! Addresses to listen on.

use std::fmt;
use std::str::FromStr;

use rpcrdma_control::{AddressError, ServerAddresses, host_and_port};

/// Where to listen: at the addresses by which clients reach a server, or at `tcp:HOST:PORT` for services over the kernel's TCP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ListenAddress {
    /// RPC-over-RDMA.
    Fabric(ServerAddresses),
    /// The kernel's TCP.
    Tcp {
        /// As in [`Address::Rdma`](rpcrdma_control::Address::Rdma).
        host: String,
        /// Port; 0 means any free port.
        port: u16,
    },
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("tcp:") {
            Some(rest) => match host_and_port(rest) {
                Ok((host, port)) => Ok(Self::Tcp { host, port }),
                Err(fault) => Err(fault.of(text)),
            },
            None => text.parse().map(Self::Fabric),
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fabric(address) => address.fmt(f),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_control::AddressFault;

    #[test]
    fn services_listen_on_tcp_too() {
        for text in [
            "tcp:0.0.0.0:2049",
            "tcp:[::]:0",
            "shm:bench",
            "shm:a,b",
            "rdma:host:1",
        ] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        let tcp = "tcp:[::1]:2049".parse();
        let (host, port) = ("::1".to_owned(), 2049);
        assert_eq!(tcp, Ok(ListenAddress::Tcp { host, port }));
        let missing = "tcp:host".parse::<ListenAddress>();
        assert_eq!(missing, Err(AddressFault::Port.of("tcp:host")));
    }
}
