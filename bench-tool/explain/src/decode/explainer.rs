//! Reads an input to its end, and writes its contents.

use std::io::{self, BufRead, Read, Write};

use serde::Serialize;

use super::conversation::Conversation;
use super::error::ExplainError;
use super::explained::Explained;
use super::message::Decoded;
use super::round_trips::{Part, Place, RoundTrips, Sender};
use super::summary::{Collector, Seen};
use super::{captured_text, input, summary_text, text};
use crate::capture::{Counts, Packets, Traffic, is_capture};

/// The form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Paragraphs of text.
    Text,
    /// One JSON object per line.
    Json,
}

/// What an explainer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    Messages,
    /// Captures end with a summary with so many of the slowest calls.
    MessagesAndSummary(usize),
    /// Only a summary, of any input.
    Summary(usize),
}

/// The program that compressed a file with these first bytes.
fn compressed_by(start: &[u8]) -> Option<&'static str> {
    match start {
        [0x1f, 0x8b, ..] => Some("gzip"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Some("zstd"),
        [0xfd, b'7', b'z', b'X', ..] => Some("xz"),
        [b'B', b'Z', b'h', ..] => Some("bzip2"),
        _ => None,
    }
}

/// Explains inputs one after another. Writes each message when it is complete, so that it also serves a live pipe.
#[derive(Debug)]
pub struct Explainer<W> {
    write: W,
    form: Form,
    what: Shown,
    found_wrong: bool,
    /// The number of paragraphs or objects so far.
    shown: u64,
    is_closed: bool,
    counts: Option<Counts>,
}

impl<W: Write> Explainer<W> {
    /// An explainer that writes to `write`.
    #[must_use]
    pub const fn new(write: W, form: Form) -> Self {
        Self {
            write,
            form,
            what: Shown::Messages,
            found_wrong: false,
            shown: 0,
            is_closed: false,
            counts: None,
        }
    }

    /// The same explainer, which also writes a summary after each capture, with at most `slowest` of the slowest calls.
    #[must_use]
    pub const fn with_summary(mut self, slowest: usize) -> Self {
        self.what = Shown::MessagesAndSummary(slowest);
        self
    }

    /// The same explainer, which writes only a summary of each input, with at most `slowest` of the slowest calls of a
    /// capture. Hex has neither times nor senders, so its summary has less.
    #[must_use]
    pub const fn only_summary(mut self, slowest: usize) -> Self {
        self.what = Shown::Summary(slowest);
        self
    }

    /// Explains an input to its end. An input with the magic number of a capture is a capture; any other input is
    /// messages in hex, one per line. `name` is the name of the input in errors.
    ///
    /// # Errors
    /// The input cannot be read, or holds no message, or writing the output failed. The output holds everything that
    /// was read before the error.
    pub fn explain(&mut self, mut input: impl BufRead, name: &str) -> Result<(), ExplainError> {
        self.counts = None;
        let mut start = Vec::new();
        input
            .by_ref()
            .take(4)
            .read_to_end(&mut start)
            .map_err(|error| ExplainError::unreadable(name, error))?;
        if let Some(program) = compressed_by(&start) {
            let name = name.to_owned();
            return Err(ExplainError::Compressed { name, program });
        }
        let input = start.as_slice().chain(input);
        if is_capture(&start) {
            self.explain_capture(input, name)
        } else {
            self.explain_lines(input, name)
        }
    }

    /// Whether any message so far was wrong, packets are missing, or a packet could not be read.
    #[must_use]
    pub const fn found_wrong(&self) -> bool {
        self.found_wrong
    }

    /// Whether the reader of the output closed the pipe. Further output has no reader.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The packet counts of the last input; `None` if it was no capture.
    #[must_use]
    pub const fn counts(&self) -> Option<Counts> {
        self.counts
    }

    /// Returns the writer of the output.
    #[must_use]
    pub fn into_inner(self) -> W {
        self.write
    }

    fn explain_capture(&mut self, input: impl BufRead, name: &str) -> Result<(), ExplainError> {
        let bad = |error| ExplainError::of_capture(name, error);
        let mut traffic = Traffic::default();
        let mut explained = Explained::new(match self.what {
            Shown::Messages => None,
            Shown::MessagesAndSummary(slowest) | Shown::Summary(slowest) => Some(slowest),
        });
        let mut end = Ok(());
        for packet in Packets::new(input).map_err(bad)? {
            let packet = match packet {
                Ok(packet) => packet,
                Err(error) => {
                    end = Err(bad(error));
                    break;
                }
            };
            explained.start.get_or_insert(packet.time);
            explained.end = explained.end.max(packet.time);
            for happened in traffic.packet(&packet) {
                self.show_captured(&mut explained, happened)?;
            }
            if self.is_closed {
                return Ok(());
            }
        }
        for happened in traffic.finish() {
            self.show_captured(&mut explained, happened)?;
        }
        self.counts = Some(traffic.counts());
        let messages = explained.messages;
        if let Some(summary) = explained.summary(name, traffic.counts()) {
            self.show(&summary, |_| summary_text::paragraph(&summary))?;
        }
        end?;
        if messages == 0 {
            return Err(ExplainError::NothingCaptured {
                name: name.to_owned(),
            });
        }
        Ok(())
    }

    fn show_captured(
        &mut self,
        explained: &mut Explained,
        happened: crate::capture::Happened,
    ) -> Result<(), ExplainError> {
        let captured = explained.explain(happened);
        self.found_wrong |= captured.what.is_wrong();
        if matches!(self.what, Shown::Summary(_)) {
            return Ok(());
        }
        self.show(&captured, |number| {
            captured_text::paragraph(&captured, number)
        })
    }

    fn explain_lines(&mut self, mut input: impl BufRead, name: &str) -> Result<(), ExplainError> {
        let mut conversation = Conversation::default();
        let mut round_trips = RoundTrips::default();
        let mut collector = match self.what {
            Shown::Summary(_) => Some(Collector::new(0)),
            _ => None,
        };
        let (mut line, mut line_number, mut messages) = (Vec::new(), 0_u64, 0_u64);
        while !self.is_closed {
            line.clear();
            // WAIT: for the writer of the input; a signal ends the process.
            let bytes = input
                .read_until(b'\n', &mut line)
                .map_err(|error| ExplainError::unreadable(name, error))?;
            if bytes == 0 {
                break;
            }
            line_number += 1;
            let decoded = match input::message_bytes(&line) {
                Ok(None) => continue,
                Ok(Some(message)) => conversation.decode(&message, line_number),
                Err(error) => Decoded::from_input_error(&error, line_number),
            };
            messages += 1;
            self.found_wrong |= decoded.is_wrong();
            match &mut collector {
                None => self.show(&decoded, |number| text::paragraph(&decoded, number))?,
                Some(collector) => {
                    collector.message(of_line(&decoded, line_number, &mut round_trips));
                }
            }
        }
        if let Some(collector) = collector {
            let summary = collector.finish(name, &round_trips);
            self.show(&summary, |_| summary_text::paragraph(&summary))?;
        }
        if messages == 0 {
            return Err(ExplainError::NoMessage {
                name: name.to_owned(),
            });
        }
        Ok(())
    }

    /// Writes one JSON object, or the paragraph with its number.
    fn show(
        &mut self,
        value: &impl Serialize,
        paragraph: impl FnOnce(u64) -> String,
    ) -> Result<(), ExplainError> {
        self.shown += 1;
        match self.try_show(value, paragraph) {
            // A reader that closes the pipe (`decode | head -1`) has what it needs, so this is no error.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(())
            }
            shown => shown.map_err(ExplainError::Unwritable),
        }
    }

    fn try_show(
        &mut self,
        value: &impl Serialize,
        paragraph: impl FnOnce(u64) -> String,
    ) -> io::Result<()> {
        match self.form {
            Form::Json => {
                serde_json::to_writer(&mut self.write, value)?;
                self.write.write_all(b"\n")?;
            }
            Form::Text => {
                if self.shown > 1 {
                    self.write.write_all(b"\n")?;
                }
                self.write.write_all(paragraph(self.shown).as_bytes())?;
            }
        }
        // The writer may have a buffer, and the reader of a live pipe waits for this message.
        self.write.flush()
    }
}

/// The message of a line, for the summary.
fn of_line<'a>(decoded: &'a Decoded, line: u64, round_trips: &mut RoundTrips) -> Seen<'a> {
    let part = match decoded {
        Decoded::Right(message) => {
            let place = Place {
                connection: None,
                sender: Sender::Role {
                    is_reply: message.is_reply() == Some(true),
                },
                first_packet: line,
                began: std::time::Duration::ZERO,
            };
            round_trips.message(message, place)
        }
        Decoded::Wrong(_) => Part::Other,
    };
    Seen {
        decoded,
        part,
        flow: None,
        connection: None,
        last_packet: line,
        ended: None,
    }
}
