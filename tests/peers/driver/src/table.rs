//! The table, from raw values.

use std::fmt::Write;

use crate::record::{Kept, Outcome, Pace, Peer, Record};

/// What the others are compared with: calls of this project with as many bytes as they carry.
const OURS: &str = "null_call-64";

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

struct Row<'a> {
    peer: &'a Peer,
    runs: usize,
    kept: Vec<Kept>,
    p50_ns: f64,
}

fn rows<'a>(records: &'a [Record], peers: &[&'a Peer], pace: Pace) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = peers
        .iter()
        .map(|&peer| {
            let of_peer = records.iter().filter(|it| it.peer.name == peer.name);
            let kept: Vec<Kept> = of_peer
                .clone()
                .filter_map(Record::kept)
                .filter(|it| it.pace == pace)
                .collect();
            Row {
                peer,
                runs: of_peer.count(),
                p50_ns: median(kept.iter().map(|it| it.p50_ns)),
                kept,
            }
        })
        .filter(|row| !row.kept.is_empty())
        .collect();
    rows.sort_by(|a, b| a.p50_ns.total_cmp(&b.p50_ns));
    rows
}

/// Markdown: one table, the near runs first, each pace with the quickest first, then what has no value.
pub(crate) fn table(records: &[Record]) -> String {
    let mut peers: Vec<&Peer> = Vec::new();
    for record in records {
        if !peers.iter().any(|it| it.name == record.peer.name) {
            peers.push(&record.peer);
        }
    }
    let mut text = String::from(
        "| Cores | System | Version | Runs kept | Floor, ns | Round trip, ns | To the floor | To ours, 64 B | M/s |\n\
         |---|---|---|---|---|---|---|---|---|\n",
    );
    for (pace, word) in [(Pace::Near, "near"), (Pace::Far, "far")] {
        let rows = rows(records, &peers, pace);
        let ours_ns = rows
            .iter()
            .find(|row| row.peer.name == OURS)
            .map(|row| row.p50_ns);
        for row in &rows {
            let ours = ours_ns.map_or("-".to_owned(), |ns| format!("{:.2}", row.p50_ns / ns));
            let _ = writeln!(
                text,
                "| {word} | {} | {} | {} of {} | {:.0} | {:.0} | {:.2} | {ours} | {:.3} |",
                row.peer.title,
                row.peer.version,
                row.kept.len(),
                row.runs,
                median(row.kept.iter().map(|it| it.floor_ns)),
                row.p50_ns,
                median(row.kept.iter().map(|it| it.p50_ns / it.floor_ns)),
                median(row.kept.iter().map(|it| it.round_trips_per_s)) / 1e6,
            );
        }
    }
    for peer in peers {
        let of_peer: Vec<&Record> = (records.iter())
            .filter(|it| it.peer.name == peer.name)
            .collect();
        if of_peer.iter().any(|it| it.kept().is_some()) {
            continue;
        }
        let reason = of_peer.iter().find_map(|it| match &it.outcome {
            Outcome::Skipped(reason) => Some(format!("skipped: {reason}")),
            Outcome::Failed(reason) => Some(format!("failed: {reason}")),
            Outcome::Measured { .. } => None,
        });
        let reason = reason.unwrap_or_else(|| "the floors of no run agree".to_owned());
        let _ = writeln!(
            text,
            "| - | {} | {} | 0 of {} | - | {reason} | - | - | - |",
            peer.title,
            peer.version,
            of_peer.len(),
        );
    }
    text
}
