//! What the format tests share.

/// Octets from text: pairs of hexadecimal digits, blanks ignored, `#` begins a comment to the end of the line.
#[allow(dead_code, reason = "property tests have no vectors")]
pub(crate) fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text
        .lines()
        .flat_map(|line| line.split('#').next().unwrap_or_default().chars())
        .filter(|character| !character.is_whitespace())
        .map(|character| character.to_digit(16).expect("a hexadecimal digit"))
        .collect();
    assert!(digits.len().is_multiple_of(2), "an odd number of digits");
    digits
        .chunks(2)
        .map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap())
        .collect()
}

/// What `encode` writes into ample space, after a check that it reports and needs exactly that space: one octet less
/// is an error, and nothing is written beyond.
pub(crate) fn encoded<E: std::fmt::Debug>(
    encode: impl Fn(&mut [u8]) -> Result<usize, E>,
) -> Vec<u8> {
    let mut ample = vec![0xa5; 128 * 1024];
    let written = encode(&mut ample).expect("ample space");
    assert!(
        ample[written..].iter().all(|octet| *octet == 0xa5),
        "wrote beyond what it reports"
    );
    let mut exact = vec![0x5a; written];
    assert_eq!(encode(&mut exact).expect("just enough space"), written);
    assert_eq!(exact, ample[..written], "depends on what the space held");
    for short in [written.saturating_sub(1), written / 2, 0] {
        if short < written {
            encode(&mut vec![0; short]).expect_err("too little space");
        }
    }
    exact
}
