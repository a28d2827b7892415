//! Abbreviations and what they stand for.

/// What must follow for an abbreviation to be meant.
#[derive(Clone, Copy)]
enum When {
    Always,
    /// A capital: Dr. Smith.
    BeforeName,
    /// A digit: No. 5.
    BeforeNumber,
}
use When::{Always, BeforeName, BeforeNumber};

/// What the full stop does.
#[derive(Clone, Copy, PartialEq)]
enum Stop {
    /// It may be missing, and never ends a sentence.
    Title,
    /// It must be there, and never ends a sentence.
    Inside,
    /// It must be there, and ends the sentence as well when a capital or nothing follows.
    Either,
}
use Stop::{Either, Inside, Title};

/// As written without the last full stop; the first line that fits is taken.
const TABLE: &[(&str, Stop, When, &str)] = &[
    ("Mr", Title, Always, "mister"),
    ("MR", Title, BeforeName, "mister"),
    ("Mrs", Title, Always, "missus"),
    ("MRS", Title, BeforeName, "missus"),
    ("Ms", Title, Always, "ms"),
    ("Messrs", Title, Always, "messieurs"),
    ("Dr", Title, BeforeName, "doctor"),
    ("Dr", Either, Always, "drive"),
    ("DR", Title, BeforeName, "doctor"),
    ("St", Title, BeforeName, "saint"),
    ("St", Either, Always, "street"),
    ("Prof", Title, BeforeName, "professor"),
    ("Rev", Title, BeforeName, "reverend"),
    ("Hon", Title, BeforeName, "honorable"),
    ("Gen", Inside, BeforeName, "general"),
    ("Col", Inside, BeforeName, "colonel"),
    ("Maj", Inside, BeforeName, "major"),
    ("Capt", Title, BeforeName, "captain"),
    ("Cmdr", Title, BeforeName, "commander"),
    ("Lt", Title, BeforeName, "lieutenant"),
    ("Sgt", Title, BeforeName, "sergeant"),
    ("Pvt", Title, BeforeName, "private"),
    ("Sen", Inside, BeforeName, "senator"),
    ("Rep", Inside, BeforeName, "representative"),
    ("Gov", Inside, BeforeName, "governor"),
    ("Pres", Inside, BeforeName, "president"),
    ("Mt", Title, BeforeName, "mount"),
    ("Ft", Inside, BeforeName, "fort"),
    ("Jr", Either, Always, "junior"),
    ("Sr", Either, Always, "senior"),
    ("Esq", Either, Always, "esquire"),
    ("Co", Either, Always, "company"),
    ("Corp", Either, Always, "corporation"),
    ("Inc", Either, Always, "incorporated"),
    ("Ltd", Either, Always, "limited"),
    ("Bros", Either, Always, "brothers"),
    ("Ave", Either, Always, "avenue"),
    ("Blvd", Either, Always, "boulevard"),
    ("Rd", Either, Always, "road"),
    ("Hwy", Either, Always, "highway"),
    ("Dept", Inside, Always, "department"),
    ("dept", Either, Always, "department"),
    ("Univ", Inside, Always, "university"),
    ("Assn", Either, Always, "association"),
    ("govt", Either, Always, "government"),
    ("Jan", Inside, BeforeNumber, "january"),
    ("Feb", Inside, BeforeNumber, "february"),
    ("Mar", Inside, BeforeNumber, "march"),
    ("Apr", Inside, BeforeNumber, "april"),
    ("Jun", Inside, BeforeNumber, "june"),
    ("Jul", Inside, BeforeNumber, "july"),
    ("Aug", Inside, BeforeNumber, "august"),
    ("Sep", Inside, BeforeNumber, "september"),
    ("Sept", Inside, BeforeNumber, "september"),
    ("Oct", Inside, BeforeNumber, "october"),
    ("Nov", Inside, BeforeNumber, "november"),
    ("Dec", Inside, BeforeNumber, "december"),
    ("No", Inside, BeforeNumber, "number"),
    ("no", Inside, BeforeNumber, "number"),
    ("Nos", Inside, BeforeNumber, "numbers"),
    ("Fig", Inside, BeforeNumber, "figure"),
    ("fig", Inside, BeforeNumber, "figure"),
    ("Vol", Inside, BeforeNumber, "volume"),
    ("vol", Inside, BeforeNumber, "volume"),
    ("Ch", Inside, BeforeNumber, "chapter"),
    ("p", Inside, BeforeNumber, "page"),
    ("pp", Inside, BeforeNumber, "pages"),
    ("etc", Either, Always, "et cetera"),
    ("e.g", Inside, Always, "for example"),
    ("i.e", Inside, Always, "that is"),
    ("vs", Inside, Always, "versus"),
    ("cf", Inside, Always, "compare"),
    ("approx", Inside, Always, "approximately"),
    ("est", Inside, BeforeNumber, "established"),
    ("c", Inside, BeforeNumber, "circa"),
    ("ca", Inside, BeforeNumber, "circa"),
    ("Ph.D", Either, Always, "pee aitch dee"),
];

/// The abbreviation `word` (which may have stops inside, none at its end), given what follows it: what it stands for, and
/// how many characters of `rest` belong to it.
pub(crate) fn abbreviation(word: &[char], rest: &[char]) -> Option<(&'static str, usize)> {
    let dotted = rest.first() == Some(&'.');
    let after = if dotted { &rest[1..] } else { rest };
    let next = after.iter().find(|c| **c != ' ');
    let fits = |(written, stop, when, _): &&(&str, Stop, When, &str)| {
        written.chars().eq(word.iter().copied())
            && (dotted || *stop == Title)
            && match when {
                Always => true,
                BeforeName => after.first() == Some(&' ') && next.is_some_and(|c| c.is_uppercase()),
                BeforeNumber => next.is_some_and(char::is_ascii_digit),
            }
    };
    let (_, stop, _, said) = TABLE.iter().find(fits)?;
    let stays = *stop == Either && ends_sentence(after);
    Some((said, usize::from(dotted && !stays)))
}

/// Whether a full stop before `after` ends a sentence as well as an abbreviation.
pub(crate) fn ends_sentence(after: &[char]) -> bool {
    after.iter().find(|c| !matches!(c, ' ' | '"' | '\'' | ')')).is_none_or(|c| c.is_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_fits_is_taken() {
        for (word, rest, expected) in [
            ("Mr", ". Smith", Some(("mister", 1))),
            ("Mr", " Smith", Some(("mister", 0))),
            ("Dr", ". Who", Some(("doctor", 1))),
            ("Dr", ".", Some(("drive", 0))),
            ("etc", ".", Some(("et cetera", 0))),
            ("etc", ". and", Some(("et cetera", 1))),
            ("etc", " and", None),
            ("No", ". 5", Some(("number", 1))),
            ("No", ". He", None),
            ("e.g", ". this", Some(("for example", 1))),
            ("Street", ".", None),
        ] {
            let (word, rest): (Vec<char>, Vec<char>) = (word.chars().collect(), rest.chars().collect());
            assert_eq!(abbreviation(&word, &rest), expected, "{word:?} {rest:?}");
        }
    }
}
