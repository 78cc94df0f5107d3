//! RDMA-CM of the fake device: identifiers that bind and listen, and events that a test reports.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;

use libc::sockaddr;

use super::{descriptor, free, object};
use crate::verbs::bindings::{
    Functions, ibv_context, rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_event_channel,
    rdma_port_space,
};

/// An identifier with its option of one address family.
#[repr(C)]
struct Identifier {
    id: rdma_cm_id,
    family_only: c_int,
}

/// What listens, and what is to be reported.
pub(super) struct Cm {
    /// No device has any address.
    pub(super) is_removed: Cell<bool>,
    /// By which all addresses are reached.
    route: Cell<*mut ibv_context>,
    /// What listens: the identifier, its family, and whether for that alone.
    listening: RefCell<Vec<(*mut rdma_cm_id, c_int, bool)>>,
    events: RefCell<VecDeque<rdma_cm_event>>,
    descriptor: OwnedFd,
}

thread_local! {
    static CM: Cm = Cm {
        is_removed: Cell::new(false),
        route: Cell::new(null_mut()),
        listening: RefCell::default(),
        events: RefCell::default(),
        descriptor: descriptor(),
    };
}

/// Removes the device with its addresses, which each listener is notified of, or brings it back.
pub(super) fn set_removed(is_removed: bool) {
    CM.with(|cm| {
        cm.is_removed.set(is_removed);
        if !is_removed {
            return;
        }
        for (id, ..) in cm.listening.borrow().iter() {
            cm.tell(*id, rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL);
        }
    });
}

/// All addresses are reached by this context.
pub(super) fn route_by(context: *mut ibv_context) {
    CM.with(|cm| cm.route.set(context));
}

impl Cm {
    fn tell(&self, id: *mut rdma_cm_id, kind: rdma_cm_event_type::Type) {
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut event: rdma_cm_event = unsafe { std::mem::zeroed() };
        (event.id, event.event) = (id, kind);
        self.events.borrow_mut().push_back(event);
        rustix::io::write(&self.descriptor, &1_u64.to_ne_bytes()).expect("an eventfd");
    }
}

/// The families that listeners hear: of each its own, and whether that alone.
pub(super) fn listening() -> Vec<(c_int, bool)> {
    CM.with(|cm| {
        let listening = cm.listening.borrow();
        listening
            .iter()
            .map(|(_, family, only)| (*family, *only))
            .collect()
    })
}

/// Adds its functions to those of the device.
pub(super) fn add(functions: Functions) -> Functions {
    Functions {
        rdma_create_event_channel: create_event_channel,
        rdma_destroy_event_channel: destroy_event_channel,
        rdma_create_id: create_id,
        rdma_destroy_id: destroy_id,
        rdma_set_option: set_option,
        rdma_bind_addr: bind_addr,
        rdma_listen: listen,
        rdma_resolve_addr: resolve_addr,
        rdma_get_cm_event: get_cm_event,
        rdma_ack_cm_event: ack_cm_event,
        ..functions
    }
}

fn fail(number: c_int) -> c_int {
    super::refuse::<()>(number);
    -1
}

unsafe extern "C" fn create_event_channel() -> *mut rdma_event_channel {
    let fd = CM.with(|cm| cm.descriptor.as_raw_fd());
    object(|channel: &mut rdma_event_channel| channel.fd = fd)
}

unsafe extern "C" fn destroy_event_channel(channel: *mut rdma_event_channel) {
    // SAFETY: from `create_event_channel`; the descriptor is not its own.
    unsafe { free(channel) };
}

unsafe extern "C" fn create_id(
    channel: *mut rdma_event_channel,
    id: *mut *mut rdma_cm_id,
    context: *mut c_void,
    _: rdma_port_space::Type,
) -> c_int {
    let made = object(|it: &mut Identifier| {
        it.id.channel = channel;
        it.id.context = context;
    });
    // SAFETY: the caller's pointer may be written.
    unsafe { *id = made.cast() };
    0
}

unsafe extern "C" fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    CM.with(|cm| cm.listening.borrow_mut().retain(|(other, ..)| *other != id));
    // SAFETY: from `create_id`.
    unsafe { free(id.cast::<Identifier>()) }
}

unsafe extern "C" fn set_option(
    id: *mut rdma_cm_id,
    _level: c_int,
    name: c_int,
    value: *mut c_void,
    _bytes: usize,
) -> c_int {
    /// `RDMA_OPTION_ID_AFONLY`.
    const FAMILY_ONLY: c_int = 2;
    if name == FAMILY_ONLY {
        // SAFETY: from `create_id`, and the option is an integer.
        unsafe { (*id.cast::<Identifier>()).family_only = *value.cast::<c_int>() };
    }
    0
}

unsafe extern "C" fn bind_addr(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    if CM.with(|cm| cm.is_removed.get()) {
        return fail(libc::ENODEV);
    }
    // SAFETY: from `create_id`; the address is as long as its family says.
    unsafe {
        let place = &raw mut (*id).route.addr.src_addr_union;
        let bytes = match c_int::from((*address).sa_family) {
            libc::AF_INET => size_of::<libc::sockaddr_in>(),
            _ => size_of::<libc::sockaddr_in6>(),
        };
        place.cast::<u8>().copy_from(address.cast::<u8>(), bytes);
    }
    0
}

/// A listener for both families conflicts with every other one at the port; the fake device has one port.
unsafe extern "C" fn listen(id: *mut rdma_cm_id, _backlog: c_int) -> c_int {
    // SAFETY: from `create_id`, bound.
    let (family, only) = unsafe {
        let family = c_int::from((*id).route.addr.src_addr_union.src_addr.sa_family);
        (family, (*id.cast::<Identifier>()).family_only != 0)
    };
    let only = only || family == libc::AF_INET;
    CM.with(|cm| {
        let mut listening = cm.listening.borrow_mut();
        let conflicts =
            |(_, other, other_only): &(_, c_int, bool)| *other == family || !only || !other_only;
        if listening.iter().any(conflicts) {
            return fail(libc::EADDRNOTAVAIL);
        }
        listening.push((id, family, only));
        0
    })
}

unsafe extern "C" fn resolve_addr(
    id: *mut rdma_cm_id,
    _source: *mut sockaddr,
    _destination: *mut sockaddr,
    _timeout_ms: c_int,
) -> c_int {
    CM.with(|cm| {
        // SAFETY: from `create_id`.
        unsafe { (*id).verbs = cm.route.get() };
        cm.tell(id, rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED);
    });
    0
}

unsafe extern "C" fn get_cm_event(
    _: *mut rdma_event_channel,
    event: *mut *mut rdma_cm_event,
) -> c_int {
    CM.with(|cm| {
        let Some(next) = cm.events.borrow_mut().pop_front() else {
            let mut bytes = [MaybeUninit::<u8>::uninit(); 8];
            let _ = rustix::io::read(&cm.descriptor, &mut bytes);
            return fail(libc::EAGAIN);
        };
        // SAFETY: the caller's pointer may be written.
        unsafe { *event = Box::into_raw(Box::new(next)) };
        0
    })
}

unsafe extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    // SAFETY: from `get_cm_event`.
    unsafe { free(event) }
}
