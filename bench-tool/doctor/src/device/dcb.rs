//! Reads priority flow control (PFC). The kernel reports it by netlink only, and needs no privilege for that.
//!
//! One request and its answer, of the interface of the kernel for data center bridging (`linux/dcbnl.h`, IEEE
//! 802.1Qaz). A message has a netlink header, a DCB header, and attributes.

use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// The length of the netlink header and the DCB header.
const HEADERS_BYTES: usize = 20;

/// The length of the header of an attribute: the length of the attribute, which includes this header, and its kind.
const ATTRIBUTE_BYTES: usize = 4;

const RTM_GETDCB: u16 = 78;
const NLM_F_REQUEST: u16 = 1;
const DCB_CMD_IEEE_GET: u8 = 21;
const DCB_ATTR_IFNAME: u16 = 1;
const DCB_ATTR_IEEE: u16 = 13;
const DCB_ATTR_IEEE_PFC: u16 = 2;

/// The octet of the PFC attribute that has one bit per priority, set if PFC is on.
const PFC_ENABLED: usize = 1;

/// The timeout for the answer. The kernel answers within the call that sends the request, so it only guards against a
/// kernel that does not answer.
const ANSWER_MS: u64 = 100;

/// The priorities of a network device with PFC; `None` if its driver does not give them.
pub(crate) fn pfc_priorities(netdev: &str) -> Option<Vec<u8>> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        None,
    )
    .ok()?;
    set_socket_timeout(
        &socket,
        Timeout::Recv,
        Some(Duration::from_millis(ANSWER_MS)),
    )
    .ok()?;
    rustix::net::send(&socket, &question(netdev)?, SendFlags::empty()).ok()?;
    // The answer with all attributes is shorter than 2000 octets.
    let mut answer = vec![0; 16 << 10];
    let (_, length) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty()).ok()?;
    enabled(answer.get(..length)?)
}

/// The request for the IEEE 802.1Qaz settings of a network device.
fn question(netdev: &str) -> Option<Vec<u8>> {
    let name_bytes = ATTRIBUTE_BYTES + netdev.len() + 1;
    let length = HEADERS_BYTES + name_bytes.next_multiple_of(4);
    let mut message = Vec::with_capacity(length);
    message.extend(u32::try_from(length).ok()?.to_ne_bytes());
    message.extend(RTM_GETDCB.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    // Sequence number and port stay zero: the socket sends one request only, so the answer needs no match.
    message.extend([0; 8]);
    message.extend([0, DCB_CMD_IEEE_GET, 0, 0]);
    message.extend(u16::try_from(name_bytes).ok()?.to_ne_bytes());
    message.extend(DCB_ATTR_IFNAME.to_ne_bytes());
    message.extend(netdev.as_bytes());
    message.resize(length, 0);
    Some(message)
}

/// The priorities with PFC in the answer of the kernel.
fn enabled(answer: &[u8]) -> Option<Vec<u8>> {
    let kind = answer.get(4..6)?;
    if kind != RTM_GETDCB.to_ne_bytes() {
        return None;
    }
    let ieee = attribute(answer.get(HEADERS_BYTES..)?, DCB_ATTR_IEEE)?;
    let bits = *attribute(ieee, DCB_ATTR_IEEE_PFC)?.get(PFC_ENABLED)?;
    Some(
        (0..8)
            .filter(|priority| bits >> priority & 1 == 1)
            .collect(),
    )
}

/// The contents of the first attribute of the wanted kind.
fn attribute(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    /// The two highest bits of a kind are flags for the encoding of the attribute.
    const KIND: u16 = (1 << 14) - 1;
    loop {
        let [l0, l1, k0, k1, ..] = *attributes else {
            return None;
        };
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let held = attributes.get(ATTRIBUTE_BYTES..length)?;
        if u16::from_ne_bytes([k0, k1]) & KIND == wanted {
            return Some(held);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attribute, filled up to four octets.
    fn attribute_of(kind: u16, held: &[u8]) -> Vec<u8> {
        let length = u16::try_from(ATTRIBUTE_BYTES + held.len()).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(held);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    /// An answer as the kernel lays it out: the name of the device, then ETS and PFC.
    fn answer(pfc: &[u8]) -> Vec<u8> {
        const NLA_F_NESTED: u16 = 1 << 15;
        let ieee = [
            attribute_of(1, &[7; 59]),
            attribute_of(DCB_ATTR_IEEE_PFC, pfc),
        ]
        .concat();
        let mut bytes = vec![0; HEADERS_BYTES];
        bytes[4..6].copy_from_slice(&RTM_GETDCB.to_ne_bytes());
        bytes.extend(attribute_of(DCB_ATTR_IFNAME, b"eth2\0"));
        bytes.extend(attribute_of(DCB_ATTR_IEEE | NLA_F_NESTED, &ieee));
        bytes
    }

    #[test]
    fn priorities_are_read_from_the_answer() {
        for (bits, priorities) in [
            (0b0000_1000, vec![3]),
            (0b1000_0001, vec![0, 7]),
            (0, vec![]),
        ] {
            // Capability, the bits, and the rest of the 136 octets of the kernel's structure.
            let mut pfc = [0; 136];
            (pfc[0], pfc[1]) = (8, bits);
            assert_eq!(enabled(&answer(&pfc)), Some(priorities));
        }
    }

    #[test]
    fn answers_that_are_cut_off_or_make_no_sense_say_nothing() {
        let whole = answer(&[8, 8, 0, 0]);
        assert_eq!(enabled(&whole), Some(vec![3]));
        for length in 0..whole.len() {
            assert_eq!(enabled(&whole[..length]), None, "{length}");
        }
        // Every attribute may say that it is of any length.
        for at in HEADERS_BYTES..whole.len() {
            for octet in [0, 1, 3, 4, 5, 255] {
                let mut spoilt = whole.clone();
                spoilt[at] = octet;
                let _ = enabled(&spoilt);
            }
        }
        let mut error = whole;
        error[4..6].copy_from_slice(&2_u16.to_ne_bytes());
        assert_eq!(enabled(&error), None, "the kernel's NLMSG_ERROR");
        assert_eq!(enabled(&answer(&[8])), None, "too short for PFC");
    }

    #[test]
    fn a_question_names_the_device_and_fills_its_length() {
        for name in ["lo", "eth", "eth0", "enp59s0f0np0"] {
            let question = question(name).unwrap();
            assert_eq!(question.len() % 4, 0);
            let length = u32::try_from(question.len()).unwrap();
            assert_eq!(question[..4], length.to_ne_bytes());
            let held = attribute(&question[HEADERS_BYTES..], DCB_ATTR_IFNAME);
            let held = held.unwrap().strip_suffix(b"\0");
            assert_eq!(held, Some(name.as_bytes()));
        }
    }

    #[test]
    fn devices_without_flow_control_say_nothing() {
        assert_eq!(pfc_priorities("lo"), None);
        assert_eq!(pfc_priorities("there-is-none"), None);
    }
}
