//! A process dies after every single instruction of a post, of a doorbell, and of a reap.
//!
//! Under ptrace, a thread of the victim is led to the system call that marks the begin of what is
//! tried, and stopped so many instructions after it. A victim process has many such threads, each
//! with a port and a connection of its own, stopped at another place; then it is killed, and dies
//! in all those places at once.
//!
//! The first thread of a process is stepped from mark to mark, which yields the addresses of all
//! its instructions in order. The others reach their places by a breakpoint register, so that the
//! whole is linear in the number of instructions.

use std::time::{Duration, Instant};

use nix::libc::{SYS_getppid, user};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use rpcrdma_fabric::interface::QueuePairId;
use rpcrdma_tests::shm_peer::message;

use crate::children::FabricPeer;
use crate::survivor::Survivor;
use crate::{alone, asked};

/// Threads of one victim process.
const VICTIMS: usize = 120;
/// Iterations of a string instruction from one that is tried to the next.
const ITERATIONS_STRIDE: usize = 64;
/// The instruction `syscall`, as the first two bytes of a word.
const SYSCALL_INSTRUCTION: i64 = 0x050F;

/// Waits for the next stop of a thread.
fn next_stop(thread: Pid) -> WaitStatus {
    waitpid(thread, Some(WaitPidFlag::__WALL)).expect("the thread is traced by us")
}

/// Stops a running thread, to be traced from now on.
fn seize(thread: Pid) {
    // A test that dies takes its victims along.
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::seize(thread, options).expect("tracing is permitted");
    ptrace::interrupt(thread).expect("the thread is traced by us");
    let stop = next_stop(thread);
    assert!(matches!(stop, WaitStatus::PtraceEvent(..)), "{stop:?}");
}

/// Lets a thread run until it has made the system call that is the mark.
fn run_to_mark(thread: Pid) {
    loop {
        ptrace::syscall(thread, None).expect("the thread is stopped");
        let stop = next_stop(thread);
        assert!(matches!(stop, WaitStatus::PtraceSyscall(_)), "{stop:?}");
        let registers = ptrace::getregs(thread).expect("the thread is stopped");
        if registers.orig_rax == SYS_getppid.cast_unsigned() {
            break;
        }
    }
    ptrace::syscall(thread, None).expect("the thread is stopped");
    let stop = next_stop(thread);
    assert!(matches!(stop, WaitStatus::PtraceSyscall(_)), "{stop:?}");
}

/// Steps a thread to the next mark; returns the addresses of the instructions that it executed.
fn trace_to_mark(thread: Pid) -> Vec<u64> {
    let mut trace = Vec::new();
    loop {
        let registers = ptrace::getregs(thread).expect("the thread is stopped");
        let address = usize::try_from(registers.rip).expect("64 bits");
        let word = ptrace::read(thread, std::ptr::without_provenance_mut(address));
        let word = word.expect("there is code");
        if word & 0xFFFF == SYSCALL_INSTRUCTION && registers.rax == SYS_getppid.cast_unsigned() {
            return trace;
        }
        trace.push(registers.rip);
        step(thread);
    }
}

/// Lets a thread execute one instruction, or one iteration of a string instruction.
fn step(thread: Pid) {
    ptrace::step(thread, None).expect("the thread is stopped");
    let stop = next_stop(thread);
    assert!(is_trap(stop), "{stop:?}");
}

fn is_trap(stop: WaitStatus) -> bool {
    matches!(stop, WaitStatus::Stopped(_, Signal::SIGTRAP))
}

fn set_debug_register(thread: Pid, register: usize, value: u64) {
    let offset = std::mem::offset_of!(user, u_debugreg) + register * size_of::<u64>();
    let place = std::ptr::without_provenance_mut(offset);
    ptrace::write_user(thread, place, value.cast_signed()).expect("the processor has breakpoints");
}

/// How many entries of the trace before `point` are the same instruction: a string instruction is
/// executed once for each of its iterations.
fn iterations_before(trace: &[u64], point: usize) -> usize {
    let before = trace[..point].iter().rev();
    before
        .take_while(|address| **address == trace[point])
        .count()
}

/// The places of a trace that are tried: all, but for long string instructions, where every so
/// many iterations will do.
fn points_of(trace: &[u64], stride: usize) -> Vec<usize> {
    (0..trace.len())
        .filter(|point| iterations_before(trace, *point).is_multiple_of(ITERATIONS_STRIDE))
        .step_by(stride)
        .collect()
}

/// Lets a thread run up to the instruction that stands at `point` in the trace of another thread.
/// False when it took another way, and has come to the mark.
fn run_to_point(thread: Pid, trace: &[u64], point: usize) -> bool {
    let Some(address) = trace.get(point) else {
        return false;
    };
    set_debug_register(thread, 0, *address);
    // Breakpoint 0, on execution, for this thread.
    set_debug_register(thread, 7, 1);
    let times = (0..=point)
        .filter(|at| trace[*at] == *address && iterations_before(trace, *at) == 0)
        .count();
    for _ in 0..times {
        ptrace::syscall(thread, None).expect("the thread is stopped");
        let stop = next_stop(thread);
        if !is_trap(stop) {
            assert!(matches!(stop, WaitStatus::PtraceSyscall(_)), "{stop:?}");
            return false;
        }
    }
    set_debug_register(thread, 7, 0);
    for _ in 0..iterations_before(trace, point) {
        step(thread);
    }
    true
}

/// What a victim does, by the name that `fabric-peer` has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    PostSmall,
    PostRegistered,
    Reap,
}

impl Action {
    fn name(self) -> &'static str {
        match self {
            Self::PostSmall => "post-small",
            Self::PostRegistered => "post-registered",
            Self::Reap => "reap",
        }
    }

    /// The message that victim number `index` posts.
    fn posted(self, index: usize) -> Option<Vec<u8>> {
        match self {
            Self::PostSmall => Some(message(index as u64, 0, 64)),
            Self::PostRegistered => Some(message(index as u64, 0, 3000)),
            Self::Reap => None,
        }
    }
}

/// What came of one victim process.
struct Outcome {
    /// Of each victim, whether its message arrived.
    arrived: Vec<bool>,
    /// From the kill to the last end of a connection.
    noticed_after: Duration,
}

/// Starts a process with `count` victims, and lets `lead` bring each thread to its end; then kills.
fn kill_victims(
    survivor: &mut Survivor,
    action: Action,
    count: usize,
    mut lead: impl FnMut(usize, Pid),
) -> Outcome {
    let address = survivor.address.clone();
    let child = FabricPeer::start(&["victims", &address, &count.to_string(), action.name()]);
    let (mut child, _) = survivor.ready(child);
    let victims = survivor.others();
    assert_eq!(victims.len(), count);
    if action == Action::Reap {
        for (index, victim) in victims.iter().enumerate() {
            survivor.send(*victim, &message(index as u64, 1, 64));
            survivor.send(*victim, &message(index as u64, 2, 1100));
        }
        survivor.serve();
    }
    child.release(1);
    let (mut child, threads) = survivor.ready(child);
    let threads: Vec<Pid> = threads
        .split(' ')
        .map(|thread| Pid::from_raw(thread.parse().expect("a thread's number")))
        .collect();
    assert_eq!(threads.len(), count);
    for thread in &threads {
        seize(*thread);
    }
    child.release(count);
    for (index, thread) in threads.iter().enumerate() {
        run_to_mark(*thread);
        lead(index, *thread);
    }
    // Stopped in mid-work they keep nobody waiting.
    survivor.ping();
    child.signal(Signal::SIGKILL);
    // TIME: the test prints it, and compares it with nothing.
    let killed = Instant::now();
    let ended = survivor.bury_others();
    for thread in threads {
        while !matches!(
            next_stop(thread),
            WaitStatus::Signaled(..) | WaitStatus::Exited(..)
        ) {}
    }
    child.wait();
    survivor.ping();
    Outcome {
        arrived: check_arrivals(survivor, action, &victims),
        noticed_after: ended.saturating_duration_since(killed),
    }
}

/// Every victim's message is whole, or did not come.
fn check_arrivals(survivor: &mut Survivor, action: Action, victims: &[QueuePairId]) -> Vec<bool> {
    let mut arrived = vec![false; victims.len()];
    for (queue_pair, data) in survivor.peer.arrivals.drain(..) {
        let index = victims.iter().position(|victim| *victim == queue_pair);
        let index = index.expect("a message of one of the victims");
        assert!(!arrived[index], "a message came twice");
        arrived[index] = true;
        assert!(
            action.posted(index).as_ref() == Some(&data),
            "a message of {} bytes is not what the victim sent",
            data.len()
        );
    }
    survivor.peer.failures.clear();
    arrived
}

/// Kills a process after every instruction of `action`.
fn die_everywhere(action: Action) {
    let _alone = alone();
    let stride = usize::try_from(asked("RPCRDMA_DEATH_STRIDE", 1).max(1)).expect("64 bits");
    let mut survivor = Survivor::new();
    // How many instructions there are; also fills what is filled once.
    let mut trace = Vec::new();
    kill_victims(&mut survivor, action, 1, |_, thread| {
        trace = trace_to_mark(thread);
    });
    let before = survivor.belongings();
    // TIME: as above.
    let begun = Instant::now();
    let points = points_of(&trace, stride);
    let mut noticed = Vec::new();
    let mut first_arrived = None;
    let mut reached = 0;
    for points in points.chunks(VICTIMS - 1) {
        let outcome =
            kill_victims(
                &mut survivor,
                action,
                points.len() + 1,
                |index, thread| match index.checked_sub(1) {
                    None => trace = trace_to_mark(thread),
                    Some(index) => {
                        reached += usize::from(run_to_point(thread, &trace, points[index]));
                    }
                },
            );
        noticed.push(outcome.noticed_after);
        let (at_the_end, on_the_way) = outcome.arrived.split_at(1);
        assert_eq!(
            at_the_end[0],
            action.posted(0).is_some(),
            "a message that was posted is lost"
        );
        for (point, arrived) in points.iter().zip(on_the_way) {
            if *arrived && first_arrived.is_none() {
                first_arrived = Some(*point);
            }
            assert!(!arrived || *point > 0, "a message came before it was sent");
        }
    }
    noticed.sort_unstable();
    println!(
        "{}: killed at {reached} of {} places among {} instructions, in {:.1?}; the message is \
         there from {first_arrived:?} on; noticed after {:.1?} (median), {:.1?} (longest)",
        action.name(),
        points.len(),
        trace.len(),
        begun.elapsed(), // TIME: as above.
        noticed[noticed.len() / 2],
        noticed[noticed.len() - 1],
    );
    // Which way a thread takes may depend on what the others do; nearly all take the same.
    assert!(
        reached * 10 >= points.len() * 9,
        "too few places were tried"
    );
    assert_eq!(
        survivor.belongings(),
        before,
        "something of the dead is left"
    );
    survivor.finish();
}

#[test]
fn killed_after_every_instruction_of_posting_a_small_send() {
    die_everywhere(Action::PostSmall);
}

#[test]
fn killed_after_every_instruction_of_posting_a_registered_send() {
    die_everywhere(Action::PostRegistered);
}

#[test]
fn killed_after_every_instruction_of_reaping() {
    die_everywhere(Action::Reap);
}
