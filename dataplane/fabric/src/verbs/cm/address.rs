//! Addresses: `rdma:HOST:PORT` as text, and socket addresses for C.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};

use crate::address::Address;
use crate::interface::ManagerError;

/// The host and the port of an address text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct Target {
    host: String,
    port: u16,
}

impl Target {
    /// Parses `rdma:HOST:PORT`.
    pub(in crate::verbs) fn parse(address: &str) -> Result<Self, ManagerError> {
        match address.parse()? {
            Address::Rdma { host, port } => Ok(Self { host, port }),
            Address::Shm(_) => Err(ManagerError::BadAddress {
                address: address.to_owned(),
                why: "it is of this machine, and those of RDMA devices look like rdma:HOST:PORT"
                    .to_owned(),
            }),
        }
    }

    /// The address, if the host is numeric.
    pub(in crate::verbs) fn numeric(&self) -> io::Result<Option<SocketAddr>> {
        let (ip, zone) = match self.host.split_once('%') {
            Some((ip, zone)) => (ip, Some(zone)),
            None => (&*self.host, None),
        };
        Ok(match ip.parse() {
            Err(_) => None,
            Ok(IpAddr::V4(ip)) => Some(SocketAddr::V4(SocketAddrV4::new(ip, self.port))),
            Ok(IpAddr::V6(ip)) => {
                let scope = zone.map_or(Ok(0), zone_index)?;
                Some(SocketAddr::V6(SocketAddrV6::new(ip, self.port, 0, scope)))
            }
        })
    }

    /// All addresses of the host, in the order of the system's resolver. Blocks until the resolver
    /// answers.
    pub(in crate::verbs) fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        if let Some(address) = self.numeric()? {
            return Ok(vec![address]);
        }
        let all: Vec<_> = (self.host.as_str(), self.port).to_socket_addrs()?.collect();
        if all.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the host name has no address",
            ));
        }
        Ok(all)
    }

    pub(in crate::verbs) fn port(&self) -> u16 {
        self.port
    }
}

/// The number of the interface that a zone names.
fn zone_index(zone: &str) -> io::Result<u32> {
    if let Ok(index) = zone.parse() {
        return Ok(index);
    }
    let unknown = || {
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no network interface {zone:?}"),
        )
    };
    let name = std::ffi::CString::new(zone).map_err(|_| unknown())?;
    // SAFETY: the name is a C string that lives through the call, which keeps nothing of it.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(unknown()),
        index => Ok(index),
    }
}

/// The text of an address: `rdma:HOST:PORT`.
pub(in crate::verbs) fn display(address: SocketAddr) -> String {
    format!("rdma:{address}")
}

/// A socket address in C's layout.
#[repr(C)]
pub(in crate::verbs) union RawAddress {
    any: libc::sockaddr,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
    all: libc::sockaddr_storage,
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        let mut raw = Self { all: unbound() };
        match address {
            SocketAddr::V4(address) => {
                raw.v4 = libc::sockaddr_in {
                    sin_family: family(libc::AF_INET),
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(address.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(address) => {
                raw.v6 = libc::sockaddr_in6 {
                    sin6_family: family(libc::AF_INET6),
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: address.scope_id(),
                };
            }
        }
        raw
    }
}

/// An address without a family.
fn unbound() -> libc::sockaddr_storage {
    // SAFETY: all zeros is a valid `sockaddr_storage`: integers and arrays of them.
    unsafe { std::mem::zeroed() }
}

/// A family in the type of socket addresses. All families are small numbers, so none is lost.
fn family(family: libc::c_int) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or(0)
}

impl RawAddress {
    /// The pointer for librdmacm, whose calls take addresses as `*mut` but do not write to them.
    pub(in crate::verbs) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut *self).cast()
    }
}

/// The address in a `sockaddr_storage`; `None` for another family, such as an unbound one.
pub(in crate::verbs) fn read(storage: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let raw = RawAddress { all: *storage };
    match i32::from(storage.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says that this is the member that was written; any bytes are
            // valid for its integers.
            let v4 = unsafe { raw.v4 };
            let ip = Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddr::V4(SocketAddrV4::new(
                ip,
                u16::from_be(v4.sin_port),
            )))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { raw.v6 };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            Some(SocketAddr::V6(SocketAddrV6::new(
                ip,
                u16::from_be(v6.sin6_port),
                v6.sin6_flowinfo,
                v6.sin6_scope_id,
            )))
        }
        _ => None,
    }
}

/// The addresses of the interfaces of this host, at port 0.
pub(in crate::verbs) fn of_this_host() -> io::Result<Vec<SocketAddr>> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the call writes one pointer.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next = list;
    // SAFETY: the list is a chain that ends with null, and lives until it is freed below.
    while let Some(interface) = unsafe { next.as_ref() } {
        // SAFETY: an interface's address is null, or as long as its family says.
        addresses.extend(unsafe { read_raw(interface.ifa_addr) });
        next = interface.ifa_next;
    }
    // SAFETY: the list came from `getifaddrs`, and is freed once.
    unsafe { libc::freeifaddrs(list) };
    Ok(addresses)
}

/// As [`read`], for an address that may be shorter than a `sockaddr_storage`.
///
/// # Safety
///
/// `raw` is null, or points to an address that is as long as its family says.
unsafe fn read_raw(raw: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: as the caller promises: every address begins with its family.
    let family = i32::from(unsafe { raw.as_ref() }?.sa_family);
    let mut whole = RawAddress { all: unbound() };
    match family {
        // SAFETY: as the caller promises.
        libc::AF_INET => whole.v4 = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() },
        // SAFETY: as the caller promises.
        libc::AF_INET6 => whole.v6 = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() },
        _ => return None,
    }
    // SAFETY: all bytes of the union were zero before the smaller member was written.
    read(unsafe { &whole.all })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn numeric(text: &str) -> SocketAddr {
        Target::parse(text).unwrap().numeric().unwrap().unwrap()
    }

    #[test]
    fn every_host_has_its_own_address() {
        let addresses = of_this_host().expect("interfaces");
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        assert!(addresses.contains(&loopback), "{addresses:?}");
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        assert_eq!(
            numeric("rdma:192.0.2.7:20049"),
            "192.0.2.7:20049".parse().unwrap()
        );
        assert_eq!(numeric("rdma:0.0.0.0:0"), "0.0.0.0:0".parse().unwrap());
        assert_eq!(
            numeric("rdma:[2001:db8::7]:1"),
            "[2001:db8::7]:1".parse().unwrap()
        );
        assert_eq!(
            numeric("rdma:[fe80::1%3]:1"),
            SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 1, 0, 3))
        );
        let name = Target::parse("rdma:storage-7.example:20049").unwrap();
        assert_eq!(name.numeric().unwrap(), None);
        assert_eq!(name.port(), 20049);
        assert_eq!(
            display("[::1]:5".parse().unwrap()),
            "rdma:[::1]:5",
            "as it is written"
        );
    }

    #[test]
    fn the_loopback_interface_is_a_zone() {
        let SocketAddr::V6(address) = numeric("rdma:[fe80::1%lo]:1") else {
            panic!("an IPv6 address")
        };
        assert!(address.scope_id() > 0);
        let missing = Target::parse("rdma:[fe80::1%no such thing]:1");
        assert!(missing.is_err(), "no blanks");
        let missing = Target::parse("rdma:[fe80::1%nosuchif0]:1").unwrap();
        let error = missing.numeric().unwrap_err().to_string();
        assert!(error.contains("nosuchif0"), "{error}");
    }

    #[test]
    fn addresses_of_another_fabric_are_refused_with_the_form_of_this_one() {
        for text in ["shm:x", "x", "rdma:x"] {
            let error = Target::parse(text).unwrap_err().to_string();
            assert!(
                error.contains(text) && error.contains("HOST:PORT"),
                "{error}"
            );
        }
    }

    #[test]
    fn names_are_resolved_by_the_system() {
        let all = Target::parse("rdma:localhost:20049")
            .unwrap()
            .resolve()
            .unwrap();
        assert!(all.iter().all(|address| address.port() == 20049));
        assert!(all.iter().any(|address| address.ip().is_loopback()));
        let nowhere = Target::parse("rdma:no-such-host.invalid:1").unwrap();
        assert!(nowhere.resolve().is_err());
    }

    proptest! {
        #[test]
        fn addresses_survive_the_way_through_c(
            v6 in any::<Option<(u128, u32)>>(), v4 in any::<u32>(), port in any::<u16>(),
        ) {
            let address = match v6 {
                Some((ip, scope)) => SocketAddr::V6(SocketAddrV6::new(ip.into(), port, 0, scope)),
                None => SocketAddr::V4(SocketAddrV4::new(v4.into(), port)),
            };
            let raw = RawAddress::from(address);
            // SAFETY: the whole union was zeroed before its member was written.
            prop_assert_eq!(read(unsafe { &raw.all }), Some(address));
            let text = display(address);
            prop_assert_eq!(Target::parse(&text).unwrap().numeric().unwrap(), Some(address));
        }
    }

    #[test]
    fn an_unbound_address_is_none() {
        assert_eq!(read(&unbound()), None);
    }
}
