//! The crate `rpcrdma` as a program uses it, on shm.

mod application;
mod bulk;
mod calls;
mod connections;
mod gss;
mod later;
mod lifetimes;
mod memory;
mod no_memory;
mod observe;
mod once;
mod polled;
mod repeat;
mod returns;
mod tcp;
mod version_1;

use std::sync::atomic::{AtomicU32, Ordering};

use rpcrdma::prelude::*;
use rpcrdma::{ClientBuilder, Idle, Profile, Reconnect};
use rpcrdma_testkit::PATIENCE;

const PROGRAM: u32 = 0x2000_0f00;
/// Sends its opaque back.
const ECHO: Procedure = Procedure::new(PROGRAM, 1, 1);

/// An address that no other test has.
fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm:facade-{}-{number}", std::process::id())
}

/// Small nodes: tests run many of them side by side.
fn profile() -> Profile {
    unhurried(Profile {
        connections_max: 4,
        bulk_buffers: 32,
        idle: Idle::Park,
        ..Profile::default()
    })
}

/// A profile without a time limit that is shorter than what a test waits.
fn unhurried(profile: Profile) -> Profile {
    Profile {
        // TIME: these limits exceed `PATIENCE`, so a test fails by its own wait before one of them ends a connection or a
        // call, however slow the machine is. A peer may be silent for 255 ticks of a second.
        connect_timeout_ms: 600_000,
        call_timeout_ms: 300_000,
        keep_alive_interval_ms: 1000,
        keep_alive_silent_ticks_max: 255,
        stall_timeout_ms: 600_000,
        ..profile
    }
}

/// The limits of [`unhurried`], for nodes that have the profile of the facade.
const UNHURRIED: [&str; 4] = [
    "connect_timeout_ms=600000",
    "call_timeout_ms=300000",
    "keep_alive_silent_ticks_max=255",
    "stall_timeout_ms=600000",
];

/// Connects again without delay.
fn soon() -> Reconnect {
    Reconnect {
        first_ms: 1,
        most_ms: 20,
        ..Reconnect::default()
    }
}

fn echo(address: &str) -> Server {
    let server = Server::builder()
        .profile(profile())
        .procedure(ECHO, |call, reply| {
            reply.opaque(call.args().opaque()?);
            Ok(())
        });
    server.listen(address).expect("nobody else listens there")
}

/// A client that gives up connecting only when a test has failed.
fn builder() -> ClientBuilder {
    let client = Client::builder().profile(profile());
    client.connect_timeout(PATIENCE)
}

fn connect(address: &str) -> Client {
    builder().connect(address).expect("the server listens")
}

/// Runs a future on this thread, as the simplest of runtimes does.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            std::task::Poll::Ready(output) => return output,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}
