//! The first keys of every JSON report.

use serde::{Deserialize, Serialize};

use super::Word;

/// The layout of a report, and the program that wrote it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// Name and version of the layout. The version changes only if a key changes its meaning or is removed.
    pub schema: Word,
    /// Version of the tool.
    pub version: Word,
    /// Git revision of the build, or `unknown`.
    pub revision: Word,
    /// The command line.
    pub command: String,
}

impl Origin {
    /// A report of this build.
    #[must_use]
    pub(crate) const fn new(schema: &'static str, command: String) -> Self {
        Self {
            schema: Word::Borrowed(schema),
            version: Word::Borrowed(crate::VERSION),
            revision: Word::Borrowed(crate::REVISION),
            command,
        }
    }
}
