//! Writes a message as a paragraph of text that names each field in words.

use std::fmt::{self, Write as _};

use super::lines::{describe, row};
use super::message::{
    BufferSegments, Decoded, Message, Note, Property, PropertyValue, ReadEntry, Rpc, Segment,
    TransportError, Wrong,
};
use super::rtr_text::{write_reported, write_transmission};
use rpcrdma_units::{count, size};

/// The paragraph of the message with this number.
#[must_use]
pub(crate) fn paragraph(decoded: &Decoded, number: u64) -> String {
    let mut text = String::new();
    let result = match decoded {
        Decoded::Right(message) => write_right(&mut text, message, number),
        Decoded::Wrong(wrong) => write_wrong(&mut text, wrong, number),
    };
    debug_assert!(result.is_ok(), "a string takes all that is written to it");
    text
}

fn write_right(text: &mut String, message: &Message, number: u64) -> fmt::Result {
    writeln!(
        text,
        "message {number}: {}, version {} {}, xid {:#010x}",
        what_it_is(message),
        message.version,
        message.header_type,
        message.xid
    )?;
    write_credits(text, message)?;
    if let Some(flags) = message.flags.as_ref().filter(|flags| !flags.is_empty()) {
        row(
            text,
            "flags",
            &flags
                .iter()
                .map(|flag| explain_flag(flag))
                .collect::<Vec<_>>()
                .join("; "),
        )?;
    }
    write_chunks(text, message)?;
    if let Some(handle) = message.inv_handle.filter(|&handle| handle != 0) {
        row(
            text,
            "invalidate",
            &format!(
                "the responder may invalidate handle {handle:#010x} with its reply, which saves the requester the work"
            ),
        )?;
    }
    if let Some(error) = &message.error {
        row(text, "error", &explain_error(error, message.version))?;
    }
    if let Some(transmission) = &message.transmission {
        write_transmission(text, transmission)?;
    }
    if let Some(reported) = &message.reported {
        write_reported(text, reported)?;
    }
    for property in message.properties.iter().flatten() {
        row(text, "property", &explain_property(property))?;
    }
    write_rpc(text, message)?;
    message
        .notes
        .iter()
        .try_for_each(|note| row(text, "note", &explain_note(*note)))
}

/// The kind of a message in words.
pub(crate) fn what_it_is(message: &Message) -> &'static str {
    match (message.header_type, message.is_reply()) {
        ("MSG", Some(false)) => "a call",
        ("MSG", Some(true)) => "a reply",
        ("NOMSG", _) if message.version == 2 && !message.has_chunks() => {
            "a grant of credits, or a keep-alive"
        }
        ("NOMSG", Some(false)) => "a long call, all of it in chunks",
        ("NOMSG", Some(true)) => "a long reply, all of it in chunks",
        ("ERROR", _) => "a transport error",
        ("CONNPROP", _) => "connection properties",
        ("TRANSMIT_REQUEST", _) => "a call, or its first part (round-trip reduction)",
        ("TRANSMIT_RESPONSE", _) => "a reply, or its first part (round-trip reduction)",
        ("TRANSMIT_CONTINUE", _) => "a later part of a call or reply (round-trip reduction)",
        ("REPORT_ERROR", _) => "a report of what is wrong with a transmission",
        ("MSGP", _) => "a padded message, which must not be sent (RFC 8166 section 4.3.3)",
        ("DONE", _) => "an obsolete notice that reads are done (RFC 8166 section 4.3.4)",
        _ => "a message",
    }
}

fn write_credits(text: &mut String, message: &Message) -> fmt::Result {
    let credits = |number: u32| {
        format!(
            "{} credit{}",
            count(number.into()),
            if number == 1 { "" } else { "s" }
        )
    };
    let explained = match (message.credit_granted, message.credit_maximum) {
        (Some(_), Some(_)) if message.header_type == "ERROR" => "ignored in an error".to_owned(),
        (Some(granted), Some(maximum)) => format!(
            "grants {} more: so many messages may be sent to it in addition; {} at most will ever be outstanding",
            credits(granted.into()),
            count(maximum.into())
        ),
        _ => match message.is_reply() {
            Some(true) => format!(
                "grants {}: calls that may be outstanding",
                credits(message.credit)
            ),
            Some(false) => format!(
                "asks for {}: calls that it would like to have outstanding",
                credits(message.credit)
            ),
            None => format!(
                "{}: asked for by a requester, granted by a responder",
                credits(message.credit)
            ),
        },
    };
    row(text, "credits", &explained)
}

fn explain_flag(flag: &str) -> &'static str {
    match flag {
        "RESPONSE" => "F_RESPONSE, the xid was chosen by the receiver (a reply)",
        "MORE" => "F_MORE, the payload continues in the next message",
        _ => "unknown",
    }
}

fn write_chunks(text: &mut String, message: &Message) -> fmt::Result {
    write_read_list(text, &message.read_list)?;
    let reply = message.is_reply() == Some(true);
    for (index, chunk) in message.write_list.iter().enumerate() {
        let meaning = match (chunk.is_empty(), reply) {
            (true, _) => "not used",
            (false, false) => "where the responder shall put a result",
            (false, true) => "how much of it the responder filled",
        };
        row(
            text,
            "Write list",
            &format!("chunk {}: {}; {meaning}", index + 1, describe(chunk)),
        )?;
    }
    if let Some(chunk) = &message.reply_chunk {
        let meaning = match (message.header_type, reply) {
            ("NOMSG", true) => "holds the whole RPC reply",
            ("NOMSG", false) if message.read_list.is_empty() => "holds the whole RPC reply",
            _ => "room for the RPC reply, should it be too long to come inline",
        };
        row(
            text,
            "Reply chunk",
            &format!("{}; {meaning}", describe(chunk)),
        )?;
    }
    Ok(())
}

/// Writes the Read list chunk by chunk. Consecutive entries of one position form a chunk.
fn write_read_list(text: &mut String, entries: &[ReadEntry]) -> fmt::Result {
    for chunk in entries.chunk_by(|a, b| a.position == b.position) {
        let segments: Vec<Segment> = chunk
            .iter()
            .map(|entry| Segment {
                handle: entry.handle,
                length: entry.length,
                offset: entry.offset,
            })
            .collect();
        let position = chunk.first().map_or(0, |entry| entry.position);
        let meaning = match position {
            0 => "at position 0: the RPC message itself, to be read".to_owned(),
            position => format!(
                "to be read; it belongs at byte {} of the RPC message",
                count(position.into())
            ),
        };
        row(
            text,
            "Read list",
            &format!("{}; {meaning}", describe(&segments)),
        )?;
    }
    Ok(())
}

fn explain_error(error: &TransportError, version: u32) -> String {
    let prefix = if version == 1 { "ERR" } else { "RDMA2_ERR" };
    let needed = match error.length_needed {
        Some(0) | None => "; how much it needs is not said".to_owned(),
        Some(bytes) => format!("; it needs {}", size(bytes.into())),
    };
    let meaning = match (error.name, error.low, error.high, error.max) {
        ("VERS", Some(low), Some(high), _) if low == high => {
            format!("the version is not supported, only version {low} is")
        }
        ("VERS", Some(low), Some(high), _) => {
            format!("the version is not supported, {low} to {high} are")
        }
        ("CHUNK", ..) => "the header could not be decoded, or its chunks not be used".to_owned(),
        ("BAD_XDR", ..) => "the header could not be parsed".to_owned(),
        ("INVAL_HTYPE", ..) => "the header type is not supported".to_owned(),
        ("INVAL_FLAG", ..) => {
            "the flags make no sense there, or a continued message was broken off".to_owned()
        }
        ("READ_CHUNKS", _, _, Some(max)) => format!("too many Read chunks, {max} is the most"),
        ("WRITE_CHUNKS", _, _, Some(max)) => format!("too many Write chunks, {max} is the most"),
        ("SEGMENTS", _, _, Some(max)) => {
            format!("a chunk has too many segments, {max} is the most")
        }
        ("WRITE_RESOURCE", ..) => match error.chunk_index {
            Some(0) | None => format!("a Write chunk is too small{needed}"),
            Some(index) => format!("Write chunk {index} is too small{needed}"),
        },
        ("REPLY_RESOURCE", ..) => {
            format!("the reply fits neither inline nor into the Reply chunk{needed}")
        }
        ("SYSTEM", ..) => "the responder could not do it, and will not when asked again".to_owned(),
        _ => {
            return format!(
                "code {}, which this version does not define; the call has failed",
                error.code
            );
        }
    };
    format!("{prefix}_{} ({}): {meaning}", error.name, error.code)
}

fn explain_property(property: &Property) -> String {
    let meaning = match property.name {
        "SBSIZ" => "bytes of the longest message that the sender of this will send",
        "RBSIZ" => "bytes of its receive buffers: the longest message that it takes",
        "RSSIZ" => "bytes of the longest RDMA segment that it handles",
        "RCSIZ" => "RDMA segments at most in one header sent to it",
        "BRS" => "calls in the reverse direction: 0 none, 1 inline only, 2 all",
        "HOSTAUTH" => "a message of the host authentication",
        "RTRSUPP" => {
            "round-trip reduction: 1 requests and responses, 2 responses, 4 continuations, and sums of them"
        }
        "RBSTRUCT" => "what its receive buffers are made of, in this order",
        "REQRXLIM" => "transmissions of the longest call that it takes",
        "RESPSXLIM" => "transmissions of the longest reply that it sends",
        _ => "not one that this tool knows; receivers skip it",
    };
    let value = match &property.value {
        PropertyValue::Default => "the default".to_owned(),
        PropertyValue::Number(number) => count(u64::from(*number)),
        PropertyValue::Hex(hex) if hex.is_empty() => "no data".to_owned(),
        PropertyValue::Hex(hex) => hex.clone(),
        PropertyValue::Structure(groups) => groups
            .iter()
            .map(explain_segments)
            .collect::<Vec<_>>()
            .join(", "),
    };
    match property.name {
        "unknown" => format!("number {:#x}: {value} ({meaning})", property.id),
        name => format!("{name}: {value} ({meaning})"),
    }
}

fn explain_segments(segments: &BufferSegments) -> String {
    let mut text = format!(
        "{} of {}",
        count(segments.count.into()),
        size(segments.length.into())
    );
    if segments.align > 1 {
        text += &format!(" aligned to {}", count(segments.align.into()));
    }
    if segments.targetable {
        text += " for bulk data";
    }
    text
}

fn write_rpc(text: &mut String, message: &Message) -> fmt::Result {
    let inline = format!(
        "{} inline behind a header of {} bytes",
        size(u64::try_from(message.payload_bytes).unwrap_or(u64::MAX)),
        message.header_bytes
    );
    match (&message.rpc, message.header_type) {
        (Some(rpc), _) => row(text, "RPC", &format!("{}; {inline}", explain_rpc(rpc))),
        (None, "MSG" | "TRANSMIT_REQUEST" | "TRANSMIT_RESPONSE" | "TRANSMIT_CONTINUE") => {
            row(text, "payload", &inline)
        }
        _ => Ok(()),
    }
}

fn explain_rpc(rpc: &Rpc) -> String {
    let outcome = rpc
        .outcome
        .map(|outcome| format!(", {outcome}"))
        .unwrap_or_default();
    let (Some(program), Some(version), Some(procedure)) = (rpc.program, rpc.version, rpc.procedure)
    else {
        return format!("{} to a call that was not seen{outcome}", rpc.direction);
    };
    let preposition = if rpc.direction == "call" { "of" } else { "to" };
    format!(
        "{} {preposition} {}{outcome}",
        rpc.direction,
        explain_procedure(program, version, procedure)
    )
}

/// The procedure with the names of its program and of itself, as far as they are known.
pub(crate) fn explain_procedure(program: u32, version: u32, procedure: u32) -> String {
    let name = match program_name(program) {
        Some(name) => name.to_owned(),
        None => format!("program {program}"),
    };
    match procedure_name(program, version, procedure) {
        Some(procedure) => format!("{name} version {version} {procedure}"),
        None => format!("{name} version {version} procedure {procedure}"),
    }
}

const fn program_name(program: u32) -> Option<&'static str> {
    Some(match program {
        100_000 => "RPCBIND",
        100_003 => "NFS",
        100_005 => "MOUNT",
        100_021 => "NLM",
        100_227 => "NFS_ACL",
        0x4000_0000 => "NFS callback",
        _ => return None,
    })
}

/// The procedure names of RFC 1813 for NFS version 3. Procedure 0 is NULL in every program.
fn procedure_name(program: u32, version: u32, procedure: u32) -> Option<&'static str> {
    const NFS_VERSION_3: [&str; 22] = [
        "NULL",
        "GETATTR",
        "SETATTR",
        "LOOKUP",
        "ACCESS",
        "READLINK",
        "READ",
        "WRITE",
        "CREATE",
        "MKDIR",
        "SYMLINK",
        "MKNOD",
        "REMOVE",
        "RMDIR",
        "RENAME",
        "LINK",
        "READDIR",
        "READDIRPLUS",
        "FSSTAT",
        "FSINFO",
        "PATHCONF",
        "COMMIT",
    ];
    match (program, version, procedure) {
        (_, _, 0) => Some("NULL"),
        (100_003, 3, _) => NFS_VERSION_3.get(usize::try_from(procedure).ok()?).copied(),
        (100_003, 4, 1) => Some("COMPOUND"),
        (100_227, 3, 1) => Some("GETACL"),
        (100_227, 3, 2) => Some("SETACL"),
        _ => None,
    }
}

fn explain_note(note: Note) -> String {
    match note {
        Note::ContinuesInNext => "it continues in the next message of this xid".to_owned(),
        Note::ContinuesPrevious => {
            "it continues the previous message of this xid, so it does not begin with a header"
                .to_owned()
        }
        Note::PayloadIsNoRpc => "the inline bytes do not begin with an RPC header".to_owned(),
        Note::Version1Layout => {
            "in the layout of version 1, which has no flags word: so every version can read it"
                .to_owned()
        }
        Note::Answers([program, version, procedure]) => {
            format!(
                "by its xid, it answers the call of {}",
                explain_procedure(program, version, procedure)
            )
        }
        Note::IgnoredBytes(bytes) => {
            format!(
                "{} behind the header: receivers ignore them",
                size(u64::try_from(bytes).unwrap_or(u64::MAX))
            )
        }
    }
}

fn write_wrong(text: &mut String, wrong: &Wrong, number: u64) -> fmt::Result {
    let line = wrong
        .line
        .map(|line| format!(", on line {line} of the input"))
        .unwrap_or_default();
    writeln!(
        text,
        "message {number}: wrong at byte {}{line}",
        wrong.error_at
    )?;
    let word = wrong
        .word
        .map(|word| format!(" (the word there is {word:#010x})"))
        .unwrap_or_default();
    row(text, "reason", &format!("{}{word}", wrong.reason))?;
    if let Some(answer) = wrong.answer {
        row(text, "answer", &format!("a receiver {answer}"))?;
    }
    let prefix = &wrong.prefix;
    if let (Some(version), Some(xid), Some(credit)) = (prefix.version, prefix.xid, prefix.credit) {
        row(
            text,
            "until there",
            &format!("version {version}, xid {xid:#010x}, credit word {credit:#010x}"),
        )?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::decode::conversation::Conversation;
    use crate::decode::input::message_bytes;
    use rpcrdma_testkit::CheckWords;

    /// A line that is longer than this is not read.
    pub(in crate::decode) const WORDS_PER_LINE_MAX: usize = 45;

    /// Decodes lines of hex and gives the last one, as JSON and as text.
    pub(in crate::decode) fn last(lines: &str) -> (serde_json::Value, String) {
        let mut conversation = Conversation::default();
        let mut last = None;
        for (index, line) in lines.lines().enumerate() {
            let bytes = message_bytes(line.as_bytes()).unwrap().unwrap();
            last = Some(conversation.decode(&bytes, index as u64 + 1));
        }
        let last = last.unwrap();
        (serde_json::to_value(&last).unwrap(), paragraph(&last, 1))
    }

    const CALL: &str =
        "00000007 00000000 00000002 20524443 00000001 00000000 00000000 00000000 00000000 00000000";
    const REPLY: &str = "00000007 00000001 00000000 00000000 00000000 00000000";

    #[test]
    fn a_version_2_call_and_its_reply() {
        let call = format!(
            "00000007 00000002 00200005 00000000 00000000 00000000 00000000 00000000 00000000 {CALL}"
        );
        let (json, text) = last(&call);
        assert_eq!(
            json,
            serde_json::json!({
                "version": 2, "xid": 7, "credit": 0x0020_0005, "credit_granted": 5, "credit_maximum": 32,
                "type": "MSG", "flags": [], "inv_handle": 0, "read_list": [], "write_list": [],
                "reply_chunk": null, "error": null, "properties": null, "payload_bytes": 40,
                "rpc": {"direction": "call", "program": 0x2052_4443, "version": 1, "procedure": 0}
            })
        );
        assert_eq!(
            text,
            "message 1: a call, version 2 MSG, xid 0x00000007\n\
             \x20 credits     grants 5 credits more: so many messages may be sent to it in addition; 32 at most will ever be outstanding\n\
             \x20 RPC         call of program 542262339 version 1 NULL; 40 B inline behind a header of 36 bytes\n"
        );
        let reply = format!(
            "00000007 00000002 00200001 00000000 00000001 00000000 00000000 00000000 00000000 {REPLY}"
        );
        let (json, text) = last(&format!("{call}\n{reply}"));
        assert_eq!(json["flags"], serde_json::json!(["RESPONSE"]));
        assert_eq!(
            json["rpc"],
            serde_json::json!({"direction": "reply", "program": 0x2052_4443, "version": 1, "procedure": 0})
        );
        text.check_words(&["reply to program 542262339 version 1 NULL, executed"]);
        // Without its call, a reply does not say what it answers.
        let (json, text) = last(&reply);
        assert_eq!(
            json["rpc"],
            serde_json::json!({"direction": "reply", "program": null, "version": null, "procedure": null})
        );
        assert!(text.contains("a call that was not seen"), "{text}");
    }

    #[test]
    fn chunk_lists_of_version_1() {
        let (json, text) = last(
            "00000007 00000001 00000020 00000001 \
             00000001 00000000 0000abcd 00001000 0000000100000000 \
             00000001 00000000 0000abce 00000800 0000000200000000 \
             00000001 00000078 0000abcf 00000004 0000000300000000 00000000 \
             00000001 00000001 00001111 00002000 0000000400000000 00000001 00000000 00000000 \
             00000001 00000002 00002222 00000010 0000000000000000 00002223 00000020 0000000000000010",
        );
        assert_eq!(json["type"], "NOMSG");
        assert!(json["flags"].is_null() && json["rpc"].is_null());
        assert_eq!(
            json["read_list"][1],
            serde_json::json!({"position": 0, "handle": 0xabce, "length": 0x800, "offset": 0x2_0000_0000_u64})
        );
        assert_eq!(json["read_list"][2]["position"], 0x78);
        assert_eq!(
            json["write_list"],
            serde_json::json!([[{"handle": 0x1111, "length": 0x2000, "offset": 0x4_0000_0000_u64}], []])
        );
        assert_eq!(
            json["reply_chunk"][1],
            serde_json::json!({"handle": 0x2223, "length": 0x20, "offset": 0x10})
        );
        text.check_words(&[
                "a long call, all of it in chunks, version 1 NOMSG",
                "asks for 32 credits",
                "Read list   6 KiB in 2 segments: 4 KiB at 0x0000abcd+0x100000000, 2 KiB at 0x0000abce+0x200000000; at position 0",
                "belongs at byte 120 of the RPC message",
                "Write list  chunk 1: 8 KiB at 0x00001111",
                "chunk 2: no segments; not used",
                "Reply chunk 48 B in 2 segments",
            ]);
    }

    #[test]
    fn errors_of_both_versions() {
        for (hex, json_error, words) in [
            (
                "00000007 00000001 00000020 00000004 00000001 00000001 00000001",
                serde_json::json!({"code": 1, "name": "VERS", "low": 1, "high": 1}),
                "only version 1 is",
            ),
            (
                "00000007 00000001 00000020 00000004 00000002",
                serde_json::json!({"code": 2, "name": "CHUNK"}),
                "ERR_CHUNK (2)",
            ),
            (
                "00000007 00000002 00000000 00000004 00000001 00000002",
                serde_json::json!({"code": 2, "name": "BAD_XDR"}),
                "RDMA2_ERR_BAD_XDR (2)",
            ),
            (
                "00000007 00000002 00000000 00000004 00000001 00000007 00000010",
                serde_json::json!({"code": 7, "name": "SEGMENTS", "max": 16}),
                "16 is the most",
            ),
            (
                "00000007 00000002 00000000 00000004 00000001 00000008 00000002 00001000",
                serde_json::json!({"code": 8, "name": "WRITE_RESOURCE", "chunk_index": 2, "length_needed": 4096}),
                "Write chunk 2 is too small; it needs 4 KiB",
            ),
            (
                "00000007 00000002 00000000 00000004 00000001 00000009 00000000",
                serde_json::json!({"code": 9, "name": "REPLY_RESOURCE", "length_needed": 0}),
                "not said",
            ),
            (
                "00000007 00000002 00000000 00000004 00000001 00000063",
                serde_json::json!({"code": 99, "name": "unknown"}),
                "code 99",
            ),
        ] {
            let (json, text) = last(hex);
            assert_eq!(json["error"], json_error, "{hex}");
            assert_eq!(json["type"], "ERROR");
            assert!(
                text.contains(words) && text.contains("a transport error"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_version_1_server_answers_version_2_in_its_own_layout() {
        let (json, text) = last("00000007 00000002 00000020 00000004 00000001 00000001 00000001");
        assert_eq!(
            json["error"],
            serde_json::json!({"code": 1, "name": "VERS", "low": 1, "high": 1})
        );
        assert!(json["flags"].is_null());
        assert!(text.contains("layout of version 1"), "{text}");
    }

    #[test]
    fn properties_and_their_continuation() {
        let whole = "00000000 00000002 00010001 00000005 00000000 00000003 \
                     00000001 00000004 00002000 00000006 00000000 52545299 00000001 07000000";
        let (json, text) = last(whole);
        let expected = serde_json::json!([
            {"id": 1, "name": "SBSIZ", "value": 8192},
            {"id": 6, "name": "HOSTAUTH", "value": null},
            {"id": 0x5254_5299, "name": "unknown", "value": "07"}
        ]);
        assert_eq!(json["properties"], expected);
        text.check_words(&["SBSIZ: 8,192 (", "number 0x52545299: 07"]);
        assert!(text.contains("HOSTAUTH: the default"), "{text}");
        // The same set, broken in the middle of a property.
        let parts = "00000000 00000002 00010001 00000005 00000002 00000003 00000001\n\
                     00000000 00000002 00010001 00000005 00000000 00000004 00002000 00000006 00000000 52545299 00000001 07000000";
        assert_eq!(last(parts).0["properties"], expected);
        let (json, text) = last(parts.lines().next().unwrap());
        assert!(json["properties"].is_null());
        assert!(text.contains("continues in the next"), "{text}");
    }

    #[test]
    fn a_grant_is_called_a_grant() {
        let (json, text) = last(
            "00000000 00000002 00400010 00000001 00000000 00000000 00000000 00000000 00000000",
        );
        assert_eq!(
            (&json["type"], &json["credit_granted"]),
            (&"NOMSG".into(), &16.into())
        );
        assert!(text.contains("a grant of credits"), "{text}");
    }

    #[test]
    fn a_continued_payload_has_one_rpc_header() {
        let first = format!(
            "00000007 00000002 00200001 00000000 00000002 00000000 00000000 00000000 00000000 {CALL}"
        );
        let rest = "00000007 00000002 00200001 00000000 00000000 00000000 00000000 00000000 00000000 0000002a 0000002b";
        let (json, _) = last(&first);
        assert_eq!(json["flags"], serde_json::json!(["MORE"]));
        let (json, text) = last(&format!("{first}\n{rest}"));
        assert!(json["rpc"].is_null());
        assert_eq!(json["payload_bytes"], 8);
        assert!(text.contains("continues the previous message"), "{text}");
    }

    #[test]
    fn wrong_messages_say_where_and_why() {
        let header = "00000007 00000002 00200001 00000000";
        for (hex, at, words) in [
            ("", 0, "shorter"),
            ("00000007 00000002", 8, "shorter"),
            (
                "00000007 00000003 00000001 00000000 00000000",
                4,
                "version 3 is neither",
            ),
            (
                "00000007 00000001 00000001 00000009 00000000 00000000 00000000",
                12,
                "header type",
            ),
            (
                "00000007 00000002 00000001 00000003 00000000",
                12,
                "header type",
            ),
            (
                "00000007 00000002 00200001 00000000 00000004 00000000 00000000 00000000 00000000 00000000",
                16,
                "reserved flag",
            ),
            (
                "00000007 00000002 00200001 00000001 00000002 00000000 00000000 00000000 00000000",
                16,
                "cannot be continued",
            ),
            (
                "00000007 00000001 00000001 00000000 00000002 00000000 00000000",
                16,
                "neither 0 nor 1",
            ),
            (
                "00000007 00000001 00000001 00000000 00000000 00000000 00000001",
                28,
                "end of the message",
            ),
            (
                "00000000 00000002 00010001 00000005 00000000 00000001 00000001 00000002 00000000",
                32,
                "property value",
            ),
        ] {
            let hex = if hex.is_empty() { "0x" } else { hex };
            let (json, text) = last(hex);
            assert_eq!(json["error_at"], at, "{hex}: {json}");
            assert!(json["reason"].as_str().unwrap().contains(words), "{json}");
            assert!(
                text.contains(&format!("wrong at byte {at}")) && text.contains("a receiver "),
                "{text}"
            );
        }
        let with_response = format!("{header} 00000001 00000000 00000000 00000000 00000000 {CALL}");
        assert_eq!(last(&with_response).0["error_at"], 16);
        let other_xid = format!(
            "00000008 00000002 00200001 00000000 00000000 00000000 00000000 00000000 00000000 {CALL}"
        );
        let (json, text) = last(&other_xid);
        assert_eq!((&json["error_at"], &json["xid"]), (&36.into(), &8.into()));
        assert!(text.contains("the word there is 0x00000007"), "{text}");
    }

    #[test]
    fn inline_bytes_that_are_no_rpc_are_no_error() {
        let (json, text) =
            last("00000007 00000001 00000020 00000000 00000000 00000000 00000000 deadbeef");
        assert!(json["rpc"].is_null());
        assert_eq!(json["payload_bytes"], 4);
        assert!(text.contains("do not begin with an RPC header"), "{text}");
    }
}
