//! Calls that must not run twice: a duplicate request cache (RFC 5531 section 8 has the reason for one).
//!
//! A client whose connection is lost does not know which of its calls ran, and sends them again. A procedure that is
//! marked as not idempotent then runs once all the same: its first reply is kept, and sent again.
//!
//! * **Who calls** ([`clients`]). A client of version 2 gives each of its connections a name by a property ([`property`]), and
//!   connects again under the same name. Any other is known by its address.
//! * **What is the same call** ([`calls`]): client, XID, program, version, procedure, and a keyed hash over the credential,
//!   the lengths, and the first bytes of the arguments.
//! * **How much is kept** ([`window`]). Each client has its own entries, which no other client can displace, however many
//!   calls it makes. A client that has at most [`CALLS_MAX`] calls under way finds the replies to all of them.
//!
//! A client that repeats calls keeps to that ([`repeat`]).
//!
//! All cores of a node share it, because a client that connects again may come to another core. Each client has its own
//! lock, which the one core takes that has its connection. Two cores want one only while calls of a lost connection
//! finish, and where several connections are known by one address. Procedures that are idempotent take no lock and look
//! at nothing here.

mod calls;
mod clients;
mod property;
mod repeat;
mod window;

pub(crate) use self::calls::{Calls, Kept, Running, Verdict};
pub(crate) use self::clients::Clients;
pub(crate) use self::property::Names;
pub(crate) use self::repeat::{Sent, Servers};

/// Calls that a client may have under way for the replies to all of them to be there when it connects again. The server
/// announces it.
pub(crate) const CALLS_MAX: u32 = 64;
