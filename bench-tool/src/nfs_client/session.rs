//! Connections to a server, over any transport.

pub(crate) mod fabric;
pub(crate) mod tcp;

use std::sync::Arc;

use crate::exit::Failure;
use crate::load::measure::Checkpoints;
use crate::load::measured::Measured;
use crate::load::{Amount, Watch};
use crate::workloads::nfs::Work;
use crate::workloads::nfs::tally::Tally;
use rpcrdma_nfs3::client::caller::NfsCaller;

/// Connections to a server.
pub(crate) trait Session {
    /// Runs a load and returns the results, also those of a load that broke off.
    fn measure(
        &mut self,
        work: Arc<Work>,
        amount: &Amount,
        watch: &Watch,
        checkpoints: &mut Checkpoints<'_>,
    ) -> Result<(Measured, Tally), Failure>;

    /// A connection for single calls. Each part of a run takes a new one: servers close idle connections, and the one
    /// before may be broken.
    fn caller(&mut self) -> Result<Box<dyn NfsCaller + '_>, Failure>;

    /// As [`Session::caller`], but does not wait until a lost connection is made again: for what is not needed.
    fn caller_now(&mut self) -> Result<Box<dyn NfsCaller + '_>, Failure> {
        self.caller()
    }
}
