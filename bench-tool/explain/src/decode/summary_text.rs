//! Writes a summary as text.

use std::fmt::{self, Write as _};

use rpcrdma_units::{count, nanoseconds, size, text_of};

use super::lines::row;
use super::summary::{Credits, Direction, Range, Summary, Volume};
use super::text::explain_procedure;

/// How many directions, connections and calls a list shows; it counts the others. JSON has all.
const SHOWN: usize = 10;

/// Upper bound of the procedures in the text: NFS version 3 has 22.
const PROCEDURES_SHOWN: usize = 30;

/// The summary as a paragraph.
pub(crate) fn paragraph(summary: &Summary) -> String {
    text_of(|text| write(text, summary))
}

fn write(text: &mut String, summary: &Summary) -> fmt::Result {
    let time = summary.duration_ns.map(|duration_ns| {
        let connections = plural(summary.connections.with_messages, "connection");
        format!(" on {connections} in {}", nanoseconds(duration_ns))
    });
    writeln!(
        text,
        "summary of {}: {}{}",
        summary.input,
        plural(summary.messages, "message"),
        time.unwrap_or_default()
    )?;
    if let Some(packets) = summary.packets {
        let forgotten = match packets.flows_forgotten {
            0 => String::new(),
            flows => format!(
                "; {} forgotten, because there were too many others, or too much waited",
                plural(flows, "flow")
            ),
        };
        let rest = format!(
            "{} of RoCEv2, of which {} were sent again; {} others, {} that cannot be read{forgotten}",
            count(packets.roce),
            count(packets.again),
            count(packets.other),
            count(packets.damaged)
        );
        row(text, "packets", &rest)?;
    }
    write_messages(text, summary)?;
    write_connections(text, summary)?;
    write_calls(text, summary)?;
    write_errors(text, summary)?;
    write_all(text, "credits", summary, credits)?;
    write_chunks(text, summary)?;
    write_all(text, "RDMA", summary, |direction| {
        let volumes = [(direction.reads, "Read"), (direction.writes, "Write")];
        let volumes = volumes.iter().filter(|(volume, _)| volume.count > 0);
        volumes
            .map(|(volume, name)| {
                let number = plural(volume.count, &format!("RDMA {name}"));
                format!("{number} of {}", size(volume.bytes))
            })
            .collect()
    })?;
    write_procedures(text, summary)?;
    write_slowest(text, summary)
}

fn plural(number: u64, name: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{} {name}{end}", count(number))
}

/// `from A to B`; empty if the input does not show it.
fn ends(direction: &Direction) -> String {
    match (&direction.from, &direction.to) {
        (Some(from), Some(to)) => format!("from {from} to {to}"),
        _ => "from either end, which hex does not show".to_owned(),
    }
}

/// Writes lines whose first has a name.
fn rows(text: &mut String, name: &str, lines: impl IntoIterator<Item = String>) -> fmt::Result {
    let mut name = name;
    for line in lines {
        row(text, name, &line)?;
        name = "";
    }
    Ok(())
}

/// Cuts a list that is too long, and says how many are left out.
fn shortened(lines: Vec<String>, of: &str) -> Vec<String> {
    shortened_to(SHOWN, lines, of)
}

fn shortened_to(shown: usize, mut lines: Vec<String>, of: &str) -> Vec<String> {
    let left = lines.len().saturating_sub(shown);
    if left > 0 {
        lines.truncate(shown);
        lines.push(format!("and {left} more {of}: --json --summary has them"));
    }
    lines
}

/// Writes one line for each direction and text.
fn write_all(
    text: &mut String,
    name: &str,
    summary: &Summary,
    of: impl Fn(&Direction) -> Vec<String>,
) -> fmt::Result {
    let line = |direction| {
        let ends = ends(direction);
        let texts = of(direction).into_iter();
        texts.map(move |it| format!("{ends}: {it}"))
    };
    let lines = summary.directions.iter().flat_map(line).collect();
    rows(text, name, shortened(lines, "lines"))
}

fn write_messages(text: &mut String, summary: &Summary) -> fmt::Result {
    let mut lines = Vec::new();
    for direction in summary.directions.iter().take(SHOWN) {
        let kinds = direction.messages.iter();
        let all = kinds.map(|it| it.messages).sum::<u64>() + direction.wrong;
        if all == 0 {
            continue;
        }
        lines.push(format!("{}: {}", ends(direction), count(all)));
        for kind in &direction.messages {
            let inline = match kind.payload_bytes {
                0 => String::new(),
                bytes => format!(", {} inline", size(bytes)),
            };
            lines.push(format!(
                "{:>8}  version {} {}: {}{inline}",
                count(kind.messages),
                kind.version,
                kind.header_type,
                kind.meaning
            ));
        }
        if direction.wrong > 0 {
            lines.push(format!("{:>8}  wrong", count(direction.wrong)));
        }
    }
    if summary.directions.len() > SHOWN {
        let left = summary.directions.len() - SHOWN;
        lines.push(format!(
            "and {left} more directions: --json --summary has them"
        ));
    }
    rows(text, "messages", lines)
}

fn write_connections(text: &mut String, summary: &Summary) -> fmt::Result {
    if summary.packets.is_none() {
        return Ok(());
    }
    let connections = &summary.connections;
    let first = format!(
        "{} with messages; in the capture {} asked for, {} granted, {} refused, {} ended",
        count(connections.with_messages),
        count(connections.requested),
        count(connections.granted),
        count(connections.refused),
        count(connections.ended)
    );
    let missing = connections.one_way.iter().map(|it| {
        format!(
            "connection {}: the capture has no message from {} to {}",
            it.connection, it.to, it.from
        )
    });
    let missing = shortened(missing.collect(), "connections with one direction");
    rows(text, "connections", std::iter::once(first).chain(missing))
}

fn write_calls(text: &mut String, summary: &Summary) -> fmt::Result {
    let calls = summary.calls;
    let mut first = format!(
        "{}, of which {} with a reply, {} without one",
        count(calls.calls),
        count(calls.answered),
        count(calls.unanswered)
    );
    if calls.repeated > 0 {
        write!(first, "; {} sent again", count(calls.repeated))?;
    }
    if calls.replies_without_call > 0 {
        let replies = count(calls.replies_without_call);
        write!(first, "; {replies} replies whose call is not there")?;
    }
    row(text, "calls", &first)?;
    let place = match summary.packets {
        Some(_) => "packet",
        None => "line",
    };
    let unanswered = summary.unanswered.iter().map(|call| {
        let connection = call.connection.map(|it| format!(", connection {it}"));
        format!(
            "xid {:#010x}{}, {place} {}: {}",
            call.xid,
            connection.unwrap_or_default(),
            count(call.call_packet),
            procedure(call.procedure)
        )
    });
    let unanswered = shortened(unanswered.collect(), "calls without a reply");
    rows(text, "unanswered", unanswered)
}

fn procedure(called: Option<[u32; 3]>) -> String {
    match called {
        Some([program, version, procedure]) => explain_procedure(program, version, procedure),
        None => "its RPC header is not inline".to_owned(),
    }
}

fn write_errors(text: &mut String, summary: &Summary) -> fmt::Result {
    let errors = &summary.errors;
    let mut lines = Vec::new();
    if errors.wrong_messages > 0 {
        lines.push(format!(
            "{} wrong",
            plural(errors.wrong_messages, "message")
        ));
    }
    for (name, number) in &errors.transport {
        lines.push(format!("{} {name}", count(*number)));
    }
    for (outcome, number) in &errors.rpc {
        let replies = if *number == 1 { "reply" } else { "replies" };
        lines.push(format!("{} {replies}: {outcome}", count(*number)));
    }
    if errors.gaps > 0 {
        let gaps = plural(errors.gaps, "gap");
        lines.push(match errors.packets_missing {
            0 => gaps,
            1 => format!("{gaps}, in which at least 1 packet is missing"),
            packets => format!(
                "{gaps}, in which at least {} packets are missing",
                count(packets)
            ),
        });
    }
    if errors.packets_damaged > 0 {
        let packets = plural(errors.packets_damaged, "packet");
        lines.push(format!("{packets} that cannot be read"));
    }
    if lines.is_empty() {
        lines.push("none".to_owned());
    }
    rows(text, "errors", lines)
}

fn credits(direction: &Direction) -> Vec<String> {
    let range = |range: Range| match (range.least, range.most) {
        (least, most) if least == most => count(least),
        (least, most) => format!("{} to {}", count(least), count(most)),
    };
    let of = |credits: &Credits| {
        let mut texts = Vec::new();
        let version = credits.version;
        if let (Some(granted), Some(maximum)) = (credits.granted, credits.maximum) {
            texts.push(format!(
                "version {version}, each message grants {} more, {} at most are ever outstanding",
                range(granted),
                range(maximum)
            ));
        } else if let Some(granted) = credits.granted {
            texts.push(format!(
                "version {version}, replies grant {}",
                range(granted)
            ));
        }
        if let Some(asked) = credits.asked {
            texts.push(format!("version {version}, calls ask for {}", range(asked)));
        }
        texts
    };
    direction.credits.iter().flat_map(of).collect()
}

fn write_chunks(text: &mut String, summary: &Summary) -> fmt::Result {
    let chunks = summary.chunks;
    let kinds: [(&str, Volume); 8] = [
        ("Read chunks", chunks.read),
        (
            "Read chunks with a whole call",
            chunks.read_at_position_zero,
        ),
        ("Write chunks offered", chunks.write_offered),
        ("Write chunks returned in replies", chunks.write_filled),
        ("Reply chunks offered", chunks.reply_offered),
        ("Reply chunks returned in replies", chunks.reply_filled),
        ("items placed by Sends", chunks.items_placed),
        ("items moved by RDMA", chunks.items_explicit),
    ];
    let kinds = kinds.iter().filter(|(_, volume)| volume.count > 0);
    let lines: Vec<String> = kinds
        .map(|(name, volume)| {
            let bytes = size(volume.bytes);
            format!("{:>8}  {name}, {bytes}", count(volume.count))
        })
        .collect();
    if lines.is_empty() {
        return row(text, "chunks", "none");
    }
    rows(text, "chunks", lines)
}

fn write_procedures(text: &mut String, summary: &Summary) -> fmt::Result {
    if summary.procedures.is_empty() {
        return Ok(());
    }
    let head = format!(
        "{:>8} {:>8} {:>10} {:>10} {:>10}  procedure",
        "calls", "replies", "least", "mean", "most"
    );
    let mut procedures = summary.procedures.clone();
    procedures.sort_by_key(|it| std::cmp::Reverse(it.calls.max(it.answered)));
    let lines = procedures.iter().map(|it| {
        let times = it
            .round_trip_ns
            .map(|it| [it.least, it.mean, it.most].map(nanoseconds));
        let [least, mean, most] = times.unwrap_or_else(|| ["-"; 3].map(str::to_owned));
        format!(
            "{:>8} {:>8} {least:>10} {mean:>10} {most:>10}  {}",
            count(it.calls),
            count(it.answered),
            procedure(it.procedure)
        )
    });
    let lines = shortened_to(PROCEDURES_SHOWN, lines.collect(), "procedures");
    rows(text, "procedures", std::iter::once(head).chain(lines))
}

fn write_slowest(text: &mut String, summary: &Summary) -> fmt::Result {
    if summary.slowest.is_empty() {
        return Ok(());
    }
    let head = format!(
        "{:>10}  {:<10} {:>10} {:>10} {:>10}  procedure",
        "time", "xid", "call in", "reply in", "connection"
    );
    let lines = summary.slowest.iter().map(|it| {
        let connection = it.connection.map_or("-".to_owned(), count);
        format!(
            "{:>10}  {:#010x} {:>10} {:>10} {connection:>10}  {}",
            nanoseconds(it.round_trip_ns),
            it.xid,
            it.call_packet,
            it.reply_packet,
            procedure(it.procedure)
        )
    });
    rows(text, "slowest", std::iter::once(head).chain(lines))
}

#[cfg(test)]
mod tests {
    use super::super::summary::Procedure;
    use super::*;

    #[test]
    fn gaps_of_unknown_length_and_many_procedures_are_short() {
        let mut summary = Summary::default();
        summary.errors.gaps = 2;
        summary.procedures = vec![Procedure::default(); PROCEDURES_SHOWN + 4];
        let text = paragraph(&summary);
        assert!(text.contains("errors      2 gaps\n"), "{text}");
        assert!(text.contains("and 4 more procedures"), "{text}");
        let lines = text.matches("its RPC header is not inline").count();
        assert_eq!(lines, PROCEDURES_SHOWN);
    }
}
