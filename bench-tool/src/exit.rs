//! Exit codes, and errors that say what failed, on what, why, and what to do.

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;

use rpcrdma_control::FabricError;
use rpcrdma_nfs3::client::ClientError;

/// Exit status of the tool. Scripts rely on the numbers, so they never change their meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// 0: success.
    Success,
    /// 1: the command was tried and failed, or its input (such as a message to decode) was wrong.
    Failure,
    /// 2: the command line is wrong or cannot be carried out on this machine; nothing was tried.
    Usage,
    /// 3: a threshold of `compare` is exceeded, and the difference is beyond noise.
    Exceeded,
    /// 4: a threshold of `compare` is exceeded, but the difference may be noise.
    ExceededInNoise,
}

impl Status {
    /// The exit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::Exceeded => 3,
            Self::ExceededInNoise => 4,
        }
    }
}

impl From<Status> for ExitCode {
    fn from(status: Status) -> Self {
        Self::from(status.code())
    }
}

/// An error for the user: what failed and on what, why, and what to do.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    status: Status,
    what: String,
    advice: Option<String>,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Failure {
    /// An operation failed; exit status 1. `what` names the operation and its object.
    #[must_use]
    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self::new(Status::Failure, what.into())
    }

    /// The command line is wrong, or asks for something that this machine cannot do; exit status 2.
    #[must_use]
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(Status::Usage, what.into())
    }

    /// An error of a library with its causes; exit status 1.
    #[must_use]
    pub(crate) fn of(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::failed(error.to_string()).because(error)
    }

    const fn new(status: Status, what: String) -> Self {
        Self {
            status,
            what,
            advice: None,
            source: None,
        }
    }

    /// Adds advice for the user: one sentence without a full stop.
    #[must_use]
    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = Some(advice.into());
        self
    }

    /// Adds the cause.
    #[must_use]
    pub(crate) fn because(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Adds which options set the knobs that the text names, for a user who gave options and no knobs. `options` has
    /// each knob with its option. Advice that is there already stays.
    #[must_use]
    pub(crate) fn naming_options(self, options: &[(&str, &str)]) -> Self {
        let problem = self.problem();
        let named = options.iter().filter(|(knob, _)| problem.contains(knob));
        let named: Vec<String> = named
            .map(|(knob, option)| match option.contains(" and ") {
                true => format!("{option} set {knob}"),
                false => format!("{option} sets {knob}"),
            })
            .collect();
        if self.advice.is_some() || named.is_empty() {
            return self;
        }
        self.advice(format!("here {}", named.join(", ")))
    }

    fn cause(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.source {
            Some(source) => Some(source.as_ref()),
            None => None,
        }
    }

    /// The exit status of the process after this failure.
    #[must_use]
    pub(crate) const fn status(&self) -> Status {
        self.status
    }

    /// What failed and why, on one line and without the advice.
    #[must_use]
    pub(crate) fn problem(&self) -> String {
        let mut line = self.what.clone();
        // The whole chain of causes is on one line, because log collectors work on single lines.
        let mut cause = self.cause();
        let mut said = self.what.clone();
        while let Some(error) = cause {
            let text = error.to_string();
            // Some errors already contain the text of their cause: do not repeat it.
            if !said.ends_with(&text) {
                line.push_str(": ");
                line.push_str(&text);
            }
            said = text;
            cause = error.source();
        }
        line
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem())?;
        if let Some(advice) = &self.advice {
            write!(f, "\n  what to do: {advice}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause()
    }
}

impl From<FabricError> for Failure {
    fn from(error: FabricError) -> Self {
        let status = if error.is_usage() {
            Status::Usage
        } else {
            Status::Failure
        };
        Self {
            status,
            advice: error.advice(),
            ..Self::of(error)
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let advice = error.what_to_do().map(str::to_owned);
        Self {
            advice,
            ..Self::of(error)
        }
    }
}

/// Turns a failed write to standard output into a result for `main`.
///
/// A closed pipe is not an error: the reader (`bench-tool decode | head -1`) has what it wanted.
///
/// # Errors
/// All other failures.
pub(crate) fn written(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed("cannot write to standard output")
                .because(error)
                .advice("free disk space, or redirect the output to another file"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn numbers_are_fixed() {
        assert_eq!(Status::Success.code(), 0);
        assert_eq!(Status::Failure.code(), 1);
        assert_eq!(Status::Usage.code(), 2);
        assert_eq!(Status::Exceeded.code(), 3);
        assert_eq!(Status::ExceededInNoise.code(), 4);
        assert_eq!(Failure::failed("x").status(), Status::Failure);
        assert_eq!(Failure::usage("x").status(), Status::Usage);
    }

    #[test]
    fn a_failure_says_what_why_and_what_to_do() {
        let text = Failure::failed("cannot write the report to /a/b.json")
            .because(Error::new(ErrorKind::PermissionDenied, "permission denied"))
            .advice("give --json another path")
            .to_string();
        assert_eq!(
            text,
            "cannot write the report to /a/b.json: permission denied\n  what to do: give --json another path"
        );
    }

    #[test]
    fn cause_in_the_text_of_an_error_is_not_repeated() {
        #[derive(Debug, thiserror::Error)]
        #[error("opening the device: {source}")]
        struct Opening {
            #[source]
            source: Error,
        }
        let source = Error::new(ErrorKind::NotFound, "it is not there");
        let text = Failure::failed("no server")
            .because(Opening { source })
            .to_string();
        assert_eq!(text, "no server: opening the device: it is not there");
        let source = Error::new(ErrorKind::NotFound, "it is not there");
        let text = Failure::of(Opening { source }).to_string();
        assert_eq!(text, "opening the device: it is not there");
    }

    #[test]
    fn only_a_reader_that_left_is_forgiven() {
        assert!(written(Ok(())).is_ok());
        assert!(written(Err(Error::from(ErrorKind::BrokenPipe))).is_ok());
        let failure = written(Err(Error::from(ErrorKind::StorageFull))).unwrap_err();
        assert_eq!(failure.status(), Status::Failure);
    }

    #[test]
    fn several_options_set_a_knob_and_one_sets_it() {
        let options = [
            ("bulk_buffers", "--size and --depth"),
            ("depth_max", "--depth"),
        ];
        let failure = Failure::failed("bulk_buffers and depth_max are too large");
        let text = failure.naming_options(&options).to_string();
        assert!(
            text.contains("here --size and --depth set bulk_buffers, --depth sets depth_max"),
            "{text}"
        );
    }
}
