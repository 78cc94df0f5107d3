//! Transport properties of version 2 (-00 section 5), and those of the extension RTR (RTR section 8).

use super::rtr::{ReceiveBufferStructure, RtrSupport};
use crate::constants::{
    RBSIZ_DEFAULT_BYTES, RCSIZ_DEFAULT, RDMA2_PROPID_BRS, RDMA2_PROPID_HOSTAUTH,
    RDMA2_PROPID_RBSIZ, RDMA2_PROPID_RCSIZ, RDMA2_PROPID_RSSIZ, RDMA2_PROPID_SBSIZ,
    RDMA2_RVREQSUP_GENL, RDMA2_RVREQSUP_INLINE, RDMA2_RVREQSUP_NONE, RSSIZ_DEFAULT_BYTES,
    RTR_PROPID_RECEIVE_BUFFER_STRUCTURE, RTR_PROPID_REQUEST_RECEIVE_LIMIT,
    RTR_PROPID_RESPONSE_SEND_LIMIT, RTR_PROPID_SUPPORT, RTR_TRANSMISSIONS_DEFAULT,
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
    /// RTR Support: the word of [`RtrSupport`].
    RtrSupport(Option<u32>),
    /// Receive Buffer Structure of the extension RTR.
    ReceiveBufferStructure(Option<ReceiveBufferStructure>),
    /// Request Transmission Receive Limit of the extension RTR: its receiver may send calls of at most so many
    /// transmissions.
    RequestReceiveLimit(Option<u32>),
    /// Response Transmission Send Limit of the extension RTR: its sender sends replies of at most so many
    /// transmissions.
    ResponseSendLimit(Option<u32>),
    /// A property that we do not know and therefore skip.
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
            Self::RtrSupport(_) => RTR_PROPID_SUPPORT,
            Self::ReceiveBufferStructure(_) => RTR_PROPID_RECEIVE_BUFFER_STRUCTURE,
            Self::RequestReceiveLimit(_) => RTR_PROPID_REQUEST_RECEIVE_LIMIT,
            Self::ResponseSendLimit(_) => RTR_PROPID_RESPONSE_SEND_LIMIT,
            Self::Unknown { id, .. } => id,
        }
    }

    /// A distinct bit for each property that we understand; 0 for others.
    const fn bit(&self) -> u32 {
        match self {
            Self::SendSizeMax(_) => 1,
            Self::ReceiveBufferSize(_) => 1 << 1,
            Self::SegmentSizeMax(_) => 1 << 2,
            Self::SegmentCountMax(_) => 1 << 3,
            Self::ReverseRequestSupport(_) => 1 << 4,
            Self::HostAuthentication(_) => 1 << 5,
            Self::RtrSupport(_) => 1 << 6,
            Self::ReceiveBufferStructure(_) => 1 << 7,
            Self::RequestReceiveLimit(_) => 1 << 8,
            Self::ResponseSendLimit(_) => 1 << 9,
            Self::Unknown { .. } => 0,
        }
    }

    /// The octets of a receive buffer, if the property gives them.
    fn receive_buffer_bytes(&self) -> Option<u32> {
        match self {
            Self::ReceiveBufferSize(value) => Some(value.unwrap_or(RBSIZ_DEFAULT_BYTES)),
            Self::ReceiveBufferStructure(structure) => {
                structure.as_ref().map(ReceiveBufferStructure::length_bytes)
            }
            _ => None,
        }
    }

    /// Reads one property; an error has the position where its data begins, or where its framing is cut off.
    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, DecodeError> {
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
            RTR_PROPID_SUPPORT => Self::RtrSupport(value()?),
            RTR_PROPID_RECEIVE_BUFFER_STRUCTURE => {
                Self::ReceiveBufferStructure(decode_structure(data).map_err(|_| invalid)?)
            }
            RTR_PROPID_REQUEST_RECEIVE_LIMIT => Self::RequestReceiveLimit(value()?),
            RTR_PROPID_RESPONSE_SEND_LIMIT => Self::ResponseSendLimit(value()?),
            id => Self::Unknown { id, data },
        })
    }

    pub(super) fn encode(&self, writer: &mut Writer<'_>) -> Result<(), EncodeError> {
        writer.write_u32(self.id())?;
        match *self {
            Self::SendSizeMax(Some(value))
            | Self::ReceiveBufferSize(Some(value))
            | Self::SegmentSizeMax(Some(value))
            | Self::SegmentCountMax(Some(value))
            | Self::ReverseRequestSupport(Some(value))
            | Self::RtrSupport(Some(value))
            | Self::RequestReceiveLimit(Some(value))
            | Self::ResponseSendLimit(Some(value)) => writer.write_opaque(&value.to_be_bytes()),
            Self::ReceiveBufferStructure(Some(structure)) => {
                writer.write_count(structure.encoded_bytes())?;
                structure.encode(writer)
            }
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
            | Self::HostAuthentication(None)
            | Self::RtrSupport(None)
            | Self::ReceiveBufferStructure(None)
            | Self::RequestReceiveLimit(None)
            | Self::ResponseSendLimit(None) => writer.write_opaque(&[]),
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

fn decode_structure(data: &[u8]) -> Result<Option<ReceiveBufferStructure>, DecodeError> {
    if data.is_empty() {
        return Ok(None);
    }
    ReceiveBufferStructure::decode(data).map(Some)
}

/// The property set of a CONNPROP message: framing and every value that we understand were checked.
///
/// It iterates over its properties in their order on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertySet<'a> {
    /// The entries, without the count.
    bytes: &'a [u8],
    count: usize,
}

impl<'a> PropertySet<'a> {
    /// Decodes a property set: the body of a CONNPROP message, or the concatenated bodies of a continued one.
    ///
    /// Positions in errors count from the start of `body`. A property that we understand may be in the set only once:
    /// the set has no order, so it would be open which of two values holds. Properties that we do not know are
    /// skipped, even repeated ones. A Receive Buffer Size and a Receive Buffer Structure must agree (RTR section 8.3).
    ///
    /// # Errors
    /// `Truncated`, `TrailingBytes`, `InvalidPropertyValue`, `DuplicateProperty`: all are answered with
    /// RDMA2_ERR_BAD_XDR.
    pub fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body);
        let count = reader.read_u32()?;
        let entries = reader.rest();
        let mut seen = 0_u32;
        let mut receive_buffer_bytes = None;
        for _ in 0..count {
            // Each round consumes at least eight octets or fails, so that the input bounds the loop.
            let start = reader;
            let property = Property::decode(&mut reader)?;
            if seen & property.bit() != 0 {
                return Err(start.error(Reason::DuplicateProperty));
            }
            seen |= property.bit();
            if let Some(bytes) = property.receive_buffer_bytes()
                && receive_buffer_bytes
                    .replace(bytes)
                    .is_some_and(|other| other != bytes)
            {
                return Err(start.error(Reason::InvalidPropertyValue));
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

    /// Whether the set holds only a host authentication message. Only such a set may follow the first one of an end:
    /// the values of properties do not change while the connection lasts (-00 section 6.4.4), but an exchange of host
    /// authentication may take several messages (section 5.2.6).
    #[must_use]
    pub fn is_host_authentication_alone(&self) -> bool {
        self.count == 1 && self.host_authentication().is_some()
    }

    /// Writes the set without its host authentication message: the octets that an authentication binds. Padding is
    /// zero, whatever it was on the wire; the rest is as received. So an end that encoded its properties with
    /// [`write_property_set`] gets the same octets.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn write_without_host_authentication(
        &self,
        writer: &mut Writer<'_>,
    ) -> Result<(), EncodeError> {
        let others = || {
            self.into_iter()
                .filter(|property| !matches!(property, Property::HostAuthentication(_)))
        };
        writer.write_count(others().count())?;
        others().try_for_each(|property| property.encode(writer))
    }
}

impl<'a> Iterator for PropertySet<'a> {
    type Item = Property<'a>;

    fn next(&mut self) -> Option<Property<'a>> {
        // `decode` has decoded every property once, so this cannot fail.
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

/// The properties of one endpoint, without host authentication (-00 section 5.2).
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
    /// RTR Support: the messages of the extension that it sends and receives.
    pub rtr_support: RtrSupport,
    /// Receive Buffer Structure, as long as [`receive_buffer_bytes`](Self::receive_buffer_bytes); `None` is one
    /// segment that is not targetable. See [`receive_structure`](Self::receive_structure).
    pub receive_buffer_structure: Option<ReceiveBufferStructure>,
    /// Request Transmission Receive Limit: the most transmissions of a call that it receives, at least 1.
    pub request_transmissions_max: u32,
    /// Response Transmission Send Limit: the most transmissions of a reply that it sends, at least 1.
    pub response_transmissions_max: u32,
}

impl Default for Properties {
    fn default() -> Self {
        Self {
            send_bytes_max: SBSIZ_DEFAULT_BYTES,
            receive_buffer_bytes: RBSIZ_DEFAULT_BYTES,
            segment_bytes_max: RSSIZ_DEFAULT_BYTES,
            segment_count_max: RCSIZ_DEFAULT,
            reverse_requests: ReverseRequestSupport::default(),
            rtr_support: RtrSupport::NONE,
            receive_buffer_structure: None,
            request_transmissions_max: RTR_TRANSMISSIONS_DEFAULT,
            response_transmissions_max: RTR_TRANSMISSIONS_DEFAULT,
        }
    }
}

impl Properties {
    /// How its receive buffers are made. Without a Receive Buffer Structure they have one segment that is not
    /// targetable (RTR section 8.3).
    #[must_use]
    pub fn receive_structure(&self) -> ReceiveBufferStructure {
        self.receive_buffer_structure
            .unwrap_or_else(|| ReceiveBufferStructure::single(self.receive_buffer_bytes))
    }

    /// As properties to encode, in the order of their numbers. Those of the extension RTR are in the list only if they
    /// are not at their defaults.
    #[must_use]
    pub fn to_properties(self) -> PropertyList<'static> {
        let mut list = PropertyList::default();
        list.push(Property::SendSizeMax(Some(self.send_bytes_max)));
        list.push(Property::ReceiveBufferSize(Some(self.receive_buffer_bytes)));
        list.push(Property::SegmentSizeMax(Some(self.segment_bytes_max)));
        list.push(Property::SegmentCountMax(Some(self.segment_count_max)));
        list.push(Property::ReverseRequestSupport(Some(
            self.reverse_requests.to_word(),
        )));
        if self.rtr_support.is_any() {
            list.push(Property::RtrSupport(Some(self.rtr_support.to_word())));
        }
        if let Some(structure) = self.receive_buffer_structure {
            list.push(Property::ReceiveBufferStructure(Some(structure)));
        }
        if self.request_transmissions_max != RTR_TRANSMISSIONS_DEFAULT {
            list.push(Property::RequestReceiveLimit(Some(
                self.request_transmissions_max,
            )));
        }
        if self.response_transmissions_max != RTR_TRANSMISSIONS_DEFAULT {
            list.push(Property::ResponseSendLimit(Some(
                self.response_transmissions_max,
            )));
        }
        list
    }

    /// Applies one property. Data of length zero restores the default; host authentication and unknown properties
    /// change nothing.
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
            Property::RtrSupport(value) => {
                self.rtr_support = value.map_or(default.rtr_support, RtrSupport::from_word);
            }
            Property::ReceiveBufferStructure(structure) => {
                self.receive_buffer_structure = structure;
                if let Some(structure) = structure {
                    self.receive_buffer_bytes = structure.length_bytes();
                }
            }
            // Every message has at least one transmission.
            Property::RequestReceiveLimit(value) => {
                self.request_transmissions_max =
                    value.map_or(default.request_transmissions_max, |limit| limit.max(1));
            }
            Property::ResponseSendLimit(value) => {
                self.response_transmissions_max =
                    value.map_or(default.response_transmissions_max, |limit| limit.max(1));
            }
            Property::HostAuthentication(_) | Property::Unknown { .. } => {}
        }
    }
}

/// Properties to encode: a slice that needs no allocation.
#[derive(Clone, Copy, Debug)]
pub struct PropertyList<'a> {
    entries: [Property<'a>; PROPERTIES_MAX],
    count: usize,
}

/// As many as [`Properties`] has fields, and one of host authentication.
const PROPERTIES_MAX: usize = 10;

impl<'a> PropertyList<'a> {
    /// Appends a property. There is room for those of [`Properties`] and one of host authentication.
    pub(crate) fn push(&mut self, property: Property<'a>) {
        if let Some(entry) = self.entries.get_mut(self.count) {
            *entry = property;
            self.count += 1;
        }
    }
}

impl Default for PropertyList<'_> {
    fn default() -> Self {
        Self {
            entries: [Property::SendSizeMax(None); PROPERTIES_MAX],
            count: 0,
        }
    }
}

impl<'a> core::ops::Deref for PropertyList<'a> {
    type Target = [Property<'a>];

    fn deref(&self) -> &Self::Target {
        self.entries.get(..self.count).unwrap_or_default()
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
