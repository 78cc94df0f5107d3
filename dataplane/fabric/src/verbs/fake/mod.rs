//! A device for unit tests that has no hardware, no kernel and no library: the functions of rdma-core and the operations
//! of its context are replaced for one thread.
//!
//! A [`Card`] says what it reports and what it does, which need not agree. Work requests complete when they are posted,
//! in order, and move no bytes.

mod cm;
mod domains;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{EventfdFlags, eventfd};

pub(super) use self::domains::ThreadDomains;
use super::bindings::extended::verbs_context;
use super::bindings::{
    _compat_ibv_port_attr, Functions, REPLACED_REGISTER, ibv_async_event, ibv_comp_channel,
    ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_device_cap_flags, ibv_gid, ibv_mr,
    ibv_mtu, ibv_mw, ibv_mw_type, ibv_pd, ibv_port_attr, ibv_port_state, ibv_qp, ibv_qp_attr,
    ibv_qp_init_attr, ibv_recv_wr, ibv_send_wr, ibv_srq, ibv_srq_init_attr, ibv_wc, ibv_wc_status,
    ibv_wr_opcode,
};
use super::{Port, PortConfig, PortHandle};
use crate::clock::Clock;
use crate::memory::{Arena, ArenaOptions, HugePages};

/// What the device reports, and what it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Card {
    /// The driver reports memory windows of type 2B.
    pub(super) reports_windows: bool,
    /// The library allocates windows.
    pub(super) allocates: bool,
    /// Windows that the driver reports.
    pub(super) windows_reported: c_int,
    /// Windows that exist at a time.
    pub(super) windows_max: u32,
    /// The library takes a binding.
    pub(super) binds: bool,
    /// A binding completes with an error.
    pub(super) bind_fails: bool,
    /// The library takes a local invalidation.
    pub(super) invalidates: bool,
    /// The library takes a Send With Invalidate.
    pub(super) sends_invalidate: bool,
    /// A queue pair can be connected.
    pub(super) connects: bool,
    /// The driver takes a registration with relaxed ordering, or refuses it.
    pub(super) relaxes: bool,
    /// Shared receive queues that the driver reports.
    pub(super) shared_receive_queues: c_int,
    /// What the library has of thread domains.
    pub(super) thread_domains: ThreadDomains,
}

impl Card {
    /// A device with all verbs that it reports.
    pub(super) const HONEST: Self = Self {
        reports_windows: true,
        allocates: true,
        windows_reported: 1024,
        windows_max: 1024,
        binds: true,
        bind_fails: false,
        invalidates: true,
        sends_invalidate: true,
        connects: true,
        relaxes: true,
        shared_receive_queues: 16,
        thread_domains: ThreadDomains::Work,
    };
}

/// The device of this thread, until it is dropped. It may not be dropped before what was made on it.
pub(super) struct Fake {
    device: Box<Device>,
}

struct Device {
    /// With the context.
    extended: verbs_context,
    device: ibv_device,
    list: [*mut ibv_context; 2],
    /// A context of the device as it is after it was removed and came back.
    again: ibv_context,
    card: Card,
    windows: Cell<u32>,
    /// Its link is down.
    is_down: Cell<bool>,
    /// The access of each registration.
    accesses: RefCell<Vec<c_uint>>,
    /// What was made, with the kind of its domain, and what was given back.
    calls: RefCell<Vec<String>>,
    /// Events of the device that wait to be got.
    events: RefCell<VecDeque<MaybeUninit<ibv_async_event>>>,
    _descriptor: OwnedFd,
}

#[repr(C)]
struct Queue {
    queue: ibv_cq,
    done: RefCell<VecDeque<ibv_wc>>,
}

thread_local! {
    static DEVICE: Cell<*mut Device> = const { Cell::new(null_mut()) };
}

/// Numbers of objects, unique in the process.
static NEXT: AtomicU32 = AtomicU32::new(1);

impl Fake {
    /// Replaces rdma-core for this thread.
    pub(super) fn install(card: Card) -> Self {
        let descriptor = descriptor();
        // SAFETY: numbers, pointers and optional functions, for which zero is a value.
        let (mut extended, mut device, again): (verbs_context, ibv_device, ibv_context) =
            unsafe { std::mem::zeroed() };
        let name = format!("fake{}\0", NEXT.fetch_add(1, Ordering::Relaxed));
        for (place, byte) in device.name.iter_mut().zip(name.bytes()) {
            *place = c_char::from_ne_bytes([byte]);
        }
        domains::add(&mut extended, card.thread_domains);
        let context = &mut extended.context;
        context.async_fd = descriptor.as_raw_fd();
        context.ops.alloc_mw = Some(alloc_mw);
        context.ops.dealloc_mw = Some(dealloc_mw);
        context.ops.post_send = Some(post_send);
        context.ops.poll_cq = Some(poll_cq);
        context.ops.post_srq_recv = Some(post_srq_recv);
        let mut device = Box::new(Device {
            extended,
            device,
            list: [null_mut(); 2],
            again,
            card,
            windows: Cell::new(0),
            is_down: Cell::new(false),
            accesses: RefCell::default(),
            calls: RefCell::default(),
            events: RefCell::default(),
            _descriptor: descriptor,
        });
        device.extended.context.device = &raw mut device.device;
        device.again.device = &raw mut device.device;
        let whole = &raw mut *device;
        // SAFETY: a part of the device that lives. From its address that of the device is found.
        device.list[0] = unsafe { &raw mut (*whole).extended.context };
        DEVICE.set(whole);
        Functions::replace(Some(cm::add(functions())));
        REPLACED_REGISTER.set(Some(reg_mr_iova2));
        Self { device }
    }

    /// Reports the event of this number, about the device.
    pub(super) fn tell(&self, number: u32) {
        let mut event = MaybeUninit::<ibv_async_event>::zeroed();
        // SAFETY: the enumeration is written as a number, as the library of a newer rdma-core does.
        unsafe {
            (&raw mut (*event.as_mut_ptr()).event_type)
                .cast::<u32>()
                .write(number);
        }
        self.device.events.borrow_mut().push_back(event);
    }

    /// Its link goes down or up. [`Fake::tell`] reports it.
    pub(super) fn set_link(&self, is_up: bool) {
        self.device.is_down.set(!is_up);
    }

    /// The access of the registrations so far.
    pub(super) fn accesses(&self) -> Vec<c_uint> {
        self.device.accesses.borrow().clone()
    }

    /// What was made and given back since the last call, in order.
    pub(super) fn take_calls(&self) -> Vec<String> {
        self.device.calls.take()
    }

    /// A port of the device.
    pub(super) fn port(&self, change: impl FnOnce(&mut PortConfig)) -> (Port, PortHandle) {
        let arena = Arena::private(&ArenaOptions {
            bytes: 1 << 20,
            huge_pages: HugePages::Never,
        });
        let mut config = PortConfig {
            device: Some(self.name().to_owned()),
            queue_pairs_max: 4,
            receives_max: 16,
            work_requests_max: 64,
            windows_max: 64,
            ..PortConfig::new(arena.expect("memory"), Clock::new())
        };
        change(&mut config);
        Port::new(config).expect("a port")
    }

    /// Takes the device away from RDMA-CM, or gives it back.
    pub(super) fn set_removed(&self, is_removed: bool) {
        cm::set_removed(is_removed);
    }

    /// Lets RDMA-CM find the device as it is after it came back.
    pub(super) fn replace(&mut self) {
        cm::route_by(&raw mut self.device.again);
    }

    /// The address families of the listeners, and whether each hears its own alone.
    pub(super) fn listening(&self) -> Vec<(c_int, bool)> {
        cm::listening()
    }

    /// The name of the device.
    pub(super) fn name(&self) -> &str {
        // SAFETY: the name ends with a zero, and lives as long as `self`.
        let name = unsafe { CStr::from_ptr(self.device.device.name.as_ptr()) };
        name.to_str().expect("the name of a fake device")
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        Functions::replace(None);
        REPLACED_REGISTER.set(None);
        DEVICE.set(null_mut());
    }
}

fn descriptor() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd")
}

fn functions() -> Functions {
    Functions {
        ibv_alloc_pd: domains::alloc_pd,
        ibv_dealloc_pd: domains::dealloc_pd,
        ibv_create_comp_channel: create_comp_channel,
        ibv_destroy_comp_channel: destroy_comp_channel,
        ibv_create_cq: create_cq,
        ibv_destroy_cq: destroy_cq,
        ibv_create_qp: create_qp,
        ibv_modify_qp: modify_qp,
        ibv_destroy_qp: destroy_qp,
        ibv_create_srq: create_srq,
        ibv_destroy_srq: destroy_srq,
        ibv_get_async_event: get_async_event,
        ibv_ack_async_event: ack_async_event,
        ibv_get_device_name: get_device_name,
        ibv_query_device: query_device,
        ibv_query_gid: query_gid,
        ibv_query_port: query_port,
        ibv_reg_mr: reg_mr,
        ibv_dereg_mr: dereg_mr,
        rdma_get_devices: get_devices,
        rdma_free_devices: free_devices,
        ..Functions::absent()
    }
}

fn refuse<T>(number: c_int) -> *mut T {
    // SAFETY: each thread has its own `errno`.
    unsafe { *libc::__errno_location() = number };
    null_mut()
}

/// An object of the library, with its context.
fn object<T>(set: impl FnOnce(&mut T)) -> *mut T {
    // SAFETY: only structures of numbers and pointers are made so, for which zero is a value.
    let mut object: Box<T> = Box::new(unsafe { std::mem::zeroed() });
    set(&mut object);
    Box::into_raw(object)
}

/// # Safety
///
/// `raw` is from `object`, and freed once.
unsafe fn free<T>(raw: *mut T) -> c_int {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(raw) });
    0
}

/// The device of a context.
///
/// # Safety
///
/// `context` is of a fake device that lives.
unsafe fn device<'a>(context: *mut ibv_context) -> &'a Device {
    let before = offset_of!(Device, extended) + offset_of!(verbs_context, context);
    // SAFETY: as the caller promises, and each device is made with its context.
    unsafe { &*context.byte_sub(before).cast::<Device>() }
}

impl Device {
    /// Notes what was made, in which domain, or given back.
    fn note(&self, call: impl Into<String>) {
        self.calls.borrow_mut().push(call.into());
    }
}

unsafe extern "C" fn get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    // SAFETY: the caller's number may be written, and the device of this thread lives.
    unsafe {
        *count = 1;
        (&raw mut (*DEVICE.get()).list).cast()
    }
}

unsafe extern "C" fn free_devices(_: *mut *mut ibv_context) {}

unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the device lives.
    unsafe { (&raw const (*device).name).cast() }
}

unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    attributes: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the context is of a fake device, and the structure may be written.
    let (card, attributes) = unsafe { (&device(context).card, &mut *attributes) };
    attributes.max_qp = 1024;
    attributes.max_qp_wr = 1024;
    attributes.max_sge = 16;
    attributes.max_sge_rd = 16;
    attributes.max_cqe = 1 << 16;
    attributes.max_qp_rd_atom = 16;
    attributes.max_qp_init_rd_atom = 16;
    attributes.max_mw = card.windows_reported;
    attributes.max_srq = card.shared_receive_queues;
    attributes.max_srq_wr = 1024;
    attributes.max_srq_sge = 16;
    attributes.phys_port_cnt = 1;
    attributes.device_cap_flags = ibv_device_cap_flags::IBV_DEVICE_MEM_MGT_EXTENSIONS.0;
    if card.reports_windows {
        attributes.device_cap_flags |= ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
    }
    0
}

unsafe extern "C" fn query_port(
    _: *mut ibv_context,
    _: u8,
    attributes: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's structure is a whole one.
    let attributes = unsafe { &mut *attributes.cast::<ibv_port_attr>() };
    // SAFETY: the device of this thread lives until its fake is dropped.
    let device = unsafe { DEVICE.get().as_ref() };
    attributes.state = match device.is_some_and(|device| device.is_down.get()) {
        true => ibv_port_state::IBV_PORT_DOWN,
        false => ibv_port_state::IBV_PORT_ACTIVE,
    };
    attributes.active_mtu = ibv_mtu::IBV_MTU_1024;
    attributes.max_msg_sz = 1 << 30;
    0
}

unsafe extern "C" fn query_gid(
    _: *mut ibv_context,
    _: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    if index != 0 {
        return libc::EINVAL;
    }
    // SAFETY: the address may be written.
    unsafe { (*gid).raw = [1; 16] };
    0
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the domain lives.
    let device = unsafe { device((*pd).context) };
    let access = c_uint::try_from(access).unwrap_or(0);
    device.accesses.borrow_mut().push(access);
    // SAFETY: as above.
    unsafe {
        device.note(domains::within("region", pd));
        domains::use_by_one(pd);
    }
    let key = NEXT.fetch_add(1, Ordering::Relaxed) << 8;
    object(|mr: &mut ibv_mr| {
        // SAFETY: the domain lives.
        mr.context = unsafe { (*pd).context };
        (mr.pd, mr.addr, mr.length, mr.lkey, mr.rkey) = (pd, addr, length, key, key);
    })
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _address: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the domain lives.
    if !unsafe { device((*pd).context) }.card.relaxes {
        return refuse(libc::EINVAL);
    }
    // SAFETY: as the caller promises.
    unsafe { reg_mr(pd, addr, length, c_int::try_from(access).unwrap_or(0)) }
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: from `reg_mr`, and its domain lives.
    unsafe {
        domains::end_of_use((*mr).pd);
        free(mr)
    }
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    use std::os::fd::IntoRawFd;
    object(|channel: &mut ibv_comp_channel| {
        channel.context = context;
        channel.fd = descriptor().into_raw_fd();
    })
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: from `create_comp_channel`, which opened the descriptor.
    unsafe {
        libc::close((*channel).fd);
        free(channel)
    }
}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: numbers and pointers, for which zero is a value.
    let mut queue: ibv_cq = unsafe { std::mem::zeroed() };
    (queue.context, queue.cqe, queue.cq_context, queue.channel) =
        (context, cqe, cq_context, channel);
    let done = RefCell::default();
    // SAFETY: the context is of a fake device.
    unsafe { device(context) }.note("completion queue");
    Box::into_raw(Box::new(Queue { queue, done })).cast()
}

unsafe extern "C" fn destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: from `create_cq`.
    unsafe { free(queue.cast::<Queue>()) }
}

unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, most: c_int, into: *mut ibv_wc) -> c_int {
    // SAFETY: from `create_cq`.
    let mut done = unsafe { &*queue.cast::<Queue>() }.done.borrow_mut();
    let mut count = 0;
    while count < most
        && let Some(completion) = done.pop_front()
    {
        // SAFETY: there is room for `most`.
        unsafe { into.offset(count as isize).write(completion) };
        count += 1;
    }
    count
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the domain lives.
    let (device, is_parent) = unsafe { (device((*pd).context), domains::is_parent(pd)) };
    if is_parent && device.card.thread_domains == ThreadDomains::WithoutQueuePairs {
        return refuse(libc::EINVAL);
    }
    // SAFETY: as above.
    unsafe {
        device.note(domains::within("queue pair", pd));
        domains::use_by_one(pd);
    }
    object(|pair: &mut ibv_qp| {
        // SAFETY: the domain lives, and the structure is whole.
        let attributes = unsafe {
            pair.context = (*pd).context;
            &*attributes
        };
        pair.pd = pd;
        pair.qp_context = attributes.qp_context;
        pair.send_cq = attributes.send_cq;
        pair.qp_num = NEXT.fetch_add(1, Ordering::Relaxed);
    })
}

unsafe extern "C" fn modify_qp(pair: *mut ibv_qp, _: *mut ibv_qp_attr, _mask: c_int) -> c_int {
    // SAFETY: from `create_qp`.
    let card = unsafe { device((*pair).context) }.card;
    if card.connects { 0 } else { libc::EINVAL }
}

unsafe extern "C" fn destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: from `create_qp`, and its domain lives.
    unsafe {
        device((*pair).context).note("end of queue pair");
        domains::end_of_use((*pair).pd);
        free(pair)
    }
}

unsafe extern "C" fn create_srq(pd: *mut ibv_pd, _: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the domain lives.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    unsafe {
        device(context).note(domains::within("shared receive queue", pd));
        domains::use_by_one(pd);
    }
    object(|queue: &mut ibv_srq| (queue.context, queue.pd) = (context, pd))
}

unsafe extern "C" fn destroy_srq(queue: *mut ibv_srq) -> c_int {
    // SAFETY: from `create_srq`, and its domain lives.
    unsafe {
        domains::end_of_use((*queue).pd);
        free(queue)
    }
}

unsafe extern "C" fn post_srq_recv(
    _: *mut ibv_srq,
    _: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    0
}

unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type::Type) -> *mut ibv_mw {
    // SAFETY: the domain lives.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    let device = unsafe { device(context) };
    if !device.card.allocates || kind != ibv_mw_type::IBV_MW_TYPE_2 {
        return refuse(libc::EOPNOTSUPP);
    }
    if device.windows.get() == device.card.windows_max {
        return refuse(libc::ENOMEM);
    }
    device.windows.set(device.windows.get() + 1);
    // SAFETY: as above.
    unsafe {
        device.note(domains::within("window", pd));
        domains::use_by_one(pd);
    }
    object(|window: &mut ibv_mw| {
        (window.context, window.pd) = (context, pd);
        window.rkey = NEXT.fetch_add(1, Ordering::Relaxed) << 8;
    })
}

unsafe extern "C" fn dealloc_mw(window: *mut ibv_mw) -> c_int {
    // SAFETY: from `alloc_mw`, and its domain lives.
    unsafe {
        domains::end_of_use((*window).pd);
        let windows = &device((*window).context).windows;
        windows.set(windows.get() - 1);
        free(window)
    }
}

unsafe extern "C" fn post_send(
    pair: *mut ibv_qp,
    first: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the queue pair lives.
    let card = unsafe { device((*pair).context) }.card;
    let mut next = first;
    // SAFETY: a chain of work requests that ends with null.
    while let Some(request) = unsafe { next.as_ref() } {
        let (takes, fails) = match request.opcode {
            ibv_wr_opcode::IBV_WR_BIND_MW => (card.binds, card.bind_fails),
            ibv_wr_opcode::IBV_WR_LOCAL_INV => (card.invalidates, false),
            ibv_wr_opcode::IBV_WR_SEND_WITH_INV => (card.sends_invalidate, false),
            _ => (true, false),
        };
        if !takes {
            // SAFETY: the caller's pointer may be written.
            unsafe { *bad = next };
            return libc::EINVAL;
        }
        // SAFETY: numbers, for which zero is a value.
        let mut completion: ibv_wc = unsafe { std::mem::zeroed() };
        completion.wr_id = request.wr_id;
        // SAFETY: the queue pair lives, and its queue from `create_cq`.
        let queue = unsafe {
            completion.qp_num = (*pair).qp_num;
            &*(*pair).send_cq.cast::<Queue>()
        };
        if fails {
            completion.status = ibv_wc_status::IBV_WC_MW_BIND_ERR;
        }
        queue.done.borrow_mut().push_back(completion);
        next = request.next;
    }
    0
}

unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the context is of a fake device.
    let Some(waiting) = unsafe { device(context) }.events.borrow_mut().pop_front() else {
        refuse::<()>(libc::EAGAIN);
        return -1;
    };
    // SAFETY: the caller's event may be written, as a whole.
    unsafe { event.cast::<MaybeUninit<ibv_async_event>>().write(waiting) };
    0
}

unsafe extern "C" fn ack_async_event(_: *mut ibv_async_event) {}
