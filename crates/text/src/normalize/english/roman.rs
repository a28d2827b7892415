//! Roman numerals, where the word before leaves no doubt that they are some.

use super::cardinal::{cardinal, ordinal};

/// After these a numeral is a rank: Henry the Eighth.
const RULERS: [&str; 24] = [
    "Alexander",
    "Benedict",
    "Catherine",
    "Charles",
    "Christian",
    "Edward",
    "Elizabeth",
    "Frederick",
    "George",
    "Gregory",
    "Henry",
    "Ivan",
    "James",
    "John",
    "Leo",
    "Louis",
    "Napoleon",
    "Nicholas",
    "Paul",
    "Philip",
    "Pius",
    "Richard",
    "Wilhelm",
    "William",
];
/// After these it counts: World War Two.
const COUNTED: [&str; 13] = [
    "Act", "Appendix", "Book", "Chapter", "Class", "Figure", "Part", "Phase", "Scene", "Section", "Type", "Volume",
    "War",
];

/// How `numeral` is said after `before`. Never for a lone I, which is mostly somebody speaking of himself.
pub(crate) fn roman(before: &str, numeral: &[char]) -> Option<String> {
    if numeral == ['I'] {
        return None;
    }
    if RULERS.contains(&before) {
        return value(numeral).map(|n| format!("the {}", ordinal(n)));
    }
    if COUNTED.contains(&before) { value(numeral).map(cardinal) } else { None }
}

/// The numbers up to 39, in their one proper spelling.
fn value(numeral: &[char]) -> Option<u64> {
    const UNITS: [&str; 10] = ["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"];
    let tens = numeral.iter().take(3).take_while(|c| **c == 'X').count();
    let units = UNITS.iter().position(|unit| unit.chars().eq(numeral[tens..].iter().copied()))?;
    Some((10 * tens + units) as u64).filter(|n| *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(before: &str, numeral: &str, expected: Option<&str>) {
        let chars: Vec<char> = numeral.chars().collect();
        assert_eq!(roman(before, &chars).as_deref(), expected, "{before} {numeral}");
    }

    #[test]
    fn numerals() {
        check("Henry", "VIII", Some("the eighth"));
        check("Louis", "XIV", Some("the fourteenth"));
        check("War", "II", Some("two"));
        check("Chapter", "XXXIX", Some("thirty-nine"));
        for (before, numeral) in
            [("Henry", "I"), ("Part", "I"), ("Vitamin", "X"), ("Henry", "IIX"), ("Henry", "Mix"), ("War", "")]
        {
            check(before, numeral, None);
        }
    }
}
