//! Signals of which each is to arrive: two of a kind that wait for a program at the same time are one.

use rpcrdma_testkit::{Running, until};
use rustix::process::Signal;

/// Sends a signal, and waits until the program has taken it.
pub(crate) fn signal_taken(program: &Running, signal: Signal) {
    program.signal(signal);
    let waiting = 1_u64 << (signal.as_raw() - 1);
    let file = format!("/proc/{}/status", program.id());
    until("the signal is taken", || {
        let status = std::fs::read_to_string(&file).ok()?;
        let masks = ["SigPnd:", "ShdPnd:"].iter().map(|name| {
            let mask = status.lines().find_map(|line| line.strip_prefix(name));
            u64::from_str_radix(mask.unwrap().trim(), 16).unwrap()
        });
        let all = masks.fold(0, |all, mask| all | mask);
        (all & waiting == 0).then_some(())
    });
}
