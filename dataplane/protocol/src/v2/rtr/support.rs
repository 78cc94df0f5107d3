//! The RTR Support property: which messages of the extension an endpoint sends and receives (RTR section 8.2).

use core::fmt;

use crate::constants::{
    RTR_REPORT_ERROR, RTR_SUPPORT_CONTINUE, RTR_SUPPORT_REQUEST, RTR_SUPPORT_RESPONSE,
    RTR_TRANSMIT_CONTINUE, RTR_TRANSMIT_REQUEST, RTR_TRANSMIT_RESPONSE,
};

/// The messages of the extension that an endpoint can send and receive. By default none.
///
/// Transmit Request implies Transmit Response; any of them implies Report Error.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct RtrSupport(u32);

impl RtrSupport {
    /// No support: a plain version 2 endpoint.
    pub const NONE: Self = Self(0);
    /// Transmit Request, and with it Transmit Response.
    pub const REQUEST: Self = Self(RTR_SUPPORT_REQUEST);
    /// Transmit Response.
    pub const RESPONSE: Self = Self(RTR_SUPPORT_RESPONSE);
    /// Transmit Continue.
    pub const CONTINUE: Self = Self(RTR_SUPPORT_CONTINUE);
    /// All of the extension.
    pub const ALL: Self = Self::REQUEST.with(Self::RESPONSE).with(Self::CONTINUE);

    /// From the word on the wire. Bits that the draft does not define are ignored.
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        Self(word & Self::ALL.0)
    }

    /// The word on the wire.
    #[must_use]
    pub const fn to_word(self) -> u32 {
        self.0
    }

    /// This and `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether there is any support, and so support of Report Error.
    #[inline]
    #[must_use]
    pub const fn is_any(self) -> bool {
        self.0 != 0
    }

    /// Whether Transmit Request is supported.
    #[inline]
    #[must_use]
    pub const fn has_request(self) -> bool {
        self.0 & RTR_SUPPORT_REQUEST != 0
    }

    /// Whether Transmit Response is supported.
    #[inline]
    #[must_use]
    pub const fn has_response(self) -> bool {
        self.0 & (RTR_SUPPORT_REQUEST | RTR_SUPPORT_RESPONSE) != 0
    }

    /// Whether Transmit Continue is supported.
    #[inline]
    #[must_use]
    pub const fn has_continue(self) -> bool {
        self.0 & RTR_SUPPORT_CONTINUE != 0
    }

    /// Whether messages of this header type are supported.
    #[must_use]
    pub const fn has_header_type(self, header_type: u32) -> bool {
        match header_type {
            RTR_TRANSMIT_REQUEST => self.has_request(),
            RTR_TRANSMIT_RESPONSE => self.has_response(),
            RTR_TRANSMIT_CONTINUE => self.has_continue(),
            RTR_REPORT_ERROR => self.is_any(),
            _ => false,
        }
    }
}

impl fmt::Debug for RtrSupport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::REQUEST, "REQUEST"),
            (Self::RESPONSE, "RESPONSE"),
            (Self::CONTINUE, "CONTINUE"),
        ];
        f.write_str("RtrSupport(")?;
        let mut separator = "";
        for (_, name) in names.iter().filter(|(bit, _)| self.0 & bit.0 != 0) {
            write!(f, "{separator}{name}")?;
            separator = " | ";
        }
        f.write_str(if self.is_any() { ")" } else { "NONE)" })
    }
}

#[cfg(test)]
mod tests {
    use super::RtrSupport;

    #[test]
    fn a_request_implies_a_response_and_anything_a_report() {
        let types = |support: RtrSupport| {
            [1, 2, 3, 4].map(|number| support.has_header_type(0x5254_5200 + number))
        };
        assert_eq!(types(RtrSupport::NONE), [false; 4]);
        assert_eq!(types(RtrSupport::REQUEST), [true, true, false, true]);
        assert_eq!(types(RtrSupport::RESPONSE), [false, true, false, true]);
        assert_eq!(types(RtrSupport::CONTINUE), [false, false, true, true]);
        assert_eq!(types(RtrSupport::ALL), [true; 4]);
        assert!(!RtrSupport::ALL.has_header_type(0));
    }

    #[test]
    fn undefined_bits_are_ignored() {
        assert_eq!(RtrSupport::from_word(u32::MAX), RtrSupport::ALL);
        assert_eq!(RtrSupport::from_word(!7), RtrSupport::NONE);
        assert_eq!(RtrSupport::ALL.to_word(), 7);
        assert_eq!(
            format!("{:?} {:?}", RtrSupport::NONE, RtrSupport::from_word(5)),
            "RtrSupport(NONE) RtrSupport(REQUEST | CONTINUE)"
        );
    }
}
