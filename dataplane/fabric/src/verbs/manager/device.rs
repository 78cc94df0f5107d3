//! Finds the device of an address. A port needs the device's name before it exists.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::client::{bad, failure, no_way, system};
use super::server::{listen_error, not_listening};
use crate::interface::ManagerError;
use crate::verbs::cm::address::Target;
use crate::verbs::cm::channel::Channel;
use crate::verbs::cm::event::{Event, EventKind};
use crate::verbs::cm::id::{Families, Id};

/// The name of the device that has `address` (`rdma:HOST:PORT`), an address of this host; `None`
/// for a wildcard, which all devices have.
///
/// # Errors
/// When the address cannot be used, no device has it, or RDMA-CM is missing.
pub fn device_at(address: &str) -> Result<Option<String>, ManagerError> {
    let target = Target::parse(address)?;
    let addresses = target.resolve().map_err(|error| bad(address, error))?;
    let Some(local) = addresses.first() else {
        return Ok(None);
    };
    if local.ip().is_unspecified() {
        return Ok(None);
    }
    let channel = Channel::open().map_err(|error| system("opening RDMA-CM's channel", error))?;
    let bound = || -> io::Result<Option<String>> {
        let mut id = Id::create(&channel, 0)?;
        // Port 0, so that a listener at the given port does not make this fail.
        let mut any_port = *local;
        any_port.set_port(0);
        id.bind(any_port, Families::Own)?;
        Ok(id.device_name())
    };
    bound().map_err(|error| listen_error(address, error))
}

/// Checks that nobody listens at `address` (`rdma:HOST:PORT`), an address of this host, without listening.
///
/// # Errors
/// [`ManagerError::InUse`], and those of [`device_at`].
pub fn check_free(address: &str) -> Result<(), ManagerError> {
    let target = Target::parse(address)?;
    let addresses = target.resolve().map_err(|error| bad(address, error))?;
    let channel = Channel::open().map_err(|error| system("opening RDMA-CM's channel", error))?;
    let Some(local) = addresses.first() else {
        return Ok(());
    };
    let bound = Id::create(&channel, 0).and_then(|mut id| id.bind(*local, Families::Own));
    bound.map_err(|error| not_listening(&channel, (address, *local), error))
}

/// The name of the device by which `address` (`rdma:HOST:PORT`) is reached. Waits at most
/// `timeout` for each address of the host, and for a name server.
///
/// # Errors
/// When the address is reached through no device, or RDMA-CM is missing.
pub fn device_towards(address: &str, timeout: Duration) -> Result<String, ManagerError> {
    let target = Target::parse(address)?;
    let addresses = target.resolve().map_err(|error| bad(address, error))?;
    let channel = Channel::open().map_err(|error| system("opening RDMA-CM's channel", error))?;
    let mut last = bad(address, "the host has no address");
    for candidate in addresses {
        let resolving = || -> io::Result<Id> {
            let mut id = Id::create(&channel, 0)?;
            id.resolve_address(candidate, timeout)?;
            Ok(id)
        };
        let id = match resolving() {
            Ok(id) => id,
            Err(error) => {
                let said = format!(" ({error})");
                last = no_way(address.to_owned(), error.raw_os_error().unwrap_or(0), &said);
                continue;
            }
        };
        let event = next_event(&channel, timeout);
        let event = event.map_err(|error| system("waiting for RDMA-CM", error))?;
        match event.map(|event| (event.kind, event.status)) {
            Some((EventKind::AddressResolved, _)) => {
                if let Some(name) = id.device_name() {
                    return Ok(name);
                }
            }
            Some((kind, status)) => last = failure(address, kind, status),
            None => last = failure(address, EventKind::AddressError, -libc::ETIMEDOUT),
        }
    }
    Err(last)
}

/// The next event of a channel, if one comes in time.
pub(super) fn next_event(
    channel: &std::sync::Arc<Channel>,
    timeout: Duration,
) -> io::Result<Option<Event>> {
    if let Some(event) = channel.next()? {
        return Ok(Some(event));
    }
    let mut polled = [PollFd::new(&**channel, PollFlags::IN)];
    let patience = Timespec::try_from(timeout).ok();
    match poll(&mut polled, patience.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => channel.next(),
        Err(error) => Err(error.into()),
    }
}
