//! The parts of version 2 that version 1 lacks: properties, grants, continued messages, and the extension RTR. On a
//! connection of version 1 none of them is active, and encoding them is refused with [`SendRefused::Over`].

use super::Connection;
use crate::v2::application::{ApplicationHeaderTypes, ApplicationProperties};
use crate::v2::connection::{Direction, SendRefused, Unfinished};
use crate::v2::rtr::{
    EncodeItems, EncodeResponseSets, Problem, ReceiveBufferStructure, ReportError, TransmitRequest,
    TransmitResponse,
};

impl Connection {
    /// As [`set_header_types`](crate::v2::connection::Connection::set_header_types) of version 2.
    pub fn set_header_types(&mut self, header_types: ApplicationHeaderTypes) {
        self.v2.set_header_types(header_types);
    }

    /// As [`encode_application_message`](crate::v2::connection::Connection::encode_application_message) of version 2.
    ///
    /// # Errors
    /// As there.
    pub fn encode_application_message(
        &mut self,
        out: &mut [u8],
        header_type: u32,
        xid: u32,
        is_response: bool,
        body_bytes: usize,
    ) -> Result<usize, SendRefused> {
        self.v2
            .encode_application_message(out, header_type, xid, is_response, body_bytes)
    }

    /// As [`encode_properties`](crate::v2::connection::Connection::encode_properties) of version 2.
    ///
    /// # Errors
    /// As there.
    pub fn encode_properties(&mut self, out: &mut [u8], xid: u32) -> Result<usize, SendRefused> {
        self.v2.encode_properties(out, xid)
    }

    /// As [`encode_properties_with`](crate::v2::connection::Connection::encode_properties_with) of version 2.
    ///
    /// # Errors
    /// As there.
    pub fn encode_properties_with(
        &mut self,
        out: &mut [u8],
        xid: u32,
        application: &ApplicationProperties,
    ) -> Result<usize, SendRefused> {
        self.v2.encode_properties_with(out, xid, application)
    }

    /// As [`encode_host_authentication`](crate::v2::connection::Connection::encode_host_authentication) of version 2.
    ///
    /// # Errors
    /// As there.
    pub fn encode_host_authentication(
        &mut self,
        out: &mut [u8],
        xid: u32,
        message: &[u8],
        with_properties: Option<&ApplicationProperties>,
    ) -> Result<usize, SendRefused> {
        self.v2
            .encode_host_authentication(out, xid, message, with_properties)
    }

    /// As [`encode_grant`](crate::v2::connection::Connection::encode_grant) of version 2.
    ///
    /// # Errors
    /// As there.
    pub fn encode_grant(&mut self, out: &mut [u8]) -> Result<usize, SendRefused> {
        self.v2.encode_grant(out)
    }

    /// Whether a continued message or a transmission group of ours is incomplete.
    #[must_use]
    pub const fn sequence_open(&self) -> bool {
        self.v2.sequence_open()
    }

    /// The message or transmission group that the peer has begun and not completed.
    #[must_use]
    pub const fn unfinished(&self) -> Option<Unfinished> {
        self.v2.unfinished()
    }

    /// Whether a transmission group of the peer is being received.
    #[inline]
    #[must_use]
    pub const fn is_group_open(&self) -> bool {
        self.v2.is_group_open()
    }

    /// As [`handle_group_refused`](crate::v2::connection::Connection::handle_group_refused) of version 2.
    pub fn handle_group_refused(&mut self, problem: Problem) -> Option<ReportError> {
        self.v2.handle_group_refused(problem)
    }

    /// The structure of our receive buffers.
    #[must_use]
    pub fn receive_structure(&self) -> ReceiveBufferStructure {
        self.v2.receive_structure()
    }

    /// As [`encode_transmit_request`](crate::v2::connection::Connection::encode_transmit_request) of version 2.
    ///
    /// # Errors
    /// As there.
    pub fn encode_transmit_request<I: EncodeItems, D: EncodeResponseSets>(
        &mut self,
        out: &mut [u8],
        xid: u32,
        request: &TransmitRequest<I, D>,
        behind_bytes: usize,
    ) -> Result<usize, SendRefused> {
        self.v2
            .encode_transmit_request(out, xid, request, behind_bytes)
    }

    /// As [`encode_transmit_response`](crate::v2::connection::Connection::encode_transmit_response) of version 2.
    ///
    /// # Errors
    /// As there.
    pub fn encode_transmit_response<I: EncodeItems>(
        &mut self,
        out: &mut [u8],
        xid: u32,
        response: &TransmitResponse<I>,
        behind_bytes: usize,
    ) -> Result<usize, SendRefused> {
        self.v2
            .encode_transmit_response(out, xid, response, behind_bytes)
    }

    /// As [`encode_transmission_again`](crate::v2::connection::Connection::encode_transmission_again) of version 2.
    ///
    /// # Errors
    /// As there.
    pub fn encode_transmission_again(
        &mut self,
        out: &mut [u8],
        xid: u32,
        direction: Direction,
        body: &[u8],
        behind_bytes: usize,
    ) -> Result<usize, SendRefused> {
        self.v2
            .encode_transmission_again(out, xid, direction, body, behind_bytes)
    }

    /// As [`encode_transmit_continue`](crate::v2::connection::Connection::encode_transmit_continue) of version 2.
    ///
    /// # Errors
    /// As there.
    pub fn encode_transmit_continue(
        &mut self,
        out: &mut [u8],
        stream_bytes: u32,
        behind_bytes: usize,
    ) -> Result<usize, SendRefused> {
        self.v2
            .encode_transmit_continue(out, stream_bytes, behind_bytes)
    }

    /// As [`encode_report_error`](crate::v2::connection::Connection::encode_report_error) of version 2.
    ///
    /// # Errors
    /// As there.
    pub fn encode_report_error(
        &mut self,
        out: &mut [u8],
        report: &ReportError,
    ) -> Result<usize, SendRefused> {
        self.v2.encode_report_error(out, report)
    }
}
