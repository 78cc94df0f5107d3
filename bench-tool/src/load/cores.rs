//! The polling cores of a load.

use std::sync::Arc;

use rpcrdma_engine::ConnectionKey;

use super::control::LoadControl;
use super::generator::Generator;
use super::workload::Workload;

/// The polling cores that make a load.
#[derive(Debug)]
pub(crate) struct LoadCores<W> {
    /// Each core's number in the node, with its control.
    pub(super) cores: Vec<(usize, Arc<LoadControl<W>>)>,
}

impl<W: Workload> LoadCores<W> {
    /// The cores with these numbers.
    pub(crate) fn new(numbers: &[usize]) -> Self {
        let cores = numbers.iter().map(|number| (*number, Arc::default()));
        Self {
            cores: cores.collect(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.cores.len()
    }

    /// The control of the core with this index.
    pub(crate) fn control(&self, index: usize) -> Arc<LoadControl<W>> {
        let core = self.cores.get(index);
        core.map_or_else(Arc::default, |(_, control)| Arc::clone(control))
    }

    /// What makes the generator of each core of a node.
    pub(crate) fn generators(&self) -> impl FnMut(usize) -> Generator<W> + 'static {
        let controls: Vec<_> = self.cores.iter().map(|(_, it)| Arc::clone(it)).collect();
        move |core| Generator::new(controls.get(core).map_or_else(Arc::default, Arc::clone))
    }

    /// Replaces a lost connection on the core with this index.
    pub(super) fn replace(&self, index: usize, lost: ConnectionKey, fresh: ConnectionKey) {
        if let Some((_, control)) = self.cores.get(index) {
            control.replace(lost, fresh);
        }
    }
}
