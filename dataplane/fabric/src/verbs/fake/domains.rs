//! Protection domains, thread domains and parent domains of the fake device.
//!
//! As in the library of a real one, a domain is not given back while something is in it.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::without_provenance_mut;

use super::{device, free, object, refuse};
use crate::verbs::bindings::extended::{VERBS_ABI_IS_EXTENDED, verbs_context};
use crate::verbs::bindings::{
    ibv_context, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};

/// What the library has of thread domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::verbs) enum ThreadDomains {
    /// All of them.
    Work,
    /// Nothing is around its contexts.
    OldContext,
    /// The structure around its contexts is too short for them.
    ShortContext,
    /// It has left the operations out.
    NoOperations,
    /// Thread domains are refused.
    Refused,
    /// Parent domains are refused.
    WithoutParents,
    /// A thread domain has one parent domain, and a second one is refused.
    OneParent,
    /// Queue pairs in a parent domain are refused.
    WithoutQueuePairs,
}

/// A protection domain or a parent domain.
#[repr(C)]
struct Domain {
    pd: ibv_pd,
    /// What a parent domain joins; both are null in a protection domain.
    protection: *mut ibv_pd,
    thread: *mut ibv_td,
    users: Cell<u32>,
}

#[repr(C)]
struct Thread {
    td: ibv_td,
    users: Cell<u32>,
}

/// Adds the operations to a context.
pub(super) fn add(extended: &mut verbs_context, has: ThreadDomains) {
    if has != ThreadDomains::OldContext {
        extended.context.abi_compat = without_provenance_mut::<c_void>(VERBS_ABI_IS_EXTENDED);
    }
    extended.sz = size_of::<verbs_context>();
    if has == ThreadDomains::ShortContext {
        // One byte of the last of the three, which is the nearest to the context.
        extended.sz -= std::mem::offset_of!(verbs_context, alloc_td) + 1;
    }
    if has != ThreadDomains::NoOperations {
        extended.alloc_td = Some(alloc_td);
        extended.dealloc_td = Some(dealloc_td);
        extended.alloc_parent_domain = Some(alloc_parent_domain);
    }
}

/// The name of an object with the kind of its domain.
///
/// # Safety
///
/// `pd` lives.
pub(super) unsafe fn within(object: &str, pd: *mut ibv_pd) -> String {
    // SAFETY: as the caller promises.
    let kind = if unsafe { is_parent(pd) } {
        "parent"
    } else {
        "protection"
    };
    format!("{object} in {kind} domain")
}

/// # Safety
///
/// `pd` lives.
pub(super) unsafe fn is_parent(pd: *mut ibv_pd) -> bool {
    // SAFETY: as the caller promises; each is made as a `Domain`.
    !unsafe { &*pd.cast::<Domain>() }.protection.is_null()
}

/// # Safety
///
/// `pd` lives.
pub(super) unsafe fn use_by_one(pd: *mut ibv_pd) {
    // SAFETY: as the caller promises; each is made as a `Domain`.
    let users = unsafe { &(*pd.cast::<Domain>()).users };
    users.set(users.get() + 1);
}

/// # Safety
///
/// `pd` lives, and was used by one more.
pub(super) unsafe fn end_of_use(pd: *mut ibv_pd) {
    // SAFETY: as the caller promises; each is made as a `Domain`.
    let users = unsafe { &(*pd.cast::<Domain>()).users };
    users.set(users.get() - 1);
}

pub(super) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the context is of a fake device.
    unsafe { device(context) }.note("protection domain");
    object(|domain: &mut Domain| domain.pd.context = context).cast()
}

pub(super) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: from `alloc_pd` or `alloc_parent_domain`.
    let domain = unsafe { &*pd.cast::<Domain>() };
    // SAFETY: its context is of a fake device.
    let device = unsafe { device(domain.pd.context) };
    if domain.users.get() > 0 {
        device.note("domain is in use");
        return libc::EBUSY;
    }
    // SAFETY: it lives.
    if unsafe { is_parent(pd) } {
        device.note("end of parent domain");
        // SAFETY: both live, because they are in use.
        unsafe {
            end_of_use(domain.protection);
            let users = &(*domain.thread.cast::<Thread>()).users;
            users.set(users.get() - 1);
        }
    } else {
        device.note("end of protection domain");
    }
    // SAFETY: as above, and given back once.
    unsafe { free(pd.cast::<Domain>()) }
}

unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attributes: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    // SAFETY: the context is of a fake device, and the structure is whole.
    let (device, mask) = unsafe { (device(context), (*attributes).comp_mask) };
    if mask != 0 || device.card.thread_domains == ThreadDomains::Refused {
        return refuse(libc::EOPNOTSUPP);
    }
    device.note("thread domain");
    object(|thread: &mut Thread| thread.td.context = context).cast()
}

unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    // SAFETY: from `alloc_td`.
    let thread = unsafe { &*td.cast::<Thread>() };
    // SAFETY: its context is of a fake device.
    let device = unsafe { device(thread.td.context) };
    if thread.users.get() > 0 {
        device.note("thread domain is in use");
        return libc::EBUSY;
    }
    device.note("end of thread domain");
    // SAFETY: as above, and given back once.
    unsafe { free(td.cast::<Thread>()) }
}

unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attributes: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    // SAFETY: the context is of a fake device, and the structure is whole.
    let (device, attributes) = unsafe { (device(context), &*attributes) };
    let is_wrong = attributes.pd.is_null() || attributes.td.is_null();
    if is_wrong || attributes.comp_mask != 0 {
        return refuse(libc::EINVAL);
    }
    if device.card.thread_domains == ThreadDomains::WithoutParents {
        return refuse(libc::EOPNOTSUPP);
    }
    // SAFETY: the thread domain lives.
    let users = unsafe { &(*attributes.td.cast::<Thread>()).users };
    if device.card.thread_domains == ThreadDomains::OneParent && users.get() > 0 {
        return refuse(libc::ENOMEM);
    }
    users.set(users.get() + 1);
    // SAFETY: the protection domain lives.
    unsafe { use_by_one(attributes.pd) };
    device.note("parent domain");
    object(|domain: &mut Domain| {
        domain.pd.context = context;
        (domain.protection, domain.thread) = (attributes.pd, attributes.td);
    })
    .cast()
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::super::*;
    use super::{alloc_pd, dealloc_pd};

    #[test]
    fn domain_is_not_given_back_while_something_is_in_it() {
        let fake = Fake::install(Card::HONEST);
        // SAFETY: the objects are of the fake device, which lives, and each is given back once.
        unsafe {
            let domain = alloc_pd(fake.device.list[0]);
            let region = reg_mr(domain, null_mut(), 0, 0);
            assert_eq!(dealloc_pd(domain), libc::EBUSY);
            dereg_mr(region);
            let window = alloc_mw(domain, ibv_mw_type::IBV_MW_TYPE_2);
            assert_eq!(dealloc_pd(domain), libc::EBUSY);
            dealloc_mw(window);
            let queue = create_srq(domain, null_mut());
            assert_eq!(dealloc_pd(domain), libc::EBUSY);
            destroy_srq(queue);
            assert_eq!(dealloc_pd(domain), 0);
        }
    }
}
