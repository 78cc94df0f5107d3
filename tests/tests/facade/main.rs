//! The crate `rpcrdma` as a program uses it, on shm.

mod bulk;
mod calls;
mod connections;
mod later;
mod memory;
mod no_memory;
mod observe;
mod once;
mod polled;
mod repeat;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rpcrdma::prelude::*;
use rpcrdma::{ClientBuilder, Idle, Profile, Reconnect};

const PROGRAM: u32 = 0x2000_0f00;
/// Sends its opaque back.
const ECHO: Procedure = Procedure::new(PROGRAM, 1, 1);

/// How long anything here may take before a test fails: processors have other work as well.
const PATIENCE: Duration = Duration::from_secs(60);

/// An address that no other test has.
fn address() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm:facade-{}-{number}", std::process::id())
}

/// Small nodes: tests run many of them side by side.
fn profile() -> Profile {
    Profile {
        connections_max: 4,
        bulk_buffers: 32,
        idle: Idle::Park,
        ..Profile::default()
    }
}

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
