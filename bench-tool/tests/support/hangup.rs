//! Programs that heed SIGHUP, however the tests were started: under nohup it is ignored, which programs inherit.

use std::sync::Arc;

/// Lets the programs that are started from here on have SIGHUP as others do: a signal that this process handles is not
/// ignored behind exec.
pub(crate) fn let_programs_heed_it() {
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::default())
        .expect("SIGHUP can be handled");
}
