//! The metrics of a fleet while it runs: what the clients' signs of life say.

use std::sync::{Arc, Mutex};

use super::plan::FleetPlan;
use crate::exit::Failure;
use crate::metrics::MetricsAddress;
use crate::metrics::http::HttpServer;
use crate::metrics::load::{LoadBoard, StateCount, Subject, lock, serve_board};
use crate::progress::{Figures, LoadState};

/// Serves the metrics of a fleet. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct FleetMetrics {
    board: Arc<Mutex<LoadBoard>>,
    _http: HttpServer,
}

impl FleetMetrics {
    /// Serves them for the clients of a plan, and says where, if not `quiet`.
    ///
    /// # Errors
    /// An address that cannot be used.
    pub(crate) fn start(
        at: &MetricsAddress,
        plan: &FleetPlan,
        quiet: bool,
    ) -> Result<Self, Failure> {
        let subjects = plan
            .clients
            .iter()
            .enumerate()
            .map(|(index, client)| Subject {
                client: Some((index, client.host.clone())),
                ..Subject::default()
            });
        let board = Arc::new(Mutex::new(LoadBoard {
            command: "fleet",
            subjects: subjects.collect(),
            clients: Some(Vec::new()),
        }));
        let shown = Arc::clone(&board);
        let http = serve_board(at, move || lock(&shown).clone(), &[], quiet)?;
        Ok(Self { board, _http: http })
    }

    /// Shows what a client has done so far.
    pub(crate) fn set_figures(&self, client: usize, figures: Figures) {
        self.change(client, |subject| subject.figures = figures);
    }

    /// Shows that the calls of a client are over; with `is_lost` because it failed.
    pub(crate) fn end(&self, client: usize, is_lost: bool) {
        self.change(client, |subject| {
            subject.is_lost |= is_lost;
            subject.figures.state = LoadState::Over;
            // It is asked for no more calls.
            subject.figures.rate_per_s = None;
        });
    }

    /// Shows how many clients do what.
    pub(crate) fn set_clients(&self, counts: Vec<StateCount>) {
        lock(&self.board).clients = Some(counts);
    }

    fn change(&self, client: usize, change: impl FnOnce(&mut Subject)) {
        if let Some(subject) = lock(&self.board).subjects.get_mut(client) {
            change(subject);
        }
    }
}
