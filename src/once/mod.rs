//! Calls that must not run twice: a duplicate request cache (RFC 5531 section 8 has the reason for one).
//!
//! A client whose connection is lost does not know which of its calls ran, and sends them again. A procedure that is
//! not idempotent then runs once all the same: its first reply is kept, and sent again. Procedures of a
//! [`Service`](crate::Service) that are marked get this by themselves. A server that is an
//! [`Application`](rpcrdma_engine::Application) of the engine, or has its own transport, uses the types of this module.
//!
//! * **Who calls** ([`ClientId`], [`Callers`]). A client of version 2 gives each of its connections a name by a property, and
//!   connects again under the same name. Clients without a name are known by their address: those of one address are one
//!   client, on any port, as the Linux server has it over RDMA.
//! * **What is the same call** ([`Clients::key`]): same client, XID, program, version, procedure, credential and arguments, on
//!   any connection. Of the arguments of a [`Service`](crate::Service), with bulk data in its place, count the length and the
//!   first and last 1,024 bytes. A server that knows where the data is, also in the stream, takes it apart ([`KeyOf::add`]).
//! * **How much is kept** ([`Clients`]). A client is sure of [`ENTRIES`] calls: those that run, and those that finished last.
//!   No other client can displace them, however many calls it makes. One without a name may use free entries, up to
//!   [`ENTRIES_MAX`] in all; memory for them is allocated when it needs them, five times at most. What is kept of a client
//!   that has left is forgotten when its place is needed.
//! * **Which connection.** A client with a name has one connection at a time. When it connects again, no call begins that came by an
//!   earlier connection ([`Begun::Superseded`]): the client sends it again, and a slow core would run it a second time.
//! * **What is promised.** A call that comes again does not run again if fewer than [`ENTRIES`] others of its client that must
//!   not run twice have run since it finished, those that still run included; and for a client without a name, if it comes
//!   within [`KEPT_FOR`]. Results longer than [`KEPT_BYTES_MAX`] are
//!   not kept: then the call that comes again gets SYSTEM_ERR, and does not run. A server that is started again knows nothing
//!   of its former calls.
//!
//! A client that repeats calls ([`ClientBuilder::repeat`](crate::ClientBuilder::repeat)) makes at most [`ENTRIES`] / 2 calls, from
//! the oldest one that has no answer to the newest. So fewer than [`ENTRIES`] can come between a call and its repetition: those that
//! it made before and after, in any order. A call that it gave up on does not count, though it may still run.
//!
//! All cores of a node share it, because a client that connects again may come to another core. Each client has its own
//! lock, which the one core takes that has its connection. Two cores want one only while calls of a lost connection
//! finish, and where several connections are known by one address. Procedures that are idempotent take no lock and look
//! at nothing here.

mod callers;
mod calls;
mod clients;
mod key;
mod property;
mod repeat;
mod window;

pub use self::callers::Callers;
pub use self::clients::{ClientId, Clients, Peer, Session, Waits};
pub use self::key::KeyOf;
pub use self::window::{Begun, ENTRIES, ENTRIES_MAX, KEPT_BYTES_MAX, KEPT_FOR, Key, Ticket};

pub(crate) use self::calls::{Calls, Kept, Running, Verdict, Waiter};
pub(crate) use self::property::{Names, connection_name};
pub(crate) use self::repeat::{Sent, Servers};

/// Calls that a client may make, from the oldest one without an answer to the newest, for the replies to all of them to be
/// there when it connects again: between one of them and its repetition come at most 63 that were made before it, and 63
/// made after it. The server announces it.
pub(crate) const CALLS_MAX: u32 = 64;
const _: () = assert!(ENTRIES >= 2 * CALLS_MAX as usize - 1 && CALLS_MAX <= u64::BITS);
