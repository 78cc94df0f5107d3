//! A storage appliance: WRITEs go from where RDMA put their data to the disk, and READs come from the
//! disk to where they are sent from, with no copy in between.
//!
//! `cargo run --release -p rpcrdma-examples --bin appliance -- --listen shm:disk --file disk.img
//! --size-bytes 67108864`
//!
//! Two threads do the work:
//!
//! * the core ([`service`]) speaks to the clients, and calls no kernel;
//! * the storage thread ([`storage`]) speaks to the disk, and answers the calls.
#![forbid(unsafe_code)]

mod service;
mod storage;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use rpcrdma::Server;
use rpcrdma_examples::{PROGRAM, VERSION, end, profile};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};

use service::{DiskService, Figures};
use storage::{Disk, StorageThread};

/// Serves a file or a block device as a disk.
#[derive(Parser)]
struct Arguments {
    /// Where to listen: shm:NAME
    #[arg(long, default_value = "shm:disk")]
    listen: String,
    /// The file, which is made if it is not there, or the block device: what it holds is written over
    #[arg(long)]
    file: PathBuf,
    /// How long the disk is, in bytes; a file that is shorter is made so long
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    size_bytes: u64,
    /// Go through the page cache, for file systems without direct I/O
    #[arg(long)]
    buffered: bool,
}

/// How long clients get to end what they began when the appliance stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(60);

/// How often the main thread looks whether it is to stop.
const LOOK_PERIOD: Duration = Duration::from_millis(20);

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    // What goes beyond the file size limit of the process is an error of its call, not the end of all.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    let disk = Disk::open(&arguments.file, arguments.size_bytes, arguments.buffered)?;

    let profile = profile(8, 512);
    // Calls that are with the storage thread are deferred, so the ring has room for all of them.
    let (jobs, storage_jobs) = rtrb::RingBuffer::new(profile.deferred_replies_max as usize);
    let figures = Arc::new(Figures::default());
    let storage = StorageThread::new(disk, storage_jobs, Arc::clone(&figures))?;
    let storage = std::thread::Builder::new()
        .name("storage".to_owned())
        .spawn(move || storage.run())?;

    // One core, which the scheduler places. On an RDMA device the address differs, and
    // `NodeBuilder::authentication` must say which clients to accept.
    let disk = DiskService::new(
        arguments.size_bytes,
        jobs,
        storage.thread().clone(),
        Arc::clone(&figures),
    );
    let disk = Mutex::new(Some(disk));
    let server = Server::builder()
        .profile(profile)
        .program(PROGRAM, VERSION..=VERSION, move |_core| {
            let disk = disk.lock().expect("nobody panicked").take();
            disk.expect("there is one core")
        })
        .listen(&arguments.listen)?;
    let address = server.address();
    println!("listening on {address} (process {})", std::process::id());
    // Relaxed: the flag guards no other data.
    while !stop.load(Ordering::Relaxed) && !storage.is_finished() {
        std::thread::sleep(LOOK_PERIOD);
    }

    // First the calls end, then the core, and with it the ring to the storage thread, then that thread.
    server.drain(DRAIN_TIMEOUT)?;
    let copied_bytes = server.metrics().total("bulk_bytes_copied");
    let copied_bytes = copied_bytes.expect("the engine counts them");
    drop(server);
    storage.thread().unpark();
    storage.join().expect("the storage thread did not panic")?;
    println!("{figures} engine_copied_bytes={copied_bytes}");
    Ok(())
}

fn main() -> ExitCode {
    end("appliance", run(&Arguments::parse()))
}
