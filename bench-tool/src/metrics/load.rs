//! The metrics of a load while it goes on. They are read when a page is asked for, from what the progress line shows and
//! from the intervals that are over: the cores that make the calls take no part.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::exposition::{Kind, Labels, Page, one};
use super::http::{Answer, HttpServer};
use super::{MetricsAddress, TEXT_FORMAT, build_info};
use crate::exit::Failure;
use crate::load::gate::Gate;
use crate::progress::{Figures, LATENCY_BOUNDS_NS, LoadState, Progress, say};
use crate::signals::Stop;

/// A load, or the load of a client of a fleet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subject {
    /// The client of a fleet: its number and its host.
    pub(crate) client: Option<(usize, String)>,
    /// Whether the client failed, and was left out.
    pub(crate) is_lost: bool,
    pub(crate) figures: Figures,
}

/// How many clients of a fleet are in a state.
pub(crate) type StateCount = (&'static str, usize);

/// What a page is made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadBoard {
    /// `run`, `nfs` or `fleet`.
    pub(crate) command: &'static str,
    pub(crate) subjects: Vec<Subject>,
    /// The states of the clients of a fleet, each with its number of clients; `None` without a fleet.
    pub(crate) clients: Option<Vec<StateCount>>,
}

impl LoadBoard {
    /// The page of metrics.
    pub(crate) fn page(&self) -> String {
        let mut page = Page::default();
        build_info(&mut page);
        one(
            &mut page,
            "rpcrdma_load_info",
            "What makes calls; always 1.",
            &[("command", self.command)],
            1.0,
        );
        if let Some(clients) = &self.clients {
            page.family(
                "rpcrdma_fleet_clients",
                Kind::Gauge,
                "Clients of the fleet by what they do; those that are lost have failed, and are left out.",
            );
            for (state, count) in clients {
                page.sample(&[("state", state)], count);
            }
            page.family(
                "rpcrdma_fleet_client_lost",
                Kind::Gauge,
                "1 for a client that failed and was left out, 0 for the others.",
            );
            self.each(|subject, labels| page.sample(labels, u8::from(subject.is_lost)));
        }
        self.states(&mut page);
        self.counters(&mut page);
        self.latencies(&mut page);
        page.finish()
    }

    fn states(&self, page: &mut Page) {
        page.family(
            "rpcrdma_load_state",
            Kind::Gauge,
            "1 for the state that the load is in, 0 for the others.",
        );
        self.each(|subject, labels| {
            for state in LoadState::ALL {
                let is_in = subject.figures.state == state;
                let own = [labels, &[("state", state.name())]].concat();
                page.sample(&own, u8::from(is_in));
            }
        });
        page.family(
            "rpcrdma_load_target_calls_per_second",
            Kind::Gauge,
            "The rate that is asked for; absent in a closed loop, and when the calls are over.",
        );
        self.each(|subject, labels| {
            if let Some(rate) = subject.figures.rate_per_s {
                page.sample(labels, rate);
            }
        });
    }

    fn counters(&self, page: &mut Page) {
        page.family(
            "rpcrdma_load_calls_total",
            Kind::Counter,
            "Calls that ended, those of the warm-up too, by how.",
        );
        self.each(|subject, labels| {
            let Figures { calls, errors, .. } = subject.figures;
            for (outcome, count) in [("completed", calls), ("failed", errors)] {
                page.sample(&[labels, &[("outcome", outcome)]].concat(), count);
            }
        });
        page.family(
            "rpcrdma_load_payload_bytes_total",
            Kind::Counter,
            "Payload of the completed calls; absent if calls differ in size.",
        );
        self.each(|subject, labels| {
            if let Some(bytes) = subject.figures.payload_bytes {
                page.sample(labels, bytes);
            }
        });
        page.family(
            "rpcrdma_load_connections_lost_total",
            Kind::Counter,
            "Connections that were lost, replaced or not.",
        );
        self.each(|subject, labels| page.sample(labels, subject.figures.connections_lost));
    }

    fn latencies(&self, page: &mut Page) {
        let have = |it: &Subject| it.figures.latency.is_some();
        if !self.subjects.iter().any(have) {
            return;
        }
        page.family(
            "rpcrdma_load_latency_seconds",
            Kind::Histogram,
            "Latencies of the measured calls, of the intervals that are over.",
        );
        #[allow(clippy::cast_precision_loss, reason = "seconds for plots")]
        let seconds = |ns: u64| ns as f64 / 1e9;
        self.each(|subject, labels| {
            if let Some(latency) = &subject.figures.latency {
                let bounds = LATENCY_BOUNDS_NS.iter().map(|bound| Some(seconds(*bound)));
                let bounds = bounds.chain([None]);
                let counts: Vec<_> = bounds.zip(latency.counts.iter().copied()).collect();
                page.histogram(labels, &counts, seconds(latency.sum_ns));
            }
        });
    }

    /// Calls `show` for each load, with the labels of its client.
    fn each(&self, mut show: impl FnMut(&Subject, Labels<'_>)) {
        for subject in &self.subjects {
            match &subject.client {
                Some((client, host)) => {
                    show(subject, &[("client", &client.to_string()), ("host", host)]);
                }
                None => show(subject, &[]),
            }
        }
    }
}

/// Serves the metrics of one command. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct LoadMetrics {
    _http: HttpServer,
    /// That of the load that goes on.
    progress: Arc<Mutex<Progress>>,
}

impl LoadMetrics {
    /// Serves the metrics of `run` or `nfs`, and says where. `cores` are those of the calls.
    ///
    /// # Errors
    /// Those of [`super::serve`].
    pub(crate) fn start(
        at: &MetricsAddress,
        command: &'static str,
        cores: &[usize],
        quiet: bool,
    ) -> Result<Self, Failure> {
        let progress = Arc::new(Mutex::new(Progress::new(0)));
        let shown = Arc::clone(&progress);
        let board = move || {
            let figures = lock(&shown).figures();
            LoadBoard {
                command,
                subjects: vec![Subject {
                    figures,
                    ..Subject::default()
                }],
                clients: None,
            }
        };
        let http = serve_board(at, board, cores, quiet)?;
        Ok(Self {
            _http: http,
            progress,
        })
    }

    /// The gate at which each load shows itself here. It does not wait.
    pub(crate) fn gate(&self) -> Gate {
        let place = Arc::clone(&self.progress);
        Gate::new(move |progress: &Progress, _: &Stop| {
            progress.keep_latency();
            *lock(&place) = progress.clone();
        })
    }
}

/// Serves the pages of a board, and says where, if not `quiet`. `cores` are those that the thread keeps off.
///
/// # Errors
/// Those of [`super::serve`].
pub(crate) fn serve_board(
    at: &MetricsAddress,
    board: impl Fn() -> LoadBoard + Send + 'static,
    cores: &[usize],
    quiet: bool,
) -> Result<HttpServer, Failure> {
    let pages = move |path: &str| {
        (path == "/metrics").then(|| Answer {
            status: "200 OK",
            content_type: TEXT_FORMAT,
            body: board().page(),
        })
    };
    let http = super::serve(at, Box::new(pages), cores)?;
    if !quiet {
        say(&format!("metrics at http://{}/metrics", http.address()));
    }
    Ok(http)
}

/// Locks what a page shows. A thread that panicked left it whole: each change is an assignment.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // WAIT: for threads that copy figures under this lock.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::LatencyHistogram;
    use crate::progress::LatencyCounts;
    use rpcrdma_testkit::CheckWords;

    #[test]
    fn a_page_has_every_client_with_its_number_and_host() {
        let mut latency = LatencyHistogram::new();
        latency.record(1_500);
        latency.record(3_000_000);
        let figures = Figures {
            calls: 7,
            payload_bytes: Some(448),
            errors: 1,
            connections_lost: 2,
            rate_per_s: Some(500),
            state: LoadState::Measuring,
            latency: Some(LatencyCounts::of(&latency)),
        };
        let client = |number: usize, host: &str, figures| Subject {
            client: Some((number, host.to_owned())),
            is_lost: number == 1,
            figures,
        };
        let board = LoadBoard {
            command: "fleet",
            subjects: vec![client(0, "a", figures), client(1, "b", Figures::default())],
            clients: Some(vec![("running", 1), ("lost", 1)]),
        };
        let page = board.page();
        page.check_words(&[
            "\nrpcrdma_load_info{command=\"fleet\"} 1\n",
            "\nrpcrdma_fleet_clients{state=\"lost\"} 1\n",
            "\nrpcrdma_fleet_client_lost{client=\"0\",host=\"a\"} 0\n",
            "\nrpcrdma_fleet_client_lost{client=\"1\",host=\"b\"} 1\n",
            "\nrpcrdma_load_state{client=\"0\",host=\"a\",state=\"measuring\"} 1\n",
            "\nrpcrdma_load_state{client=\"1\",host=\"b\",state=\"starting\"} 1\n",
            "\nrpcrdma_load_target_calls_per_second{client=\"0\",host=\"a\"} 500\n",
            "\nrpcrdma_load_calls_total{client=\"0\",host=\"a\",outcome=\"completed\"} 7\n",
            "\nrpcrdma_load_calls_total{client=\"0\",host=\"a\",outcome=\"failed\"} 1\n",
            "\nrpcrdma_load_payload_bytes_total{client=\"0\",host=\"a\"} 448\n",
            "\nrpcrdma_load_connections_lost_total{client=\"0\",host=\"a\"} 2\n",
            "\nrpcrdma_load_latency_seconds_bucket{client=\"0\",host=\"a\",le=\"0.000002\"} 1\n",
            "\nrpcrdma_load_latency_seconds_bucket{client=\"0\",host=\"a\",le=\"0.002\"} 1\n",
            "\nrpcrdma_load_latency_seconds_bucket{client=\"0\",host=\"a\",le=\"0.005\"} 2\n",
            "\nrpcrdma_load_latency_seconds_count{client=\"0\",host=\"a\"} 2\n",
        ]);
        assert!(!page.contains("seconds_count{client=\"1\""), "{page}");
        assert!(!page.contains("per_second{client=\"1\""), "{page}");
    }
}
