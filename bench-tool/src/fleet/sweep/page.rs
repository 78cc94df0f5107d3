//! The page of a sweep over a fleet: that of a sweep, with the clients of each combination and of each run.

use std::cmp::Reverse;
use std::fmt::{self, Write as _};

use super::report::{COLUMNS, FleetSweepReport};
use crate::fleet::report::ClientFigures;
use crate::fleet::sections::{ROWS_MAX, write_clients, write_failures, write_servers};
use crate::report::escape::escape;
use crate::report::page::{begin_table, end_table, write_row};
use crate::sweep::Sweep as _;
use crate::sweep::page::SweepPage;
use rpcrdma_units::{count, text_of};

impl FleetSweepReport {
    pub(super) fn sweep_page(&self) -> String {
        let page = SweepPage {
            title: format!("{}: {}", self.clients_text(), self.client_command),
            origin: &self.origin,
            machine: Some(&self.machine),
            swept: &self.swept,
            warnings: self.warnings(),
            together: "of all clients and counted repeats together",
            after_combinations: text_of(|page| self.write_clients_of_combinations(page)),
            after_percentiles: text_of(|page| {
                write_failures(page, &self.client_failures)?;
                self.write_runs(page)
            }),
            facts: vec![
                ("clients", self.clients_text()),
                ("their command", self.client_command.clone()),
            ],
        };
        page.text()
    }

    fn write_clients_of_combinations(&self, page: &mut String) -> fmt::Result {
        writeln!(
            page,
            "<p class=\"note\">Fairness is Jain's index of the clients' rates: 1 if all are equal; the lowest of the runs. \
             Start is the largest skew of a start; slowest has the largest p99 of a client.</p>"
        )?;
        begin_table(page, "", &COLUMNS)?;
        for (place, label) in self.swept.labels().iter().enumerate() {
            write_row(page, label, &self.client_cells(place))?;
        }
        end_table(page)
    }

    /// Writes the clients and the servers of each run, as long as the page stays readable.
    fn write_runs(&self, page: &mut String) -> fmt::Result {
        writeln!(page, "<h2>Clients of each run</h2>")?;
        let mut rows = 0;
        for (place, label) in self.swept.labels().iter().enumerate() {
            for (number, run) in (1_u64..).zip(self.swept.runs_of(place)) {
                rows += run.clients.len();
                if rows > ROWS_MAX {
                    return writeln!(
                        page,
                        "<p class=\"note\">The report's JSON has those of the other runs.</p>"
                    );
                }
                writeln!(
                    page,
                    "<details><summary>{}, run {}</summary>",
                    escape(label),
                    count(number)
                )?;
                let mut clients: Vec<&ClientFigures> = run.clients.iter().collect();
                clients.sort_by_key(|it| Reverse(it.latency_ns.p99));
                write_clients(page, &clients)?;
                write_servers(page, run)?;
                writeln!(page, "</details>")?;
            }
        }
        Ok(())
    }
}
