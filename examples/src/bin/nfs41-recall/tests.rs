//! Octets worked out by hand from RFC 8881, as words: the section that each structure is of stands beside it.

use crate::callback::{
    BADSESSION, BADSLOT, BackChannel, MINOR_VERS_MISMATCH, NOTSUPP, OP_ILLEGAL, OP_NOT_IN_SESSION,
    SEQ_MISORDERED, SEQUENCE_POS,
};
use crate::compound::{Compound, OPEN_TO_READ, Opened, Results, Wrong, op};

/// Lists of words, as octets.
fn octets(lists: &[&[u32]]) -> Vec<u8> {
    let words = lists.iter().copied().flatten();
    words.flat_map(|word| word.to_be_bytes()).collect()
}

const SESSION: [u32; 4] = [0x5e55_0001, 0x5e55_0002, 0x5e55_0003, 0x5e55_0004];
const STATE: [u32; 4] = [1, 0x5747_0001, 0x5747_0002, 0x5747_0003];

fn sixteen(words: [u32; 4]) -> [u8; 16] {
    octets(&[&words]).try_into().expect("four words")
}

#[test]
fn a_client_and_its_session_are_asked_for() {
    let asked = Compound::default().exchange_id(0x0102_0304_0506_0708, b"owner");
    let expected = octets(&[
        // Section 16.2.1: no tag, minor version 1, one operation, which is EXCHANGE_ID.
        &[0, 1, 1, 42],
        // Section 18.35.1: the verifier, five octets of owner with padding, flags, SP4_NONE, no implementation.
        &[0x0102_0304, 0x0506_0708, 5, 0x6f77_6e65, 0x7200_0000],
        &[0, 0, 0],
    ]);
    assert_eq!(asked.arguments(), expected);

    let channel = |operations| [0, 4068, 4068, 1024, operations, 1, 0];
    for (callbacks, flags, program) in [(Some(0x4000_0000), 2, 0x4000_0000), (None, 0, 0)] {
        let asked = Compound::default().create_session((0x0a_0000_000b, 7), callbacks);
        let expected = octets(&[
            &[0, 1, 1, 43],
            // Section 18.36.1: client, sequence, flags (CONN_BACK_CHAN is 2), both channels, the program of the
            // callbacks, and one entry of security parameters: AUTH_NONE.
            &[0x0a, 0x0b, 7, flags],
            &channel(16),
            &channel(2),
            &[program, 1, 0],
        ]);
        assert_eq!(asked.arguments(), expected);
    }
}

#[test]
fn a_file_is_opened_below_the_root() {
    let asked = Compound::on(&sixteen(SESSION), 3)
        .walk(&["srv", "data"])
        .open(OPEN_TO_READ, 0x0a_0000_000b, b"o", "file")
        .op(op::GETFH);
    let expected = octets(&[
        &[0, 1, 6],
        // SEQUENCE (section 18.46.1): session, sequence, slot, highest slot, not to be kept.
        &[53],
        &SESSION,
        &[3, 0, 0, 0],
        // PUTROOTFH, and two LOOKUPs (section 18.13.1).
        &[24, 15, 3, 0x7372_7600, 15, 4, 0x6461_7461],
        // OPEN (section 18.16.1): number, READ with WANT_READ_DELEG, nothing denied, the owner with its client,
        // OPEN4_NOCREATE, CLAIM_NULL, the name; and GETFH.
        &[18, 0, 0x101, 0, 0x0a, 0x0b, 1, 0x6f00_0000, 0, 0],
        &[4, 0x6669_6c65, 10],
    ]);
    assert_eq!(asked.arguments(), expected);
}

/// Results of OPEN below the root (section 18.16.2), which end with this delegation, and of GETFH.
fn opened(delegation: &[u32]) -> Vec<u8> {
    octets(&[
        // Section 16.2.2: status, a tag of two octets, four results: SEQUENCE.
        &[0, 2, 0x6869_0000, 4, 53, 0],
        &SESSION,
        &[3, 0, 0, 0, 0],
        // PUTROOTFH, and OPEN: state, change of the folder, flags, one word of attributes, delegation.
        &[24, 0, 18, 0],
        &STATE,
        &[1, 0, 5, 0, 6, 4, 1, 0],
        delegation,
        // GETFH: five octets.
        &[10, 0, 5, 0x0102_0304, 0x0500_0000],
    ])
}

fn open(stream: &[u8]) -> Result<(Opened, Vec<u8>), Wrong> {
    let mut results = Results::new(stream)?;
    results.sequence()?;
    results.open(&[])
}

#[test]
fn a_delegation_is_found_behind_what_else_open_tells() {
    let read = [&[1][..], &STATE, &[0, 0, 0, 0x81, 3, 0x4f57_4e00]].concat();
    let delegated = Some(sixteen(STATE));
    // None; read, for OWN; none because of contention, with whether it is told later; none for another reason.
    for (delegation, expected) in [
        (&[0][..], None),
        (&read, delegated),
        (&[3, 1, 1], None),
        (&[3, 0], None),
    ] {
        let stream = opened(delegation);
        let (opened, file) = open(&stream).expect("it is as the RFC has it");
        assert_eq!(opened.state, sixteen(STATE));
        assert_eq!(
            (opened.delegation, &file[..]),
            (expected, &[1, 2, 3, 4, 5][..])
        );
        for end in 0..stream.len() {
            let cut = open(&stream[..end]);
            assert!(
                matches!(cut, Err(Wrong::Malformed { .. })),
                "{end}: {cut:?}"
            );
        }
    }
    // A write delegation was not asked for, and others do not exist.
    for kind in [2, 4] {
        assert!(matches!(
            open(&opened(&[kind])),
            Err(Wrong::Malformed { .. })
        ));
    }
}

#[test]
fn operation_that_fails_is_reported_with_its_status() {
    let head = [0, 0, 2, 53, 0];
    let failing = |status| octets(&[&head, &SESSION, &[3, 0, 0, 0, 0], &[24, status]]);
    for (status, is_transient) in [(10_008, true), (10_013, true), (10_025, false)] {
        let wrong = open(&failing(status)).expect_err("PUTROOTFH fails");
        let expected = Wrong::Failed {
            operation: 24,
            status,
        };
        assert_eq!((wrong, wrong.is_transient()), (expected, is_transient));
    }
    let other = open(&octets(&[&[0, 0, 1, 24, 0]]));
    assert_eq!(other, Err(Wrong::Malformed { at: 12 }), "no SEQUENCE");
    let none = Results::new(&octets(&[&[10_021, 0, 0]])).err();
    let expected = Wrong::Failed {
        operation: 0,
        status: 10_021,
    };
    assert_eq!(none, Some(expected), "no result at all");
}

#[test]
fn a_client_and_its_session_are_made() {
    let stream = octets(&[&[0, 0, 1, 42, 0, 0x0a, 0x0b, 7, 0, 0, 0, 0, 0, 0, 0]]);
    let made = Results::new(&stream).and_then(|mut it| it.exchange_id());
    assert_eq!(made, Ok((0x0a_0000_000b, 7)));
    for (flags, is_back_channel) in [(2, true), (0, false), (5, false)] {
        let stream = octets(&[&[0, 0, 1, 43, 0], &SESSION, &[7, flags]]);
        let made = Results::new(&stream).and_then(|mut it| it.create_session());
        assert_eq!(made, Ok((sixteen(SESSION), is_back_channel)));
    }
}

/// CB_SEQUENCE (section 20.9.1): session, sequence, slot, highest slot, to be kept, one call of ours referred to.
fn cb_sequence(sequence: u32, slot: u32) -> Vec<u32> {
    let referred = [&[1][..], &SESSION, &[1, 9, 0]].concat();
    [&[11][..], &SESSION, &[sequence, slot, 0, 1], &referred].concat()
}

/// CB_RECALL (section 20.2.1): state, whether the file is cut to nothing, and its handle.
fn cb_recall() -> Vec<u32> {
    [&[4][..], &STATE, &[0, 5, 0x0102_0304, 0x0500_0000]].concat()
}

/// CB_COMPOUND (section 19.2.1): a tag of two octets, minor version, an identifier, operations.
fn cb_compound(minor_version: u32, operations: &[Vec<u32>]) -> Vec<u8> {
    let count = u32::try_from(operations.len()).expect("few");
    let head = [2, 0x6869_0000, minor_version, 77, count];
    octets(&[&head, &operations.concat()])
}

/// The results (section 19.2.2), where CB_SEQUENCE of this number succeeds (section 20.9.2) and these follow.
fn cb_results(status: u32, operations: u32, sequence: u32, rest: &[u32]) -> Vec<u8> {
    let head = [status, 2, 0x6869_0000, operations, 11, 0];
    octets(&[&head, &SESSION, &[sequence, 0, 0, 0], rest])
}

#[test]
fn a_recall_is_answered_once_and_its_repetition_alike() {
    let mut channel = BackChannel::new(sixteen(SESSION));
    let recall = cb_compound(1, &[cb_sequence(1, 0), cb_recall()]);
    for end in 0..recall.len() {
        let mut channel = BackChannel::new(sixteen(SESSION));
        assert!(channel.answer(&recall[..end]).is_none(), "cut at {end}");
    }
    let expected = cb_results(0, 2, 1, &[4, 0]);
    let (reply, recalled) = channel.answer(&recall).expect("it is as the RFC has it");
    assert_eq!(
        (reply.bytes(), recalled),
        (&expected[..], Some(sixteen(STATE)))
    );
    // Something wrong between them does not touch what the slot keeps.
    let (reply, _) = channel
        .answer(&cb_compound(1, &[cb_sequence(1, 1)]))
        .expect("a reply");
    assert_eq!(reply.bytes()[..4], BADSLOT.to_be_bytes());
    let (reply, recalled) = channel.answer(&recall).expect("again");
    assert_eq!((reply.bytes(), recalled), (&expected[..], None));
    let (reply, recalled) = channel
        .answer(&cb_compound(1, &[cb_sequence(2, 0), cb_recall()]))
        .expect("the next one");
    assert_eq!(reply.bytes(), cb_results(0, 2, 2, &[4, 0]));
    assert_eq!(recalled, Some(sixteen(STATE)));
}

#[test]
fn calls_that_are_wrong_get_the_status_that_says_so() {
    let (good, other) = (cb_sequence(1, 0), vec![11, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    let head = |status: u32, operations| [status, 2, 0x6869_0000, operations];
    let alone = |status: u32, operation| octets(&[&head(status, 1), &[operation, status]]);
    for (minor_version, operations, expected) in [
        (
            0,
            vec![good.clone()],
            octets(&[&head(MINOR_VERS_MISMATCH, 0)]),
        ),
        (1, vec![other], alone(BADSESSION, 11)),
        (1, vec![cb_sequence(1, 1)], alone(BADSLOT, 11)),
        (1, vec![cb_sequence(2, 0)], alone(SEQ_MISORDERED, 11)),
        (1, vec![cb_sequence(0, 0)], alone(SEQ_MISORDERED, 11)),
        (1, vec![cb_recall()], alone(OP_NOT_IN_SESSION, 4)),
        (
            1,
            vec![good.clone(), cb_sequence(2, 0)],
            cb_results(SEQUENCE_POS, 2, 1, &[11, SEQUENCE_POS]),
        ),
        // CB_RECALL_ANY, which a client without much need not heed; what follows is not executed.
        (
            1,
            vec![good.clone(), vec![8, 0, 0], cb_recall()],
            cb_results(NOTSUPP, 2, 1, &[8, NOTSUPP]),
        ),
        // No operation has number 2 or 15: CB_ILLEGAL answers.
        (
            1,
            vec![good.clone(), vec![2]],
            cb_results(OP_ILLEGAL, 2, 1, &[10_044, OP_ILLEGAL]),
        ),
        (
            1,
            vec![good.clone(), vec![15]],
            cb_results(OP_ILLEGAL, 2, 1, &[10_044, OP_ILLEGAL]),
        ),
        (1, vec![good], cb_results(0, 1, 1, &[])),
    ] {
        let mut channel = BackChannel::new(sixteen(SESSION));
        let asked = cb_compound(minor_version, &operations);
        let (reply, recalled) = channel.answer(&asked).expect("a reply");
        assert_eq!(reply.bytes(), expected, "{operations:x?}");
        assert_eq!(recalled, None);
    }
}
