//! The gate between the connections of a load and its first call. A fleet opens the gates of all its clients at the
//! same time; everybody else has none.

use std::fmt;
use std::sync::Arc;

use crate::progress::Progress;
use crate::signals::Stop;

/// What happens at the gate: it returns when the calls may begin, or when a stop is requested.
type Pass = dyn Fn(&Progress, &Stop) + Send + Sync;

/// A gate; the default one is open. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Gate(Option<Arc<Pass>>);

impl Gate {
    /// A gate at which every load calls `pass`, once, when it has its connections.
    pub(crate) fn new(pass: impl Fn(&Progress, &Stop) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(pass)))
    }

    /// Waits until the gate opens; returns immediately if there is none.
    pub(crate) fn pass(&self, progress: &Progress, stop: &Stop) {
        if let Some(pass) = &self.0 {
            pass(progress, stop);
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            None => "Gate(open)",
            Some(_) => "Gate",
        })
    }
}
