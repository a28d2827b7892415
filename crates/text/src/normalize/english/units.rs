//! Units of measurement that follow a number.

/// As written, one of it, several of it. The case counts: MB is not mb. A unit that is also a common word or letter
/// (in, a, s) is not here.
const UNITS: &[(&str, &str, &str)] = &[
    ("kg", "kilogram", "kilograms"),
    ("g", "gram", "grams"),
    ("mg", "milligram", "milligrams"),
    ("lb", "pound", "pounds"),
    ("lbs", "pound", "pounds"),
    ("oz", "ounce", "ounces"),
    ("km", "kilometer", "kilometers"),
    ("m", "meter", "meters"),
    ("cm", "centimeter", "centimeters"),
    ("mm", "millimeter", "millimeters"),
    ("nm", "nanometer", "nanometers"),
    ("ft", "foot", "feet"),
    ("yd", "yard", "yards"),
    ("mi", "mile", "miles"),
    ("km²", "square kilometer", "square kilometers"),
    ("m²", "square meter", "square meters"),
    ("m³", "cubic meter", "cubic meters"),
    ("km/h", "kilometer per hour", "kilometers per hour"),
    ("kmh", "kilometer per hour", "kilometers per hour"),
    ("kph", "kilometer per hour", "kilometers per hour"),
    ("m/s", "meter per second", "meters per second"),
    ("mph", "mile per hour", "miles per hour"),
    ("l", "liter", "liters"),
    ("L", "liter", "liters"),
    ("ml", "milliliter", "milliliters"),
    ("mL", "milliliter", "milliliters"),
    ("gal", "gallon", "gallons"),
    ("h", "hour", "hours"),
    ("hr", "hour", "hours"),
    ("hrs", "hour", "hours"),
    ("min", "minute", "minutes"),
    ("mins", "minute", "minutes"),
    ("sec", "second", "seconds"),
    ("secs", "second", "seconds"),
    ("ms", "millisecond", "milliseconds"),
    ("Hz", "hertz", "hertz"),
    ("kHz", "kilohertz", "kilohertz"),
    ("MHz", "megahertz", "megahertz"),
    ("GHz", "gigahertz", "gigahertz"),
    ("kB", "kilobyte", "kilobytes"),
    ("KB", "kilobyte", "kilobytes"),
    ("MB", "megabyte", "megabytes"),
    ("GB", "gigabyte", "gigabytes"),
    ("TB", "terabyte", "terabytes"),
    ("kW", "kilowatt", "kilowatts"),
    ("kV", "kilovolt", "kilovolts"),
    ("dB", "decibel", "decibels"),
    ("%", "percent", "percent"),
    ("°", "degree", "degrees"),
    ("°C", "degree celsius", "degrees celsius"),
    ("°F", "degree fahrenheit", "degrees fahrenheit"),
    ("K", "thousand", "thousand"),
    ("k", "thousand", "thousand"),
];

/// The longest unit, in characters.
const LONGEST: usize = 4;

/// A unit at the beginning of `rest`, with or without a space before it: how many characters it takes, and its name for
/// one or for several. A single letter must touch its number or be lower case: "5 K" may be anything.
pub(crate) fn unit(rest: &[char], one: bool) -> Option<(usize, &'static str)> {
    let space = usize::from(rest.first() == Some(&' '));
    let part_of_unit = |c: &char| c.is_alphabetic() || matches!(c, '%' | '°' | '²' | '³' | '/');
    let len = rest[space..].iter().take(LONGEST + 1).take_while(|c| part_of_unit(c)).count();
    let written = &rest[space..space + len];
    if rest.get(space + len).is_some_and(|c| c.is_alphanumeric() || *c == '\'') {
        return None;
    }
    if space == 1 && len == 1 && written.iter().any(|c| matches!(c, 'K' | 'k' | 'L')) {
        return None;
    }
    let (_, single, several) = UNITS.iter().find(|(name, ..)| name.chars().eq(written.iter().copied()))?;
    Some((space + len, if one { single } else { several }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_unit_is_longer_than_the_longest() {
        assert_eq!(UNITS.iter().map(|(name, ..)| name.chars().count()).max(), Some(LONGEST));
    }

    #[test]
    fn units() {
        for (rest, one, expected) in [
            ("kg", false, Some((2, "kilograms"))),
            (" kg of", true, Some((3, "kilogram"))),
            ("km/h.", false, Some((4, "kilometers per hour"))),
            ("%", false, Some((1, "percent"))),
            ("°C", false, Some((2, "degrees celsius"))),
            ("k", false, Some((1, "thousand"))),
            (" k", false, None),
            ("kgs", false, None),
            (" in", false, None),
            ("mile", false, None),
            ("", false, None),
        ] {
            let chars: Vec<char> = rest.chars().collect();
            assert_eq!(unit(&chars, one), expected, "{rest}");
        }
    }
}
