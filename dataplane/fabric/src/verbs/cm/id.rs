//! Connection identifiers.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::net::SocketAddr;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::address::{self, RawAddress};
use super::channel::Channel;
use crate::verbs::bindings as c;
use crate::verbs::errno::done;

/// The level and the options of `rdma_set_option`. The header has them as anonymous constants.
const OPTION_LEVEL_ID: c_int = 0;
const OPTION_TYPE_OF_SERVICE: c_int = 0;
const OPTION_REUSE_ADDRESS: c_int = 1;
const OPTION_ADDRESS_FAMILY_ONLY: c_int = 2;
const OPTION_ACK_TIMEOUT: c_int = 3;

/// Requests that may wait on a listener: as many as the kernel allows
/// (`/proc/sys/net/rdma_ucm/max_backlog`, by default 1024). A request stops counting when its event
/// is read.
const BACKLOG: c_int = c_int::MAX;

/// Our parameters of a connection that we request or accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) struct ConnectionParameters<'a> {
    pub(in crate::verbs) private_data: &'a [u8],
    /// RDMA Reads of the peer that we serve at a time.
    pub(in crate::verbs) responder_resources: u8,
    /// RDMA Reads of ours in flight at a time.
    pub(in crate::verbs) initiator_depth: u8,
    /// The peer's retries of unacknowledged packets; 7 at most.
    pub(in crate::verbs) retry_count: u8,
    /// The peer's retries when we are not ready to receive; 7 is unlimited.
    pub(in crate::verbs) rnr_retry_count: u8,
    /// Whether our queue pair draws from a shared receive queue.
    pub(in crate::verbs) shared_receive_queue: bool,
    /// The number of our queue pair.
    pub(in crate::verbs) queue_pair_number: u32,
}

impl ConnectionParameters<'_> {
    fn to_c(self) -> io::Result<c::rdma_conn_param> {
        let private_data_len = u8::try_from(self.private_data.len())
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(c::rdma_conn_param {
            private_data: self.private_data.as_ptr().cast(),
            private_data_len,
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            // InfiniBand's end-to-end credits, which do not exist with a shared receive queue.
            flow_control: u8::from(!self.shared_receive_queue),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            srq: u8::from(self.shared_receive_queue),
            qp_num: self.queue_pair_number,
        })
    }
}

/// The address families that an IPv6 wildcard covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum Families {
    /// IPv6 alone.
    Own,
    /// IPv4 as well.
    Both,
}

/// An identifier of RDMA-CM, without a queue pair. Dropping it destroys it: that withdraws a request of
/// ours, rejects a request of a peer, and disconnects an established connection.
#[derive(Debug)]
pub(in crate::verbs) struct Id {
    raw: NonNull<c::rdma_cm_id>,
    /// Keeps the channel open, which librdmacm uses for every call on the identifier.
    _channel: Arc<Channel>,
}

// SAFETY: librdmacm keeps nothing of the thread that made an identifier; `&mut self` and ownership
// keep calls on one apart. It locks what reading an event shares with a call on another thread.
unsafe impl Send for Id {}

impl Id {
    /// Makes an identifier whose events carry `number`.
    pub(in crate::verbs) fn create(channel: &Arc<Channel>, number: u64) -> io::Result<Self> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the channel is open; the call writes one pointer.
        done(unsafe {
            c::rdma_create_id(
                channel.as_ptr(),
                &raw mut raw,
                context(number),
                c::rdma_port_space::RDMA_PS_TCP,
            )
        })?;
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Self {
            raw,
            _channel: Arc::clone(channel),
        })
    }

    /// Takes ownership of the identifier of a request that arrived on `channel`.
    pub(super) fn from_request(raw: NonNull<c::rdma_cm_id>, channel: Arc<Channel>) -> Self {
        Self {
            raw,
            _channel: channel,
        }
    }

    fn raw(&self) -> &c::rdma_cm_id {
        // SAFETY: the identifier is alive as long as `self`; librdmacm writes to it in calls that
        // take `&mut self`, and when an event is read, on the thread that owns all identifiers of
        // the channel.
        unsafe { self.raw.as_ref() }
    }

    /// Changes the number that the events of this identifier carry.
    pub(in crate::verbs) fn set_number(&mut self, number: u64) {
        // SAFETY: the identifier is alive; the field is for its user, and read by nobody else.
        unsafe { (*self.raw.as_ptr()).context = context(number) };
    }

    fn set_option<T>(&mut self, name: c_int, mut value: T) -> io::Result<()> {
        let bytes = size_of::<T>();
        // SAFETY: the identifier is alive; the kernel reads `bytes` bytes of the value.
        done(unsafe {
            c::rdma_set_option(
                self.raw.as_ptr(),
                OPTION_LEVEL_ID,
                name,
                (&raw mut value).cast::<c_void>(),
                bytes,
            )
        })
    }

    /// Sets the type of service of the IP header, on RoCE v2 and iWARP. Call it before the address is
    /// resolved.
    pub(in crate::verbs) fn set_type_of_service(&mut self, value: u8) -> io::Result<()> {
        self.set_option(OPTION_TYPE_OF_SERVICE, value)
    }

    /// Sets the ACK timeout of the connection, 4.096 µs times two to the power of `exponent`. Kernels
    /// before 5.3 refuse the option.
    pub(in crate::verbs) fn set_ack_timeout(&mut self, exponent: u8) -> io::Result<()> {
        self.set_option(OPTION_ACK_TIMEOUT, exponent)
    }

    /// Binds the identifier to an address of this host. Remains of earlier connections at the port do
    /// not make it fail. `families` decides for IPv6 alone.
    pub(in crate::verbs) fn bind(
        &mut self,
        address: SocketAddr,
        families: Families,
    ) -> io::Result<()> {
        self.set_option::<c_int>(OPTION_REUSE_ADDRESS, 1)?;
        if address.is_ipv6() {
            let own = c_int::from(families == Families::Own);
            self.set_option::<c_int>(OPTION_ADDRESS_FAMILY_ONLY, own)?;
        }
        let mut raw = RawAddress::from(address);
        // SAFETY: the identifier is alive; the address lives through the call and is as long as
        // its family says.
        done(unsafe { c::rdma_bind_addr(self.raw.as_ptr(), raw.as_mut_ptr()) })
    }

    /// Listens for requests.
    pub(in crate::verbs) fn listen(&mut self) -> io::Result<()> {
        // SAFETY: the identifier is alive.
        done(unsafe { c::rdma_listen(self.raw.as_ptr(), BACKLOG) })
    }

    /// Finds the device through which `address` is reached. The event `AddressResolved` or
    /// `AddressError` follows.
    pub(in crate::verbs) fn resolve_address(
        &mut self,
        address: SocketAddr,
        timeout: Duration,
    ) -> io::Result<()> {
        let mut raw = RawAddress::from(address);
        // SAFETY: the identifier is alive; the address lives through the call and is as long as
        // its family says; no source address is given.
        done(unsafe {
            c::rdma_resolve_addr(
                self.raw.as_ptr(),
                std::ptr::null_mut(),
                raw.as_mut_ptr(),
                milliseconds(timeout),
            )
        })
    }

    /// Finds the path to the resolved address. The event `RouteResolved` or `RouteError` follows.
    pub(in crate::verbs) fn resolve_route(&mut self, timeout: Duration) -> io::Result<()> {
        self.need_device()?;
        // SAFETY: the identifier is alive and on a device.
        done(unsafe { c::rdma_resolve_route(self.raw.as_ptr(), milliseconds(timeout)) })
    }

    /// Sends the request.
    pub(in crate::verbs) fn connect(
        &mut self,
        parameters: ConnectionParameters<'_>,
    ) -> io::Result<()> {
        self.need_device()?;
        let mut parameters = parameters.to_c()?;
        // SAFETY: the identifier is alive and on a device; the parameters and their private data
        // live through the call, which copies them.
        done(unsafe { c::rdma_connect(self.raw.as_ptr(), &raw mut parameters) })
    }

    /// Accepts the request that created this identifier.
    pub(in crate::verbs) fn accept(
        &mut self,
        parameters: ConnectionParameters<'_>,
    ) -> io::Result<()> {
        self.need_device()?;
        let mut parameters = parameters.to_c()?;
        // SAFETY: as in `connect`.
        done(unsafe { c::rdma_accept(self.raw.as_ptr(), &raw mut parameters) })
    }

    /// Rejects the request that created this identifier.
    pub(in crate::verbs) fn reject(&mut self, private_data: &[u8]) -> io::Result<()> {
        let length = u8::try_from(private_data.len())
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: the identifier is alive; the data lives through the call, which copies it.
        done(unsafe { c::rdma_reject(self.raw.as_ptr(), private_data.as_ptr().cast(), length) })
    }

    /// Confirms the peer's acceptance, which establishes the connection.
    pub(in crate::verbs) fn establish(&mut self) -> io::Result<()> {
        // SAFETY: the identifier is alive and has no queue pair of librdmacm's.
        done(unsafe { c::rdma_establish(self.raw.as_ptr()) })
    }

    /// Sends a disconnect, or answers the peer's. `Disconnected` follows unless the peer's disconnect
    /// was reported before.
    pub(in crate::verbs) fn disconnect(&mut self) -> io::Result<()> {
        self.need_device()?;
        // SAFETY: the identifier is alive and on a device.
        done(unsafe { c::rdma_disconnect(self.raw.as_ptr()) })
    }

    /// The attributes that take a queue pair of this connection to `state`.
    pub(in crate::verbs) fn queue_pair_attributes(
        &mut self,
        state: c::ibv_qp_state::Type,
    ) -> io::Result<(c::ibv_qp_attr, c_int)> {
        // SAFETY: all zeros is a valid `ibv_qp_attr`: integers and structures of them.
        let mut attributes: c::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: the identifier is alive; the call reads the state and writes the structure and
        // the mask.
        done(unsafe {
            c::rdma_init_qp_attr(self.raw.as_ptr(), &raw mut attributes, &raw mut mask)
        })?;
        Ok((attributes, mask))
    }

    /// The context of the identifier's device; null when it has none yet.
    pub(in crate::verbs) fn context(&self) -> *mut c::ibv_context {
        self.raw().verbs
    }

    /// The number of its port of the device.
    pub(in crate::verbs) fn port(&self) -> u8 {
        self.raw().port_num
    }

    /// The name of the identifier's device.
    pub(in crate::verbs) fn device_name(&self) -> Option<String> {
        let context = NonNull::new(self.raw().verbs)?;
        // SAFETY: librdmacm keeps the contexts of its devices open as long as identifiers are on
        // them, and a context names its device; the name is a C string in the device.
        let name = unsafe {
            let device = (*context.as_ptr()).device;
            CStr::from_ptr((*device).name.as_ptr())
        };
        Some(name.to_string_lossy().into_owned())
    }

    /// The address of this end.
    pub(in crate::verbs) fn local_address(&self) -> Option<SocketAddr> {
        // SAFETY: every member of the union covers the same bytes, all of which are initialized.
        address::read(unsafe { &self.raw().route.addr.src_addr_union.src_storage })
    }

    /// The address of the other end.
    pub(in crate::verbs) fn peer_address(&self) -> Option<SocketAddr> {
        // SAFETY: as above.
        address::read(unsafe { &self.raw().route.addr.dst_addr_union.dst_storage })
    }

    /// Refuses an identifier without a device: some calls of librdmacm read the device unchecked.
    fn need_device(&self) -> io::Result<()> {
        if self.raw().verbs.is_null() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(())
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the identifier is alive and not used afterwards. All events of it that were
        // read are acknowledged, so that this does not wait for one. It fails only when the
        // kernel does not know the identifier, and then there is nothing to end.
        unsafe { c::rdma_destroy_id(self.raw.as_ptr()) };
    }
}

/// A number stored as the context pointer. Nothing reads through it.
fn context(number: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(number).unwrap_or(usize::MAX))
}

fn milliseconds(time: Duration) -> c_int {
    c_int::try_from(time.as_millis()).unwrap_or(c_int::MAX)
}
