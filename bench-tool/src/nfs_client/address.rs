//! Where an NFS server is.

use std::fmt;
use std::str::FromStr;

use crate::address::{Address, AddressError};

/// The address of an NFS server: `tcp:HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NfsAddress {
    /// Over the kernel's TCP.
    Tcp {
        /// Host name or address, an IPv6 address without its brackets.
        host: String,
        /// Its port; NFS uses 2049.
        port: u16,
    },
}

/// Why a text is not the address of an NFS server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NfsAddressError {
    /// No known scheme in front.
    #[error("`{0}` has no known scheme: write tcp:HOST:PORT, as in tcp:server:2049")]
    Scheme(String),
    /// Host or port is missing or wrong.
    #[error(
        "`{0}` names no host and port: write tcp:HOST:PORT, as in tcp:192.0.2.7:2049 or tcp:[2001:db8::7]:2049"
    )]
    HostPort(String),
}

impl FromStr for NfsAddress {
    type Err = NfsAddressError;

    fn from_str(text: &str) -> Result<Self, NfsAddressError> {
        let Some(rest) = text.strip_prefix("tcp:") else {
            return Err(NfsAddressError::Scheme(text.to_owned()));
        };
        // Host and port are written as those of any other address here.
        let wrong = |_: AddressError| NfsAddressError::HostPort(text.to_owned());
        match Address::to_connect(&format!("rdma:{rest}")).map_err(wrong)? {
            Address::Rdma { host, port } => Ok(Self::Tcp { host, port }),
            Address::Shm(_) => Err(NfsAddressError::HostPort(text.to_owned())),
        }
    }
}

impl fmt::Display for NfsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
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
