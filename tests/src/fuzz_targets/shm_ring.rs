//! Records of the ring of `shm`, as a hostile peer writes them: no Receive and no buffer is lost.

use std::cell::RefCell;

use rpcrdma_fabric::testing::HostileRing;

pub(super) fn run(data: &[u8]) {
    thread_local! {
        // Its memory is made once; each input has a connection of its own.
        static RING: RefCell<HostileRing> = RefCell::new(HostileRing::new().expect("two small ports"));
    }
    RING.with_borrow_mut(|ring| ring.take(data).expect("one more channel"));
}
