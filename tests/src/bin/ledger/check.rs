//! Holds the logs of requesters against the books of responders.

use std::collections::HashMap;

use crate::Failure;
use crate::book::{self, Name};

/// How a requester saw a call end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Answered { position: u64 },
    Failed,
}

/// What was found, when nothing is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Summary {
    answered: usize,
    failed: usize,
    /// Of the failed ones, those that were executed: their answers were lost.
    failed_and_executed: usize,
}

/// Reads all files, and compares.
pub(crate) fn run(books: &[String], logs: &[String]) -> Result<(), Failure> {
    let mut executed = Vec::new();
    for path in books {
        executed.push(book::read(path)?);
    }
    let mut seen = Vec::new();
    for path in logs {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        for line in text.lines() {
            seen.push(parse(line).ok_or_else(|| format!("{path}: {line}"))?);
        }
    }
    let summary = compare(&executed, &seen).map_err(|faults| faults.join("\n"))?;
    println!(
        "{} calls: {} answered, as the book says; {} failed, {} of them after they were executed",
        seen.len(),
        summary.answered,
        summary.failed,
        summary.failed_and_executed
    );
    Ok(())
}

/// A line of a log; `None` when it tells of no end, which is a fault.
fn parse(line: &str) -> Option<(Name, Seen)> {
    let mut words = line.splitn(4, ' ');
    let name = Name {
        requester: u64::from_str_radix(words.next()?, 16).ok()?,
        number: u64::from_str_radix(words.next()?, 16).ok()?,
    };
    let seen = match words.next()? {
        "answered" => Seen::Answered {
            position: words.next()?.parse().ok()?,
        },
        "failed" => Seen::Failed,
        _ => return None,
    };
    Some((name, seen))
}

/// The most faults that are told.
const FAULTS_MAX: usize = 20;

fn compare(books: &[Vec<Name>], seen: &[(Name, Seen)]) -> Result<Summary, Vec<String>> {
    let mut faults = Vec::new();
    let mut executed: HashMap<Name, u64> = HashMap::new();
    for book in books {
        for (name, position) in book.iter().zip(0_u64..) {
            if let Some(before) = executed.insert(*name, position) {
                faults.push(format!(
                    "{name:x?} was executed twice: entries {before} and {position}"
                ));
            }
        }
    }
    let mut summary = Summary::default();
    let mut known = HashMap::new();
    for (name, seen) in seen {
        if known.insert(*name, *seen).is_some() {
            faults.push(format!("{name:x?} ended twice"));
        }
        match (seen, executed.get(name)) {
            (Seen::Answered { position }, Some(entry)) if position == entry => {
                summary.answered += 1;
            }
            (Seen::Answered { position }, entry) => faults.push(format!(
                "{name:x?} was answered with position {position}, and the book says {entry:?}"
            )),
            (Seen::Failed, entry) => {
                summary.failed += 1;
                summary.failed_and_executed += usize::from(entry.is_some());
            }
        }
    }
    let unknown = executed.keys().find(|name| {
        let is_theirs = |(seen, _): &(Name, Seen)| seen.requester == name.requester;
        !known.contains_key(name) && seen.iter().any(is_theirs)
    });
    if let Some(name) = unknown {
        faults.push(format!(
            "{name:x?} was executed, and its log does not know it"
        ));
    }
    if seen.is_empty() {
        faults.push("the logs are empty".to_owned());
    }
    if faults.is_empty() {
        return Ok(summary);
    }
    let more = faults.len().saturating_sub(FAULTS_MAX);
    faults.truncate(FAULTS_MAX);
    if more > 0 {
        faults.push(format!("... and {more} more"));
    }
    Err(faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn name(number: u64) -> Name {
        Name {
            requester: 7,
            number,
        }
    }

    fn answered(number: u64, position: u64) -> (Name, Seen) {
        (name(number), Seen::Answered { position })
    }

    fn failed(number: u64) -> (Name, Seen) {
        (name(number), Seen::Failed)
    }

    fn fault(books: &[Vec<Name>], seen: &[(Name, Seen)]) -> String {
        let faults = compare(books, seen).expect_err("a fault");
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults[0].clone()
    }

    #[test]
    fn answers_that_the_book_knows_and_errors_pass() {
        let book = vec![name(1), name(0), name(3)];
        let seen = [answered(0, 1), answered(1, 0), failed(2), failed(3)];
        let summary = Summary {
            answered: 2,
            failed: 2,
            failed_and_executed: 1,
        };
        assert_eq!(compare(&[book], &seen), Ok(summary));
    }

    #[test]
    fn call_executed_twice_is_found_even_in_two_books() {
        let seen = [answered(0, 0)];
        assert!(fault(&[vec![name(0), name(0)]], &[failed(0)]).contains("executed twice"));
        assert!(fault(&[vec![name(0)], vec![name(0)]], &seen).contains("executed twice"));
    }

    #[test]
    fn an_answer_without_its_entry_is_found() {
        assert!(fault(&[vec![]], &[answered(0, 0)]).contains("book says None"));
        let other = [answered(0, 1), answered(1, 1)];
        assert!(fault(&[vec![name(0), name(1)]], &other).contains("book says Some(0)"));
    }

    #[test]
    fn a_call_that_ended_twice_or_is_not_in_its_log_is_found() {
        let twice = [answered(0, 0), failed(0)];
        assert!(fault(&[vec![name(0)]], &twice).contains("ended twice"));
        assert!(fault(&[vec![name(0), name(1)]], &[answered(0, 0)]).contains("does not know it"));
        assert!(fault(&[vec![]], &[]).contains("empty"));
    }

    #[test]
    fn entries_of_requesters_whose_logs_are_not_given_do_not_matter() {
        let other = Name {
            requester: 8,
            number: 0,
        };
        assert!(compare(&[vec![other, name(0)]], &[answered(0, 1)]).is_ok());
    }

    #[test]
    fn a_line_without_an_end_is_no_line() {
        let start = "0000000000000007 0000000000000002";
        assert_eq!(parse(&format!("{start} answered 9")), Some(answered(2, 9)));
        assert_eq!(
            parse(&format!("{start} failed no reply came in time")),
            Some(failed(2))
        );
        for bad in ["outstanding", "garbage", "answered", "answered x", ""] {
            assert_eq!(parse(&format!("{start} {bad}")), None, "{bad}");
        }
    }
}
