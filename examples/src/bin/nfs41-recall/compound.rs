//! COMPOUND of NFS version 4.1, as far as a read delegation takes it: arguments and results in XDR (RFC 8881).
//!
//! [`Compound`] is written operation by operation; [`Results`] is read in the same order, and each step checks the
//! number of its operation and its status.

use std::error::Error;
use std::fmt;

use rpcrdma_protocol::DecodeError;
use rpcrdma_protocol::xdr::Reader;

/// The program, its version, and the procedure (section 16.2).
pub(crate) const NFS_PROGRAM: u32 = 100_003;
pub(crate) const NFS_VERSION: u32 = 4;
pub(crate) const COMPOUND: u32 = 1;
/// The minor version, which each COMPOUND names.
pub(crate) const MINOR_VERSION: u32 = 1;

/// Numbers of operations (section 18).
pub(crate) mod op {
    pub(crate) const CLOSE: u32 = 4;
    pub(crate) const DELEGRETURN: u32 = 8;
    pub(crate) const GETFH: u32 = 10;
    pub(crate) const LOOKUP: u32 = 15;
    pub(crate) const OPEN: u32 = 18;
    pub(crate) const PUTFH: u32 = 22;
    pub(crate) const PUTROOTFH: u32 = 24;
    pub(crate) const EXCHANGE_ID: u32 = 42;
    pub(crate) const CREATE_SESSION: u32 = 43;
    pub(crate) const DESTROY_SESSION: u32 = 44;
    pub(crate) const SEQUENCE: u32 = 53;
    pub(crate) const DESTROY_CLIENTID: u32 = 57;
    pub(crate) const RECLAIM_COMPLETE: u32 = 58;
}

/// Statuses that ask for another try (section 15.1).
pub(crate) const DELAY: u32 = 10_008;
pub(crate) const GRACE: u32 = 10_013;

/// OPEN for reading, and a wish for a read delegation; for writing, and for none (section 18.16.1).
pub(crate) const OPEN_TO_READ: u32 = 0x0101;
pub(crate) const OPEN_TO_WRITE: u32 = 0x0402;

/// The connection of CREATE_SESSION is to be the session's back channel (section 18.36.1).
const CONN_BACK_CHAN: u32 = 2;

/// The longest file handle, and the longest of all other opaque data: tags, owners, names (section 3.1).
const FILE_HANDLE_BYTES_MAX: usize = 128;
const OPAQUE_BYTES_MAX: usize = 1024;

/// A session (section 3.1), and what is open or delegated: a number, and twelve octets of the server (section 3.3.12).
pub(crate) type SessionId = [u8; 16];
pub(crate) type StateId = [u8; 16];

/// The longest RPC message of a session: what fits a Send of 4096 octets behind the header of version 1.
const MESSAGE_BYTES: u32 = 4096 - 28;

/// The arguments of a COMPOUND, operation by operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Compound {
    operations: u32,
    stream: Vec<u8>,
}

impl Compound {
    /// One on a session: it begins with SEQUENCE, here on slot 0, the only one (section 18.46.1).
    pub(crate) fn on(session: &SessionId, sequence: u32) -> Self {
        let sequenced = Self::default().op(op::SEQUENCE).bytes(session);
        sequenced.words(&[sequence, 0, 0, 0])
    }

    /// What is sent (section 16.2.1): no tag, the minor version, the operations.
    pub(crate) fn arguments(&self) -> Vec<u8> {
        let head = [0, MINOR_VERSION, self.operations];
        let head = head.iter().flat_map(|word| word.to_be_bytes());
        head.chain(self.stream.iter().copied()).collect()
    }

    /// An operation; its arguments follow.
    pub(crate) fn op(mut self, number: u32) -> Self {
        self.operations += 1;
        self.words(&[number])
    }

    pub(crate) fn words(self, words: &[u32]) -> Self {
        let put = |it: Self, word: &u32| it.bytes(&word.to_be_bytes());
        words.iter().fold(self, put)
    }

    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.stream.extend_from_slice(bytes);
        self
    }

    pub(crate) fn opaque(self, data: &[u8]) -> Self {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let padding = data.len().wrapping_neg() % 4;
        let put = self.words(&[length]).bytes(data);
        put.bytes(&[0; 3][..padding])
    }

    /// Section 18.35.1: a client owner, no flags, no state protection, nothing about the implementation.
    pub(crate) fn exchange_id(self, verifier: u64, owner: &[u8]) -> Self {
        let operation = self.op(op::EXCHANGE_ID).bytes(&verifier.to_be_bytes());
        operation.opaque(owner).words(&[0, 0, 0])
    }

    /// Section 18.36.1: one slot in each direction, and calls to this end, of the program `callbacks` and with
    /// AUTH_NONE, if it takes any.
    pub(crate) fn create_session(self, client: (u64, u32), callbacks: Option<u32>) -> Self {
        let (client, sequence) = client;
        let flags = callbacks.map_or(0, |_| CONN_BACK_CHAN);
        // No padding; the longest call, reply, and reply that is kept; operations, slots; no RDMA depth.
        let channel = |operations| [0, MESSAGE_BYTES, MESSAGE_BYTES, 1024, operations, 1, 0];
        self.op(op::CREATE_SESSION)
            .bytes(&client.to_be_bytes())
            .words(&[sequence, flags])
            .words(&channel(16))
            .words(&channel(2))
            .words(&[callbacks.unwrap_or(0), 1, 0])
    }

    /// PUTROOTFH, and a LOOKUP of each component (section 18.13.1).
    pub(crate) fn walk(self, components: &[&str]) -> Self {
        let step = |it: Self, name: &&str| it.op(op::LOOKUP).opaque(name.as_bytes());
        components.iter().fold(self.op(op::PUTROOTFH), step)
    }

    /// Section 18.16.1: a file that is there, by its name in the current folder; nothing is denied to others.
    pub(crate) fn open(self, access: u32, client: u64, owner: &[u8], name: &str) -> Self {
        self.op(op::OPEN)
            .words(&[0, access, 0])
            .bytes(&client.to_be_bytes())
            .opaque(owner)
            // OPEN4_NOCREATE, CLAIM_NULL.
            .words(&[0, 0])
            .opaque(name.as_bytes())
    }
}

/// Why results do not say what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// They are other ones, or cannot be decoded.
    Malformed { at: usize },
    /// The operation failed with this status.
    Failed { operation: u32, status: u32 },
}

impl Wrong {
    /// Whether the server asks for another try, now or behind its grace period.
    pub(crate) fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Failed {
                status: DELAY | GRACE,
                ..
            }
        )
    }
}

impl From<DecodeError> for Wrong {
    fn from(error: DecodeError) -> Self {
        Self::Malformed { at: error.at }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { at } => {
                write!(
                    f,
                    "the server's results are not what was asked for, at octet {at}"
                )
            }
            Self::Failed { operation, status } => write!(
                f,
                "operation {operation} of RFC 8881 section 18 fails with status {status} of section 15.1"
            ),
        }
    }
}

impl Error for Wrong {}

/// What OPEN gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    pub(crate) state: StateId,
    /// A read delegation, if one came.
    pub(crate) delegation: Option<StateId>,
}

/// The results of a COMPOUND (section 16.2.2), in the order of its operations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Results<'a> {
    reader: Reader<'a>,
}

impl<'a> Results<'a> {
    /// The status of the whole is that of its last operation, where it is looked at.
    pub(crate) fn new(stream: &'a [u8]) -> Result<Self, Wrong> {
        let mut reader = Reader::new(stream);
        let status = reader.read_u32()?;
        reader.read_opaque(OPAQUE_BYTES_MAX)?;
        match (reader.read_u32()?, status) {
            (0, 1..) => Err(Wrong::Failed {
                operation: 0,
                status,
            }),
            _ => Ok(Self { reader }),
        }
    }

    /// The next result is of this operation, and it was done.
    pub(crate) fn done(&mut self, operation: u32) -> Result<(), Wrong> {
        let at = self.reader.position();
        match (self.reader.read_u32()?, self.reader.read_u32()?) {
            (number, _) if number != operation => Err(Wrong::Malformed { at }),
            (_, 0) => Ok(()),
            (_, status) => Err(Wrong::Failed { operation, status }),
        }
    }

    /// SEQUENCE, of which nothing is wanted (section 18.46.2): the session, and five words.
    pub(crate) fn sequence(&mut self) -> Result<(), Wrong> {
        self.done(op::SEQUENCE)?;
        self.reader.read_bytes(16 + 5 * 4)?;
        Ok(())
    }

    /// The client's identifier, and the first sequence number of CREATE_SESSION (section 18.35.2).
    pub(crate) fn exchange_id(&mut self) -> Result<(u64, u32), Wrong> {
        self.done(op::EXCHANGE_ID)?;
        Ok((self.reader.read_u64()?, self.reader.read_u32()?))
    }

    /// The session, and whether its connection is the back channel too (section 18.36.2). What the channels were cut
    /// down to follows; what is sent here is shorter.
    pub(crate) fn create_session(&mut self) -> Result<(SessionId, bool), Wrong> {
        self.done(op::CREATE_SESSION)?;
        let session = self.sixteen()?;
        let (_sequence, flags) = (self.reader.read_u32()?, self.reader.read_u32()?);
        Ok((session, flags & CONN_BACK_CHAN != 0))
    }

    /// PUTROOTFH and the LOOKUPs, OPEN (section 18.16.2), and GETFH: what is open, and its file handle.
    pub(crate) fn open(&mut self, components: &[&str]) -> Result<(Opened, Vec<u8>), Wrong> {
        self.done(op::PUTROOTFH)?;
        components.iter().try_for_each(|_| self.done(op::LOOKUP))?;
        self.done(op::OPEN)?;
        let state = self.sixteen()?;
        // The change of the folder, flags, and the attributes that were set.
        self.reader.read_bytes(4 + 8 + 8 + 4)?;
        for _ in 0..self.reader.read_u32()? {
            self.reader.read_u32()?;
        }
        let delegation = self.delegation()?;
        self.done(op::GETFH)?;
        let file = self.reader.read_opaque(FILE_HANDLE_BYTES_MAX)?;
        Ok((Opened { state, delegation }, file.to_vec()))
    }

    fn delegation(&mut self) -> Result<Option<StateId>, Wrong> {
        let at = self.reader.position();
        match self.reader.read_u32()? {
            // OPEN_DELEGATE_NONE
            0 => Ok(None),
            // OPEN_DELEGATE_READ
            1 => {
                let delegation = self.sixteen()?;
                // Whether it is being recalled; whom it lets in: type, flags, mask, name.
                self.reader.read_bytes(4 + 3 * 4)?;
                self.reader.read_opaque(OPAQUE_BYTES_MAX)?;
                Ok(Some(delegation))
            }
            // OPEN_DELEGATE_NONE_EXT: the reason. Contention and a lack of resources have a boolean.
            3 => {
                if matches!(self.reader.read_u32()?, 1 | 2) {
                    self.reader.read_bool()?;
                }
                Ok(None)
            }
            _ => Err(Wrong::Malformed { at }),
        }
    }

    fn sixteen(&mut self) -> Result<[u8; 16], Wrong> {
        let at = self.reader.position();
        let bytes = self.reader.read_bytes(16)?;
        bytes.try_into().map_err(|_| Wrong::Malformed { at })
    }
}
