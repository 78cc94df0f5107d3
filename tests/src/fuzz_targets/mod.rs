//! What the fuzzers run: one function per wire format, which takes any bytes and asserts what must hold of them.
//!
//! libFuzzer drives them from `tests/fuzz/fuzz_targets` (`cargo +nightly fuzz run NAME`), and the test
//! `fuzz_corpus` drives the same functions on stable, over the committed corpus and a bounded count of mutations of
//! it. A target compares the decoder with a plain reference decoder ([`mod@reference`]) that shares no code with it, so
//! that a message wrongly refused is found as well as a message wrongly accepted.

mod capture;
mod cm_private_data;
mod properties;
pub mod reference;
mod rpc_call;
mod rpc_reply;
mod rtr_header;
mod shm_handshake;
mod shm_ring;
mod v1_header;
mod v2_header;
mod xdr;

/// A fuzz target: it panics when something does not hold.
pub type Target = fn(&[u8]);

/// Every target by its name, which is also that of its corpus folder and of its libFuzzer file.
pub const TARGETS: [(&str, Target); 11] = [
    ("capture", capture::run),
    ("cm_private_data", cm_private_data::run),
    ("properties", properties::run),
    ("rpc_call", rpc_call::run),
    ("rpc_reply", rpc_reply::run),
    ("rtr_header", rtr_header::run),
    ("shm_handshake", shm_handshake::run),
    ("shm_ring", shm_ring::run),
    ("v1_header", v1_header::run),
    ("v2_header", v2_header::run),
    ("xdr", xdr::run),
];

/// Runs the target of this name.
///
/// # Panics
/// When there is no such target, or when what it asserts does not hold.
pub fn run(name: &str, data: &[u8]) {
    let (_, target) = TARGETS
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap_or_else(|| panic!("no fuzz target is called {name}"));
    target(data);
}

/// Whether the reference takes these octets for a property set.
#[must_use]
pub fn is_property_set(data: &[u8]) -> bool {
    properties::reference_set(data).is_some()
}

/// What `encode` writes, after a check that it writes no more than it reports, and that it fails without a panic
/// when a part of the space is missing.
fn encoded<E: std::fmt::Debug>(
    encode: impl Fn(&mut [u8]) -> Result<usize, E>,
    least_space: usize,
) -> Vec<u8> {
    let mut space = vec![0xa5; least_space + 64];
    let written = encode(&mut space).expect("enough space");
    assert!(
        space[written..].iter().all(|octet| *octet == 0xa5),
        "wrote more than it reports"
    );
    for short in [0, written / 3, written.saturating_sub(1)] {
        if short < written {
            encode(&mut vec![0; short]).expect_err("too little space");
        }
    }
    space.truncate(written);
    space
}

/// Asserts that a message that is refused is refused by the reference too, at a place in the message.
fn assert_refused<T>(expected: Option<T>, error: rpcrdma_protocol::DecodeError, data: &[u8]) {
    let is_refused = expected.is_none();
    assert!(is_refused, "the reference accepts what fails with {error}");
    assert!(error.at <= data.len());
}

/// Asserts that `view` lies within `whole`, which is what "a view" means.
fn assert_within(view: &[u8], whole: &[u8]) {
    let (view, whole) = (view.as_ptr_range(), whole.as_ptr_range());
    assert!(view.is_empty() || (whole.start <= view.start && view.end <= whole.end));
}
