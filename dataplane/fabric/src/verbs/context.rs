//! Finds and opens devices, and reads their limits.
//!
//! librdmacm opens each device once per process. This crate uses those contexts for everything,
//! because a queue pair can only be connected through an identifier of the same context.

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::bindings::{self, Facilities, ibv_context, ibv_device_attr, ibv_port_attr};
use super::errno::{done, failed, made};
use super::events::{DeviceEvent, EventCounts, Listeners, next_event, set_nonblocking};
use super::leaked;
use super::protection_domain::ProtectionDomain;
use super::thread_domain::QueuePairDomain;
use super::trial::{self, Trial};
use crate::interface::SetupError;

/// The limits of a device, as it reports them (`ibv_query_device`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Work requests in one queue of a queue pair.
    pub queue_pair_work_requests: u32,
    /// Segments of a Send, Receive or RDMA Write.
    pub segments: u32,
    /// Segments of an RDMA Read.
    pub read_segments: u32,
    /// Entries of a completion queue.
    pub completion_queue_entries: u32,
    /// RDMA Reads that a queue pair serves at a time, as responder.
    pub responder_resources: u8,
    /// RDMA Reads that a queue pair has outstanding, as initiator.
    pub initiator_depth: u8,
    /// Shared receive queues; zero if the device has none.
    pub shared_receive_queues: u32,
    /// Receives of a shared receive queue.
    pub shared_receive_queue_depth: u32,
    /// Segments of a Receive of a shared receive queue.
    pub shared_receive_queue_segments: u32,
    /// Memory windows of type 2B, which are bound to a queue pair; zero if the device has none. One is tried when the device
    /// is opened, because libraries of devices lack what their drivers report ([`Context::windows_refused`]).
    pub windows: u32,
    /// Send With Invalidate, in both directions. It is tried like the windows.
    pub send_with_invalidate: bool,
    /// Ports; they are numbered from one.
    pub ports: u8,
    /// The longest message in bytes, on an active port if there is one.
    pub message_bytes: u32,
    /// The completion flags that report an invalidated key: each of these bits alone does.
    pub(super) invalidated_flags: u32,
    /// Whether the device uses iWARP. See [`DeviceLimits::reads_outstanding`].
    pub iwarp: bool,
    /// Whether it is the kernel's software iWARP (siw). The module `port` has its peculiarities.
    pub(super) soft_iwarp: bool,
}

impl DeviceLimits {
    /// RDMA Reads that a queue pair may have outstanding as initiator: none on iWARP.
    ///
    /// On iWARP an RDMA Read request carries the key of the memory that it reads into (RFC 5040 section 4.4), and that
    /// memory must be registered for remote writing. Our work requests use the key of the whole arena, so a peer that
    /// was read from once could write anywhere in the arena, at any time. Registering the exact bytes of each RDMA Read
    /// instead would cost a system call on the path of a call.
    #[must_use]
    pub fn reads_outstanding(&self) -> u8 {
        if self.iwarp { 0 } else { self.initiator_depth }
    }

    /// Limits of an imaginary device.
    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        Self {
            queue_pairs: 1024,
            queue_pair_work_requests: 1024,
            segments: 16,
            read_segments: 16,
            completion_queue_entries: 1 << 16,
            responder_resources: 16,
            initiator_depth: 16,
            shared_receive_queues: 16,
            shared_receive_queue_depth: 1024,
            shared_receive_queue_segments: 16,
            windows: 1024,
            send_with_invalidate: true,
            ports: 1,
            message_bytes: 1 << 30,
            invalidated_flags: 0,
            iwarp: false,
            soft_iwarp: false,
        }
    }
}

/// The effect of a child process on the registered memory of its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkSafety {
    /// The kernel copies pinned pages for the child: nothing to do.
    ByKernel,
    /// The library excludes pinned pages from the child (`RDMAV_FORK_SAFE`); hugepages need
    /// `RDMAV_HUGEPAGES_SAFE` as well.
    ByLibrary,
    /// After a fork the device and this process may have different pages at one address: spawn
    /// children before a device is opened.
    None,
}

/// An open device. Shared by all ports and the connection manager of a process.
pub struct Context {
    raw: NonNull<ibv_context>,
    /// The list of `rdma_get_devices`. Freeing it would close the devices.
    list: NonNull<*mut ibv_context>,
    name: String,
    limits: DeviceLimits,
    /// Why the device has no memory windows although it reports some.
    windows_refused: Option<String>,
    /// Only on software iWARP.
    placeholder: Option<Placeholder>,
    pub(super) listeners: Listeners,
    events: EventCounts,
}

// SAFETY: a context of rdma-core may be used by any thread, with all calls that take it; the list
// is only kept, and freed once, in drop.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// All contexts in use, so that each device has one [`Context`] in this process.
/// They are found by the address of the library's context.
static IN_USE: Mutex<Vec<(usize, Weak<Context>)>> = Mutex::new(Vec::new());

impl Context {
    /// Opens the device of this name, or the first that has an active port.
    ///
    /// Spawn child processes before: see [`ForkSafety`].
    ///
    /// # Errors
    ///
    /// When rdma-core is missing or sees no device, when none has that name, or none is active.
    pub fn open(name: Option<&str>) -> Result<Arc<Self>, SetupError> {
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        in_use.retain(|(_, context)| context.strong_count() > 0);
        let list = DeviceList::new()?;
        let found = list
            .iter()
            .find(|raw| name.map_or_else(|| is_active(*raw), |name| name_of(*raw) == name));
        let Some(raw) = found else {
            let known: Vec<String> = list.iter().map(name_of).collect();
            return Err(no_device(name, &known));
        };
        let address = raw.as_ptr().addr();
        let shared = in_use.iter().find(|(other, _)| *other == address);
        if let Some(context) = shared.and_then(|(_, context)| context.upgrade()) {
            return Ok(context);
        }
        let limits = query(raw)?;
        nonblocking(raw)?;
        let mut context = Arc::new(Self {
            raw,
            list: list.keep(),
            name: name_of(raw),
            placeholder: limits.soft_iwarp.then(|| Placeholder::new(raw)).flatten(),
            limits,
            windows_refused: None,
            listeners: Listeners::default(),
            events: EventCounts::default(),
        });
        let tried = trial::of(&context);
        // What was tried holds nothing of the context any more.
        if let Some(context) = Arc::get_mut(&mut context) {
            context.limit(tried);
        }
        in_use.push((address, Arc::downgrade(&context)));
        Ok(context)
    }

    /// Takes from the limits what the device reports and does not do.
    fn limit(&mut self, tried: Trial) {
        if let Some(reason) = tried.windows_refused {
            self.limits.windows = 0;
            self.windows_refused = Some(reason);
        }
        self.limits.send_with_invalidate &= tried.invalidates;
    }

    /// The names of all devices that rdma-core finds, and whether each has an active port.
    ///
    /// # Errors
    ///
    /// When rdma-core is missing.
    pub fn devices() -> Result<Vec<(String, bool)>, SetupError> {
        let list = DeviceList::new()?;
        Ok(list
            .iter()
            .map(|raw| (name_of(raw), is_active(raw)))
            .collect())
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's limits.
    #[must_use]
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// Why the device has no memory windows although it reports some: what it refused when one was tried. `None` where
    /// the device works as it reports.
    #[must_use]
    pub fn windows_refused(&self) -> Option<&str> {
        self.windows_refused.as_deref()
    }

    /// Why a thread domain, or a parent domain in it, is refused: both are tried. `None` if the device has them. Ports take the
    /// locks of the library where it has none.
    #[must_use]
    pub fn thread_domains_refused(self: &Arc<Self>) -> Option<String> {
        let tried = ProtectionDomain::new(self, false)
            .and_then(|domain| QueuePairDomain::of_one_thread(&Arc::new(domain)));
        tried.err().map(|error| error.to_string())
    }

    /// The effect of a fork on registered memory on this machine.
    #[must_use]
    pub fn fork_safety() -> ForkSafety {
        match bindings::ibv_is_fork_initialized() {
            bindings::IBV_FORK_UNNEEDED => ForkSafety::ByKernel,
            bindings::IBV_FORK_ENABLED => ForkSafety::ByLibrary,
            _ => ForkSafety::None,
        }
    }

    /// Becomes readable when the device has an event; then call
    /// [`Context::dispatch_events`]. Never blocks.
    #[must_use]
    pub fn event_descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor belongs to the context, which lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }

    /// Passes the waiting events to their ports; returns how many there were.
    /// Call it when [`Context::event_descriptor`] is readable, from any thread.
    ///
    /// # Errors
    ///
    /// The error of reading the descriptor, except that no event is waiting.
    pub fn dispatch_events(&self) -> io::Result<usize> {
        let mut count = 0;
        // SAFETY: the context is open as long as `self`.
        while let Some((port, event)) = unsafe { next_event(self.raw(), &self.events) }? {
            self.listeners.tell(port, event);
            count += 1;
        }
        Ok(count)
    }

    /// How often each event came.
    pub(super) fn events(&self) -> &EventCounts {
        &self.events
    }

    /// How often a link of the device went down, as far as its events were read.
    pub(super) fn links_down(&self) -> u64 {
        self.events.of_row(DeviceEvent::PortDown as usize)
    }

    /// The RDMA MTU of an active port: the payload of a packet, in octets. `None` if the port is not
    /// active or does not exist.
    #[must_use]
    pub fn port_mtu_bytes(&self, port: u8) -> Option<u32> {
        // Code 1 is 256 octets, and each further code doubles it.
        match self.port_mtu(port)? {
            code @ 1..=5 => Some(128 << code),
            _ => None,
        }
    }

    /// The MTU of an active port, as the code of verbs.
    pub(super) fn port_mtu(&self, port: u8) -> Option<bindings::ibv_mtu::Type> {
        query_port(self.raw, port)
            .filter(is_up)
            .map(|port| port.active_mtu)
    }

    /// The local identifier of a port on InfiniBand; zero on Ethernet.
    pub(super) fn port_lid(&self, port: u8) -> u16 {
        query_port(self.raw, port).map_or(0, |port| port.lid)
    }

    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.placeholder = None;
        // SAFETY: the list came from `rdma_get_devices` and is freed only here. All objects of the
        // context hold the Arc around it, so none is left.
        unsafe { bindings::rdma_free_devices(self.list.as_ptr()) };
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// A queue that occupies a range of offsets in a device's file. Software iWARP maps each queue of a process at the first
/// free offset of that file, and its library takes the offset 576 KiB for an error. The queue at that offset cannot be
/// made, nor can any later one until a lower offset is free again. This queue is the first one and covers that offset.
///
/// A value is one use of the queue by a [`Context`]. The queue is given back with its last use: a context may be opened
/// while the previous one of the same device is being dropped, and its queues must not get the offset either.
struct Placeholder(NonNull<ibv_context>);

/// The queue behind all [`Placeholder`]s of a device.
struct Occupant {
    context: NonNull<ibv_context>,
    queue: NonNull<bindings::ibv_cq>,
    users: usize,
}

// SAFETY: rdma-core lets any thread use a context and a queue.
unsafe impl Send for Occupant {}

static OCCUPANTS: Mutex<Vec<Occupant>> = Mutex::new(Vec::new());

impl Placeholder {
    /// Entries of 32 bytes, which together cover 1 MiB.
    const ENTRIES: c_int = (1 << 20) / 32;

    /// `None` if the device refuses the queue. The context is usable then, but a later queue at the offset 576 KiB fails.
    fn new(context: NonNull<ibv_context>) -> Option<Self> {
        let mut occupants = OCCUPANTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(occupant) = occupants.iter_mut().find(|it| it.context == context) {
            occupant.users += 1;
            return Some(Self(context));
        }
        let null = std::ptr::null_mut();
        let channel = std::ptr::null_mut();
        // SAFETY: an open context; a completion queue needs neither a channel nor a mark.
        let queue = made(|| unsafe {
            bindings::ibv_create_cq(context.as_ptr(), Self::ENTRIES, null, channel, 0)
        });
        occupants.push(Occupant {
            context,
            queue: queue.ok()?,
            users: 1,
        });
        Some(Self(context))
    }
}

impl Drop for Placeholder {
    fn drop(&mut self) {
        let mut occupants = OCCUPANTS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = occupants.iter().position(|it| it.context == self.0) else {
            return;
        };
        occupants[index].users -= 1;
        if occupants[index].users > 0 {
            return;
        }
        let queue = occupants.swap_remove(index).queue;
        // SAFETY: from `ibv_create_cq`, given back only here; nobody else has it.
        let returned = unsafe { bindings::ibv_destroy_cq(queue.as_ptr()) };
        leaked("completion queue", done(returned));
    }
}

/// The beginning of the error for a missing rdma-core; the reason follows.
const NO_RDMA_CORE: &str = "RDMA addresses need rdma-core";

/// The optional features of this machine's rdma-core.
///
/// # Errors
///
/// When rdma-core is missing or too old: the error names the library or the function, and the packages to install.
pub fn facilities() -> Result<Facilities, SetupError> {
    bindings::facilities(None).map_err(failed(NO_RDMA_CORE))
}

/// The devices as librdmacm lists them; freed when dropped.
struct DeviceList {
    raw: NonNull<*mut ibv_context>,
    count: usize,
}

impl DeviceList {
    fn new() -> Result<Self, SetupError> {
        bindings::available().map_err(failed(NO_RDMA_CORE))?;
        let mut count: c_int = 0;
        // SAFETY: `count` may be written.
        let raw = made(|| unsafe { bindings::rdma_get_devices(&raw mut count) }).map_err(
            failed("RDMA devices could not be listed: is `rdma_ucm` loaded?"),
        )?;
        let count = usize::try_from(count).unwrap_or(0);
        Ok(Self { raw, count })
    }

    fn iter(&self) -> impl Iterator<Item = NonNull<ibv_context>> {
        (0..self.count).filter_map(|index| {
            // SAFETY: the list holds `count` pointers.
            NonNull::new(unsafe { *self.raw.as_ptr().add(index) })
        })
    }

    /// The list, which the caller must free.
    fn keep(self) -> NonNull<*mut ibv_context> {
        std::mem::ManuallyDrop::new(self).raw
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: from `rdma_get_devices`, freed only here.
        unsafe { bindings::rdma_free_devices(self.raw.as_ptr()) };
    }
}

fn no_device(name: Option<&str>, known: &[String]) -> SetupError {
    let known = if known.is_empty() {
        "there is none".to_owned()
    } else {
        format!("there are: {}", known.join(", "))
    };
    let doing = match name {
        Some(name) => format!("no RDMA device `{name}`; {known}"),
        None => format!("no RDMA device with an active port; {known}"),
    };
    failed(doing)(io::ErrorKind::NotFound.into())
}

fn name_of(raw: NonNull<ibv_context>) -> String {
    // SAFETY: an open context points to its device, whose name ends with a zero.
    let name = unsafe { CStr::from_ptr(bindings::ibv_get_device_name((*raw.as_ptr()).device)) };
    name.to_string_lossy().into_owned()
}

fn query(raw: NonNull<ibv_context>) -> Result<DeviceLimits, SetupError> {
    let attributes = query_device(raw).map_err(failed("the device does not report its limits"))?;
    let message_bytes = (1..=attributes.phys_port_cnt)
        .filter_map(|port| query_port(raw, port))
        .max_by_key(is_up)
        .map_or(0, |port| port.max_msg_sz);
    // SAFETY: an open context points to its device.
    let transport = unsafe { (*(*raw.as_ptr()).device).transport_type };
    Ok(limits(
        &attributes,
        message_bytes,
        // Compared as numbers: the binding's enumeration does not name every value that a device has.
        i64::from(transport) == i64::from(bindings::ibv_transport_type::IBV_TRANSPORT_IWARP),
    ))
}

fn query_device(raw: NonNull<ibv_context>) -> io::Result<ibv_device_attr> {
    // SAFETY: the structure is plain numbers, for which zero is a value.
    let mut attributes: ibv_device_attr = unsafe { std::mem::zeroed() };
    // SAFETY: an open context, and a whole structure to write.
    done(unsafe { bindings::ibv_query_device(raw.as_ptr(), &raw mut attributes) })?;
    Ok(attributes)
}

fn limits(attributes: &ibv_device_attr, message_bytes: u32, iwarp: bool) -> DeviceLimits {
    use bindings::ibv_device_cap_flags as flag;
    let has = |wanted: flag| attributes.device_cap_flags & wanted.0 != 0;
    let windows = has(flag::IBV_DEVICE_MEM_WINDOW_TYPE_2B);
    DeviceLimits {
        queue_pairs: count(attributes.max_qp),
        queue_pair_work_requests: count(attributes.max_qp_wr),
        segments: count(attributes.max_sge),
        read_segments: count(attributes.max_sge_rd),
        completion_queue_entries: count(attributes.max_cqe),
        responder_resources: depth(attributes.max_qp_rd_atom),
        initiator_depth: depth(attributes.max_qp_init_rd_atom),
        shared_receive_queues: count(attributes.max_srq),
        shared_receive_queue_depth: count(attributes.max_srq_wr),
        shared_receive_queue_segments: count(attributes.max_srq_sge),
        windows: if windows { count(attributes.max_mw) } else { 0 },
        // The base memory management extensions include it (InfiniBand volume 1, section 11.2.1).
        send_with_invalidate: has(flag::IBV_DEVICE_MEM_MGT_EXTENSIONS),
        ports: attributes.phys_port_cnt,
        message_bytes,
        invalidated_flags: invalidated_flags(attributes.vendor_id),
        iwarp,
        soft_iwarp: iwarp && attributes.vendor_id == SOFT_IWARP,
    }
}

/// The vendor number of software iWARP.
const SOFT_IWARP: u32 = 0x0062_6d74;

/// The flags that report an invalidated key. Soft-RoCE passes the kernel's flag to user space, where
/// its number means a valid checksum. No device reports checksums on a reliable connection, so the
/// flag is unambiguous.
fn invalidated_flags(vendor: u32) -> u32 {
    /// The vendor number of soft-RoCE.
    const SOFT_ROCE: u32 = 0x00ff_ffff;
    /// `IB_WC_WITH_INVALIDATE` of the kernel.
    const KERNEL_WITH_INVALIDATE: u32 = 1 << 2;
    let flag = bindings::ibv_wc_flags::IBV_WC_WITH_INV.0;
    if vendor == SOFT_ROCE {
        flag | KERNEL_WITH_INVALIDATE
    } else {
        flag
    }
}

/// A count that a device reports; a negative one counts as zero.
fn count(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// A depth, limited to the one byte that RDMA-CM transmits.
fn depth(number: c_int) -> u8 {
    u8::try_from(number.max(0)).unwrap_or(u8::MAX)
}

fn is_active(raw: NonNull<ibv_context>) -> bool {
    let ports = query_device(raw).map_or(0, |attributes| attributes.phys_port_cnt);
    (1..=ports).any(|port| query_port(raw, port).is_some_and(|port| is_up(&port)))
}

fn is_up(port: &ibv_port_attr) -> bool {
    port.state == bindings::ibv_port_state::IBV_PORT_ACTIVE
}

fn query_port(raw: NonNull<ibv_context>, port: u8) -> Option<ibv_port_attr> {
    // SAFETY: the structure is plain numbers, for which zero is a value.
    let mut attributes: ibv_port_attr = unsafe { std::mem::zeroed() };
    // SAFETY: an open context, and a whole structure to write.
    let returned = unsafe { bindings::query_port(raw.as_ptr(), port, &raw mut attributes) };
    (returned == 0).then_some(attributes)
}

fn nonblocking(raw: NonNull<ibv_context>) -> Result<(), SetupError> {
    // SAFETY: the descriptor belongs to the open context, and is borrowed for this call.
    let descriptor = unsafe { BorrowedFd::borrow_raw((*raw.as_ptr()).async_fd) };
    set_nonblocking(descriptor).map_err(failed(
        "the event descriptor of the device could not be set up",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::completion_queue::CompletionQueue;

    #[test]
    #[ignore = "needs a device: ./check lab runs it in a guest"]
    fn a_context_that_is_dropped_leaves_the_placeholder_to_the_next_one() {
        let name = std::env::var("LAB_DEV").expect("LAB_DEV: run this in the lab, tests/lab");
        let list = DeviceList::new().expect("devices");
        let raw = list.iter().find(|raw| name_of(*raw) == name);
        let raw = raw.expect("the lab's device");
        let users = || {
            let occupants = OCCUPANTS.lock().expect("no test panicked");
            let occupant = occupants.iter().find(|it| it.context == raw);
            occupant.map_or(0, |it| it.users)
        };
        if !query(raw).expect("its limits").soft_iwarp {
            let _context = Context::open(Some(&name)).expect("the lab's device");
            assert_eq!(users(), 0, "only software iWARP needs one");
            return;
        }
        // The use of a context that is being dropped while the next one is opened.
        let previous = Placeholder::new(raw).expect("a queue");
        let context = Context::open(Some(&name)).expect("the lab's device");
        assert_eq!(users(), 2);
        drop(previous);
        // Each takes nine pages, so that without a placeholder the 17th is at the offset 576 KiB.
        let queues: Vec<_> = (0..20)
            .map(|mark| CompletionQueue::new(&context, 1024, mark).expect("a completion queue"))
            .collect();
        drop((queues, context));
        assert_eq!(users(), 0);
    }
}
