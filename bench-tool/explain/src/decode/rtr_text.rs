//! Writes messages of the extension RTR as lines of text.

use std::fmt;

use super::lines::{describe, row};
use super::message::{Direction, Item, Reported, Transmission, TransmissionId};
use rpcrdma_units::{count, size};

pub(crate) fn write_transmission(text: &mut String, transmission: &Transmission) -> fmt::Result {
    let number = count(u64::from(transmission.sequence) + 1);
    let place = match transmission.transmissions {
        Some(1) => "the only transmission of its message".to_owned(),
        Some(all) => format!("transmission {number} of {}", count(all.into())),
        None => format!("transmission {number} of its group"),
    };
    row(text, "group", &place)?;
    for item in &transmission.items {
        row(text, "item", &explain_item(item))?;
    }
    for set in &transmission.directions {
        for direction in &set.items {
            let range = format!(
                "for what answers bytes {} to {} of the call: {}",
                count(set.begin.into()),
                count(set.end.into()),
                explain_direction(direction)
            );
            row(text, "direction", &range)?;
        }
    }
    if let Some(most) = transmission.response_transmissions_max {
        let most = most.max(1);
        let plural = if most == 1 { "" } else { "s" };
        let reply = format!("may take {} transmission{plural}", count(most.into()));
        row(text, "reply", &reply)?;
    }
    match u64::try_from(transmission.behind_bytes) {
        Ok(0) | Err(_) => Ok(()),
        Ok(bytes) => row(
            text,
            "behind",
            &format!("{} of padding and placed bulk data", size(bytes)),
        ),
    }
}

fn explain_item(item: &Item) -> String {
    let what = format!(
        "{} at byte {} of the message",
        size(item.length.into()),
        count(item.displacement.into())
    );
    match item.location {
        "explicit" => format!("{what}, by explicit RDMA: {}", describe(&item.segments)),
        "placed" => {
            let numbers: Vec<String> = item.numbers.iter().map(u32::to_string).collect();
            let offset = match item.offset {
                Some(0) | None => String::new(),
                Some(offset) => format!(", {} into the first", size(offset.into())),
            };
            format!(
                "{what}, placed in targetable segments {}{offset}",
                numbers.join(", ")
            )
        }
        "too_short" => "an item that was too short for its direction, and is inline".to_owned(),
        _ => "no item met this direction".to_owned(),
    }
}

fn explain_direction(direction: &Direction) -> String {
    let how = match (direction.location, direction.explicit_from) {
        ("explicit", _) => "by explicit RDMA".to_owned(),
        ("choice", _) => "by explicit RDMA or by Send, as the responder likes".to_owned(),
        ("by_size", Some(from)) => {
            format!("by Send below {}, else by explicit RDMA", size(from.into()))
        }
        _ => "by Send".to_owned(),
    };
    let memory = match direction.location {
        "placed" => String::new(),
        _ => format!("; {}", describe(&direction.segments)),
    };
    format!(
        "an item of {} or more goes {how}{memory}",
        size(direction.minimum.into())
    )
}

pub(crate) fn write_reported(text: &mut String, reported: &Reported) -> fmt::Result {
    let error = format!(
        "OPTRERR_{} ({}): {}",
        reported.name, reported.code, reported.sentence
    );
    row(text, "error", &error)?;
    row(text, "found on", &explain_id(reported.bad))?;
    match reported.lead {
        Some(lead) => row(text, "led by", &explain_id(lead)),
        None => Ok(()),
    }
}

fn explain_id(id: TransmissionId) -> String {
    let TransmissionId {
        xid,
        direction,
        sequence,
    } = id;
    format!(
        "transmission {} of {direction} {xid:#010x}",
        u64::from(sequence) + 1
    )
}

#[cfg(test)]
mod tests {
    use crate::decode::text::tests::last;
    use rpcrdma_testkit::CheckWords;

    #[test]
    fn messages_of_the_round_trip_reduction() {
        let request = "00000007 00000002 00200003 52545201 00000000 00000001 \
                       00000014 00001000 00000002 00000010 00000001 00000000 \
                       00000001 00000000 00000028 00000001 00000100 00000004 00008000 00000001 \
                       000000a1 00001000 00000000 00002000 \
                       00000002 00000003 00000008 00000007 00000000 00000000";
        let (json, text) = last(request);
        assert_eq!(json["type"], "TRANSMIT_REQUEST");
        assert_eq!(
            json["transmission"],
            serde_json::json!({
                "sequence": 0, "transmissions": 2, "response_transmissions_max": 3,
                "items": [{"location": "placed", "displacement": 20, "length": 4096,
                           "offset": 16, "numbers": [0]}],
                "directions": [{"begin": 0, "end": 40, "items": [
                    {"location": "by_size", "minimum": 256, "explicit_from": 32768,
                     "segments": [{"handle": 0xa1, "length": 4096, "offset": 0x2000}]}]}],
                "behind_bytes": 4
            })
        );
        assert_eq!(json["payload_bytes"], 8);
        text.check_words(&[
            "transmission 1 of 2",
            "placed in targetable segments 0",
            "for what answers bytes 0 to 40",
            "may take 3 transmissions",
        ]);
        let (json, text) =
            last("00000007 00000002 00200000 52545203 00000000 00000001 00000000 00000000");
        assert_eq!(json["transmission"]["sequence"], 1);
        assert!(text.contains("transmission 2 of its group"), "{text}");

        let report = "00000007 00000002 00200002 52545204 00000001 00000007 00000000 00000002 \
                      00000001 00000007 00000000 00000000 00000007 00000009 00000000 00000005";
        let (json, text) = last(report);
        assert_eq!(
            json["reported"],
            serde_json::json!({
                "code": 7, "name": "BADTBSN",
                "bad": {"xid": 7, "direction": "call", "sequence": 2},
                "lead": {"xid": 7, "direction": "call", "sequence": 0},
                "value": 9, "min": 0, "max": 5
            })
        );
        assert!(text.contains("OPTRERR_BADTBSN (7)"), "{text}");
        assert!(text.contains("led by"), "{text}");

        // The payload stream is longer than the message.
        let (json, _) =
            last("00000007 00000002 00200000 52545203 00000000 00000001 00000000 00000004");
        assert_eq!(json["error_at"], 28);
    }

    #[test]
    fn a_receive_buffer_structure_is_spelt_out() {
        let (json, text) = last(
            "00000000 00000002 00010001 00000005 00000000 00000001 52545204 00000028 00010400 \
             00000002 00000001 00000400 00000000 00000000 00000001 00010000 00001000 00000001",
        );
        assert_eq!(
            json["properties"][0]["value"],
            serde_json::json!([
                {"count": 1, "length": 1024, "align": 0, "targetable": false},
                {"count": 1, "length": 65536, "align": 4096, "targetable": true}
            ])
        );
        text.check_words(&["RBSTRUCT: 1 of 1 KiB, 1 of 64 KiB aligned to 4,096 for bulk data"]);
    }
}
