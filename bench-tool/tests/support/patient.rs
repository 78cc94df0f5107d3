//! Knobs of the programs that tests start.

/// Options of both ends for tests in which nothing is lost by silence: either end may be kept from its work for minutes, and
/// is not taken for dead. Tests of such limits set them behind these: the last value of a knob is the one that applies.
pub(crate) const PATIENT: &str = "--set keep_alive_silent_ticks_max=255 --set connect_timeout_ms=240000 \
                                  --set call_timeout_ms=240000 --set stall_timeout_ms=600000";
