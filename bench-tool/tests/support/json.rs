//! The JSON that programs write.

use rpcrdma_testkit::Ended;
use serde_json::Value;

/// Programs that write JSON to standard output.
pub(crate) trait Json {
    /// What the program wrote. It panics when the program failed or wrote something else.
    fn json(&self) -> Value;
}

impl Json for Ended {
    #[track_caller]
    fn json(&self) -> Value {
        self.check_code(0);
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self}"))
    }
}
