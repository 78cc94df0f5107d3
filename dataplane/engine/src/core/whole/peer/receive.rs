//! What a peer takes note of in the messages of the core.

use rpcrdma_fabric::interface::prelude::*;
use rpcrdma_fabric::interface::{RemoteAddress, RemoteKey};
use rpcrdma_protocol::v2::connection::Role;

use super::super::groups::GroupOfCore;
use super::super::messages::{
    ERROR, GROUP_CONTINUE, GROUP_REQUEST, MORE, MSG, NOMSG, PROPERTIES, word,
};
use super::super::step::Told;
use super::{CallOfCore, Kind, OF_CORE, Peer};

impl Peer {
    pub(super) fn close_window(&mut self, key: RemoteKey) {
        let Some(link) = &mut self.link else { return };
        let port = &mut self.port;
        let mut windows = link.windows.iter_mut();
        let closed = windows.find_map(|it| it.take_if(|window| port.window_has_key(window, key)));
        if let Some(window) = closed {
            let buffer = port.close_window(window);
            self.pool.give(buffer.expect("the peer has invalidated it"));
        }
    }

    /// Takes note of a message of the core. Whether it took a credit.
    pub(super) fn take(&mut self, message: &[u8]) -> bool {
        let Some(link) = &mut self.link else {
            return false;
        };
        let at = |index| word(message, index);
        let (Some(xid), Some(version), Some(credit), Some(kind)) = (at(0), at(1), at(2), at(3))
        else {
            panic!("the core sends whole headers");
        };
        if version == 1 {
            link.is_version_1 = true;
            if xid & OF_CORE == 0 {
                link.v1_granted = credit;
                link.v1_waiting = link.v1_waiting.saturating_sub(1);
                self.take_answer(xid);
            } else if kind <= NOMSG {
                self.take_call(xid, message, 4);
            }
            return false;
        }
        if version != 2 {
            // An error that says which versions there are has the version that it is about.
            assert_eq!(kind, ERROR, "version {version}");
            if xid & OF_CORE == 0 {
                self.take_answer(xid);
            }
            return false;
        }
        if kind != ERROR {
            link.credits += credit & 0xffff;
        }
        if kind == NOMSG && message.len() == 36 && message[20..].iter().all(|byte| *byte == 0) {
            return false;
        }
        let flags = if kind == ERROR { 0 } else { at(4).unwrap_or(0) };
        if kind == PROPERTIES {
            self.take_properties();
        } else if kind == GROUP_CONTINUE {
            // An answer was counted by its first transmission.
            self.take_continue(xid);
        } else if flags & MORE != 0 && kind == MSG {
            // It is counted by its last part.
        } else if xid & OF_CORE == 0 {
            self.take_answer(xid);
        } else if kind <= NOMSG {
            self.take_call(xid, message, 6);
        } else if kind == GROUP_REQUEST {
            self.take_group(xid, message);
        }
        if self.kind == Kind::Partner {
            self.take_as_partner(xid, kind, flags, message);
        }
        true
    }

    fn take_answer(&mut self, xid: u32) {
        let Some(link) = &mut self.link else { return };
        link.answer_last = Some(xid);
        let said = link.said.get_mut(&xid);
        let said = said.unwrap_or_else(|| panic!("an answer to {xid}, which was not asked"));
        said.answers += 1;
        // Another answer is to nothing.
        if said.answers == said.messages {
            link.said.remove(&xid);
        }
        if let Some((waiting, _)) = link.waiting
            && waiting == xid
        {
            link.waiting = None;
            self.served += 1;
        }
    }

    fn take_properties(&mut self) {
        match self.kind {
            Kind::Server => self.tell(Told::Plain),
            Kind::Hostile(Role::Client) if !self.withholds => {
                let told = if self.places() {
                    Told::Placing
                } else {
                    Told::Plain
                };
                self.tell(told);
            }
            _ => {}
        }
    }

    fn take_call(&mut self, xid: u32, message: &[u8], lists: usize) {
        let Some(link) = &mut self.link else { return };
        let lists = Lists::read(message, lists);
        let memory = lists.offered.iter().chain(&lists.readable);
        link.exposed.extend(memory.map(|(at, _)| *at));
        link.calls.push_back(CallOfCore {
            xid,
            results: arguments(message, lists.end, message.len() / 4),
            offered: lists.offered,
            readable: lists.readable,
            group: None,
        });
    }

    /// The first transmission of a call of the core.
    fn take_group(&mut self, xid: u32, message: &[u8]) {
        let Some(link) = &mut self.link else { return };
        let group = GroupOfCore::read(message);
        link.group_last = Some(xid);
        let call = CallOfCore {
            xid,
            results: arguments(message, group.stream_at, group.stream_end),
            offered: Vec::new(),
            readable: Vec::new(),
            group: Some(group),
        };
        if group.transmissions > 1 {
            link.arriving = Some((call, group.transmissions - 1));
        } else {
            link.calls.push_back(call);
        }
    }

    fn take_continue(&mut self, xid: u32) {
        let Some(link) = &mut self.link else { return };
        let arriving = link.arriving.take_if(|(call, _)| call.xid == xid);
        match arriving {
            Some((call, 1)) => link.calls.push_back(call),
            Some((call, left)) => link.arriving = Some((call, left - 1)),
            None => {}
        }
    }
}

/// The arguments of a call of the core with this stream: as many as one message holds beside chunk lists.
fn arguments(message: &[u8], stream_at: usize, stream_end: usize) -> Vec<u32> {
    // Behind the header of an RPC call without credentials.
    let all = (stream_at + 10..stream_end).filter_map(|at| word(message, at));
    all.take(600).collect()
}

/// The chunk lists of a message of the core.
struct Lists {
    /// The segments of the Read list, and of the first Write chunk.
    readable: Vec<(RemoteAddress, u32)>,
    offered: Vec<(RemoteAddress, u32)>,
    /// The word behind them.
    end: usize,
}

impl Lists {
    fn read(message: &[u8], mut at: usize) -> Self {
        let word = |at| word(message, at).unwrap_or(0);
        let segment = |at: usize| {
            let address = RemoteAddress {
                key: RemoteKey(word(at)),
                offset: u64::from(word(at + 2)) << 32 | u64::from(word(at + 3)),
            };
            (address, word(at + 1))
        };
        let (mut readable, mut offered) = (Vec::new(), Vec::new());
        while word(at) == 1 {
            readable.push(segment(at + 2));
            at += 6;
        }
        at += 1;
        while word(at) == 1 {
            let segments = word(at + 1) as usize;
            if offered.is_empty() {
                offered.extend((0..segments).map(|number| segment(at + 2 + 4 * number)));
            }
            at += 2 + 4 * segments;
        }
        at += 1;
        if word(at) == 1 {
            at += 1 + 4 * word(at + 1) as usize;
        }
        Self {
            readable,
            offered,
            end: at + 1,
        }
    }
}
