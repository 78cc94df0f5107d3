//! Reads and writes lists of cores, by the numbers of the kernel.

/// A list of cores, in the given order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreList(pub Vec<usize>);

/// The largest number of cores in a list. No machine has more, and without a bound `0-999999999999` fills the memory.
const CORES_MAX: usize = 4096;

/// Reads a list of cores by the numbers of the kernel: `0,1`, `2-5`, `0,4-6`.
///
/// # Errors
/// A message for the user: the text is no list, names a core twice, has a descending range or is too long.
pub fn core_list(text: &str) -> Result<CoreList, String> {
    let wrong = || {
        format!("`{text}` is not a list of cores: write their numbers, as in 0,1 or 2-3 or 0,4-6")
    };
    let number = |text: &str| -> Result<usize, String> { text.trim().parse().map_err(|_| wrong()) };
    let mut cores: Vec<usize> = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(format!("`{part}` is descending: write {last}-{first}"));
        }
        if last - first >= CORES_MAX || cores.len() >= CORES_MAX {
            return Err(format!("`{text}` names more than {CORES_MAX} cores"));
        }
        for core in first..=last {
            if cores.contains(&core) {
                return Err(format!("`{text}` names core {core} twice"));
            }
            cores.push(core);
        }
    }
    Ok(CoreList(cores))
}

/// Writes a list of cores with ranges: `0-3,8`.
#[must_use]
pub fn format_cores(cores: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &core in cores {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => runs.push((core, core)),
        }
    }
    let text = |(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn cores() {
        assert_eq!(core_list("0,1"), Ok(CoreList(vec![0, 1])));
        assert_eq!(core_list("2-3"), Ok(CoreList(vec![2, 3])));
        assert_eq!(core_list("7, 0,4-6"), Ok(CoreList(vec![7, 0, 4, 5, 6])));
        assert_eq!(core_list("3-3"), Ok(CoreList(vec![3])));
        for text in [
            "",
            ",",
            "0,",
            "a",
            "1-",
            "-1",
            "3-2",
            "0,0",
            "0-3,2",
            "0-99999999999",
            "1-2-3",
        ] {
            assert!(core_list(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lists_of_cores_for_people() {
        for (cores, text) in [
            (&[][..], ""),
            (&[3], "3"),
            (&[0, 1], "0,1"),
            (&[0, 1, 2, 3, 8], "0-3,8"),
            (&[1, 3, 4], "1,3,4"),
        ] {
            assert_eq!(format_cores(cores), text);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = core_list(&text);
        }
    }
}
