//! MOUNT version 3 over TCP, which gives the file handle for the path of an export. The port mapper knows its port.

use std::time::Duration;

use rpcrdma_protocol::rpc::OpaqueAuth;
use rpcrdma_protocol::xdr::Writer;

use super::credential::Credential;
use super::portmap;
use super::reply::{self, ReplyError};
use super::tcp::{TcpCaller, TcpCallerConfig};
use crate::client::ClientError;
use crate::wire::FileHandle;
use crate::wire::mount::{self, MountProcedure, MountStatus};

/// The longest reply of MOUNT and the port mapper; theirs are short.
const REPLY_BYTES_MAX: usize = 4096;

/// The server's MOUNT service.
#[derive(Debug)]
pub struct MountService {
    caller: TcpCaller,
    credential: Credential,
    host: String,
    port: u16,
    timeout: Duration,
}

impl MountService {
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
        let failed = || ClientError::failed(format!("cannot mount {export} of {}", self.host));
        let args = path(export)?;
        let results = self
            .caller
            .call(
                (mount::PROGRAM, mount::VERSION, MountProcedure::Mnt.number()),
                self.credential.auth(),
                &args,
            )
            .map_err(|error| {
                failed().because(error).advice(
                    "the server must offer MOUNT version 3 over TCP: \
                     look for mountd in the output of `rpcinfo -p SERVER`",
                )
            })?;
        reply::mounted(&results).map_err(|error| {
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
        })
    }

    /// Notifies the server that `export` is no longer used. Nothing depends on that, so errors are ignored.
    pub fn unmount(mut self, export: &str) {
        let Ok(args) = path(export) else {
            return;
        };
        let procedure = MountProcedure::Umnt.number();
        let unmount = |caller: &mut TcpCaller| {
            let program = (mount::PROGRAM, mount::VERSION, procedure);
            caller.call(program, self.credential.auth(), &args)
        };
        // Try once more on a new connection: the server may have closed this one, which was idle during the run.
        if unmount(&mut self.caller).is_err()
            && let Ok(mut caller) =
                TcpCaller::connect(&config(&self.host, self.port, "mountd", self.timeout))
        {
            let _ = unmount(&mut caller);
        }
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
    let mut space = vec![0; mount::PATH_BYTES_MAX + 4];
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
