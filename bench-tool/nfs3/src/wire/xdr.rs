//! Structures in XDR (RFC 4506), field after field.

use rpcrdma_protocol::xdr::{Reader, Writer};
use rpcrdma_protocol::{DecodeError, EncodeError};

/// Bytes that do not have the expected format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A field ends after the bytes, exceeds its limit, or is not a boolean.
    #[error(transparent)]
    Field(#[from] DecodeError),
    /// An enumeration has an undefined value, or a count exceeds its limit.
    #[error("the value {value} at octet {at} is not defined")]
    Value {
        /// Its offset in octets from the start of the decoded bytes.
        at: usize,
        /// The value.
        value: u32,
    },
}

/// A type that can be written as XDR.
pub trait Encode {
    /// Appends the value.
    ///
    /// # Errors
    /// When no space is left, or a length does not fit its word.
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError>;
}

/// A type that can be read from XDR. Fields of variable length borrow from the bytes.
pub trait Decode<'a>: Sized {
    /// Reads the value at the position of the reader.
    ///
    /// # Errors
    /// [`Malformed`].
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed>;
}

/// Decodes a `T` that takes all of `bytes`; `None` if the bytes are malformed or something follows.
pub fn decode_all<'a, T: Decode<'a>>(bytes: &'a [u8]) -> Option<T> {
    let mut reader = Reader::new(bytes);
    let value = T::decode(&mut reader).ok()?;
    reader.is_at_end().then_some(value)
}

/// The error for an undefined value that was just read.
pub(crate) fn unknown_value(reader: &Reader<'_>, value: u32) -> Malformed {
    Malformed::Value {
        at: reader.position().saturating_sub(4),
        value,
    }
}

impl Encode for u32 {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_u32(*self)
    }
}

impl Decode<'_> for u32 {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(reader.read_u32()?)
    }
}

impl Encode for u64 {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_u64(*self)
    }
}

impl Decode<'_> for u64 {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(reader.read_u64()?)
    }
}

impl Encode for bool {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_bool(*self)
    }
}

impl Decode<'_> for bool {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(reader.read_bool()?)
    }
}

/// Variable-length opaque data, or a string. The caller checks its length.
impl Encode for &[u8] {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_opaque(self)
    }
}

impl<'a> Decode<'a> for &'a [u8] {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(reader.read_opaque(usize::MAX)?)
    }
}

/// Fixed-length opaque data of two words: verifiers.
impl Encode for [u8; 8] {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_bytes(self)
    }
}

impl Decode<'_> for [u8; 8] {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(reader.read_u64()?.to_be_bytes())
    }
}

/// Optional data, and the unions of RFC 1813 that are the same on the wire.
impl<T: Encode> Encode for Option<T> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_bool(self.is_some())?;
        self.iter().try_for_each(|value| value.encode(writer))
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let is_there = reader.read_bool()?;
        is_there.then(|| T::decode(reader)).transpose()
    }
}

/// Declares structures whose XDR is that of their fields, in order.
macro_rules! structures {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident $(<$life:lifetime>)? {
            $( $(#[$field_meta:meta])* pub $field:ident: $type:ty, )*
        }
    )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name $(<$life>)? {
            $( $(#[$field_meta])* pub $field: $type, )*
        }

        impl $(<$life>)? $crate::wire::xdr::Encode for $name $(<$life>)? {
            fn encode(
                &self,
                writer: &mut rpcrdma_protocol::xdr::Writer<'_>,
            ) -> Result<(), rpcrdma_protocol::EncodeError> {
                $( $crate::wire::xdr::Encode::encode(&self.$field, writer)?; )*
                Ok(())
            }
        }

        $crate::wire::xdr::structures!(@decode $name [$($life)?] $($field)*);
    )* };
    (@decode $name:ident [] $($field:ident)*) => {
        $crate::wire::xdr::structures!(@decode_as $name, '_, $($field)*);
    };
    (@decode $name:ident [$life:lifetime] $($field:ident)*) => {
        impl<$life> $crate::wire::xdr::Decode<$life> for $name<$life> {
            fn decode(
                reader: &mut rpcrdma_protocol::xdr::Reader<$life>,
            ) -> Result<Self, $crate::wire::xdr::Malformed> {
                Ok(Self { $( $field: $crate::wire::xdr::Decode::decode(reader)?, )* })
            }
        }
    };
    (@decode_as $name:ident, $life:lifetime, $($field:ident)*) => {
        impl $crate::wire::xdr::Decode<$life> for $name {
            fn decode(
                reader: &mut rpcrdma_protocol::xdr::Reader<$life>,
            ) -> Result<Self, $crate::wire::xdr::Malformed> {
                Ok(Self { $( $field: $crate::wire::xdr::Decode::decode(reader)?, )* })
            }
        }
    };
}

/// Declares enumerations whose XDR is their number.
macro_rules! enumerations {
    ($(
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( $(#[$variant_meta:meta])* $variant:ident = $number:literal, )*
        }
    )*) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant = $number, )*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$( Self::$variant, )*];

            /// Its number on the wire.
            #[must_use]
            pub const fn number(self) -> u32 {
                match self { $( Self::$variant => $number, )* }
            }

            /// The one with this number.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $( $number => Some(Self::$variant), )*
                    _ => None,
                }
            }
        }

        impl $crate::wire::xdr::Encode for $name {
            fn encode(
                &self,
                writer: &mut rpcrdma_protocol::xdr::Writer<'_>,
            ) -> Result<(), rpcrdma_protocol::EncodeError> {
                writer.write_u32(self.number())
            }
        }

        impl $crate::wire::xdr::Decode<'_> for $name {
            fn decode(
                reader: &mut rpcrdma_protocol::xdr::Reader<'_>,
            ) -> Result<Self, $crate::wire::xdr::Malformed> {
                let number = reader.read_u32()?;
                Self::from_number(number)
                    .ok_or_else(|| $crate::wire::xdr::unknown_value(reader, number))
            }
        }
    )* };
}

pub(crate) use {enumerations, structures};
