//! The first keys of every JSON report.

use serde::Serialize;

/// The layout of a report, and the program that wrote it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Origin {
    /// Name and version of the layout. The version changes only if a key changes its meaning or is removed.
    pub schema: &'static str,
    /// Version of the tool.
    pub version: &'static str,
    /// Git revision of the build, or `unknown`.
    pub revision: &'static str,
    /// The command line.
    pub command: String,
}

impl Origin {
    /// A report of this build.
    #[must_use]
    pub(crate) const fn new(schema: &'static str, command: String) -> Self {
        Self {
            schema,
            version: crate::VERSION,
            revision: crate::REVISION,
            command,
        }
    }
}
