//! Header types and properties that applications add to version 2 (-00 appendix B).
//!
//! -00 appendix B.3 reserves a range of property numbers for experiments, but refers to a section that it lacks. That
//! is section 6.4.2 of draft-cel-nfsv4-rpcrdma-version-two-05, on which -00 is based: 4 294 967 040 to 4 294 967 295.
//! No document defines such a range of header types; we use the same one.

use core::fmt;

use super::properties::Property;
use crate::constants::{
    APPLICATION_NUMBER_FIRST, APPLICATION_NUMBER_LAST, APPLICATION_PROPERTIES_BYTES_MAX,
};
use crate::error::EncodeError;
use crate::xdr::{Reader, Writer};

/// How many words of 64 bits have a bit for each number of applications.
const SET_WORDS: usize = 4;
const _: () = assert!(APPLICATION_NUMBER_LAST - APPLICATION_NUMBER_FIRST < 256);

/// Why an application may not have a header type or a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ApplicationNumberRefused {
    /// The number is below [`APPLICATION_NUMBER_FIRST`].
    OutsideRange {
        /// The number.
        number: u32,
    },
    /// A property with this number is in the list already.
    Twice {
        /// The number.
        number: u32,
    },
    /// With this property the list is longer than [`APPLICATION_PROPERTIES_BYTES_MAX`].
    TooLong {
        /// The octets that the list would take in a message; `usize::MAX` where they cannot be counted.
        bytes: usize,
    },
}

impl fmt::Display for ApplicationNumberRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutsideRange { number } => write!(
                f,
                "applications have the numbers {APPLICATION_NUMBER_FIRST:#x} to \
                 {APPLICATION_NUMBER_LAST:#x}, and {number:#x} is not one of them"
            ),
            Self::Twice { number } => write!(f, "property {number:#x} is announced already"),
            Self::TooLong { bytes } => write!(
                f,
                "the properties of the application take {bytes} octets, and there is room for \
                 {APPLICATION_PROPERTIES_BYTES_MAX}"
            ),
        }
    }
}

impl core::error::Error for ApplicationNumberRefused {}

/// The place of a number among those of applications.
const fn place_of(number: u32) -> Option<u32> {
    number.checked_sub(APPLICATION_NUMBER_FIRST)
}

/// The header types that an application sends and receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ApplicationHeaderTypes {
    words: [u64; SET_WORDS],
}

impl ApplicationHeaderTypes {
    /// None: each header type that -00 and the extension do not define is answered with RDMA2_ERR_INVAL_HTYPE.
    pub const NONE: Self = Self {
        words: [0; SET_WORDS],
    };

    /// These and `header_type`.
    ///
    /// # Errors
    /// `OutsideRange`.
    pub const fn with(mut self, header_type: u32) -> Result<Self, ApplicationNumberRefused> {
        let number = header_type;
        let Some(place) = place_of(number) else {
            return Err(ApplicationNumberRefused::OutsideRange { number });
        };
        self.words[(place / u64::BITS) as usize] |= 1 << (place % u64::BITS);
        Ok(self)
    }

    /// Whether this header type is one of them.
    #[must_use]
    pub const fn has(&self, header_type: u32) -> bool {
        match place_of(header_type) {
            Some(place) => self.words[(place / u64::BITS) as usize] >> (place % u64::BITS) & 1 != 0,
            None => false,
        }
    }
}

/// Properties that an application announces, in encoded form.
///
/// They take at most [`APPLICATION_PROPERTIES_BYTES_MAX`] octets, including numbers and lengths, so that they fit into
/// the first message of a connection (-00 section 4.3.3) together with all others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ApplicationProperties {
    bytes: [u8; APPLICATION_PROPERTIES_BYTES_MAX],
    length: usize,
    count: usize,
}

impl ApplicationProperties {
    /// None.
    pub const NONE: Self = Self {
        bytes: [0; APPLICATION_PROPERTIES_BYTES_MAX],
        length: 0,
        count: 0,
    };

    /// These and a property with this number and these octets.
    ///
    /// # Errors
    /// `OutsideRange`, `Twice`, `TooLong`.
    pub fn with(mut self, number: u32, data: &[u8]) -> Result<Self, ApplicationNumberRefused> {
        if place_of(number).is_none() {
            return Err(ApplicationNumberRefused::OutsideRange { number });
        }
        if self.iter().any(|property| property.id() == number) {
            return Err(ApplicationNumberRefused::Twice { number });
        }
        let space = self.bytes.get_mut(self.length..).unwrap_or_default();
        let mut writer = Writer::new(space);
        let property = Property::Unknown { id: number, data };
        if property.encode(&mut writer).is_err() {
            let padded = data.len().checked_next_multiple_of(4);
            let bytes = padded.and_then(|data_bytes| data_bytes.checked_add(self.length + 8));
            return Err(ApplicationNumberRefused::TooLong {
                bytes: bytes.unwrap_or(usize::MAX),
            });
        }
        self.length += writer.position();
        self.count += 1;
        Ok(self)
    }

    /// How many there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// The properties, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = Property<'_>> {
        let mut reader = Reader::new(self.bytes.get(..self.length).unwrap_or_default());
        // Never fails: these octets were encoded here.
        (0..self.count).map_while(move |_| Property::decode(&mut reader).ok())
    }
}

impl Default for ApplicationProperties {
    fn default() -> Self {
        Self::NONE
    }
}

impl fmt::Debug for ApplicationProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// As [`write_property_set`](super::write_property_set), with the properties of an application after the others.
///
/// # Errors
/// As there.
pub fn write_property_set_with(
    writer: &mut Writer<'_>,
    properties: &[Property<'_>],
    application: &ApplicationProperties,
) -> Result<(), EncodeError> {
    writer.write_count(properties.len() + application.count)?;
    properties
        .iter()
        .try_for_each(|property| property.encode(writer))?;
    writer.write_bytes(
        application
            .bytes
            .get(..application.length)
            .unwrap_or_default(),
    )
}
