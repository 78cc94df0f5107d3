//! Messages that are right, written word by word: no encoder of `rpcrdma-protocol` takes part.

use rpcrdma_testkit::Random;
use std::cmp::Ordering;

use super::oracle::Settings;
use super::oracle::wire::{CONNPROP, CONTINUE, ERROR, MSG, NOMSG, REPORT, REQUEST, RESPONSE};

/// The most credits that the peer says it will ever have granted.
pub(super) const CREDITS_MAX: u32 = 64;

/// What builds messages of one connection.
pub(super) struct Builder<'r> {
    /// The receiver.
    pub(super) settings: &'r Settings,
    /// Where choices come from.
    pub(super) random: &'r mut Random,
}

fn octets(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// An item of a group that is being built: displacement is set when the streams are known.
struct Item {
    length: u32,
    /// The words behind the length.
    place: Vec<u32>,
    is_excised: bool,
}

impl Builder<'_> {
    fn prefix(&mut self, xid: u32, header_type: u32, flags: u32) -> Vec<u32> {
        let granted = self.random.between(0, 1);
        vec![xid, 2, (CREDITS_MAX << 16) | granted, header_type, flags]
    }

    fn xid(&mut self) -> u32 {
        match self.random.below(4) {
            0 => self.random.between(0, 3),
            _ => self.random.word(),
        }
    }

    /// Payload of a call or reply: XID, message type, and a number of words.
    fn payload(&mut self, xid: u32, is_reply: bool, words: u32) -> Vec<u8> {
        let mut payload = vec![xid, u32::from(is_reply), 2];
        payload.extend((3..words).map(|word| word * 0x0101));
        octets(&payload)
    }

    fn segment(&mut self) -> [u32; 4] {
        let handle = self.random.between(1, 4);
        let length = self.random.between(0, 12) * self.random.pick(&[1, 4, 16]);
        // Far enough apart, most of the time, that two segments share nothing.
        let place = self.random.between(0, 63) * 256;
        if self.random.once_in(64) {
            return [
                handle,
                length,
                u32::MAX,
                u32::MAX - self.random.between(0, 64),
            ];
        }
        [handle, length, self.random.between(0, 1), place]
    }

    fn segments(&mut self, words: &mut Vec<u32>, count: u32) -> u32 {
        words.push(count);
        let mut total = 0;
        for _ in 0..count {
            let segment = self.segment();
            total += segment[1];
            words.extend(segment);
        }
        total
    }

    fn lists(&mut self, words: &mut Vec<u32>, positions: &[u32], writes: u32, reply: bool) {
        for position in positions {
            for _ in 0..self.random.between(1, 2) {
                words.extend([1, *position]);
                words.extend(self.segment());
            }
        }
        words.push(0);
        for _ in 0..writes {
            words.push(1);
            let count = self.random.between(0, 3);
            self.segments(words, count);
        }
        words.extend([0, u32::from(reply)]);
        if reply {
            let count = self.random.between(0, 3);
            self.segments(words, count);
        }
    }

    fn positions(&mut self, stream_words: u32) -> Vec<u32> {
        let mut at = 0;
        (0..self.random.between(0, 2))
            .map(|_| {
                at += 4 * self.random.between(2, 2 + stream_words);
                at
            })
            .collect()
    }

    /// One RPC message, with lists or without.
    pub(super) fn message(&mut self) -> Vec<Vec<u8>> {
        let (xid, is_reply) = (self.xid(), self.random.once_in(3));
        let mut words = self.prefix(xid, MSG, u32::from(is_reply));
        words.push(self.random.between(0, 4));
        let payload_words = self.random.between(3, 24);
        if self.random.once_in(3) {
            words.extend([0; 3]);
        } else {
            let positions = match is_reply {
                true => Vec::new(),
                false => self.positions(payload_words / 4),
            };
            let (writes, reply) = (self.random.between(0, 3), self.random.once_in(2));
            self.lists(&mut words, &positions, writes, reply);
        }
        let mut message = octets(&words);
        message.extend(self.payload(xid, is_reply, payload_words));
        vec![message]
    }

    /// A call in a Position-Zero Read chunk, or a reply in a Reply chunk.
    pub(super) fn long_message(&mut self) -> Vec<Vec<u8>> {
        let (xid, is_reply) = (self.xid(), self.random.once_in(3));
        let mut words = self.prefix(xid, NOMSG, u32::from(is_reply));
        words.push(self.random.between(0, 4));
        let (writes, reply) = (self.random.between(0, 2), self.random.once_in(2));
        if is_reply {
            self.lists(&mut words, &[], writes, true);
        } else {
            let mut positions = vec![0];
            positions.extend(self.positions(4));
            self.lists(&mut words, &positions, writes, reply);
        }
        vec![octets(&words)]
    }

    /// A Write list of so many chunks that no decoder takes it, or a Read list of so many segments.
    pub(super) fn many_chunks(&mut self) -> Vec<Vec<u8>> {
        let (xid, is_reply) = (self.xid(), self.random.once_in(4));
        let mut words = self.prefix(xid, MSG, u32::from(is_reply));
        words.push(0);
        if self.random.once_in(8) {
            for _ in 0..self.random.between(1023, 1026) {
                words.extend([1, 8, 1, 0, 0, 0]);
            }
            words.extend([0; 3]);
        } else {
            words.push(0);
            for _ in 0..self.random.between(255, 258) {
                words.extend([1, 0]);
            }
            words.extend([0; 2]);
        }
        let mut message = octets(&words);
        message.extend(self.payload(xid, is_reply, 4));
        vec![message]
    }

    /// A Transmit Request with about as many items, segment numbers or directions as a decoder takes.
    pub(super) fn many_items(&mut self) -> Vec<Vec<u8>> {
        let xid = self.xid();
        let mut words = self.prefix(xid, REQUEST, 0);
        let near = |random: &mut Random, limit: u32| random.between(limit - 1, limit + 1);
        match self.random.below(4) {
            0 => {
                let items = near(self.random, 256);
                words.push(items);
                words.extend((0..items).flat_map(|_| [8, 0, 1, 0]));
                words.push(0);
            }
            1 => {
                let numbers = near(self.random, 1024);
                words.extend([1, 8, 0, 2, 0, numbers]);
                words.extend(0..numbers);
                words.push(0);
            }
            2 => {
                let sets = near(self.random, 256);
                words.extend([0, sets]);
                words.extend((0..sets).flat_map(|set| [4 * set, 4 * set + 4, 0]));
            }
            _ => {
                words.extend([0, 2]);
                for set in 0..2 {
                    let directions = self.random.pick(&[127, 128, 129, 255, 256, 257]);
                    words.extend([100 * set, 100 * set + 100, directions]);
                    words.extend((0..directions).flat_map(|_| [16, 2]));
                }
            }
        }
        words.extend([1, 4, 16]);
        let mut message = octets(&words);
        message.extend(self.payload(xid, false, 4));
        vec![message]
    }

    /// An RPC message in parts.
    pub(super) fn sequence(&mut self) -> Vec<Vec<u8>> {
        let (xid, is_reply) = (self.xid(), self.random.once_in(3));
        let parts = self.random.between(2, 4);
        let longest = if self.random.once_in(8) { 64 } else { 16 };
        let payload_words = self.random.between(parts + 3, parts + longest);
        let payload = self.payload(xid, is_reply, payload_words);
        let mut begin = 0;
        let mut messages = Vec::new();
        for left in (0..parts).rev() {
            let end = match left {
                0 => payload.len(),
                _ => {
                    let most = payload.len() - begin - 4 * usize::try_from(left).expect("few");
                    begin + 4 + self.random.below(most - 3)
                }
            };
            let is_more = u32::from(left > 0) * 2;
            let mut words = self.prefix(xid, MSG, u32::from(is_reply) | is_more);
            words.push(0);
            if left == 0 && !is_reply && self.random.once_in(2) {
                let positions = self.positions(4);
                self.lists(&mut words, &positions, 1, false);
            } else {
                words.extend([0; 3]);
            }
            let mut message = octets(&words);
            message.extend(&payload[begin..end]);
            messages.push(message);
            begin = end;
        }
        messages
    }

    /// A grant.
    pub(super) fn grant(&mut self) -> Vec<Vec<u8>> {
        let mut words = self.prefix(0, NOMSG, 0);
        words.extend([0; 4]);
        vec![octets(&words)]
    }

    /// An error of any code.
    pub(super) fn error(&mut self) -> Vec<Vec<u8>> {
        let xid = self.xid();
        let code = self.random.between(1, 11);
        let mut words = self.prefix(xid, ERROR, 1);
        words.push(code);
        let arguments = match code {
            1 | 8 => 2,
            5 | 6 | 7 | 9 => 1,
            _ => 0,
        };
        words.extend((0..arguments).map(|argument| argument + 2));
        vec![octets(&words)]
    }

    /// A report of any code.
    pub(super) fn report(&mut self) -> Vec<Vec<u8>> {
        let xid = self.xid();
        let code = self.random.between(1, 8);
        let flags = self.random.between(0, 1);
        let mut words = self.prefix(xid, REPORT, flags);
        words.extend([xid, 1 - flags, self.random.between(0, 3)]);
        let has_lead = self.random.between(0, 1);
        words.push(has_lead);
        if has_lead == 1 {
            words.extend([xid, 1 - flags, 0]);
        }
        words.push(code);
        let arguments = match code {
            1 | 2 | 4 | 5 => 2,
            3 => 0,
            _ => 3,
        };
        words.extend((0..arguments).map(|argument| argument * 4));
        vec![octets(&words)]
    }

    /// A message of version 1.
    pub(super) fn version_1(&mut self) -> Vec<Vec<u8>> {
        let xid = self.xid();
        let version = self.random.pick(&[1, 1, 0, 3, 0x0100_0000]);
        let mut words = vec![xid, version, 32, self.random.pick(&[0, 1, 4])];
        words.extend([0; 3]);
        let mut message = octets(&words);
        message.extend(self.payload(xid, false, 4));
        vec![message]
    }

    fn property_set(&mut self) -> Vec<u32> {
        let mut entries: Vec<Vec<u32>> = vec![
            vec![1, 4, self.random.between(1024, 8192)],
            vec![3, 4, self.random.pick(&[1, 4096, 1 << 20])],
            vec![4, 4, self.random.between(0, 32)],
            vec![5, 4, self.random.between(0, 3)],
            vec![6, 8, 3, 0x6162_6300],
            vec![0x5254_5203, 4, self.random.between(0, 7)],
            vec![0x5254_5205, 4, self.random.between(0, 9)],
            vec![0x5254_5206, 4, self.random.between(0, 9)],
            vec![77, 5, 0x0102_0304, 0x0500_0000],
        ];
        let mut structure = Vec::new();
        let mut total = 0;
        for _ in 0..self.random.between(1, 4) {
            let (count, length) = (self.random.between(1, 4), 64 * self.random.between(1, 16));
            total += count * length;
            let (align, flag) = (
                self.random.pick(&[0, 1, 64, 4096]),
                self.random.between(0, 1),
            );
            structure.extend([count, length, align, flag]);
        }
        let mut entry = vec![
            0x5254_5204,
            8 + 4 * u32::try_from(structure.len()).expect("few"),
        ];
        entry.extend([total, u32::try_from(structure.len() / 4).expect("few")]);
        entry.extend(structure);
        entries.push(entry);
        entries.push(vec![2, 4, total]);
        // Some are left out, some ask for their default, and the order is any.
        let mut chosen = Vec::new();
        while !entries.is_empty() {
            let at = self.random.below(entries.len());
            let entry = entries.swap_remove(at);
            match self.random.below(8) {
                0 => {}
                1 if entry[0] != 2 => chosen.push(vec![entry[0], 0]),
                _ => chosen.push(entry),
            }
        }
        let mut words = vec![u32::try_from(chosen.len()).expect("few")];
        words.extend(chosen.into_iter().flatten());
        words
    }

    /// Properties in one message.
    pub(super) fn properties(&mut self) -> Vec<Vec<u8>> {
        let (xid, flags) = (self.xid(), self.random.between(0, 1));
        let mut words = self.prefix(xid, CONNPROP, flags);
        words.extend(self.property_set());
        vec![octets(&words)]
    }

    /// Properties in parts, once in a while in more octets than are put together.
    pub(super) fn continued_properties(&mut self) -> Vec<Vec<u8>> {
        let xid = self.xid();
        let mut set = octets(&self.property_set());
        let mut part_bytes = 4 + 4 * self.random.below(set.len() / 8 + 1);
        if self.random.once_in(32) {
            set.resize(70_000, 0);
            part_bytes = 30_000;
        }
        let parts: Vec<Vec<u8>> = set.chunks(part_bytes).take(8).map(<[u8]>::to_vec).collect();
        let count = parts.len();
        let mut messages = Vec::new();
        for (index, part) in parts.into_iter().enumerate() {
            let is_last = index + 1 == count && part.len() >= 4;
            let words = self.prefix(xid, CONNPROP, if is_last { 0 } else { 2 });
            let mut message = octets(&words);
            message.extend(part);
            messages.push(message);
        }
        messages
    }

    // ---- Groups ----

    /// A call or a reply in transmissions, with items of every kind.
    pub(super) fn group(&mut self) -> Vec<Vec<u8>> {
        let (xid, is_reply) = (self.xid(), self.random.once_in(3));
        let most = self.settings.transmissions_max.clamp(1, 4);
        let count = self.random.between(1, most);
        let streams: Vec<u32> = (0..count)
            .map(|index| match index {
                0 => 4 * self.random.between(2, 12),
                _ => self.random.between(0, 24),
            })
            .collect();
        let directions = match is_reply {
            true => Vec::new(),
            false => self.directions(),
        };
        // The octets of the first header are known before anything is placed.
        let shapes: Vec<usize> = (0..self.random.below(4))
            .map(|_| self.random.below(6))
            .collect();
        let item_bytes: u32 = shapes.iter().map(|shape| item_header_bytes(*shape)).sum();
        let fixed = if is_reply {
            32
        } else {
            36 + 4 * u32::try_from(directions.len()).expect("few")
        };
        let header = fixed + item_bytes;
        let mut ends: Vec<u32> = streams.iter().map(|stream| 32 + stream).collect();
        ends[0] = header + streams[0];
        let mut free = (0, ends[0]);
        let items: Vec<Item> = shapes
            .iter()
            .map(|shape| self.item(*shape, is_reply, &mut free, &mut ends))
            .collect();
        let mut words = self.first_words(xid, is_reply, &items, &streams);
        words.extend(directions);
        words.push(count);
        if !is_reply {
            words.push(self.random.between(0, 4));
        }
        words.push(streams[0]);
        let stream_bytes: u32 = streams.iter().sum();
        let stream = self.payload(xid, is_reply, stream_bytes / 4 + 4);
        let (mut messages, mut begin) = (Vec::new(), 0);
        for (index, bytes) in streams.iter().enumerate() {
            let sequence = u32::try_from(index).expect("few");
            if index > 0 {
                words = self.prefix(xid, CONTINUE, u32::from(is_reply));
                words.extend([sequence, 0, *bytes]);
            }
            let mut message = octets(&words);
            let end = begin + usize::try_from(*bytes).expect("few");
            message.extend(&stream[begin..end]);
            begin = end;
            let whole = usize::try_from(ends[index]).expect("few");
            message.resize(whole.max(message.len()), 0xd0);
            messages.push(message);
        }
        messages
    }

    /// Prefix and items of the first transmission.
    fn first_words(
        &mut self,
        xid: u32,
        is_reply: bool,
        items: &[Item],
        streams: &[u32],
    ) -> Vec<u32> {
        let header_type = if is_reply { RESPONSE } else { REQUEST };
        let mut words = self.prefix(xid, header_type, u32::from(is_reply));
        words.push(u32::try_from(items.len()).expect("few"));
        let stream_bytes: u32 = streams.iter().sum();
        let (mut cut, mut before) = (8, 0);
        for item in items {
            let steps = (stream_bytes / 4 * 4).saturating_sub(cut) / 4;
            cut += 4 * self.random.between(0, steps);
            let displacement = if item.is_excised { cut + before } else { 0 };
            words.extend([displacement, item.length]);
            words.extend(&item.place);
            if item.is_excised {
                before += item.length.next_multiple_of(4);
            }
        }
        words
    }

    /// An item of a shape, behind what is free; one that finds no room has no octets.
    fn item(
        &mut self,
        shape: usize,
        is_reply: bool,
        free: &mut (u32, u32),
        ends: &mut [u32],
    ) -> Item {
        if shape == 0 && is_reply {
            return Item {
                length: self.random.between(0, 9),
                place: vec![self.random.between(5, 6)],
                is_excised: false,
            };
        }
        if shape <= 1 {
            let mut place = vec![1];
            let total = self.segments(&mut place, 1);
            return Item {
                length: self.random.between(0, total),
                place,
                is_excised: true,
            };
        }
        let wanted = if shape < 4 { 1 } else { 2 };
        let (mut numbers, mut offset, mut length) = (Vec::new(), 0, 0);
        let transmissions = u32::try_from(ends.len()).expect("few");
        let targets = targets(&self.settings.segments, transmissions);
        let from = targets.iter().position(|(transmission, _, end)| {
            let index = usize::try_from(*transmission).expect("few");
            let floor = match transmission.cmp(&free.0) {
                Ordering::Less => u32::MAX,
                Ordering::Equal => free.1,
                Ordering::Greater => ends[index],
            };
            *end > floor
        });
        let mut at = from.unwrap_or(targets.len());
        while numbers.len() < wanted && at < targets.len() {
            let (transmission, begin, end) = targets[at];
            let index = usize::try_from(transmission).expect("few");
            let floor = if transmission == free.0 {
                free.1
            } else {
                ends[index]
            };
            if numbers.is_empty() {
                offset = floor.saturating_sub(begin);
            } else if begin < floor {
                break;
            }
            let skipped = if numbers.is_empty() { offset } else { 0 };
            let room = end - begin - skipped;
            let is_last = numbers.len() + 1 == wanted;
            let bytes = if is_last {
                self.random.between(1, room)
            } else {
                room
            };
            numbers.push(u32::try_from(at).expect("few"));
            length += bytes;
            *free = (transmission, begin + skipped + bytes);
            ends[index] = free.1;
            at += 1;
        }
        // Numbers that are not needed are not looked at; they keep the header at its length.
        numbers.resize(wanted, self.random.between(0, 99));
        let mut place = vec![2, offset, u32::try_from(wanted).expect("few")];
        place.extend(numbers);
        Item {
            length,
            place,
            is_excised: true,
        }
    }

    /// Count and sets of directions.
    fn directions(&mut self) -> Vec<u32> {
        let sets = self.random.between(0, 2);
        let mut words = vec![sets];
        let mut begin = 0;
        for _ in 0..sets {
            begin += self.random.between(0, 8) * 4;
            let end = begin + self.random.between(0, 64) * 4;
            let items = self.random.between(0, 2);
            words.extend([begin, end, items]);
            for _ in 0..items {
                let kind = self.random.between(1, 4);
                words.extend([self.random.between(0, 16), kind]);
                if kind == 4 {
                    words.push(self.random.between(0, 64));
                }
                if kind != 2 {
                    let count = self.random.between(0, 2);
                    self.segments(&mut words, count);
                }
            }
            begin = end;
        }
        words
    }
}

/// Octets of an item of a shape in the header. Of a reply, shape 0 has fewer: the message is padded there.
const fn item_header_bytes(shape: usize) -> u32 {
    match shape {
        0 | 1 => 12 + 4 + 16,
        2 | 3 => 12 + 8 + 4,
        _ => 12 + 8 + 8,
    }
}

/// Transmission, begin and end of each targetable segment.
fn targets(segments: &[(u32, bool)], transmissions: u32) -> Vec<(u32, u32, u32)> {
    let mut targets = Vec::new();
    for transmission in 0..transmissions {
        let mut begin = 0;
        for (length, is_targetable) in segments {
            if *is_targetable {
                targets.push((transmission, begin, begin + length));
            }
            begin += length;
        }
    }
    targets
}
