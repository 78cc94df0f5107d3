//! Changes the states of a queue pair. RDMA-CM supplies the attributes; this module corrects some and
//! adds those that it leaves out.

use std::ffi::c_int;
use std::io;

use super::ManagerOptions;
use super::negotiate::ReadDepths;
use crate::interface::SetupError;
use crate::verbs::bindings::{ibv_access_flags, ibv_qp_attr, ibv_qp_state};
use crate::verbs::cm::id::Id;
use crate::verbs::queue_pair::QueuePair;

/// The attributes of basic verbs, bits 0 to 20. Some kernels set higher bits in the mask, which
/// libibverbs refuses.
const BASIC_ATTRIBUTES: c_int = (1 << 21) - 1;

/// Takes a queue pair to Init. The device's port and partition must be known.
pub(super) fn to_init(id: &mut Id, queue_pair: &QueuePair) -> Result<(), SetupError> {
    let doing = "the queue pair could not be initialized for its port";
    modify(
        id,
        queue_pair,
        ibv_qp_state::IBV_QPS_INIT,
        doing,
        |attributes| {
            // The queue pair must allow what any window may grant. RDMA-CM would allow remote Reads
            // only after the request has named responder resources, which is later than Init.
            let access = ibv_access_flags::IBV_ACCESS_REMOTE_READ.0
                | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
            attributes.qp_access_flags = access;
        },
    )
}

/// Takes a queue pair to Ready to Receive and Ready to Send. The peer must be known.
pub(super) fn to_ready(
    id: &mut Id,
    queue_pair: &QueuePair,
    depths: ReadDepths,
    options: &ManagerOptions,
) -> Result<(), SetupError> {
    let doing = "the queue pair could not be made ready to receive";
    modify(
        id,
        queue_pair,
        ibv_qp_state::IBV_QPS_RTR,
        doing,
        |attributes| {
            attributes.max_dest_rd_atomic = depths.responder_resources;
            // RDMA-CM leaves 0, the code of the longest delay: 655 ms before each retry of the peer.
            attributes.min_rnr_timer = options.min_rnr_timer_code;
        },
    )?;
    let doing = "the queue pair could not be made ready to send";
    modify(
        id,
        queue_pair,
        ibv_qp_state::IBV_QPS_RTS,
        doing,
        |attributes| {
            attributes.max_rd_atomic = depths.initiator_depth;
            attributes.timeout = options.ack_timeout_exponent;
            attributes.retry_cnt = options.retry_count;
            // RDMA-CM uses the number that the peer sent. The Linux server sends 0: the first message
            // that finds no Receive would end the connection.
            attributes.rnr_retry = options.rnr_retry_count;
        },
    )
}

fn modify(
    id: &mut Id,
    queue_pair: &QueuePair,
    state: ibv_qp_state::Type,
    doing: &str,
    set: impl FnOnce(&mut ibv_qp_attr),
) -> Result<(), SetupError> {
    let modified = || -> io::Result<()> {
        let (mut attributes, mask) = id.queue_pair_attributes(state)?;
        set(&mut attributes);
        queue_pair.modify(&mut attributes, mask & BASIC_ATTRIBUTES)
    };
    modified().map_err(|source| SetupError::System {
        doing: doing.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::bindings::ibv_qp_attr_mask;

    #[test]
    fn the_basic_attributes_are_those_up_to_the_destination() {
        let last = ibv_qp_attr_mask::IBV_QP_DEST_QPN.0;
        assert_eq!(c_int::try_from(last), Ok(1 << 20));
        assert_eq!(BASIC_ATTRIBUTES & (1 << 20), 1 << 20);
        assert_eq!(BASIC_ATTRIBUTES & (1 << 21), 0);
    }
}
