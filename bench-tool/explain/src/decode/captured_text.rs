//! Writes the events of a capture as paragraphs of text.

use std::fmt::{self, Write as _};

use super::captured::{Captured, Memory, Told, What};
use super::lines::row;
use super::text;
use rpcrdma_units::{count, nanoseconds, size};

/// The paragraph with this number.
pub(crate) fn paragraph(captured: &Captured, number: u64) -> String {
    let mut text = match &captured.what {
        What::Message { decoded, .. } => text::paragraph(decoded, number),
        other => format!("event {number}: {}\n", explain(other)),
    };
    let written = write_rest(&mut text, captured);
    debug_assert!(written.is_ok(), "a string takes all that is written to it");
    text
}

fn write_rest(text: &mut String, captured: &Captured) -> fmt::Result {
    if let What::Message {
        invalidated,
        immediate,
        round_trip_ns,
        ..
    } = &captured.what
    {
        if let Some(handle) = invalidated {
            let rest = format!("the device of its receiver invalidates handle {handle:#010x}");
            row(text, "with it", &rest)?;
        }
        if let Some(data) = immediate {
            row(text, "with it", &format!("immediate data {data:#010x}"))?;
        }
        if let Some(round_trip) = round_trip_ns {
            let rest = format!("complete {} after its call began", nanoseconds(*round_trip));
            row(text, "round trip", &rest)?;
        }
    }
    row(text, "captured", &place(captured))
}

/// The place and time of the event.
fn place(captured: &Captured) -> String {
    let mut place = match captured.packet - captured.first_packet.min(captured.packet) {
        0 => format!("packet {}", count(captured.packet)),
        _ => format!(
            "packets {} to {}",
            count(captured.first_packet),
            count(captured.packet)
        ),
    };
    let time = captured.since_start;
    let written = write!(
        place,
        ", at {}.{:06} s",
        time.as_secs(),
        time.subsec_micros()
    );
    debug_assert!(written.is_ok(), "a string takes all that is written to it");
    if let (Some(from), Some(to)) = (&captured.from, &captured.to) {
        place += &format!(", {from} to {to}");
    }
    if let Some(queue_pair) = captured.queue_pair {
        place += &format!(", queue pair {queue_pair}");
    }
    if let Some(connection) = captured.connection {
        place += &format!(", connection {connection}");
    }
    place
}

fn explain(what: &What) -> String {
    match what {
        What::Message { .. } => String::from("a message"),
        What::Read(memory) => format!("an RDMA Read of {}", explain_memory(*memory)),
        What::Write(memory) => format!("an RDMA Write of {}", explain_memory(*memory)),
        What::ConnectRequest { port, private_data } => {
            let port = port
                .map(|port| format!(" at port {port}"))
                .unwrap_or_default();
            format!(
                "asks for a connection{port}; {}",
                explain_told(*private_data)
            )
        }
        What::ConnectReply { private_data } => {
            format!("grants the connection; {}", explain_told(*private_data))
        }
        What::ConnectReject { reason_number, .. } => match reason_number {
            8 => "refuses the connection: no listener at this service".to_owned(),
            28 => "refuses the connection, by decision of the application".to_owned(),
            other => {
                format!("refuses the connection, for reason {other} of the connection manager")
            }
        },
        What::Disconnect => "ends a connection".to_owned(),
        What::Gap {
            packets: Some(packets),
            reason,
        } => format!("{} {reason}", count(u64::from(*packets))),
        What::Gap { reason, .. } => (*reason).to_owned(),
        What::Damaged { reason } => format!("cannot be read: {reason}"),
    }
}

fn explain_memory(memory: Memory) -> String {
    format!(
        "{} at {:#010x}+{:#x}",
        size(memory.length.into()),
        memory.handle,
        memory.offset
    )
}

fn explain_told(told: Option<Told>) -> String {
    let Some(told) = told else {
        return "without sizes, so that 1 KiB inline are assumed".to_owned();
    };
    format!(
        "sends up to {} and receives up to {} inline, {} remote invalidation",
        size(told.send_bytes.into()),
        size(told.receive_bytes.into()),
        if told.remote_invalidation {
            "with"
        } else {
            "without"
        }
    )
}
