//! CALL_BACK: a client asks the server to make calls in the reverse direction of its connection (RFC 8167). The
//! results contain the round-trip time of each call.

use std::collections::VecDeque;

use rpcrdma_engine::{
    Activity, CallError, CallRefused, CallTag, ConnectionKey, Context, DeferToken, Outcome, Reply,
    ReplyRefused, Request,
};
use rpcrdma_fabric::clock::{Clock, Ticks};
use rpcrdma_fabric::interface::Port;
use rpcrdma_protocol::xdr::{Reader, Writer};

use super::payload::Payload;
use super::{ECHO, NULL, call};

/// Upper bound of the calls of one CALL_BACK.
pub(crate) const CALLS_BACK_MAX: usize = 64;

/// Length of the arguments of CALL_BACK.
const ARGS_BYTES: usize = 12;

/// Upper bound of its results: status, failures, count, and times.
const RESULTS_BYTES_MAX: usize = 12 + 8 * CALLS_BACK_MAX;

/// Upper bound of the jobs that one poll handles.
const JOBS_PER_POLL: usize = 32;

/// The arguments of CALL_BACK: which calls the server must make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallBack {
    /// Number of calls, one after another: 1 to [`CALLS_BACK_MAX`].
    pub count: u32,
    /// Payload of an echo; `None` for null calls.
    pub payload_bytes: Option<u32>,
}

impl CallBack {
    /// Writes the arguments.
    #[must_use]
    pub(crate) fn encode(&self) -> [u8; ARGS_BYTES] {
        let procedure = self.payload_bytes.map_or(NULL, |_| ECHO);
        let words = [procedure, self.count, self.payload_bytes.unwrap_or(0)];
        let mut args = [0; ARGS_BYTES];
        for (place, word) in args.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
        args
    }

    /// Decodes the arguments; `None` if they are malformed.
    fn decode(args: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(args);
        let mut word = || reader.read_u32().ok();
        let (procedure, count, bytes) = (word()?, word()?, word()?);
        let payload_bytes = match (procedure, bytes) {
            (NULL, 0) => None,
            (ECHO, bytes) => Some(bytes),
            _ => return None,
        };
        let is_count = (1..=CALLS_BACK_MAX).contains(&(count as usize));
        (is_count && reader.is_at_end()).then_some(Self {
            count,
            payload_bytes,
        })
    }
}

/// Whether the calls were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum BackStatus {
    /// They were made.
    #[default]
    Done = 0,
    /// The server or this connection does not support the reverse direction.
    NotTaken = 1,
    /// They are too long for the reverse direction.
    TooLong = 2,
}

/// The results of CALL_BACK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CalledBack {
    /// Whether they were made.
    pub status: BackStatus,
    /// Calls that failed or got a wrong reply.
    pub failed: u32,
    round_trips_ns: [u64; CALLS_BACK_MAX],
    count: usize,
}

impl Default for CalledBack {
    fn default() -> Self {
        Self {
            status: BackStatus::Done,
            failed: 0,
            round_trips_ns: [0; CALLS_BACK_MAX],
            count: 0,
        }
    }
}

impl CalledBack {
    /// The time of each successful call at the server, from the first attempt to make it to its reply.
    #[must_use]
    pub(crate) fn round_trips_ns(&self) -> &[u64] {
        self.round_trips_ns.get(..self.count).unwrap_or(&[])
    }

    fn push(&mut self, round_trip_ns: u64) {
        if let Some(place) = self.round_trips_ns.get_mut(self.count) {
            *place = round_trip_ns;
            self.count += 1;
        }
    }

    /// Encodes the results into `space` and returns their length.
    fn encode(&self, space: &mut [u8; RESULTS_BYTES_MAX]) -> Option<usize> {
        let mut writer = Writer::new(space);
        writer.write_u32(self.status as u32).ok()?;
        writer.write_u32(self.failed).ok()?;
        writer.write_count(self.count).ok()?;
        for round_trip_ns in self.round_trips_ns() {
            writer.write_u64(*round_trip_ns).ok()?;
        }
        Some(writer.position())
    }

    /// Decodes the results; `None` if they are malformed.
    #[must_use]
    pub(crate) fn decode(results: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(results);
        let status = match reader.read_u32().ok()? {
            0 => BackStatus::Done,
            1 => BackStatus::NotTaken,
            2 => BackStatus::TooLong,
            _ => return None,
        };
        let mut called = Self {
            status,
            failed: reader.read_u32().ok()?,
            ..Self::default()
        };
        let count = reader.read_u32().ok()? as usize;
        if count > CALLS_BACK_MAX {
            return None;
        }
        for _ in 0..count {
            called.push(reader.read_u64().ok()?);
        }
        reader.is_at_end().then_some(called)
    }
}

/// A CALL_BACK that is not answered yet.
#[derive(Debug)]
struct Job {
    /// The token for the answer; `None` after its use.
    token: Option<DeferToken>,
    connection: ConnectionKey,
    payload: Payload,
    procedure: u32,
    left: u32,
    /// The number that marks the next payload.
    number: u64,
    /// The first attempt to make the next or outstanding call.
    start: Option<Ticks>,
    called: CalledBack,
}

/// The jobs of one core.
#[derive(Debug, Default)]
pub(super) struct CallsBack {
    clock: Clock,
    /// The tag of a job's calls is its index.
    jobs: Vec<Job>,
    free: Vec<usize>,
    /// Jobs that must make a call or be answered.
    ready: VecDeque<usize>,
    number: u64,
}

impl CallsBack {
    /// Whether there is nothing to do now.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// Starts the job of a CALL_BACK.
    pub(super) fn begin(&mut self, request: &Request<'_>) -> Outcome {
        let Some(asked) = CallBack::decode(request.args) else {
            return Outcome::GarbageArgs;
        };
        let Some(token) = request.defer() else {
            return Outcome::SystemError;
        };
        let payload_bytes = asked.payload_bytes.map(|it| it as usize);
        let job = Job {
            token: Some(token),
            connection: request.connection,
            payload: Payload::new(payload_bytes),
            procedure: asked.payload_bytes.map_or(NULL, |_| ECHO),
            left: asked.count,
            number: self.number,
            start: None,
            called: CalledBack::default(),
        };
        self.number = self.number.wrapping_add(asked.count.into());
        let index = match self.free.pop() {
            Some(index) => {
                self.jobs[index] = job;
                index
            }
            None => {
                self.jobs.push(job);
                self.jobs.len() - 1
            }
        };
        self.ready.push_back(index);
        Outcome::Deferred
    }

    /// Makes calls and answers finished jobs.
    pub(super) fn poll<P: Port>(&mut self, core: &mut Context<'_, P>) -> Activity {
        let mut busy = false;
        for _ in 0..JOBS_PER_POLL.min(self.ready.len()) {
            let Some(index) = self.ready.pop_front() else {
                break;
            };
            let Some(job) = self.jobs.get_mut(index) else {
                continue;
            };
            let went_on = if job.left > 0 {
                job.make_call(core, index as CallTag, &self.clock)
            } else {
                job.answer(core)
            };
            busy |= went_on;
            if job.token.is_none() {
                self.free.push(index);
            } else if !went_on || job.left == 0 {
                self.ready.push_back(index);
            }
        }
        Activity::from_busy(busy)
    }

    /// Handles the end of a job's call.
    pub(super) fn completed(
        &mut self,
        tag: CallTag,
        result: Result<Reply<'_>, CallError>,
        now: Ticks,
    ) {
        let index = usize::try_from(tag).unwrap_or(usize::MAX);
        let Some(job) = self.jobs.get_mut(index) else {
            return;
        };
        let start = job.start.take().unwrap_or(now);
        match result {
            Ok(reply) if job.payload.matches(reply.results, job.number) => {
                job.called.push(self.clock.nanos_between(start, now));
            }
            _ => job.called.failed += 1,
        }
        job.number = job.number.wrapping_add(1);
        job.left = job.left.saturating_sub(1);
        self.ready.push_back(index);
    }
}

impl Job {
    /// Makes the next call. Returns false if it must wait, or if the job makes no more calls.
    fn make_call<P: Port>(
        &mut self,
        core: &mut Context<'_, P>,
        tag: CallTag,
        clock: &Clock,
    ) -> bool {
        self.start.get_or_insert_with(|| clock.now());
        let (payload, number) = (&self.payload, self.number);
        let made = core.call_in_place(
            self.connection,
            call(self.procedure),
            payload.args_bytes(),
            tag,
            |space| payload.write(space, number),
        );
        match made {
            Ok(()) => return true,
            // The client may have seen the connection as ready before this endpoint has: try again.
            Err(refused) if refused.is_transient() || refused == CallRefused::NotReady => {
                return false;
            }
            Err(CallRefused::NotTaken) => self.called.status = BackStatus::NotTaken,
            Err(CallRefused::TooLong) => self.called.status = BackStatus::TooLong,
            Err(_) => self.called.failed += self.left,
        }
        self.left = 0;
        false
    }

    /// Answers the job. Returns false if that must wait.
    fn answer<P: Port>(&mut self, core: &mut Context<'_, P>) -> bool {
        let Some(token) = self.token.take() else {
            return true;
        };
        let mut space = [0; RESULTS_BYTES_MAX];
        let (outcome, bytes) = match self.called.encode(&mut space) {
            Some(bytes) => (Outcome::Success, bytes),
            None => (Outcome::SystemError, 0),
        };
        match core.reply(token, outcome, space.get(..bytes).unwrap_or(&[])) {
            Err((ReplyRefused::Busy, token)) => {
                self.token = Some(token);
                false
            }
            // The results fit into a message, so they are never too long. A disconnected client needs no reply.
            Ok(()) | Err(_) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_back_arguments_round_trip_and_invalid_ones_fail() {
        for (asked, words) in [
            (None, [0, 64, 0]),
            (Some(0), [1, 64, 0]),
            (Some(4096), [1, 64, 4096]),
        ] {
            let asked = CallBack {
                count: 64,
                payload_bytes: asked,
            };
            let args: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
            assert_eq!(asked.encode()[..], args);
            assert_eq!(CallBack::decode(&args), Some(asked));
            for end in 0..args.len() {
                assert_eq!(CallBack::decode(&args[..end]), None, "{end}");
            }
        }
        // No call, too many calls, a null call with payload, another procedure, and trailing bytes.
        for words in [
            &[0, 0, 0][..],
            &[0, 65, 0],
            &[0, 1, 4],
            &[2, 1, 4],
            &[0, 1, 0, 0],
        ] {
            let args: Vec<u8> = words.iter().flat_map(|it: &u32| it.to_be_bytes()).collect();
            assert_eq!(CallBack::decode(&args), None, "{words:?}");
        }
    }

    #[test]
    fn results_are_read_whole_or_not_at_all() {
        let mut called = CalledBack {
            failed: 2,
            ..CalledBack::default()
        };
        let mut space = [0; RESULTS_BYTES_MAX];
        for round_trip_ns in [700, 1 << 40] {
            called.push(round_trip_ns);
        }
        let bytes = called.encode(&mut space).unwrap();
        assert_eq!(bytes, 12 + 16);
        let read = CalledBack::decode(&space[..bytes]).unwrap();
        assert_eq!((read.status, read.failed), (BackStatus::Done, 2));
        assert_eq!(read.round_trips_ns(), [700, 1 << 40]);
        for end in (0..bytes).chain([bytes + 1]) {
            assert!(CalledBack::decode(&space[..end]).is_none(), "{end}");
        }
        for (at, value) in [(3, 3), (11, 65)] {
            let mut space = space;
            space[at] = value;
            assert!(CalledBack::decode(&space).is_none(), "{at}");
        }
        // The largest results fit.
        let mut full = CalledBack::default();
        (0..100).for_each(|it| full.push(it));
        assert_eq!(full.encode(&mut space), Some(RESULTS_BYTES_MAX));
    }
}
