//! When a load is whole. Tables, pages, JSON, `report`, `compare`, `merge`, the knee and exit statuses ask this and nothing
//! else.
//!
//! A load is whole if it ran to its end, and each call that was due until then was answered. Then its histogram has the
//! latency of each. A call without an answer is in the histogram too, with the time that it had waited when it was given up:
//! so the percentiles are never better than what callers met, but the load is not whole. It is no error: each call counts once, as
//! answered, as an error, or as one without an answer.

use rpcrdma_units::count;
use serde_json::Value;

use crate::exit::Failure;

/// What became of the calls of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account<'a> {
    /// Calls that succeeded in the measured time.
    pub(crate) calls: u64,
    /// Calls that ended in an error.
    pub(crate) errors: u64,
    /// Calls that were due in the measured time, by the schedule alone; `None` in a closed loop, which has none.
    pub(crate) due: Option<u64>,
    /// Calls without an answer, whose waits are in the histogram.
    pub(crate) unanswered: u64,
    /// Whether the measurement ended before its limit.
    pub(crate) interrupted: bool,
    /// Why the load broke off, or lost connections for good.
    pub(crate) failure: Option<&'a str>,
    /// Clients of a fleet that failed: see [`clients_failed`].
    pub(crate) clients_failed: usize,
}

/// The clients of a fleet of `asked` clients that failed in a run, of which so many `reported`. `failures` are those of the run,
/// and of `before` earlier ones.
pub(crate) fn clients_failed(
    (failures, before): (usize, usize),
    (asked, reported): (usize, usize),
) -> usize {
    let failed = failures.saturating_sub(before);
    failed.max(asked.saturating_sub(reported))
}

/// The same of the JSON of a fleet; 0 of another report.
pub(crate) fn clients_failed_in(report: &Value) -> usize {
    let length = |key: &str| report[key].as_array().map_or(0, Vec::len);
    let number = |key: &str| {
        let number = report[key].as_u64().unwrap_or(0);
        usize::try_from(number).unwrap_or(usize::MAX)
    };
    clients_failed(
        (length("failures"), number("failures_before")),
        (number("clients_asked"), length("clients")),
    )
}

impl Account<'_> {
    /// Calls that were due, and are neither answered, nor failed, nor counted with their waits. There are none, unless this
    /// program has an error.
    fn missing(&self) -> u64 {
        let known = self.calls.saturating_add(self.errors);
        let known = known.saturating_add(self.unanswered);
        self.due.map_or(0, |due| due.saturating_sub(known))
    }

    /// Calls without an answer, and of how many: `291 of 800 calls that were due were not answered`.
    pub(crate) fn unanswered_text(&self) -> Option<String> {
        let unanswered = self.unanswered.saturating_add(self.missing());
        let of = self.due.map_or_else(String::new, |due| {
            format!(" of {} calls that were due", count(due.max(unanswered)))
        });
        let calls = match (self.due, unanswered) {
            (None, 1) => " call",
            (None, _) => " calls",
            _ => "",
        };
        let were = if unanswered == 1 { "was" } else { "were" };
        (unanswered > 0).then(|| format!("{}{calls}{of} {were} not answered", count(unanswered)))
    }

    /// Why the load is not whole, each reason in a few words. Empty if it is.
    pub(crate) fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        doubts.extend(self.failure.map(|why| format!("failed: {why}")));
        if self.interrupted && self.failure.is_none() {
            doubts.push("ended early".to_owned());
        }
        match self.clients_failed {
            0 => {}
            1 => doubts.push("1 client failed".to_owned()),
            clients => doubts.push(format!("{clients} clients failed")),
        }
        doubts.extend(self.unanswered_text());
        match self.errors {
            0 => {}
            1 => doubts.push("1 call ended in an error".to_owned()),
            errors => doubts.push(format!("{} calls ended in an error", count(errors))),
        }
        if self.calls == 0 {
            doubts.push("no call completed".to_owned());
        }
        doubts
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.doubts().is_empty()
    }

    /// The failure of a command after its report: calls failed, were not answered, or there were none. That it was ended early
    /// is none, and the failure of the load itself is reported as such. `advice` says where the user finds the errors.
    ///
    /// # Errors
    /// The first of these that applies.
    pub(crate) fn verdict(&self, advice: &str) -> Result<(), Failure> {
        let Self { calls, errors, .. } = self;
        if *errors > 0 {
            return Err(Failure::failed(format!(
                "{errors} calls ended in an error, {calls} completed"
            ))
            .advice(advice));
        }
        if let Some(unanswered) = self.unanswered_text() {
            return Err(Failure::failed(format!("{unanswered}, {calls} completed"))
                .advice("look for what stalled, raise --depth, or lower --rate: the latencies have the waits of these calls"));
        }
        if *calls == 0 {
            return Err(Failure::failed("no call completed in the measured time")
                .advice("measure for longer, or lower --size"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpcrdma_testkit::CheckWords;

    const WHOLE: Account<'static> = Account {
        calls: 800,
        errors: 0,
        due: Some(800),
        unanswered: 0,
        interrupted: false,
        failure: None,
        clients_failed: 0,
    };

    #[test]
    fn whole_load_has_answered_each_call_that_was_due() {
        assert!(WHOLE.is_whole() && WHOLE.verdict("").is_ok());
        let closed = Account { due: None, ..WHOLE };
        assert!(closed.is_whole());
        for (other, doubt) in [
            (
                Account {
                    calls: 509,
                    unanswered: 291,
                    ..WHOLE
                },
                "291 of 800 calls that were due were not answered",
            ),
            (
                Account {
                    calls: 509,
                    ..WHOLE
                },
                "291 of 800 calls that were due were not answered",
            ),
            (
                Account {
                    calls: 799,
                    ..WHOLE
                },
                "1 of 800 calls that were due was not answered",
            ),
            (
                Account {
                    unanswered: 1,
                    ..closed
                },
                "1 call was not answered",
            ),
            (
                Account {
                    calls: 798,
                    errors: 2,
                    ..WHOLE
                },
                "2 calls ended in an error",
            ),
            (
                Account {
                    errors: 1,
                    ..closed
                },
                "1 call ended in an error",
            ),
            (Account { calls: 0, ..closed }, "no call completed"),
        ] {
            assert_eq!(other.doubts(), [doubt]);
            other.verdict("look there").unwrap_err().check_words(&[]);
        }
        for (other, doubt) in [
            (
                Account {
                    interrupted: true,
                    ..WHOLE
                },
                "ended early",
            ),
            (
                Account {
                    interrupted: true,
                    failure: Some("it broke"),
                    ..WHOLE
                },
                "failed: it broke",
            ),
            (
                Account {
                    clients_failed: 2,
                    ..WHOLE
                },
                "2 clients failed",
            ),
        ] {
            assert_eq!(other.doubts(), [doubt]);
            assert!(other.verdict("").is_ok(), "others report it");
        }
    }
}
