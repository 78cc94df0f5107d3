//! What the JSON of every report begins with.

use serde::Serialize;

/// Which layout it is, and what wrote it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Origin {
    /// Name and number of the layout. The number changes only when a key changes meaning or goes away.
    pub schema: &'static str,
    /// Version of the tool.
    pub version: &'static str,
    /// Git revision that it was built from, or `unknown`.
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
