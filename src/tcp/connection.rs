//! One connection by TCP.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use rustix::event::PollFlags;

use crate::exchange::{Content, Parcel};
use crate::record::{RecordError, Records};

/// A connection with its socket.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) records: Records,
    /// A whole message may wait among the records, until the connection may have another call.
    pub(super) has_message: bool,
    /// The peer sends no more.
    pub(super) is_over: bool,
    /// This end sends no more, and reads only to the end of the stream.
    pub(super) is_leaving: bool,
    /// Replies to send, with the octets of the first that were sent.
    replies: VecDeque<Box<Parcel>>,
    sent: usize,
    /// The socket took no more.
    is_full: bool,
    /// When something last came or went.
    pub(super) moved: Instant,
}

impl Connection {
    pub(super) fn new(
        stream: TcpStream,
        message_bytes_max: usize,
        now: Instant,
    ) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            records: Records::new(message_bytes_max),
            has_message: false,
            is_over: false,
            is_leaving: false,
            replies: VecDeque::new(),
            sent: 0,
            is_full: false,
            moved: now,
        })
    }

    /// What the thread waits for.
    pub(super) fn interest(&self) -> PollFlags {
        let mut interest = PollFlags::empty();
        if (!self.has_message || self.is_leaving) && !self.is_over {
            interest |= PollFlags::IN;
        }
        if !self.replies.is_empty() {
            interest |= PollFlags::OUT;
        }
        interest
    }

    /// Receives once.
    ///
    /// # Errors
    /// When the connection has ended.
    pub(super) fn receive(&mut self, now: Instant) -> io::Result<()> {
        let mut unread = [0; 4096];
        let space = match self.is_leaving {
            true => &mut unread[..],
            false => self.records.space(),
        };
        match self.stream.read(space) {
            Ok(0) => self.is_over = true,
            Ok(_) if self.is_leaving => {}
            Ok(count) => {
                self.records.filled(count);
                (self.has_message, self.moved) = (true, now);
            }
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Sends no more once all replies are sent, so that the peer closes the connection.
    pub(super) fn leave(&mut self, now: Instant) {
        if !std::mem::replace(&mut self.is_leaving, true) {
            self.moved = now;
            // It fails when the peer has closed it.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }

    /// The next whole message.
    ///
    /// # Errors
    /// After which nothing of the stream can be understood.
    pub(super) fn next_message(&mut self) -> Result<Option<&[u8]>, RecordError> {
        let message = self.records.next_message()?;
        self.has_message = message.is_some();
        Ok(message)
    }

    pub(super) fn push(&mut self, reply: Box<Parcel>, now: Instant) {
        self.moved = now;
        self.replies.push_back(reply);
    }

    /// Replies that were not sent whole.
    pub(super) fn unsent(&self) -> usize {
        self.replies.len()
    }

    /// Sends what the socket takes, if it took all before or is `writable`. Whole replies go to `done`.
    ///
    /// # Errors
    /// When the connection has ended.
    pub(super) fn send(
        &mut self,
        writable: bool,
        now: Instant,
        done: &mut VecDeque<Box<Parcel>>,
    ) -> io::Result<()> {
        self.is_full &= !writable;
        while let Some(parcel) = self.replies.front().filter(|_| !self.is_full) {
            let record = match &parcel.content {
                Content::Reply(place) => parcel.reply.get(place.clone()).unwrap_or(&[]),
                _ => &[],
            };
            match self.stream.write(record.get(self.sent..).unwrap_or(&[])) {
                Ok(count) => (self.sent, self.moved) = (self.sent + count, now),
                Err(error) if is_passing(&error) => self.is_full = true,
                Err(error) => return Err(error),
            }
            if self.sent >= record.len() {
                self.sent = 0;
                done.extend(self.replies.pop_front());
            }
        }
        Ok(())
    }

    /// The replies that were not sent.
    pub(super) fn into_replies(self) -> VecDeque<Box<Parcel>> {
        self.replies
    }
}

/// Whether the same call can succeed later.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
