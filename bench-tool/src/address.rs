//! Server addresses: `shm:NAME` on this machine, `rdma:HOST:PORT` over a network.

use std::fmt;
use std::str::FromStr;

/// Upper bound of a shm name in bytes: an abstract socket address holds 108 with its leading zero, and the fabric
/// adds a prefix.
pub(crate) const SHM_NAME_BYTES_MAX: usize = 64;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    /// A name on the shared-memory fabric, for processes of this machine.
    Shm(String),
    /// A host and port, reached through RDMA-CM.
    Rdma {
        /// Host name, IPv4 address, or IPv6 address (without brackets; with a zone if it is link-local).
        host: String,
        /// Port in RDMA-CM's TCP port space; NFS uses 20049 (RFC 8267). For a listener, 0 means any free port.
        port: u16,
    },
}

/// Why a text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    /// It does not start with a known scheme.
    #[error(
        "`{0}` has no known scheme: write shm:NAME (another process of this machine) or rdma:HOST:PORT"
    )]
    Scheme(String),
    /// The shm name is empty, too long, or has a forbidden character.
    #[error(
        "`{0}` is not a shm name: 1 to {SHM_NAME_BYTES_MAX} letters, digits, `-`, `_` or `.`, as in shm:bench"
    )]
    Name(String),
    /// The host is missing.
    #[error("`{0}` names no host: write HOST:PORT, as in 192.0.2.7:20049 or [2001:db8::7]:20049")]
    Host(String),
    /// The port is missing, or not a number below 65536.
    #[error("`{0}` has no port below 65536: write HOST:PORT, as in server:20049")]
    Port(String),
    /// Port 0 is for listeners only.
    #[error("`{0}` has port 0, which only a server can use: give the port that the server printed")]
    PortZero(String),
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(name) = text.strip_prefix("shm:") {
            let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if name.is_empty() || name.len() > SHM_NAME_BYTES_MAX || !name.bytes().all(good) {
                return Err(AddressError::Name(name.to_owned()));
            }
            return Ok(Self::Shm(name.to_owned()));
        }
        if let Some(rest) = text.strip_prefix("rdma:") {
            return parse_host_port(rest).map(|(host, port)| Self::Rdma { host, port });
        }
        Err(AddressError::Scheme(text.to_owned()))
    }
}

impl Address {
    /// Parses the address of a server to connect to.
    ///
    /// # Errors
    /// As `parse`, and for port 0.
    pub(crate) fn to_connect(text: &str) -> Result<Self, AddressError> {
        match text.parse()? {
            Self::Rdma { port: 0, .. } => Err(AddressError::PortZero(text.to_owned())),
            address => Ok(address),
        }
    }
}

/// An address to listen on: an [`Address`], or `tcp:HOST:PORT` for services over the kernel's TCP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ListenAddress {
    /// RPC-over-RDMA.
    Fabric(Address),
    /// The kernel's TCP.
    Tcp {
        /// As in [`Address::Rdma`].
        host: String,
        /// Port; 0 means any free port.
        port: u16,
    },
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        match text.strip_prefix("tcp:") {
            Some(rest) => parse_host_port(rest).map(|(host, port)| Self::Tcp { host, port }),
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

fn parse_host_port(text: &str) -> Result<(String, u16), AddressError> {
    let bad_port = || AddressError::Port(text.to_owned());
    let bad_host = || AddressError::Host(text.to_owned());
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or_else(bad_host)?;
        let (ip, zone) = host.split_once('%').unwrap_or((host, "0"));
        ip.parse::<std::net::Ipv6Addr>().map_err(|_| bad_host())?;
        if zone.is_empty() {
            return Err(bad_host());
        }
        (host, rest.strip_prefix(':').ok_or_else(bad_port)?)
    } else {
        text.rsplit_once(':').ok_or_else(bad_port)?
    };
    // A colon in the host means an IPv6 address without brackets, where the last colon may or may not begin the port.
    let bracketed = text.starts_with('[');
    if host.is_empty() || host.contains(char::is_whitespace) || (!bracketed && host.contains(':')) {
        return Err(bad_host());
    }
    match port.parse::<u16>() {
        Ok(port) => Ok((host.to_owned(), port)),
        Err(_) => Err(bad_port()),
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shm(name) => write!(f, "shm:{name}"),
            Self::Rdma { host, port } if host.contains(':') => write!(f, "rdma:[{host}]:{port}"),
            Self::Rdma { host, port } => write!(f, "rdma:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, AddressError> {
        text.parse()
    }

    #[test]
    fn good_addresses_print_as_they_were_written() {
        for text in [
            "shm:bench",
            "shm:a.b-c_9",
            "rdma:server:20049",
            "rdma:192.0.2.7:1",
            "rdma:[2001:db8::7]:65535",
            "rdma:[fe80::1%eth0]:20049",
            "rdma:0.0.0.0:0",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
        assert_eq!(
            parse("rdma:[::1]:20049").unwrap(),
            Address::Rdma {
                host: "::1".to_owned(),
                port: 20049
            }
        );
    }

    #[test]
    fn services_listen_on_tcp_too() {
        for text in ["tcp:0.0.0.0:2049", "tcp:[::]:0", "shm:bench", "rdma:host:1"] {
            let address: ListenAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
        let tcp = "tcp:[::1]:2049".parse();
        let (host, port) = ("::1".to_owned(), 2049);
        assert_eq!(tcp, Ok(ListenAddress::Tcp { host, port }));
        let missing = "tcp:host".parse::<ListenAddress>();
        assert!(matches!(missing, Err(AddressError::Port(_))), "{missing:?}");
    }

    #[test]
    fn bad_addresses_say_what_is_wrong() {
        let long = format!("shm:{}", "x".repeat(SHM_NAME_BYTES_MAX + 1));
        for text in ["shm:", "shm:a/b", "shm:a b", "shm:ä", long.as_str()] {
            assert!(matches!(parse(text), Err(AddressError::Name(_))), "{text}");
        }
        for text in ["", "bench", "tcp:host:1", "SHM:x"] {
            assert!(
                matches!(parse(text), Err(AddressError::Scheme(_))),
                "{text}"
            );
        }
        for text in [
            "rdma::20049",
            "rdma:2001:db8::7:20049",
            "rdma:[nonsense]:1",
            "rdma:[fe80::1%]:1",
            "rdma:[%eth0]:1",
            "rdma:[::1:1",
            "rdma:a b:1",
        ] {
            assert!(matches!(parse(text), Err(AddressError::Host(_))), "{text}");
        }
        for text in [
            "rdma:host",
            "rdma:host:",
            "rdma:host:65536",
            "rdma:[::1]",
            "rdma:[::1]1",
        ] {
            assert!(matches!(parse(text), Err(AddressError::Port(_))), "{text}");
        }
        let zero = Address::to_connect("rdma:host:0");
        assert!(matches!(zero, Err(AddressError::PortZero(_))), "{zero:?}");
        assert_eq!(
            Address::to_connect("rdma:host:1"),
            parse("rdma:host:1"),
            "a port that somebody can be at"
        );
    }
}
