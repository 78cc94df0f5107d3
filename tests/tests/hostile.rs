//! Hostile messages by the hundred thousand, against the oracle. The program `hostile` runs as many as are wanted.

use rpcrdma_tests::hostile;

const CASES: u64 = 300_000;

#[test]
fn every_message_is_taken_or_refused_as_the_rules_say() {
    let report = hostile::run(CASES, 1);
    assert!(report.cases >= CASES);
    let shortfalls = report.shortfalls();
    assert!(shortfalls.is_empty(), "{shortfalls:#?}\n{report}");
}

/// The same seed gives the same cases, so that a failure can be looked at again.
#[test]
fn a_campaign_can_be_repeated() {
    let counts = |seed| hostile::run(2000, seed).counts;
    assert_eq!(counts(7), counts(7));
    assert_ne!(counts(7), counts(8));
}
