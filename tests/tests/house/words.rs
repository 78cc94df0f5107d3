//! Words that this project once used in senses that no other engineer gives them. Their number only falls.

use std::fmt::Write as _;

use crate::files;

/// A word or phrase, how often the repository has it at most, and what to write in its place.
const WORDS: &[(&str, usize, &str)] = &[
    ("told", 643, "notified, reported, received"),
    ("mend", 21, "fix"),
    ("mends", 2, "fixes"),
    ("mended", 18, "fixed"),
    ("of its own", 70, "its own ..., or nothing"),
    ("of their own", 31, "their own ..., or nothing"),
    ("stands", 130, "is"),
    ("at once", 126, "immediately, or at the same time"),
    ("whoever", 27, "the one that"),
    ("whatever", 151, "any, all"),
    ("comes to", 8, "becomes, is"),
    ("makes good", 0, "repeats, repairs"),
    ("is had", 0, "is available"),
    ("gone", 251, "closed, ended, removed"),
    ("beside", 233, "with, next to"),
];

/// The words of a text in lower case, joined by single spaces. An identifier is one word for each of its parts.
fn words_of(text: &str) -> String {
    let mut words = String::with_capacity(text.len() + 2);
    words.push(' ');
    for part in text.split(|letter: char| !letter.is_ascii_alphabetic()) {
        if !part.is_empty() {
            let _ = write!(words, "{} ", part.to_ascii_lowercase());
        }
    }
    words
}

/// How often `words` has a word or phrase.
fn count(words: &str, phrase: &str) -> usize {
    // Two occurrences in a row share the space between them.
    let phrase = format!(" {phrase} ");
    let places = 0..words.len().saturating_sub(phrase.len() - 1);
    let starts = places.filter(|at| words.as_bytes()[*at..].starts_with(phrase.as_bytes()));
    starts.count()
}

#[test]
fn words_in_invented_senses_become_fewer() {
    let texts = files::all().into_iter().filter(|path| {
        let extension = path.extension().and_then(|it| it.to_str());
        // This list, and what was published.
        let is_listed = path.ends_with("house/words.rs") || path.ends_with("CHANGELOG.md");
        matches!(extension, None | Some("rs" | "md" | "sh" | "c" | "h")) && !is_listed
    });
    let mut counts = vec![0; WORDS.len()];
    for path in texts {
        let bytes = std::fs::read(files::root().join(path)).expect("a file");
        let words = words_of(&String::from_utf8(bytes).unwrap_or_default());
        for (sum, (phrase, ..)) in counts.iter_mut().zip(WORDS) {
            *sum += count(&words, phrase);
        }
    }
    let (mut list, mut is_kept) = (String::new(), true);
    for (now, (phrase, most, instead)) in counts.iter().zip(WORDS) {
        let verdict = match now.cmp(most) {
            std::cmp::Ordering::Less => "fewer: lower the number in tests/tests/house/words.rs",
            std::cmp::Ordering::Equal => "as before",
            std::cmp::Ordering::Greater => "more: write in plain words",
        };
        is_kept &= now <= most;
        let _ = writeln!(
            list,
            "{phrase:14} {now:4} of {most:4}  {verdict} ({instead})"
        );
    }
    println!("{list}");
    assert!(is_kept, "\n{list}");
}

#[test]
fn a_phrase_is_found_in_identifiers_and_across_lines_and_not_within_words() {
    let words = words_of("fn is_told(told: Told) {}\n// of its\n// own. untold");
    assert_eq!(count(&words, "told"), 3);
    assert_eq!(count(&words, "of its own"), 1);
    assert_eq!(count(&words_of("gone gone"), "gone"), 2);
}
