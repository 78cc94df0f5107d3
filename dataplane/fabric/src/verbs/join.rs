//! Joins two ports of one device without a connection manager, for tests and for pairs of threads.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use super::bindings::{
    self, ibv_access_flags, ibv_gid, ibv_mtu, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask as mask,
    ibv_qp_state,
};
use super::context::Context;
use super::errno::{done, failed};
use super::link::PortHandle;
use super::manager::connected_pair;
use super::port::Port;
use super::queue_pair::{PreparedQueuePair, QueuePair, modify};
use crate::interface::prelude::*;
use crate::interface::{QueuePairId, ReceiveQueueId, SetupError};

/// The device's first port.
const PORT: u8 = 1;
/// The first packet sequence number, in both directions (24 bits).
const FIRST_PACKET: u32 = 1;
/// The code of the receiver-not-ready timer: 0.64 ms (InfiniBand volume 1, section 9.7.5.2.8).
const MIN_RNR_TIMER: u8 = 12;
/// The exponent of the ACK timeout: 4.096 µs × 2¹⁴ = 67 ms.
const ACK_TIMEOUT: u8 = 14;
/// Retries before a connection to a silent peer ends. The maximum is 7, but soft-RoCE retries without
/// limit then, and the connection would never end.
const RETRIES: u8 = 6;
/// Retries when the peer has no Receive posted; 7 is unlimited.
const RNR_RETRIES: u8 = 7;

/// Joins two ports by a pair of connected queue pairs, adopted at both ends. They use the first port of
/// the same device, on Ethernet. On iWARP RDMA-CM connects them, at an address of the device.
///
/// # Errors
///
/// When a port has no queue pair left, or the device refuses.
pub fn join(
    a: &mut Port,
    a_handle: &PortHandle,
    b: &mut Port,
    b_handle: &PortHandle,
    queues: (ReceiveQueueId, ReceiveQueueId),
) -> Result<(QueuePairId, QueuePairId), SetupError> {
    let a_handle = &a_handle.drawing_from(queues.0);
    let b_handle = &b_handle.drawing_from(queues.1);
    let (a_prepared, b_prepared) = prepared_pair(a_handle, b_handle)?;
    Ok((
        a.adopt_queue_pair(a_prepared, queues.0)?,
        b.adopt_queue_pair(b_prepared, queues.1)?,
    ))
}

/// A pair of connected queue pairs for two ports, ready to send.
///
/// # Errors
///
/// As [`join`].
pub fn prepared_pair(
    a: &PortHandle,
    b: &PortHandle,
) -> Result<(PreparedQueuePair, PreparedQueuePair), SetupError> {
    if a.context().limits().iwarp {
        let (a_pair, b_pair) = connected_pair(a, b)?;
        return Ok((established(a_pair), established(b_pair)));
    }
    let (a_pair, b_pair) = (QueuePair::create(a)?, QueuePair::create(b)?);
    let (index, gid) = gid(a.context())?;
    let mut prepared_pair = [(a, a_pair, b), (b, b_pair, a)].map(Some);
    let numbers = [1, 0].map(|other: usize| {
        let pair = prepared_pair[other].as_ref();
        pair.map_or(0, |(_, pair, _)| pair.number())
    });
    let mut connect = |end: usize| -> Result<PreparedQueuePair, SetupError> {
        let Some((own, pair, peer)) = prepared_pair[end].take() else {
            return Err(failed("joining")(io::ErrorKind::Other.into()));
        };
        let reads = own.initiator_depth().min(peer.responder_resources());
        let serves = own.responder_resources().min(peer.initiator_depth());
        connect(
            own.context(),
            pair.raw(),
            numbers[end],
            (index, gid),
            reads,
            serves,
        )
        .map_err(failed("a queue pair could not be connected"))?;
        Ok(PreparedQueuePair {
            queue_pair: pair,
            initiator_depth: reads,
            established: true,
        })
    };
    Ok((connect(0)?, connect(1)?))
}

/// One end on iWARP. The depth is zero because no end posts RDMA Reads there.
fn established(queue_pair: QueuePair) -> PreparedQueuePair {
    PreparedQueuePair {
        queue_pair,
        initiator_depth: 0,
        established: true,
    }
}

/// Takes a queue pair of the device's first port from Reset to Ready to Send.
fn connect(
    context: &Context,
    pair: NonNull<ibv_qp>,
    peer: u32,
    (index, gid): (u8, ibv_gid),
    reads: u8,
    serves: u8,
) -> io::Result<()> {
    // SAFETY: the structure is plain numbers, for which zero is a value.
    let mut attributes: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = ibv_qp_state::IBV_QPS_INIT;
    attributes.port_num = PORT;
    let access = ibv_access_flags::IBV_ACCESS_REMOTE_READ
        | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
        | ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    attributes.qp_access_flags = access.0;
    let fields = mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
    change(pair, &mut attributes, fields)?;

    attributes.qp_state = ibv_qp_state::IBV_QPS_RTR;
    attributes.path_mtu = context.port_mtu(PORT).unwrap_or(ibv_mtu::IBV_MTU_1024);
    attributes.dest_qp_num = peer;
    attributes.rq_psn = FIRST_PACKET;
    attributes.max_dest_rd_atomic = serves;
    attributes.min_rnr_timer = MIN_RNR_TIMER;
    attributes.ah_attr.is_global = 1;
    // On InfiniBand; zero on Ethernet.
    attributes.ah_attr.dlid = context.port_lid(PORT);
    attributes.ah_attr.port_num = PORT;
    attributes.ah_attr.grh.dgid = gid;
    attributes.ah_attr.grh.sgid_index = index;
    attributes.ah_attr.grh.hop_limit = 64;
    let fields = mask::IBV_QP_AV
        | mask::IBV_QP_PATH_MTU
        | mask::IBV_QP_DEST_QPN
        | mask::IBV_QP_RQ_PSN
        | mask::IBV_QP_MAX_DEST_RD_ATOMIC
        | mask::IBV_QP_MIN_RNR_TIMER;
    change(pair, &mut attributes, fields)?;

    attributes.qp_state = ibv_qp_state::IBV_QPS_RTS;
    attributes.timeout = ACK_TIMEOUT;
    attributes.retry_cnt = RETRIES;
    attributes.rnr_retry = RNR_RETRIES;
    attributes.sq_psn = FIRST_PACKET;
    attributes.max_rd_atomic = reads;
    let fields = mask::IBV_QP_TIMEOUT
        | mask::IBV_QP_RETRY_CNT
        | mask::IBV_QP_RNR_RETRY
        | mask::IBV_QP_SQ_PSN
        | mask::IBV_QP_MAX_QP_RD_ATOMIC;
    change(pair, &mut attributes, fields)
}

fn change(pair: NonNull<ibv_qp>, attributes: &mut ibv_qp_attr, fields: mask) -> io::Result<()> {
    let fields = mask::IBV_QP_STATE | fields;
    modify(pair, attributes, c_int::try_from(fields.0).unwrap_or(0))
}

/// Connects a queue pair of the device's first port with itself.
pub(super) fn connect_with_itself(context: &Context, pair: NonNull<ibv_qp>) -> io::Result<()> {
    let address = gid(context).map_err(|_| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    // SAFETY: the queue pair of the caller.
    let number = unsafe { pair.as_ref() }.qp_num;
    connect(context, pair, number, address, 0, 0)
}

/// An entry of the device's GID table, preferably one of an IPv4 address. On Ethernet the first entry
/// is derived from the hardware address, and entries of IPv6 addresses cannot be used in the first
/// seconds of an interface.
fn gid(context: &Context) -> Result<(u8, ibv_gid), SetupError> {
    let set = (0..=u8::MAX).map_while(|index| Some((index, gid_at(context, index)?)));
    let best = set.max_by_key(|(index, gid)| {
        // SAFETY: all bytes of the union are set.
        let raw = unsafe { gid.raw };
        (
            raw.starts_with(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]),
            *index,
        )
    });
    best.ok_or_else(|| {
        failed("the device's first port has no address")(io::ErrorKind::AddrNotAvailable.into())
    })
}

/// The GID at this index; `None` if the entry is empty.
fn gid_at(context: &Context, index: u8) -> Option<ibv_gid> {
    let mut gid = ibv_gid { raw: [0; 16] };
    let number = c_int::from(index);
    // SAFETY: an open context, and a whole address to write.
    let returned = unsafe { bindings::ibv_query_gid(context.raw(), PORT, number, &raw mut gid) };
    // SAFETY: all bytes of the union are set.
    (done(returned).is_ok() && unsafe { gid.raw } != [0; 16]).then_some(gid)
}
