//! The library has one state for the whole process. None of it shows.

use std::thread;

use tandem_random::SplitMix;

use crate::espeak_or_skip;

/// Clauses that leave something behind in the library: stops that are read ahead, commands, other languages.
const CLAUSES: [(&str, &str); 12] = [
    ("de", "der "),
    ("de", "Das war cool"),
    ("de", "z.B. a.."),
    ("de", "U.S.."),
    ("de", "langsam \u{1}50s \u{1}1y"),
    ("fa", "der"),
    ("fa", "سلام دنیا"),
    ("en-us", "e.g.."),
    ("en-us", "5.. (a"),
    ("fr", "l'école \u{201c}"),
    ("ru", "Привет <b>"),
    ("ru", "[[abc]] &amp; ..."),
];

#[test]
fn phonemes_do_not_depend_on_the_clause_before_or_on_the_thread() {
    let Some(espeak) = espeak_or_skip("clauses in any order, from many threads") else { return };
    let speak = |(tag, text): (&str, &str)| espeak.phonemes(tag, text).unwrap();
    let alone: Vec<String> = CLAUSES.map(speak).to_vec();
    for before in CLAUSES {
        for (clause, expected) in CLAUSES.into_iter().zip(&alone) {
            speak(before);
            assert_eq!(&speak(clause), expected, "{clause:?} after {before:?}");
        }
    }
    thread::scope(|scope| {
        for seed in 0..4 {
            let alone = &alone;
            scope.spawn(move || {
                let mut random = SplitMix::new(seed);
                for _ in 0..200 {
                    let which = random.below(CLAUSES.len() as u64) as usize;
                    assert_eq!(speak(CLAUSES[which]), alone[which], "{:?}", CLAUSES[which]);
                }
            });
        }
    });
}
