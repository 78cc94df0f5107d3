//! Addresses of servers: `shm:NAME` on this machine, `rdma:HOST:PORT` over a network.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// Upper bound of a shm name in bytes: the address of an abstract socket holds 107, of which the fabric's prefix and the
/// user's number take 23.
pub const SHM_NAME_BYTES_MAX: usize = 80;

/// How many addresses of one server a client takes.
pub const ADDRESSES_MAX: usize = 8;

/// The address of a server. [`str::parse`] is the only place that reads one, so managers, programs and command lines take the
/// same texts.
///
/// # Example
/// ```
/// use rpcrdma_fabric::address::Address;
///
/// let address: Address = "rdma:[2001:db8::7]:20049".parse()?;
/// assert_eq!(address, Address::Rdma { host: "2001:db8::7".to_owned(), port: 20049 });
/// assert_eq!(address.to_string(), "rdma:[2001:db8::7]:20049");
/// # Ok::<(), rpcrdma_fabric::address::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
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

/// A text that is not an address, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{address}` {fault}")]
pub struct AddressError {
    /// The text.
    pub address: String,
    /// What is wrong with it.
    pub fault: AddressFault,
}

/// What is wrong with the text of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressFault {
    /// It does not start with a known scheme.
    #[error(
        "has no known scheme: write shm:NAME (another process of this machine) or rdma:HOST:PORT"
    )]
    Scheme,
    /// The shm name is empty, too long, or has a forbidden character.
    #[error(
        "is not a shm name: 1 to {SHM_NAME_BYTES_MAX} letters, digits, `-`, `_` or `.`, as in shm:bench"
    )]
    Name,
    /// The host is missing, or an IPv6 address without brackets.
    #[error("names no host: write HOST:PORT, as in 192.0.2.7:20049 or [2001:db8::7]:20049")]
    Host,
    /// The port is missing, or not a number below 65536.
    #[error("has no port below 65536: write HOST:PORT, as in server:20049")]
    Port,
    /// Port 0 is for listeners only.
    #[error("has port 0, which only a server can use: give the port that the server printed")]
    PortZero,
    /// It has a comma, and one address is wanted.
    #[error("is a list, and one address is wanted here")]
    List,
    /// It is of another fabric than the first address of its list.
    #[error("is of another fabric than the first address of the list")]
    Mixed,
    /// It is in the list already.
    #[error("is in the list twice")]
    Twice,
    /// The list is too long.
    #[error("are more than {ADDRESSES_MAX} addresses")]
    TooMany,
}

impl AddressFault {
    /// The error of `address`.
    #[must_use]
    pub fn of(self, address: &str) -> AddressError {
        AddressError {
            address: address.to_owned(),
            fault: self,
        }
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if text.contains(',') && SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
            return Err(AddressFault::List.of(text));
        }
        if let Some(name) = text.strip_prefix("shm:") {
            let good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if name.is_empty() || name.len() > SHM_NAME_BYTES_MAX || !name.bytes().all(good) {
                return Err(AddressFault::Name.of(text));
            }
            return Ok(Self::Shm(name.to_owned()));
        }
        let Some(rest) = text.strip_prefix("rdma:") else {
            return Err(AddressFault::Scheme.of(text));
        };
        let (host, port) = host_and_port(rest).map_err(|fault| fault.of(text))?;
        Ok(Self::Rdma { host, port })
    }
}

impl Address {
    /// Parses the address of a server to connect to.
    ///
    /// # Errors
    /// As `parse`, and for port 0.
    pub fn to_connect(text: &str) -> Result<Self, AddressError> {
        match text.parse()? {
            Self::Rdma { port: 0, .. } => Err(AddressFault::PortZero.of(text)),
            address => Ok(address),
        }
    }
}

/// What addresses begin with.
const SCHEMES: [&str; 2] = ["shm:", "rdma:"];

/// The addresses of one server, by all of which a client reaches it: 1 to [`ADDRESSES_MAX`], of one fabric, each once. In text, they
/// are behind each other with a comma between two; the scheme is that of the first.
///
/// # Example
/// ```
/// use rpcrdma_fabric::address::ServerAddresses;
///
/// let two: ServerAddresses = "rdma:10.0.0.1:20049,10.0.1.1:20049".parse()?;
/// let each: Vec<_> = two.iter().map(ToString::to_string).collect();
/// assert_eq!(each, ["rdma:10.0.0.1:20049", "rdma:10.0.1.1:20049"]);
/// assert_eq!(two.to_string(), "rdma:10.0.0.1:20049,10.0.1.1:20049");
/// # Ok::<(), rpcrdma_fabric::address::AddressError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServerAddresses {
    first: Address,
    others: Vec<Address>,
}

impl ServerAddresses {
    /// The first one, which is tried before the others.
    #[must_use]
    pub const fn first(&self) -> &Address {
        &self.first
    }

    /// All of them, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// How many there are: 1 at least.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub const fn len(&self) -> usize {
        1 + self.others.len()
    }

    /// The same addresses, where the first is the one with this number, counted from 0 and beyond the last one from the first again:
    /// connections that begin so are spread over them.
    #[must_use]
    pub fn beginning_at(&self, number: usize) -> Self {
        let mut all: Vec<_> = self.iter().cloned().collect();
        all.rotate_left(number % self.len());
        let first = all.remove(0);
        Self { first, others: all }
    }

    /// Parses the addresses of a server to connect to.
    ///
    /// # Errors
    /// As `parse`, and for port 0.
    pub fn to_connect(text: &str) -> Result<Self, AddressError> {
        let addresses: Self = text.parse()?;
        for address in addresses.iter() {
            Address::to_connect(&address.to_string())?;
        }
        Ok(addresses)
    }
}

impl From<Address> for ServerAddresses {
    fn from(first: Address) -> Self {
        Self {
            first,
            others: Vec::new(),
        }
    }
}

impl FromStr for ServerAddresses {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let mut items = text.split(',');
        let first: Address = items.next().unwrap_or_default().parse()?;
        let scheme = SCHEMES[usize::from(matches!(first, Address::Rdma { .. }))];
        let mut addresses = Self::from(first);
        for item in items {
            let item = match item.strip_prefix(scheme) {
                Some(rest) => rest,
                None if SCHEMES.iter().any(|other| item.starts_with(other)) => {
                    return Err(AddressFault::Mixed.of(item));
                }
                None => item,
            };
            let address: Address = format!("{scheme}{item}").parse()?;
            if addresses.iter().any(|it| *it == address) {
                return Err(AddressFault::Twice.of(&address.to_string()));
            }
            addresses.others.push(address);
        }
        if addresses.len() > ADDRESSES_MAX {
            return Err(AddressFault::TooMany.of(text));
        }
        Ok(addresses)
    }
}

impl fmt::Display for ServerAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        for other in &self.others {
            let text = other.to_string();
            let (_, behind_scheme) = text.split_once(':').unwrap_or_default();
            // A host that is called as the scheme would be taken for it.
            let is_as_scheme = SCHEMES
                .iter()
                .any(|scheme| behind_scheme.starts_with(scheme));
            let short = if is_as_scheme { &text } else { behind_scheme };
            write!(f, ",{short}")?;
        }
        Ok(())
    }
}

/// Parses `HOST:PORT`, where an IPv6 address has brackets.
///
/// # Errors
/// [`AddressFault::Host`] and [`AddressFault::Port`].
pub fn host_and_port(text: &str) -> Result<(String, u16), AddressFault> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']').ok_or(AddressFault::Host)?;
        let (ip, zone) = host.split_once('%').unwrap_or((host, "0"));
        if zone.is_empty() || ip.parse::<Ipv6Addr>().is_err() {
            return Err(AddressFault::Host);
        }
        (host, rest.strip_prefix(':').ok_or(AddressFault::Port)?)
    } else {
        let (host, port) = text.rsplit_once(':').ok_or(AddressFault::Port)?;
        // A colon in the host means an IPv6 address, whose last colon may or may not begin the port.
        if host.contains(':') {
            return Err(AddressFault::Host);
        }
        (host, port)
    };
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(AddressFault::Host);
    }
    let port = port.parse().map_err(|_| AddressFault::Port)?;
    Ok((host.to_owned(), port))
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
    use proptest::prelude::*;

    fn fault(text: &str) -> AddressFault {
        let error = text.parse::<Address>().expect_err(text);
        assert_eq!(error.address, text);
        assert!(error.to_string().contains(text), "{error}");
        error.fault
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
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let (host, port) = ("::1".to_owned(), 20049);
        assert_eq!("rdma:[::1]:20049".parse(), Ok(Address::Rdma { host, port }));
    }

    #[test]
    fn bad_addresses_say_what_is_wrong() {
        let long = format!("shm:{}", "x".repeat(SHM_NAME_BYTES_MAX + 1));
        for text in ["shm:", "shm:a/b", "shm:a b", "shm:ä", long.as_str()] {
            assert_eq!(fault(text), AddressFault::Name);
        }
        for text in ["", "bench", "tcp:host:1", "SHM:x"] {
            assert_eq!(fault(text), AddressFault::Scheme);
        }
        for text in [
            "rdma::20049",
            "rdma:2001:db8::7:20049",
            "rdma:[nonsense]:1",
            "rdma:[fe80::1%]:1",
            "rdma:[fe80::1%no such thing]:1",
            "rdma:[%eth0]:1",
            "rdma:[::1:1",
            "rdma:a b:1",
        ] {
            assert_eq!(fault(text), AddressFault::Host);
        }
        for text in [
            "rdma:host",
            "rdma:host:",
            "rdma:host:65536",
            "rdma:[::1]",
            "rdma:[::1]1",
        ] {
            assert_eq!(fault(text), AddressFault::Port);
        }
        let zero = AddressFault::PortZero.of("rdma:host:0");
        assert_eq!(Address::to_connect("rdma:host:0"), Err(zero));
        assert_eq!(Address::to_connect("rdma:host:1"), "rdma:host:1".parse());
    }

    #[test]
    fn lists_of_addresses_print_as_they_were_written_or_say_what_is_wrong() {
        for text in [
            "shm:a",
            "shm:a,b,c",
            "rdma:host:1,[fe80::1%eth0]:20049,192.0.2.7:1",
        ] {
            let list: ServerAddresses = text.parse().unwrap();
            assert_eq!(list.to_string(), text);
            assert_eq!(list.len(), text.split(',').count());
            assert_eq!(list.iter().next(), Some(list.first()));
        }
        let parsed = |text: &str| text.parse::<ServerAddresses>();
        assert_eq!(parsed("rdma:a:1,rdma:b:2"), parsed("rdma:a:1,b:2"));
        for named in ["rdma:a:1,rdma:rdma:2", "rdma:a:1,rdma:shm:2"] {
            assert_eq!(parsed(named).unwrap().to_string(), named);
        }
        let list = parsed("shm:a,b,c").unwrap();
        let turned = [0, 1, 2, 3].map(|number| list.beginning_at(number).to_string());
        assert_eq!(turned, ["shm:a,b,c", "shm:b,c,a", "shm:c,a,b", "shm:a,b,c"]);
        for (text, fault) in [
            ("", AddressFault::Scheme),
            ("shm:a,", AddressFault::Name),
            ("shm:,a", AddressFault::Name),
            ("shm:a,rdma:b:1", AddressFault::Mixed),
            ("rdma:a:1,shm:b", AddressFault::Mixed),
            ("rdma:a:1,b", AddressFault::Port),
            ("shm:a,b,a", AddressFault::Twice),
            ("shm:a,b,c,d,e,f,g,h,i", AddressFault::TooMany),
        ] {
            assert_eq!(
                parsed(text).map_err(|error| error.fault),
                Err(fault),
                "{text}"
            );
        }
        for text in ["shm:a,b", "rdma:a:1,b:1"] {
            assert_eq!(fault(text), AddressFault::List);
        }
        let zero = AddressFault::PortZero.of("rdma:b:0");
        assert_eq!(ServerAddresses::to_connect("rdma:a:1,b:0"), Err(zero));
        assert_eq!(ServerAddresses::to_connect("shm:a,b"), parsed("shm:a,b"));
    }

    #[test]
    fn the_longest_name_fits_a_socket_address() {
        let prefix = format!("rpcrdma-shm.{}.", u32::MAX);
        assert_eq!(prefix.len(), 23);
        assert!(prefix.len() + SHM_NAME_BYTES_MAX <= 107);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(rdma:|shm:|)\\PC{0,24}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse(), Ok(address));
            }
            if let Ok(list) = text.parse::<ServerAddresses>() {
                prop_assert_eq!(list.to_string().parse(), Ok(list));
            }
        }
    }
}
