//! The view of a fleet's report, and the sections of its page: the clients, the slowest first, what failed, and the
//! counters of the servers.

use std::cmp::Reverse;
use std::fmt::{self, Write as _};

use super::report::{ClientFigures, FleetReport, write_heading};
use crate::histogram::LatencyHistogram;
use crate::report::chart::Curve;
use crate::report::escape::escape;
use crate::report::page::{begin_table, end_table, percentile_curve, write_percentiles, write_row};
use crate::report::saved::SavedLoad;
use crate::report::view::{LoadReport, LoadView, machine_facts, missing};
use crate::sweep::runs::Repeat as _;
use rpcrdma_units::{count, nanoseconds, text_of};

/// Upper bound of the clients in the table; the JSON has all of them.
pub(super) const ROWS_MAX: usize = 600;

const COLUMNS: [&str; 9] = [
    "host", "calls", "rate", "p50", "p99", "maximum", "errors", "start", "server",
];

impl LoadReport for FleetReport {
    fn view(&self) -> LoadView<'_> {
        let mut facts = vec![
            ("clients", self.clients_text()),
            ("their command", self.client_command.clone()),
        ];
        facts.extend(machine_facts(&self.machine));
        facts.extend(self.load.began_fact());
        facts.extend(self.load.paths_fact());
        LoadView {
            title: format!("{}: {}", self.clients_text(), self.client_command),
            heading: text_of(|text| write_heading(text, self)),
            origin: &self.origin,
            load: &self.load,
            bandwidth_bytes_per_s: (self.load.bandwidth_bytes_per_s > 0.0)
                .then_some(self.load.bandwidth_bytes_per_s),
            per_core: &[],
            floor_ratio: None,
            floor: String::new(),
            warnings: &self.warnings,
            disturbed: self.is_disturbed(),
            facts,
            missing: missing(&self.load, true),
        }
    }

    fn write_sections(&self, page: &mut String) -> fmt::Result {
        write(page, self)
    }
}

/// Writes all sections.
fn write(page: &mut String, report: &FleetReport) -> fmt::Result {
    writeln!(page, "<h2>Clients</h2>")?;
    write_figures(page, report)?;
    let mut clients: Vec<&ClientFigures> = report.clients.iter().collect();
    clients.sort_by_key(|it| Reverse(it.latency_ns.p99));
    write_curves(page, report, &clients);
    write_clients(page, &clients)?;
    write_failures(page, &report.failures)?;
    write_servers(page, report)
}

fn write_figures(page: &mut String, report: &FleetReport) -> fmt::Result {
    let mut figures = vec![(
        "clients reported",
        format!("{} of {}", report.clients.len(), report.clients_asked),
    )];
    figures.extend(report.fairness.map(|it| ("fairness", format!("{it:.4}"))));
    let skew = report.start_skew_ns_max.map(nanoseconds);
    figures.extend(skew.map(|it| ("largest start skew", it)));
    writeln!(page, "<ul class=\"figures\">")?;
    for (name, value) in figures {
        writeln!(page, "<li><b>{}</b> {name}</li>", escape(&value))?;
    }
    writeln!(
        page,
        "</ul>\n<p class=\"note\">Fairness is Jain's index of the clients' rates: 1 if all are equal.{}</p>",
        report
            .start_uncertainty_ns_max
            .map_or_else(String::new, |it| format!(
                " The skews of the starts are known to {}.",
                nanoseconds(it)
            ))
    )?;
    let is_slowest = |it: &&ClientFigures| Some(it.client) == report.slowest_client;
    match report.clients.iter().find(is_slowest) {
        Some(slowest) => writeln!(
            page,
            "<p><b>Slowest</b> client {} on {}: p99 {}, of all clients together {}</p>",
            slowest.client,
            escape(&slowest.host),
            nanoseconds(slowest.latency_ns.p99),
            nanoseconds(report.load.latency_ns.p99)
        ),
        None => Ok(()),
    }
}

/// Writes the percentiles of all clients together, of the slowest client and of the fastest one.
fn write_curves(page: &mut String, report: &FleetReport, clients: &[&ClientFigures]) {
    let with_calls: Vec<_> = clients.iter().filter(|it| it.calls > 0).collect();
    let [slowest, .., fastest] = with_calls[..] else {
        return;
    };
    let all = report.load.latency();
    let ends = [("slowest", slowest), ("fastest", fastest)].map(|(which, client)| {
        let name = format!("{which}, client {} on {}", client.client, client.host);
        latency_of(client).map(|latency| percentile_curve(&name, &latency))
    });
    let all = all.map(|latency| percentile_curve("all clients together", &latency));
    let curves: Vec<Curve> = [all].into_iter().chain(ends).flatten().collect();
    let range = (report.load.latency_ns.min, report.load.latency_ns.max);
    if !curves.is_empty() {
        write_percentiles(page, "clients", range, &curves);
    }
}

fn latency_of(client: &ClientFigures) -> Option<LatencyHistogram> {
    SavedLoad::read(&client.report)
        .ok()
        .map(|(_, latency)| latency)
}

pub(super) fn write_clients(page: &mut String, clients: &[&ClientFigures]) -> fmt::Result {
    begin_table(page, "client", &COLUMNS)?;
    for client in clients.iter().take(ROWS_MAX) {
        let server = client.server.clone().unwrap_or_else(|| "-".to_owned());
        let mut cells = vec![client.host.clone()];
        cells.extend(client.cells());
        cells.push(server);
        write_row(page, &client.client.to_string(), &cells)?;
    }
    end_table(page)?;
    if clients.len() > ROWS_MAX {
        let more = clients.len() - ROWS_MAX;
        writeln!(
            page,
            "<p class=\"note\">{more} faster clients are in the report's JSON.</p>"
        )?;
    }
    Ok(())
}

pub(super) fn write_failures(page: &mut String, failures: &[impl fmt::Display]) -> fmt::Result {
    if failures.is_empty() {
        return Ok(());
    }
    writeln!(page, "<h2>What failed</h2>\n<ul class=\"warnings\">")?;
    for failed in failures {
        writeln!(page, "<li>{}</li>", escape(&failed.to_string()))?;
    }
    writeln!(page, "</ul>")
}

pub(super) fn write_servers(page: &mut String, report: &FleetReport) -> fmt::Result {
    for it in &report.servers {
        let server = it.server.as_deref().unwrap_or("the server");
        writeln!(
            page,
            "<details><summary>counters of {} over the same time</summary>",
            escape(server)
        )?;
        begin_table(page, "counter", &["value"])?;
        for (name, value) in it.counters.iter().filter(|(_, value)| **value > 0) {
            write_row(page, name, &[count(*value)])?;
        }
        end_table(page)?;
        writeln!(page, "</details>")?;
    }
    Ok(())
}
