//! Transport properties of version 2 (-00 section 5).

use crate::constants::{
    RBSIZ_DEFAULT_BYTES, RCSIZ_DEFAULT, RDMA2_PROPID_BRS, RDMA2_PROPID_HOSTAUTH,
    RDMA2_PROPID_RBSIZ, RDMA2_PROPID_RCSIZ, RDMA2_PROPID_RSSIZ, RDMA2_PROPID_SBSIZ,
    RDMA2_RVREQSUP_GENL, RDMA2_RVREQSUP_INLINE, RDMA2_RVREQSUP_NONE, RSSIZ_DEFAULT_BYTES,
    SBSIZ_DEFAULT_BYTES,
};
use crate::error::{DecodeError, EncodeError, Reason};
use crate::xdr::{Reader, Writer, padding_bytes};

/// How far an endpoint takes RPC calls in the reverse direction (-00 section 5.2.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReverseRequestSupport {
    /// Not at all.
    None,
    /// In inline messages only. The default.
    #[default]
    Inline,
    /// As in the forward direction.
    General,
}

impl ReverseRequestSupport {
    /// From the word on the wire. A level that we cannot interpret counts as the default (-00 section 5.2).
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        match word {
            RDMA2_RVREQSUP_NONE => Self::None,
            RDMA2_RVREQSUP_GENL => Self::General,
            _ => Self::Inline,
        }
    }

    /// The word on the wire.
    #[must_use]
    pub const fn to_word(self) -> u32 {
        match self {
            Self::None => RDMA2_RVREQSUP_NONE,
            Self::Inline => RDMA2_RVREQSUP_INLINE,
            Self::General => RDMA2_RVREQSUP_GENL,
        }
    }
}

/// One property of a set (-00 section 5.2).
///
/// Where the value is an `Option`, `None` is data of length zero, which says "the default value".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Property<'a> {
    /// SBSIZ: the sender of the property sends no message of more octets than this.
    SendSizeMax(Option<u32>),
    /// RBSIZ: its receive buffers have at least so many octets.
    ReceiveBufferSize(Option<u32>),
    /// RSSIZ: it handles RDMA segments of at most so many octets.
    SegmentSizeMax(Option<u32>),
    /// RCSIZ: a header sent to it may have at most so many RDMA segments, over all lists.
    SegmentCountMax(Option<u32>),
    /// BRS: the word of [`ReverseRequestSupport`].
    ReverseRequestSupport(Option<u32>),
    /// HOSTAUTH: a message of the host authentication exchange.
    HostAuthentication(Option<&'a [u8]>),
    /// A property that we do not know, and skip.
    Unknown {
        /// Its number.
        id: u32,
        /// Its data, not looked at.
        data: &'a [u8],
    },
}

impl<'a> Property<'a> {
    /// The number of the property on the wire.
    #[must_use]
    pub const fn id(&self) -> u32 {
        match *self {
            Self::SendSizeMax(_) => RDMA2_PROPID_SBSIZ,
            Self::ReceiveBufferSize(_) => RDMA2_PROPID_RBSIZ,
            Self::SegmentSizeMax(_) => RDMA2_PROPID_RSSIZ,
            Self::SegmentCountMax(_) => RDMA2_PROPID_RCSIZ,
            Self::ReverseRequestSupport(_) => RDMA2_PROPID_BRS,
            Self::HostAuthentication(_) => RDMA2_PROPID_HOSTAUTH,
            Self::Unknown { id, .. } => id,
        }
    }

    /// Reads one property; an error tells where its data begins, or where its framing breaks off.
    fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let id = reader.read_u32()?;
        let field = *reader;
        let data = reader.read_opaque(usize::MAX)?;
        let invalid = DecodeError::new(field.position() + 4, Reason::InvalidPropertyValue);
        let value = || match data {
            [] => Ok(None),
            [b0, b1, b2, b3] => Ok(Some(u32::from_be_bytes([*b0, *b1, *b2, *b3]))),
            _ => Err(invalid),
        };
        Ok(match id {
            RDMA2_PROPID_SBSIZ => Self::SendSizeMax(value()?),
            RDMA2_PROPID_RBSIZ => Self::ReceiveBufferSize(value()?),
            RDMA2_PROPID_RSSIZ => Self::SegmentSizeMax(value()?),
            RDMA2_PROPID_RCSIZ => Self::SegmentCountMax(value()?),
            RDMA2_PROPID_BRS => Self::ReverseRequestSupport(value()?),
            RDMA2_PROPID_HOSTAUTH => {
                Self::HostAuthentication(decode_host_authentication(data).ok_or(invalid)?)
            }
            id => Self::Unknown { id, data },
        })
    }

    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_u32(self.id())?;
        match *self {
            Self::SendSizeMax(Some(value))
            | Self::ReceiveBufferSize(Some(value))
            | Self::SegmentSizeMax(Some(value))
            | Self::SegmentCountMax(Some(value))
            | Self::ReverseRequestSupport(Some(value)) => writer.write_opaque(&value.to_be_bytes()),
            Self::HostAuthentication(Some(message)) => {
                // An opaque within an opaque: the inner one, with length and padding, is the data of the outer.
                writer.write_count(4 + message.len() + padding_bytes(message.len()))?;
                writer.write_opaque(message)
            }
            Self::Unknown { data, .. } => writer.write_opaque(data),
            Self::SendSizeMax(None)
            | Self::ReceiveBufferSize(None)
            | Self::SegmentSizeMax(None)
            | Self::SegmentCountMax(None)
            | Self::ReverseRequestSupport(None)
            | Self::HostAuthentication(None) => writer.write_opaque(&[]),
        }
    }
}

/// The data of HOSTAUTH is itself an XDR opaque, and nothing else.
#[expect(
    clippy::option_option,
    reason = "outer: valid or not; inner: given or the default"
)]
fn decode_host_authentication(data: &[u8]) -> Option<Option<&[u8]>> {
    if data.is_empty() {
        return Some(None);
    }
    let mut reader = Reader::new(data);
    let message = reader.read_opaque(usize::MAX).ok()?;
    reader.is_at_end().then_some(Some(message))
}

/// The property set of a CONNPROP message: framing and every value that we understand were checked.
///
/// It iterates over its properties in the order in which they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertySet<'a> {
    /// The entries, without the count.
    bytes: &'a [u8],
    count: usize,
}

impl<'a> PropertySet<'a> {
    /// Decodes a property set: the body of a CONNPROP message, or the concatenated bodies of a continued one.
    ///
    /// Positions in errors count from the start of `body`. A property that we understand may stand only once: two
    /// values would leave open which holds, since the set has no order. Properties that we do not know are skipped,
    /// however often they stand.
    ///
    /// # Errors
    /// `Truncated`, `TrailingBytes`, `InvalidPropertyValue`, `DuplicateProperty`: all are answered with
    /// RDMA2_ERR_BAD_XDR.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let count = reader.read_u32()?;
        let entries = reader.rest();
        let mut seen = 0_u32;
        for _ in 0..count {
            // Each round consumes at least eight octets or fails, so that the input bounds the loop.
            let start = reader;
            let property = Property::decode(&mut reader)?;
            if !matches!(property, Property::Unknown { .. }) {
                let bit = 1 << property.id();
                if seen & bit != 0 {
                    return Err(start.error(Reason::DuplicateProperty));
                }
                seen |= bit;
            }
        }
        if !reader.is_at_end() {
            return Err(reader.error(Reason::TrailingBytes));
        }
        Ok(Self {
            bytes: entries,
            count: usize::try_from(count).unwrap_or(usize::MAX),
        })
    }

    /// The properties, with the default for each that is absent.
    #[must_use]
    pub fn properties(&self) -> Properties {
        let mut properties = Properties::default();
        for property in *self {
            properties.apply(property);
        }
        properties
    }

    /// The host authentication message, if one with a value is in the set.
    #[must_use]
    pub fn host_authentication(&self) -> Option<&'a [u8]> {
        self.into_iter().find_map(|property| match property {
            Property::HostAuthentication(message) => message,
            _ => None,
        })
    }
}

impl<'a> Iterator for PropertySet<'a> {
    type Item = Property<'a>;

    fn next(&mut self) -> Option<Property<'a>> {
        // Decoding was tried once already, and cannot fail now.
        self.count = self.count.checked_sub(1)?;
        let mut reader = Reader::new(self.bytes);
        let property = Property::decode(&mut reader).ok()?;
        self.bytes = reader.rest();
        Some(property)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for PropertySet<'_> {}
impl core::iter::FusedIterator for PropertySet<'_> {}

/// What one endpoint says of itself, host authentication apart (-00 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Properties {
    /// SBSIZ, octets: the endpoint sends no longer messages.
    pub send_bytes_max: u32,
    /// RBSIZ, octets: its receive buffers are at least so large.
    pub receive_buffer_bytes: u32,
    /// RSSIZ, octets: the longest RDMA segment that it handles.
    pub segment_bytes_max: u32,
    /// RCSIZ: the most RDMA segments in one header sent to it, over all lists.
    pub segment_count_max: u32,
    /// BRS: how far it takes calls in the reverse direction.
    pub reverse_requests: ReverseRequestSupport,
}

impl Default for Properties {
    fn default() -> Self {
        Self {
            send_bytes_max: SBSIZ_DEFAULT_BYTES,
            receive_buffer_bytes: RBSIZ_DEFAULT_BYTES,
            segment_bytes_max: RSSIZ_DEFAULT_BYTES,
            segment_count_max: RCSIZ_DEFAULT,
            reverse_requests: ReverseRequestSupport::default(),
        }
    }
}

impl Properties {
    /// As properties to encode, in the order of their numbers.
    #[must_use]
    pub const fn to_properties(self) -> [Property<'static>; 5] {
        [
            Property::SendSizeMax(Some(self.send_bytes_max)),
            Property::ReceiveBufferSize(Some(self.receive_buffer_bytes)),
            Property::SegmentSizeMax(Some(self.segment_bytes_max)),
            Property::SegmentCountMax(Some(self.segment_count_max)),
            Property::ReverseRequestSupport(Some(self.reverse_requests.to_word())),
        ]
    }

    /// Takes over one property; data of length zero restores the default, other properties change nothing.
    pub fn apply(&mut self, property: Property<'_>) {
        let default = Self::default();
        match property {
            Property::SendSizeMax(value) => {
                self.send_bytes_max = value.unwrap_or(default.send_bytes_max);
            }
            Property::ReceiveBufferSize(value) => {
                self.receive_buffer_bytes = value.unwrap_or(default.receive_buffer_bytes);
            }
            Property::SegmentSizeMax(value) => {
                self.segment_bytes_max = value.unwrap_or(default.segment_bytes_max);
            }
            Property::SegmentCountMax(value) => {
                self.segment_count_max = value.unwrap_or(default.segment_count_max);
            }
            Property::ReverseRequestSupport(value) => {
                self.reverse_requests =
                    value.map_or(default.reverse_requests, ReverseRequestSupport::from_word);
            }
            Property::HostAuthentication(_) | Property::Unknown { .. } => {}
        }
    }
}

/// Writes a property set: the count, then each property.
///
/// # Errors
/// `NoSpace`, `TooLong`.
pub fn write_property_set(
    writer: &mut Writer<'_>,
    properties: &[Property<'_>],
) -> Result<(), EncodeError> {
    writer.write_count(properties.len())?;
    properties
        .iter()
        .try_for_each(|property| property.encode(writer))
}
