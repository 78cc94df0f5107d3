//! Sockets of the connection manager: names, credentials, and messages with files.
//!
//! A listener is an abstract Unix socket: it has no file that a killed process could leave behind.
//! Abstract names belong to the network namespace: two containers can connect if they share one.
//! The sockets keep message boundaries (`SOCK_SEQPACKET`) and do not block.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::wire::MESSAGE_BYTES_MAX;
use crate::address::Address;
use crate::interface::ManagerError;
use crate::memory::EXTERNAL_MAX;

/// The files that a reply or a confirmation carries at least.
pub(super) const FILES: usize = 5;
/// The most files that it carries: those, and the application's memory.
pub(super) const FILES_MAX: usize = FILES + EXTERNAL_MAX;

/// The length of the accept queue; the kernel caps it at `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// The name in `shm:NAME`.
pub(super) fn parse_address(address: &str) -> Result<String, ManagerError> {
    match address.parse()? {
        Address::Shm(name) => Ok(name),
        Address::Rdma { .. } => Err(ManagerError::BadAddress {
            address: address.to_owned(),
            why: "it is of a network, and those of this machine look like shm:NAME".to_owned(),
        }),
    }
}

/// The socket address of `name`. It contains the user id, so that two users can use the same name.
/// That is no access control, because any user can connect: [`Peer::is_permitted`] checks the user.
pub(super) fn socket_address(name: &str) -> io::Result<SocketAddrUnix> {
    let user = rustix::process::geteuid().as_raw();
    let full = format!("rpcrdma-shm.{user}.{name}");
    Ok(SocketAddrUnix::new_abstract_name(full.as_bytes())?)
}

fn socket() -> rustix::io::Result<OwnedFd> {
    rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )
}

/// A socket that has `name`, for a listener.
fn bound(name: &str) -> io::Result<OwnedFd> {
    let socket = socket()?;
    rustix::net::bind(&socket, &socket_address(name)?)?;
    Ok(socket)
}

/// A listening socket on `name`.
pub(super) fn listen(name: &str) -> io::Result<OwnedFd> {
    let socket = bound(name)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Checks that nobody listens at `address` (`shm:NAME`), without listening.
///
/// # Errors
/// [`ManagerError::InUse`], and [`ManagerError::BadAddress`].
pub fn check_free(address: &str) -> Result<(), ManagerError> {
    let name = parse_address(address)?;
    match bound(&name) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(ManagerError::InUse {
            address: address.to_owned(),
        }),
        // Whatever else there may be, listening says it.
        _ => Ok(()),
    }
}

/// The next connection of a listener; `None` when the accept queue is empty.
pub(super) fn accept(listener: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    loop {
        return match rustix::net::accept_with(listener, flags) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

/// A socket that is connected to the listener on `name`; `None` when its backlog is full, which
/// is what `EAGAIN` means on these sockets.
pub(super) fn connect(name: &str) -> io::Result<Option<OwnedFd>> {
    let address = socket_address(name)?;
    let socket = socket()?;
    loop {
        return match rustix::net::connect(&socket, &address) {
            Ok(()) => Ok(Some(socket)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

/// The process at the other end of a socket, from the kernel (`SO_PEERCRED`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// The process; zero when it cannot be seen from our pid namespace.
    pub(super) pid: u32,
    /// The user.
    pub(super) user: u32,
}

impl Peer {
    /// Whether the peer runs as our user. Only processes of the same user may share memory. Root is
    /// no exception: root must not map a user's files, nor a user root's, because the mapped memory
    /// would bypass the permissions between them.
    pub(super) fn is_permitted(&self) -> bool {
        self.user == rustix::process::geteuid().as_raw()
    }

    /// For people: the pid and the name of the program.
    pub(super) fn describe(&self) -> String {
        let comm = std::fs::read(format!("/proc/{}/comm", self.pid)).unwrap_or_default();
        // The process chooses this name itself, so it may hold anything.
        let comm: String = String::from_utf8_lossy(&comm)
            .trim_end()
            .chars()
            .map(|c| if c.is_control() { '?' } else { c })
            .collect();
        if comm.is_empty() {
            format!("pid {}", self.pid)
        } else {
            format!("pid {} ({comm})", self.pid)
        }
    }
}

/// The credentials of the process that connected (at a server) or listened (at a client).
pub(super) fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    // rustix cannot be used: its pid type has no zero, which the kernel reports for a process that
    // our pid namespace does not contain.
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut length = u32::try_from(size_of::<libc::ucred>()).map_err(io::Error::other)?;
    // SAFETY: the pointers are to live locals, and `length` is the size of the first one.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut credentials).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Peer {
        pid: u32::try_from(credentials.pid).unwrap_or(0),
        user: credentials.uid,
    })
}

/// Sends one message, with its files if it has any.
pub(super) fn send(socket: &OwnedFd, message: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::other("too many files for one message"));
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        let parts = [IoSlice::new(message)];
        return match rustix::net::sendmsg(socket, &parts, &mut control, flags) {
            Ok(_) => Ok(()),
            Err(Errno::INTR) => continue,
            Err(error) => Err(error.into()),
        };
    }
}

/// The result of [`receive`].
#[derive(Debug)]
pub(super) enum Received {
    /// A message: its length in bytes, and its files.
    Message(usize, Vec<OwnedFd>),
    /// A message that is longer than any valid one, or that carried too many files. The files are
    /// closed.
    Oversized,
    /// The message carried more files than this process may open. The received files are closed.
    NoRoomForFiles,
    /// No message is waiting.
    Nothing,
    /// The peer closed its end, or died.
    Closed,
}

/// Receives one message.
pub(super) fn receive(
    socket: &OwnedFd,
    bytes: &mut [u8; MESSAGE_BYTES_MAX],
) -> io::Result<Received> {
    // Room for one file more than a message may carry. Otherwise `CTRUNC` could mean too many files
    // or no free descriptor, and these are different errors.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX + 1))];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut resets = 0;
    let (length, returned, files) = loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(bytes)];
        match rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut control, flags) {
            Ok(message) => {
                let mut files = Vec::new();
                for part in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(rights) = part {
                        files.extend(rights);
                    }
                }
                break (message.bytes, message.flags, files);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            // The peer closed while a message of ours was unread. The kernel reports that once,
            // before the messages that the peer sent last, one of which may be a rejection.
            Err(Errno::CONNRESET) if resets == 0 => resets = 1,
            Err(Errno::CONNRESET | Errno::PIPE) => return Ok(Received::Closed),
            Err(error) => return Err(error.into()),
        }
    };
    if returned.contains(ReturnFlags::TRUNC) || files.len() > FILES_MAX {
        return Ok(Received::Oversized);
    }
    if returned.contains(ReturnFlags::CTRUNC) {
        return Ok(Received::NoRoomForFiles);
    }
    if length == 0 {
        return Ok(Received::Closed);
    }
    Ok(Received::Message(length, files))
}

/// Raises the soft limit of open files to the hard limit. Returns a text with both limits.
pub(super) fn raise_open_files_limit() -> String {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // If this fails the old limit stays, and the text reports that one.
    let _refused = setrlimit(Resource::Nofile, raised);
    let now = getrlimit(Resource::Nofile);
    let show = |value: Option<u64>| value.map_or("unlimited".to_owned(), |n| n.to_string());
    format!(
        "this process may open {} files (hard limit {}); raise it with `ulimit -n`, \
         or LimitNOFILE= of its systemd unit",
        show(now.current),
        show(now.maximum)
    )
}
