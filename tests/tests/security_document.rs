//! The numbers and names in docs/security.md are those of the code.
#![forbid(unsafe_code)]

// The rules of the house use more of it.
#[allow(dead_code)]
#[path = "house/files.rs"]
mod files;

use rpcrdma_engine::{CloseReason, CoreConfig, Counters, LEDGER, LedgerEntry, Owed};

/// The row of `docs/security.md` for something that connections share.
fn row_of(entry: &LedgerEntry) -> Vec<String> {
    let guaranteed = match entry.guaranteed {
        Some(count) => count.to_string(),
        None => "nothing".to_owned(),
    };
    vec![
        entry.resource.to_owned(),
        format!("{guaranteed}: {}", entry.note),
        format!("`{}`", entry.borrowed),
        format!("`{}`", entry.counter),
    ]
}

#[test]
fn security_document_lists_peer_limits_and_debts() {
    let told = files::text("docs/security.md");
    let rows = files::table_rows(&told, "Shared by the connections of a core");
    let expected: Vec<_> = LEDGER.iter().map(row_of).collect();
    assert_eq!(rows, expected);
    // What a core has of them for one connection more.
    let of = |connections_max| CoreConfig {
        connections_max,
        ..CoreConfig::default()
    };
    let each = |count: fn(&CoreConfig) -> u32| count(&of(9)) - count(&of(8));
    // Of few connections each has a whole window.
    let receives = of(1009).receives() - of(1008).receives();
    for (begin, each) in [
        ("Receives", receives),
        ("send buffers", each(CoreConfig::send_buffers_total)),
        ("message buffers", each(CoreConfig::message_buffers_total)),
    ] {
        let entry = LEDGER.iter().find(|it| it.resource.starts_with(begin));
        let entry = entry.unwrap_or_else(|| panic!("an entry for {begin}"));
        assert_eq!(entry.guaranteed, Some(each), "{begin}");
    }
    let counters = Counters::default().snapshot();
    for entry in LEDGER {
        let is_counted = counters.iter().any(|(name, _)| name == entry.counter);
        assert!(is_counted, "there is no counter {}", entry.counter);
    }
    let own = files::table_rows(&told, "Resource");
    let knobs = rpcrdma_tuning::Profile::default();
    for row in rows
        .iter()
        .map(|row| &row[..3])
        .chain(own.iter().map(|row| &row[..]))
    {
        let named = row[1..]
            .iter()
            .flat_map(|cell| cell.split('`').skip(1).step_by(2));
        for knob in named {
            assert!(knobs.value_text(knob).is_some(), "there is no knob {knob}");
        }
    }

    let debts = files::table_rows(&told, "The peer owes");
    let left_as = |reason: &str| {
        let reason = format!("`{reason}`");
        debts.iter().filter(|row| row[2] == reason).count()
    };
    let all = [
        Owed::FirstMessage,
        Owed::RestOfMessage,
        Owed::Credits,
        Owed::Receives,
        Owed::Acknowledgement,
    ];
    for owed in all {
        // A new one belongs into the list, and into the table.
        match owed {
            Owed::FirstMessage
            | Owed::RestOfMessage
            | Owed::Credits
            | Owed::Receives
            | Owed::Acknowledgement => {}
        }
        assert_eq!(left_as(&owed.to_string()), 1, "{owed}");
    }
    let silent = CloseReason::PeerSilent { silent_ms: 1 }.to_string();
    assert!(silent.starts_with("the peer was silent"), "{silent}");
    assert_eq!(left_as("the peer was silent"), 1);
    assert_eq!(debts.len(), all.len() + 1, "{debts:?}");
}
