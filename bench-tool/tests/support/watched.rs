//! Loads whose metrics are read while they go on: what they have done is known, and not guessed from the time.

use std::io::BufRead as _;
use std::process::Command;

use rpcrdma_testkit::{Running, until};

use crate::page::page_at;

/// Starts a load with `--metrics 127.0.0.1:0` and without `--quiet`; it, and the address of its metrics.
pub(crate) fn watched(command: &mut Command) -> (Running, String) {
    let mut load = Running::start(command);
    let errors = load.errors.as_mut().expect("standard error is a pipe");
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    let at = line.trim_end().strip_prefix("metrics at http://");
    let at = at.and_then(|it| it.strip_suffix("/metrics")).expect(&line);
    (load, at.to_owned())
}

/// A sample of the metrics at this address; 0 if it is not there.
pub(crate) fn value(at: &str, sample: &str) -> f64 {
    let (_, page) = page_at(at, "/metrics");
    let values = page.lines().filter_map(|line| line.strip_prefix(sample));
    let mut values = values.filter_map(|value| value.trim().parse().ok());
    values.next().unwrap_or(0.0)
}

/// Waits until a sample of the metrics at this address is at least so much.
pub(crate) fn until_at_least(at: &str, sample: &str, least: f64) {
    until(sample, || (value(at, sample) >= least).then_some(()));
}
