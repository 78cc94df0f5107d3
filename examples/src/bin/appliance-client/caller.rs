//! Calls with bulk data from a thread of the application: by rings, through a core.
//!
//! Three rings join the two threads: calls go one way, answers the other, and so does registered memory
//! for the data of calls, which the thread fills itself. So the core copies nothing, and neither thread
//! ever waits for the other.

use std::sync::Arc;

use rpcrdma_control::{Provider, ShmProvider};
use rpcrdma_engine::{
    Activity, Application, BulkCall, BulkItem, BulkReply, Call, CallError, CallRefused, CallTag,
    ConnectionKey, Context, CoreHandle, ExpectedResult, Reply,
};
use rpcrdma_examples::{
    PROGRAM, READ, ReadArguments, SYNC, Sleeper, Status, VERSION, WRITE, WriteArguments, word,
};
use rpcrdma_fabric::clock::Ticks;
use rpcrdma_fabric::interface::Port;
use rpcrdma_fabric::memory::Lease;
use rtrb::{Consumer, Producer, RingBuffer};

/// Buffers that wait for the thread to fill them: two of the longest WRITEs.
const STOCK: usize = 32;

/// Calls, answers and buffers that one poll moves at most, of each.
const MOVED_MAX: usize = 8;

/// What to call.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lies in a ring, which is reserved at the start for the largest"
)]
pub(crate) enum Asked {
    /// WRITE these bytes.
    Write {
        offset_bytes: u64,
        is_durable: bool,
        item: BulkItem,
    },
    /// READ so many.
    Read { offset_bytes: u64, bytes: u32 },
    /// SYNC.
    Sync,
}

/// A call on its way to the core.
#[derive(Debug)]
struct Submitted {
    connection: ConnectionKey,
    tag: u64,
    asked: Asked,
}

/// How a call ended.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The thread's name for it.
    pub(crate) tag: u64,
    /// What the appliance said, or why it did not.
    pub(crate) result: Result<Status, CallError>,
    /// The data of a READ, where they were placed.
    placed: BulkItem,
    /// Those that came in the stream, since they are few.
    in_stream: Vec<u8>,
}

impl Answer {
    /// The data of a READ.
    pub(crate) fn data(&self) -> impl Iterator<Item = &u8> {
        let placed = self.placed.parts().flat_map(|part| part.iter());
        placed.chain(&self.in_stream)
    }
}

/// The thread's end.
pub(crate) struct Caller {
    calls: Producer<Submitted>,
    answers: Consumer<Answer>,
    stock: Consumer<Lease>,
    /// Taken out of the stock, for the next call.
    buffers: Vec<Lease>,
    core: Option<CoreHandle<<ShmProvider as Provider>::Port>>,
    sleeper: Arc<Sleeper>,
}

/// The core's end.
pub(crate) struct CallerApplication {
    calls: Consumer<Submitted>,
    answers: Producer<Answer>,
    stock: Producer<Lease>,
    /// A call that the core refused for the time being.
    waiting: Option<Submitted>,
    sleeper: Arc<Sleeper>,
}

/// Both ends, for so many calls at a time.
pub(crate) fn caller(depth: usize) -> (Caller, CallerApplication) {
    let (calls, core_calls) = RingBuffer::new(depth);
    let (core_answers, answers) = RingBuffer::new(depth);
    let (core_stock, stock) = RingBuffer::new(STOCK);
    let sleeper = Arc::new(Sleeper::default());
    let caller = Caller {
        calls,
        answers,
        stock,
        buffers: Vec::with_capacity(STOCK),
        core: None,
        sleeper: Arc::clone(&sleeper),
    };
    let application = CallerApplication {
        calls: core_calls,
        answers: core_answers,
        stock: core_stock,
        waiting: None,
        sleeper,
    };
    (caller, application)
}

impl Caller {
    /// The core to wake when it sleeps; the current thread is the one that calls from now on.
    pub(crate) fn woken_by(mut self, core: CoreHandle<<ShmProvider as Provider>::Port>) -> Self {
        self.core = Some(core);
        self.sleeper.set(std::thread::current());
        self
    }

    fn wake_core(&self) {
        if let Some(core) = &self.core {
            core.wake();
        }
    }

    /// Registered memory for `bytes` bytes, to be filled. `None` while there is too little; it comes when
    /// calls end.
    pub(crate) fn item(&mut self, bytes: u32) -> Option<BulkItem> {
        let bytes = bytes as usize;
        while self.buffers.iter().map(Lease::capacity).sum::<usize>() < bytes {
            let Ok(buffer) = self.stock.pop() else {
                self.wake_core();
                return None;
            };
            self.buffers.push(buffer);
        }
        let mut left = bytes;
        let mut item = BulkItem::new();
        while left != 0 {
            let mut part = self.buffers.pop()?;
            part.set_len(left);
            left -= part.len();
            item.push(part).ok()?;
        }
        Some(item)
    }

    /// Hands a call to the core. It comes back as an [`Answer`].
    ///
    /// # Errors
    /// When as many calls are under way as the rings hold.
    pub(crate) fn submit(
        &mut self,
        connection: ConnectionKey,
        tag: u64,
        asked: Asked,
    ) -> Result<(), &'static str> {
        let call = Submitted {
            connection,
            tag,
            asked,
        };
        let pushed = self.calls.push(call);
        self.wake_core();
        pushed.map_err(|_| "as many calls are under way as the rings hold")
    }

    /// Takes a call back that has ended.
    pub(crate) fn answer(&mut self) -> Option<Answer> {
        self.answers.pop().ok()
    }

    /// Whether the core is gone.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.answers.is_abandoned()
    }
}

impl CallerApplication {
    fn finish(&mut self, answer: Answer) {
        let pushed = self.answers.push(answer);
        debug_assert!(pushed.is_ok(), "the way back holds all that were submitted");
        self.sleeper.wake();
    }

    /// Makes a call. It stays with `waiting` when the core has no room for it now.
    fn start<P: Port>(&mut self, core: &mut Context<'_, P>, mut submitted: Submitted) {
        match make(core, &mut submitted) {
            Ok(()) => {}
            Err(refused) if refused.is_transient() => self.waiting = Some(submitted),
            // The connection is gone, or is about to be.
            Err(_) => self.finish(Answer {
                tag: submitted.tag,
                result: Err(CallError::Disconnected),
                placed: BulkItem::new(),
                in_stream: Vec::new(),
            }),
        }
    }
}

/// Calls as `submitted` says; its item is gone when that is accepted, and is there still when not.
fn make<P: Port>(core: &mut Context<'_, P>, submitted: &mut Submitted) -> Result<(), CallRefused> {
    let (connection, tag) = (submitted.connection, submitted.tag);
    let named = |procedure| Call {
        program: PROGRAM,
        version: VERSION,
        procedure,
    };
    match &mut submitted.asked {
        Asked::Write {
            offset_bytes,
            is_durable,
            item,
        } => {
            let args = WriteArguments {
                offset_bytes: *offset_bytes,
                is_durable: *is_durable,
                bytes: u32::try_from(item.len()).map_err(|_| CallRefused::TooLong)?,
            };
            let args = args.encode();
            let mut call = BulkCall::new(named(WRITE), &args);
            call.results_bytes_max = 4;
            call.add(args.len(), item)
                .map_err(|_| CallRefused::TooLong)?;
            let made = core.call_bulk(connection, &mut call, tag);
            if made.is_err() {
                *item = call.pop().unwrap_or_default();
            }
            made
        }
        Asked::Read {
            offset_bytes,
            bytes,
        } => {
            let args = ReadArguments {
                offset_bytes: *offset_bytes,
                bytes: *bytes,
            };
            let args = args.encode();
            let mut call = BulkCall::new(named(READ), &args);
            call.results_bytes_max = 8;
            let data = ExpectedResult {
                request_range: ReadArguments::STREAM,
                bytes_min: 0,
                bytes_max: *bytes,
            };
            call.expect(data).map_err(|_| CallRefused::TooLong)?;
            core.call_bulk(connection, &mut call, tag)
        }
        Asked::Sync => core.call(connection, named(SYNC), &[], tag),
    }
}

impl Application for CallerApplication {
    const CLOCK_INTERVAL_POLLS: u32 = 16;

    fn completed(
        &mut self,
        tag: CallTag,
        connection: ConnectionKey,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        let result = result.map(|reply| BulkReply {
            reply,
            items: &mut [],
        });
        self.completed_bulk(tag, connection, result, now);
    }

    fn completed_bulk(
        &mut self,
        tag: CallTag,
        _connection: ConnectionKey,
        result: Result<BulkReply<'_>, CallError>,
        _now: Ticks,
    ) {
        let mut answer = Answer {
            tag,
            result: Err(CallError::BadReply),
            placed: BulkItem::new(),
            in_stream: Vec::new(),
        };
        match result {
            Ok(BulkReply { reply, items }) => {
                let read = word(reply.results);
                let status =
                    read.and_then(|(status, rest)| Some((Status::from_word(status)?, rest)));
                if let Some((status, rest)) = status {
                    answer.result = Ok(status);
                    if let Some(data) = items.first_mut() {
                        answer.placed = std::mem::take(&mut data.item);
                    }
                    if answer.placed.is_empty()
                        && let Some((bytes, data)) = word(rest)
                        && let Some(data) = data.get(..bytes as usize)
                    {
                        answer.in_stream.extend_from_slice(data);
                    }
                }
            }
            Err(error) => answer.result = Err(error),
        }
        self.finish(answer);
    }

    fn poll<P: Port>(&mut self, core: &mut Context<'_, P>, _now: Ticks) -> Activity {
        let mut is_busy = false;
        for _ in 0..MOVED_MAX {
            if self.stock.is_full() {
                break;
            }
            let Some(buffer) = core.take_bulk() else {
                break;
            };
            if self.stock.push(buffer).is_err() {
                break;
            }
            is_busy = true;
        }
        for _ in 0..MOVED_MAX {
            let Some(submitted) = self.waiting.take().or_else(|| self.calls.pop().ok()) else {
                break;
            };
            self.start(core, submitted);
            if self.waiting.is_some() {
                break;
            }
            is_busy = true;
        }
        Activity::from_busy(is_busy)
    }
}
