//! MOUNT version 3, which gives the file handle for the path of an export: on the connection that NFS uses, or over TCP at
//! another port, which the port mapper knows.

use std::time::Duration;

use rpcrdma_protocol::rpc::OpaqueAuth;
use rpcrdma_protocol::xdr::Writer;

use super::caller::CallFailed;
use super::credential::Credential;
use super::portmap;
use super::reply::{self, ReplyError};
use super::tcp::{TcpCaller, TcpCallerConfig};
use crate::client::ClientError;
use crate::wire::FileHandle;
use crate::wire::mount::{self, MountProcedure, MountStatus};

/// The longest reply of MOUNT and the port mapper, in bytes; theirs are short.
pub const REPLY_BYTES_MAX: usize = 4096;

/// The longest arguments of MOUNT, in bytes: a path.
const ARGUMENTS_BYTES_MAX: usize = 4 + mount::PATH_BYTES_MAX;

/// Makes calls of MOUNT, one at a time.
pub trait MountCaller {
    /// Makes a call and waits for its results.
    fn call_mount(&mut self, procedure: MountProcedure, args: &[u8])
    -> Result<Vec<u8>, CallFailed>;
}

/// The handle of `export`; `None` if the server does not have MOUNT version 3 where `caller` calls it. `server` is for
/// error texts.
///
/// # Errors
/// If the call fails otherwise, or the server refuses to mount.
pub fn mount<C: MountCaller + ?Sized>(
    caller: &mut C,
    server: &str,
    export: &str,
) -> Result<Option<FileHandle>, ClientError> {
    let failed = || ClientError::failed(format!("cannot mount {export} of {server}"));
    let results = match caller.call_mount(MountProcedure::Mnt, &path(export)?) {
        Err(error) if error.is_without_program() => return Ok(None),
        results => results.map_err(|error| {
            let advice = "look at the server: it must be up, and offer MOUNT version 3";
            failed().because(error).advice(advice)
        })?,
    };
    let root = reply::mounted(&results).map_err(|error| {
        let advice = match error {
            ReplyError::Mount(MountStatus::NoEntry | MountStatus::NotDirectory) => {
                "give --export a folder that `showmount -e SERVER` lists"
            }
            ReplyError::Mount(MountStatus::Access | MountStatus::NotOwner) => {
                "the server does not export it to this client, or accepts only privileged source ports: check its exports, \
                 run as root, or export it with `insecure`"
            }
            _ => "look at the server's messages",
        };
        failed().because(error).advice(advice)
    })?;
    Ok(Some(root))
}

/// Notifies the server that `export` is no longer used. Nothing depends on that, so errors are ignored.
pub fn unmount<C: MountCaller + ?Sized>(caller: &mut C, export: &str) {
    if let Ok(args) = path(export) {
        let _ = caller.call_mount(MountProcedure::Umnt, &args);
    }
}

/// The MOUNT service on its own TCP port, as Linux servers have it.
#[derive(Debug)]
pub struct MountPort {
    caller: TcpCaller,
    credential: Credential,
    host: String,
    port: u16,
    timeout: Duration,
}

impl MountPort {
    /// Connects to the MOUNT server on `port`, or on the port that the port mapper of `host` returns.
    pub fn connect(
        host: &str,
        port: Option<u16>,
        credential: &Credential,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        let port = match port {
            Some(port) => port,
            None => port_of_mountd(host, timeout)?,
        };
        // WAIT: the time-out of its configuration.
        let caller = TcpCaller::connect(&config(host, port, "mountd", timeout))?;
        Ok(Self {
            caller,
            credential: credential.clone(),
            host: host.to_owned(),
            port,
            timeout,
        })
    }

    /// The handle of `export`.
    pub fn mount(&mut self, export: &str) -> Result<FileHandle, ClientError> {
        let server = format!("{} port {} (TCP)", self.host, self.port);
        mount(self, &server, export)?.ok_or_else(|| {
            ClientError::failed(format!("{server} has no MOUNT version 3"))
                .advice("look for mountd in the output of `rpcinfo -p SERVER`")
        })
    }

    /// As [`unmount`], on a new connection: the server may have closed this one, which was idle during the run.
    pub fn unmount(mut self, export: &str) {
        let config = config(&self.host, self.port, "mountd", self.timeout);
        // WAIT: the time-out of its configuration.
        if let Ok(caller) = TcpCaller::connect(&config) {
            self.caller = caller;
            unmount(&mut self, export);
        }
    }
}

impl MountCaller for MountPort {
    fn call_mount(
        &mut self,
        procedure: MountProcedure,
        args: &[u8],
    ) -> Result<Vec<u8>, CallFailed> {
        let program = (mount::PROGRAM, mount::VERSION, procedure.number());
        self.caller.call(program, self.credential.auth(), args)
    }
}

fn path(export: &str) -> Result<Vec<u8>, ClientError> {
    if export.len() > mount::PATH_BYTES_MAX {
        return Err(
            ClientError::failed("the path of the export is too long").advice(format!(
                "MOUNT accepts at most {} bytes",
                mount::PATH_BYTES_MAX
            )),
        );
    }
    let mut space = vec![0; ARGUMENTS_BYTES_MAX];
    let mut writer = Writer::new(&mut space);
    let written = writer.write_opaque(export.as_bytes());
    debug_assert!(written.is_ok(), "there is room for the longest path");
    let bytes = writer.position();
    space.truncate(bytes);
    Ok(space)
}

fn config<'a>(host: &'a str, port: u16, what: &'a str, timeout: Duration) -> TcpCallerConfig<'a> {
    TcpCallerConfig {
        host,
        port,
        what,
        timeout,
        reply_bytes_max: REPLY_BYTES_MAX,
    }
}

fn port_of_mountd(host: &str, timeout: Duration) -> Result<u16, ClientError> {
    const ADVICE: &str = "give --mount-port the TCP port of the server's mountd; \
                          `rpcinfo -p` on the server lists it";
    let failed = || {
        ClientError::failed(format!(
            "the port mapper of {host} does not report the port of mountd"
        ))
        .advice(ADVICE)
    };
    // WAIT: the time-out of its configuration.
    let mut caller = TcpCaller::connect(&config(host, portmap::PORT, "rpcbind", timeout))
        .map_err(|failure| failure.advice(ADVICE))?;
    let mut args = [0; 16];
    let written = portmap::program_on_tcp(mount::PROGRAM, mount::VERSION, &mut args);
    debug_assert!(written.is_ok(), "four words");
    let program = (portmap::PROGRAM, portmap::VERSION, portmap::GETPORT);
    let results = caller
        .call(program, OpaqueAuth::NONE, &args)
        .map_err(|error| failed().because(error))?;
    let port = portmap::port(&results).map_err(|error| failed().because(error))?;
    port.ok_or_else(|| {
        ClientError::failed(format!("{host} has no MOUNT version 3 over TCP")).advice(ADVICE)
    })
}
