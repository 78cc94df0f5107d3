//! Round trips over two Aeron IPC channels between two processes.
//!
//! The media driver runs in the process that measures. It sets the channels up; messages pass it by.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use peer_common::{
    Failure, Message, Pong, STOP, Side, from_bytes, measure, pin, ready, side, to_bytes,
};
use rusteron_client::{
    AERON_IPC_STREAM, Aeron, AeronContext, AeronExclusivePublication, AeronImage,
    AeronSubscription, Handlers, IntoCString,
};
use rusteron_media_driver::bindings::aeron_threading_mode_enum::AERON_THREADING_MODE_SHARED;
use rusteron_media_driver::testing::EmbeddedDriver;

const THERE: i32 = 1002;
const BACK: i32 = 1003;
const SET_UP: Duration = Duration::from_secs(10);

/// One end: its publication and subscription live as long as its client.
struct End {
    publication: AeronExclusivePublication,
    subscription: AeronSubscription,
    _client: Aeron,
}

impl End {
    fn new(directory: &str, publish: i32, subscribe: i32) -> Result<Self, Failure> {
        let context = AeronContext::new()?;
        context.set_dir(&directory.into_c_string())?;
        context.set_pre_touch_mapped_memory(true)?;
        let client = Aeron::new(&context)?;
        client.start()?;
        let publication = client
            .async_add_exclusive_publication(AERON_IPC_STREAM, publish)?
            .poll_blocking(SET_UP)?;
        let subscription = client
            .async_add_subscription(AERON_IPC_STREAM, subscribe, Handlers::NONE, Handlers::NONE)?
            .poll_blocking(SET_UP)?;
        Ok(Self {
            publication,
            subscription,
            _client: client,
        })
    }

    /// Waits until both directions are there.
    fn image(&self) -> Result<AeronImage, Failure> {
        let start = Instant::now();
        while start.elapsed() < SET_UP {
            if self.publication.is_connected()
                && let Some(image) = self.subscription.image_at_index(0)
            {
                return Ok(image);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err("the other side did not connect".into())
    }

    fn send(&self, message: &Message) -> Result<(), Failure> {
        let bytes = to_bytes(message);
        loop {
            match self.publication.offer(&bytes) {
                Ok(_) => return Ok(()),
                Err(error) if error.is_retryable() => spin_loop(),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn receive(image: &AeronImage) -> Result<Message, Failure> {
    let mut received = None;
    loop {
        if image.poll_fn(|bytes, _header| received = from_bytes(bytes), 1)? > 0 {
            return received.ok_or_else(|| "a message has another length".into());
        }
        if image.is_closed() {
            return Err("the other side has closed".into());
        }
        spin_loop();
    }
}

fn main() -> Result<(), Failure> {
    match side(0)? {
        Side::Ping(options) => {
            let driver = EmbeddedDriver::launch_with(|context| {
                context.set_threading_mode(AERON_THREADING_MODE_SHARED)?;
                context.set_term_buffer_sparse_file(false)?;
                Ok(())
            })?;
            let end = End::new(driver.dir(), THERE, BACK)?;
            let pong = Pong::start(&[], options.pong, driver.dir())?;
            let image = end.image()?;
            pin(options.ping)?;
            measure(&options, |message| {
                end.send(message)?;
                receive(&image)
            })?;
            end.send(&STOP)?;
            pong.finish()
        }
        Side::Pong { core, name } => {
            let end = End::new(&name, BACK, THERE)?;
            let image = end.image()?;
            pin(core)?;
            ready("ready");
            loop {
                let message = receive(&image)?;
                if message == STOP {
                    return Ok(());
                }
                end.send(&message)?;
            }
        }
    }
}
