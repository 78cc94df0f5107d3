//! Reads octets that may end anywhere.

/// The octets that are not yet read. A read past their end returns `None` and takes nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Octets<'a>(pub(crate) &'a [u8]);

impl<'a> Octets<'a> {
    /// The next `length` octets.
    pub(crate) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    /// The next octets as an array.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }

    /// The next octet.
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    /// The next two octets, in network byte order.
    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next three octets, in network byte order.
    pub(crate) fn u24(&mut self) -> Option<u32> {
        let [high, middle, low] = self.array()?;
        Some(u32::from_be_bytes([0, high, middle, low]))
    }

    /// The next four octets, in network byte order.
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next eight octets, in network byte order.
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
}
