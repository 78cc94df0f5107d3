//! A client of NFS version 4.1 that is called back: the server recalls a read delegation by the connection that the
//! client made, in the reverse direction (RFC 8167), and gets it back.
//!
//! `nfs41-recall --connect rdma:server:20049 --file /srv/file`
//!
//! It is two clients in one process. The holder opens a session whose back channel is its only connection
//! (CREATE_SESSION with CONN_BACK_CHAN, RFC 8881 section 18.36), and a file for reading, with a delegation. The writer,
//! by a connection of its own, opens the same file for writing. The server must have the delegation back first: a
//! CB_RECALL comes to the holder, which answers it, and returns the delegation by DELEGRETURN; then the writer gets in.
//!
//! What the library takes for that: [`NodeConfig::with_reverse_calls`], and an `Application` that answers
//! ([`mod@client`]).
#![forbid(unsafe_code)]

mod callback;
mod client;
mod compound;

use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use rpcrdma_control::{ConnectOptions, Node, NodeConfig, Provider, ShmProvider, Versions};
use rpcrdma_engine::ring_client::client_pair;
use rpcrdma_examples::end;
use rpcrdma_protocol::v2::ReverseRequestSupport;
use rpcrdma_tuning::{Idle, Profile};

use client::{BackEnd, CalledBack, Client, ClientNode};
use compound::{OPEN_TO_READ, OPEN_TO_WRITE, Opened, StateId, Wrong, op};

/// Has an NFS 4.1 server give a read delegation, and recall it by a call in the reverse direction of the same
/// RPC-over-RDMA connection
///
/// Two clients in this process use one file, which must exist: the first opens it for reading and gets a delegation, the
/// second opens it for writing. The exit status is 0 only if the server recalled the delegation by the first client's
/// connection, got it back, and let the second client in.
#[derive(Parser)]
#[command(after_help = "Example: nfs41-recall --connect rdma:192.0.2.1:20049 --file /srv/file")]
struct Arguments {
    /// The server: rdma:HOST:PORT
    #[arg(long)]
    connect: String,
    /// The file, by its path from the root of the server's NFS version 4 name space
    #[arg(long)]
    file: String,
    /// The RDMA device; the first active one if none is named
    #[arg(long)]
    device: Option<String>,
    /// The version of RPC-over-RDMA: NFS servers have 1
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    protocol: u8,
    /// How long each step may take, in seconds. A server that has just started gives no delegation before its grace period
    /// ends. A connection always has a minute
    #[arg(long, default_value_t = 120)]
    timeout_s: u64,
}

/// How long a connection may take at least. A short time for steps is for delegations and not for connections.
const CONNECT_TIMEOUT_LEAST: Duration = Duration::from_secs(60);

/// How long the server is left alone before it is asked again.
const RETRY_PERIOD: Duration = Duration::from_millis(100);

/// Recalls that the main thread has not looked at, at most.
const RECALLS_MAX: usize = 8;

/// A file that a client opened.
struct OpenFile {
    opened: Opened,
    handle: Vec<u8>,
}

impl OpenFile {
    /// Opens it; `None` where the server asks for another try.
    fn open(
        node: &mut ClientNode,
        client: &mut Client,
        path: &str,
        access: u32,
    ) -> Result<Option<Self>, Box<dyn Error>> {
        let mut folders: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let name = folders.pop().ok_or("--file names no file")?;
        let (id, owner) = (client.id, client.owner.clone());
        let result = client.on_session(
            node,
            |it| {
                let walked = it.walk(&folders);
                let opened = walked.open(access, id, owner.as_bytes(), name);
                opened.op(op::GETFH)
            },
            |results| results.open(&folders),
        );
        match result {
            Ok((opened, handle)) => Ok(Some(Self { opened, handle })),
            Err(error) => match error.downcast_ref::<Wrong>() {
                Some(wrong) if wrong.is_transient() => Ok(None),
                _ => Err(error),
            },
        }
    }

    /// CLOSE, or DELEGRETURN: gives a state of it back (RFC 8881 sections 18.2 and 18.6).
    fn give_back(
        &self,
        node: &mut ClientNode,
        client: &mut Client,
        operation: u32,
        state: &StateId,
    ) -> Result<(), Box<dyn Error>> {
        // CLOSE has a number before it that nothing is made of.
        let words: &[u32] = if operation == op::CLOSE { &[0] } else { &[] };
        client.on_session(
            node,
            |it| {
                let file = it.op(op::PUTFH).opaque(&self.handle);
                file.op(operation).words(words).bytes(state)
            },
            |results| {
                results.done(op::PUTFH)?;
                results.done(operation)
            },
        )
    }
}

/// Tries until something comes of it.
fn until<T>(
    what: &str,
    arguments: &Arguments,
    mut attempt: impl FnMut() -> Result<Option<T>, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    let started = Instant::now();
    loop {
        if let Some(it) = attempt()? {
            return Ok(it);
        }
        if started.elapsed().as_secs() >= arguments.timeout_s {
            return Err(format!("{what}, for {} s", arguments.timeout_s).into());
        }
        std::thread::sleep(RETRY_PERIOD);
    }
}

fn run<V: Provider>(
    provider: V,
    profile: &Profile,
    arguments: &Arguments,
) -> Result<(), Box<dyn Error>> {
    let started = Instant::now();
    let say = |what: String| println!("{:9.4} s  {what}", started.elapsed().as_secs_f64());
    let config = NodeConfig::from_profile(profile, vec![None])
        .with_reverse_calls(ReverseRequestSupport::Inline);
    let (ring, service) = client_pair(1, 0);
    let (recalls, mut recalled) = rtrb::RingBuffer::new(RECALLS_MAX);
    let back = CalledBack::default();
    let mut application = Some(BackEnd::new(service, back.clone(), recalls));
    let node = Node::start(provider, &config, |_| {
        application.take().expect("one core, one application")
    })?;
    let mut node = ClientNode::new(node, ring);
    let options = ConnectOptions {
        versions: [Versions::One, Versions::Two][usize::from(arguments.protocol == 2)],
        timeout: Duration::from_secs(arguments.timeout_s).max(CONNECT_TIMEOUT_LEAST),
        ..ConnectOptions::default()
    };
    let path = &arguments.file;

    let connection = node.node.connect(&arguments.connect, options.clone())?;
    let version = connection.version;
    say(format!("connected: RPC-over-RDMA version {version}"));
    let mut holder = Client::start(&mut node, connection, "holder", Some(&back))?;
    say("holder: a session, whose back channel is this connection".into());
    let held = until("the server gives no read delegation", arguments, || {
        let file = OpenFile::open(&mut node, &mut holder, path, OPEN_TO_READ)?;
        let Some(file) = file else { return Ok(None) };
        if let Some(delegation) = file.opened.delegation {
            return Ok(Some((file, delegation)));
        }
        file.give_back(&mut node, &mut holder, op::CLOSE, &file.opened.state)?;
        Ok(None)
    });
    let (file, delegation) = match held {
        Ok(held) => held,
        Err(error) => {
            let _ = holder.end(&mut node);
            return Err(error);
        }
    };
    say("holder: open for reading, with a read delegation".into());

    let connection = node.node.connect(&arguments.connect, options)?;
    let mut writer = Client::start(&mut node, connection, "writer", None)?;
    say("writer: a session, by another connection".into());
    let mut is_returned = false;
    let ended = until("the server does not let the writer in", arguments, || {
        if let Ok(recall) = recalled.pop() {
            // The first word is a number of the server's.
            if recall.state[4..] != delegation[4..] {
                return Err("the server recalls a delegation that it did not give".into());
            }
            say(format!(
                "holder: CB_RECALL came in the reverse direction {:.1} ms ago, and was answered",
                recall.at.elapsed().as_secs_f64() * 1e3
            ));
            file.give_back(&mut node, &mut holder, op::DELEGRETURN, &delegation)?;
            say("holder: DELEGRETURN is done".into());
            is_returned = true;
        }
        let Some(file) = OpenFile::open(&mut node, &mut writer, path, OPEN_TO_WRITE)? else {
            say("writer: OPEN is put off".into());
            return Ok(None);
        };
        say("writer: open for writing".into());
        file.give_back(&mut node, &mut writer, op::CLOSE, &file.opened.state)?;
        Ok(Some(()))
    });
    let calls = node.reverse_calls();
    say(format!("reverse_calls={calls}"));
    // Whatever has become of it, nothing stays open at the server.
    let closed = file.give_back(&mut node, &mut holder, op::CLOSE, &file.opened.state);
    let clients_ended = holder.end(&mut node).and(writer.end(&mut node));
    ended.and(closed).and(clients_ended)?;
    if !is_returned {
        return Err("the server let the writer in, and recalled nothing before".into());
    }
    say("done".into());
    Ok(())
}

fn dispatch(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let profile = Profile {
        connections_max: 2,
        idle: Idle::Park,
        idle_park_after_us: 50,
        // In seconds: an end that a busy machine keeps from its work for less is not taken for dead.
        keep_alive_silent_ticks_max: 120,
        ..Profile::default()
    };
    if arguments.connect.starts_with("rdma:") {
        let device = arguments.device.clone();
        let provider = rpcrdma_control::VerbsProvider::from_profile(&profile, device);
        return run(provider, &profile, arguments);
    }
    if !arguments.connect.starts_with("shm:") || arguments.device.is_some() {
        return Err(
            "--connect needs rdma:HOST:PORT or shm:NAME, and --device an rdma: address".into(),
        );
    }
    run(ShmProvider::from_profile(&profile), &profile, arguments)
}

fn main() -> ExitCode {
    end("nfs41-recall", dispatch(&Arguments::parse()))
}

#[cfg(test)]
mod tests;
