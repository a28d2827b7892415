//! English: cardinals, ordinals, years, decimals, times, money, fractions, percents and ranges.

use proptest::prelude::*;
use tandem_text::{FrontEnd, Harakat, Language, Phonemizer, TextOptions, normalize};

use super::reference::{Reference, grouped};

fn said(text: &str) -> String {
    normalize(text, Language::English, Harakat::Drop)
}

fn check(written: &str, expected: &str) {
    assert_eq!(said(written), expected, "{written:?}");
}

fn check_all(cases: &[(&str, &str)]) {
    cases.iter().for_each(|(written, expected)| check(written, expected));
}

/// Four digits that are read as a year.
fn is_year(n: u64) -> bool {
    (1010..2100).contains(&n)
}

#[test]
fn cardinals_are_read_as_num2words_reads_them() {
    let reference = Reference::english();
    for (n, words) in reference.integers("cardinal", 1040) {
        let comma = grouped(n, ',');
        check(&comma, words);
        check(&format!("-{comma}"), &format!("minus {words}"));
        check(&format!("#{comma}"), &format!("number {words}"));
        check(&format!("We saw {comma} (or {comma}) birds."), &format!("we saw {words} (or {words}) birds."));
        if !is_year(n) {
            check(&n.to_string(), words);
        }
    }
}

#[test]
fn thousands_are_put_together_from_the_reference() {
    let reference = Reference::english();
    for n in 1000..10_000 {
        let mut words = format!("{} thousand", reference.cardinal(n / 1000));
        if n % 1000 > 0 {
            words = format!("{words} {}", reference.cardinal(n % 1000));
        }
        check(&grouped(n, ','), &words);
        if !is_year(n) {
            check(&n.to_string(), &words);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn large_numbers_are_put_together_from_the_reference(groups in [1..1000_u64, 0..1000, 0..1000, 0..1000, 0..1000], len in 2..=5_usize) {
        let reference = Reference::english();
        let groups = &groups[..len];
        let scales = ["trillion", "billion", "million", "thousand", ""];
        let counted = groups.iter().zip(&scales[5 - len..]).filter(|(count, _)| **count > 0);
        let words: Vec<String> = counted.map(|(count, scale)| format!("{} {scale}", reference.cardinal(*count))).collect();
        let n = groups.iter().fold(0, |n, group| 1000 * n + group);
        let words = words.join(" ");
        prop_assert_eq!(said(&grouped(n, ',')), words.trim_end());
    }
}

#[test]
fn the_style_of_cardinals_is_without_and() {
    check_all(&[
        ("101", "one hundred one"),
        ("342", "three hundred forty-two"),
        ("1,001", "one thousand one"),
        ("999,999", "nine hundred ninety-nine thousand nine hundred ninety-nine"),
        ("1000000000000000", "one quadrillion"),
        ("1000000000000001", "one zero zero zero zero zero zero zero zero zero zero zero zero zero zero one"),
    ]);
}

#[test]
fn leading_zeros_make_a_string_of_digits() {
    let reference = Reference::english();
    for n in 0..1000 {
        let written = format!("0{n}");
        check(&written, &reference.digits(&written));
        check(&format!("555-0{n:03}"), &format!("five five five, {}", reference.digits(&format!("0{n:03}"))));
    }
}

#[test]
fn ordinals_are_read_as_num2words_reads_them() {
    for (n, words) in Reference::english().integers("ordinal", 131) {
        let suffix = match n % 100 {
            11..=13 => "th",
            n if n % 10 == 1 => "st",
            n if n % 10 == 2 => "nd",
            n if n % 10 == 3 => "rd",
            _ => "th",
        };
        check(&format!("{n}{suffix}"), words);
        check(&format!("{}{suffix}", grouped(n, ',')), words);
        check(&format!("the {n}{} time", suffix.to_uppercase()), &format!("the {words} time"));
    }
    check_all(&[("1st", "first"), ("9th", "ninth"), ("12th", "twelfth"), ("21st", "twenty-first"), ("1th", "one th")]);
}

#[test]
fn every_day_of_the_year_is_read() {
    let reference = Reference::english();
    let months = [
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    ];
    for (month, name) in (1..).zip(months) {
        for day in 1..=31 {
            let date = format!("{name} {}", reference.ordinal(day));
            check(&format!("1984-{month:02}-{day:02}"), &format!("{date}, nineteen eighty-four"));
            check(&format!("2005-{month:02}-{day:02}."), &format!("{date}, two thousand five."));
        }
    }
    for not_a_date in ["2005-13-01", "2005-00-01", "2005-01-32", "2005-01-00"] {
        assert!(!months.iter().any(|month| said(not_a_date).contains(month)), "{not_a_date}");
    }
}

#[test]
fn years_are_read_as_num2words_reads_them() {
    let reference = Reference::english();
    let years: Vec<_> = reference.integers("year", 1090).collect();
    for (n, words) in &years {
        check(&n.to_string(), words);
        check(&format!("In {n}, it rained."), &format!("in {words}, it rained."));
    }
    for ((from, from_words), (to, to_words)) in years.iter().zip(&years[4..]) {
        check(&format!("{from}-{to}"), &format!("{from_words} to {to_words}"));
        check(&format!("{from}–{to}"), &format!("{from_words} to {to_words}"));
    }
    check_all(&[
        ("1066", "ten sixty-six"),
        ("1905", "nineteen oh five"),
        ("1900", "nineteen hundred"),
        ("2000", "two thousand"),
        ("2009", "two thousand nine"),
        ("2010", "twenty ten"),
        ("1914-18", "nineteen fourteen to eighteen"),
    ]);
}

#[test]
fn decades() {
    let decades =
        ["tens", "twenties", "thirties", "forties", "fifties", "sixties", "seventies", "eighties", "nineties"];
    for (tens, words) in (1..).zip(decades) {
        for written in [format!("{tens}0s"), format!("{tens}0's")] {
            check(&written, words);
            check(&format!("19{written}"), &format!("nineteen {words}"));
            check(&format!("the 18{written}."), &format!("the eighteen {words}."));
        }
    }
    check_all(&[("1900s", "nineteen hundreds"), ("2000s", "two thousands")]);
}

#[test]
fn decimals_are_read_as_num2words_reads_them() {
    for (number, words) in Reference::english().all("decimal", 200) {
        check(number, words);
        check(&format!("-{number}"), &format!("minus {words}"));
        check(&format!("{number}%"), &format!("{words} percent"));
        check(&format!("{number} kg"), &format!("{words} kilograms"));
        if let (Some(written), Some(words)) = (number.strip_prefix('0'), words.strip_prefix("zero ")) {
            check(&format!("about {written} or -{written}"), &format!("about {words} or minus {words}"));
        }
    }
    check_all(&[
        ("3.50", "three point five zero"),
        ("1,234.05", "one thousand two hundred thirty-four point zero five"),
    ]);
}

#[test]
fn percents() {
    let reference = Reference::english();
    for n in 0..=100 {
        let words = reference.cardinal(n);
        check(&format!("{n}%"), &format!("{words} percent"));
        check(&format!("{n} % of it"), &format!("{words} percent of it"));
        check(&format!("-{n}%."), &format!("minus {words} percent."));
        check(&format!("{n}-{}%", n + 1), &format!("{words} to {} percent", reference.cardinal(n + 1)));
        check(&format!("{n}%-{}%", n + 1), &format!("{words} percent to {} percent", reference.cardinal(n + 1)));
    }
}

/// "three oh five"; a full hour is `full`.
fn clock(reference: &Reference, hour: u64, minute: u64, full: &str) -> String {
    let hour = reference.cardinal(hour);
    match minute {
        0 => format!("{hour}{full}"),
        1..10 => format!("{hour} oh {}", reference.cardinal(minute)),
        _ => format!("{hour} {}", reference.cardinal(minute)),
    }
}

#[test]
fn every_minute_of_the_day_is_read() {
    let reference = Reference::english();
    for hour in 0..24 {
        let full = if (1..=12).contains(&hour) { " o'clock" } else { " hundred" };
        for minute in 0..60 {
            let words = clock(reference, hour, minute, full);
            check(&format!("{hour}:{minute:02}"), &words);
            check(&format!("at {hour:02}:{minute:02}, then"), &format!("at {words}, then"));
            if !(1..=12).contains(&hour) {
                continue;
            }
            let words = clock(reference, hour, minute, "");
            for (half, letters) in [("am", "ay em"), (" am", "ay em"), (" PM", "pee em"), ("p.m.,", "pee em,")] {
                check(&format!("{hour}:{minute:02}{half}"), &format!("{words} {letters}"));
            }
        }
    }
    check("24:00", "twenty-four hundred");
    for not_a_time in ["24:01", "25:00", "3:60", "3:5", "3:456"] {
        assert!(said(not_a_time).contains(':'), "{not_a_time}");
    }
}

#[test]
fn hours_alone_are_read_with_their_half_of_the_day() {
    let reference = Reference::english();
    for hour in 1..=12 {
        let words = reference.cardinal(hour);
        check(&format!("{hour}am"), &format!("{words} ay em"));
        check(&format!("{hour} p.m. sharp"), &format!("{words} pee em sharp"));
        check(&format!("Come at {hour} PM."), &format!("come at {words} pee em."));
    }
}

#[test]
fn every_second_is_read() {
    let reference = Reference::english();
    for (hour, minute) in [(0, 0), (1, 2), (9, 0), (9, 59), (12, 30), (17, 0), (23, 10)] {
        let full = if (1..=12).contains(&hour) { " o'clock" } else { " hundred" };
        for second in 0..60 {
            let seconds = match second {
                0 => String::new(),
                1 => " and one second".to_owned(),
                _ => format!(" and {} seconds", reference.cardinal(second)),
            };
            let words = clock(reference, hour, minute, full);
            check(&format!("{hour}:{minute:02}:{second:02}"), &format!("{words}{seconds}"));
            let words = clock(reference, hour, minute, "");
            check(&format!("{hour}:{minute:02}:{second:02} pm"), &format!("{words}{seconds} pee em"));
        }
    }
    check("1:02:60", "one:zero two:sixty");
}

#[test]
fn every_amount_below_ten_is_read() {
    let reference = Reference::english();
    let counted =
        |n: u64, one: &str, many: &str| format!("{} {}", reference.cardinal(n), if n == 1 { one } else { many });
    for (sign, one, many, cent, cents) in [
        ('$', "dollar", "dollars", "cent", "cents"),
        ('£', "pound", "pounds", "penny", "pence"),
        ('€', "euro", "euros", "cent", "cents"),
    ] {
        for hundredths in 1..1000 {
            let (whole, part) = (hundredths / 100, hundredths % 100);
            let words = match (whole, part) {
                (_, 0) => counted(whole, one, many),
                (0, _) => counted(part, cent, cents),
                _ => format!("{} and {}", counted(whole, one, many), counted(part, cent, cents)),
            };
            check(&format!("{sign}{whole}.{part:02}"), &words);
            check(&format!("{whole}.{part:02}{sign}"), &words);
            check(&format!("It cost {sign}{whole}.{part:02}."), &format!("it cost {words}."));
            check(&format!("-{sign}{whole}.{part:02}"), &format!("minus {words}"));
            if whole == 0 {
                check(&format!("{sign}.{part:02}"), &words);
            }
        }
        // One decimal is no number of cents.
        for tenths in 0..100 {
            let words = format!("{} point {} {many}", reference.cardinal(tenths / 10), reference.cardinal(tenths % 10));
            check(&format!("{sign}{}.{}", tenths / 10, tenths % 10), &words);
        }
    }
    check_all(&[
        ("$3.5", "three point five dollars"),
        ("$3.50", "three dollars and fifty cents"),
        ("$3.05", "three dollars and five cents"),
        ("$3.505", "three point five zero five dollars"),
        ("$1.01", "one dollar and one cent"),
        ("£1.01", "one pound and one penny"),
        ("$0.00", "zero dollars"),
        ("$.5", "point five dollars"),
        ("¥1.50", "one point five zero yen"),
        ("-¥5", "minus five yen"),
    ]);
}

#[test]
fn whole_amounts_and_their_scales() {
    let reference = Reference::english();
    for (sign, one, many) in
        [('$', "dollar", "dollars"), ('£', "pound", "pounds"), ('€', "euro", "euros"), ('¥', "yen", "yen")]
    {
        for n in 0..1000 {
            let words = reference.cardinal(n);
            let name = if n == 1 { one } else { many };
            check(&format!("{sign}{n}"), &format!("{words} {name}"));
            check(&format!("{n}{sign}"), &format!("{words} {name}"));
            check(&format!("{sign}{n} million"), &format!("{words} million {many}"));
            check(&format!("{sign}{n}.5bn"), &format!("{words} point five billion {many}"));
        }
        for (scale, word) in [
            ("k", "thousand"),
            ("K", "thousand"),
            ("m", "million"),
            ("M", "million"),
            ("B", "billion"),
            ("tn", "trillion"),
        ] {
            check(&format!("{sign}1{scale}"), &format!("one {word} {many}"));
        }
        check(&format!("{sign}1,000.00"), &format!("one thousand {many}"));
    }
}

#[test]
fn ranges_of_money_and_times() {
    check_all(&[
        ("$5-10", "five to ten dollars"),
        ("$5-$10", "five to ten dollars"),
        ("£5–£10 million", "five to ten million pounds"),
        ("$1.5-2bn", "one point five to two billion dollars"),
        ("20€-30€", "twenty euros to thirty euros"),
        ("20-30€", "twenty to thirty euros"),
        ("$1.50-$2", "one dollar and fifty cents to two dollars"),
        ("$1m-$2m", "one million dollars to two million dollars"),
        ("10:30-11:00", "ten thirty to eleven o'clock"),
        ("9:00–5:00 pm", "nine o'clock to five pee em"),
        ("9-10:30", "nine to ten thirty"),
        ("9-5 pm", "nine to five pee em"),
        ("5-6pm", "five to six pee em"),
        ("9 am-5 pm", "nine ay em to five pee em"),
        ("John 3:16-18.", "john three sixteen to eighteen."),
    ]);
}

#[test]
fn ranges_of_numbers() {
    let reference = Reference::english();
    for n in 1..=99 {
        let (from, to) = (reference.cardinal(n), reference.cardinal(n + 1));
        check(&format!("{n}-{}", n + 1), &format!("{from} to {to}"));
        check(&format!("{n}–{} cm", n + 1), &format!("{from} to {to} centimeters"));
        check(&format!("{n}.5-{}.5 l", n + 1), &format!("{from} point five to {to} point five liters"));
        check(&format!("{n},000-{},000", n + 1), &format!("{from} thousand to {to} thousand"));
        check(&format!("{n}-{}.25", n + 1), &format!("{from} to {to} point two five"));
    }
    check_all(&[
        ("10-20,000", "ten to twenty thousand"),
        ("pages 5-10,15-20", "pages five to ten,fifteen to twenty"),
        ("5kg-10kg", "five kilograms to ten kilograms"),
        ("1/2-3/4", "one half to three quarters"),
        ("1 1/2-2", "one and a half to two"),
        ("1st-3rd", "first to third"),
        ("the 1980s–1990s", "the nineteen eighties to nineteen nineties"),
        ("3/4-inch", "three quarters-inch"),
        ("007-008", "zero zero seven-zero zero eight"),
    ]);
}

#[test]
fn chains_of_three_are_no_ranges() {
    check_all(&[
        ("1-2-3", "one, two, three"),
        ("12-25-2024", "twelve, twenty-five, twenty twenty-four"),
        ("123-45-6789", "one two three, four five, six seven eight nine"),
        ("1-02-3 go", "one, zero two, three go"),
        ("1234-5678-9012-3456", "one two three four, five six seven eight, nine zero one two, three four five six"),
    ]);
}

/// "half", "thirds": what a fraction counts.
fn part(reference: &Reference, top: u64, bottom: u64) -> String {
    let (one, many) = match bottom {
        2 => ("half".to_owned(), "halves".to_owned()),
        4 => ("quarter".to_owned(), "quarters".to_owned()),
        _ => (reference.ordinal(bottom).to_owned(), format!("{}s", reference.ordinal(bottom))),
    };
    if top == 1 { one } else { many }
}

#[test]
fn fractions_are_a_cardinal_and_an_ordinal() {
    let reference = Reference::english();
    let idioms = ["24/7", "9/11", "50/50"];
    for bottom in 2..=100 {
        for top in 0..=100 {
            let words = format!("{} {}", reference.cardinal(top), part(reference, top, bottom));
            let written = format!("{top}/{bottom}");
            if !idioms.contains(&written.as_str()) {
                check(&written, &words);
                check(&format!("{written} of it"), &format!("{words} of it"));
            }
        }
    }
    check_all(&[
        ("1/2", "one half"),
        ("3/2", "three halves"),
        ("1/3", "one third"),
        ("2/3", "two thirds"),
        ("3/4", "three quarters"),
        ("5/9", "five ninths"),
        ("1/21", "one twenty-first"),
        ("1/100", "one one hundredth"),
        ("24/7", "twenty-four seven"),
        ("5/1", "five slash one"),
        ("1/2%", "one half percent"),
        ("1/2 kg", "one half of a kilogram"),
        ("3/4 oz", "three quarters of an ounce"),
        ("1/2 hr", "one half of an hour"),
    ]);
}

#[test]
fn mixed_numbers_have_the_right_article() {
    let reference = Reference::english();
    for bottom in 2..=99 {
        for top in 1..bottom.min(12) {
            let name = part(reference, top, bottom);
            let count = match top {
                1 if name.starts_with('e') => "an",
                1 => "a",
                _ => reference.cardinal(top),
            };
            for whole in [1, 2, 17, 100] {
                let words = format!("{} and {count} {name}", reference.cardinal(whole));
                check(&format!("{whole} {top}/{bottom}"), &words);
                check(&format!("{whole}-{top}/{bottom}"), &words);
                check(&format!("{whole} {top}/{bottom} km"), &format!("{words} kilometers"));
            }
        }
    }
    check_all(&[
        ("2 1/8", "two and an eighth"),
        ("2 1/11", "two and an eleventh"),
        ("2 1/3", "two and a third"),
        ("2 1/100", "two and one one hundredth"),
        ("2-1/2 cups", "two and a half cups"),
    ]);
}

/// Every fraction that Unicode has a character for.
pub(super) const FRACTION_SIGNS: [(char, u64, u64); 18] = [
    ('½', 1, 2),
    ('⅓', 1, 3),
    ('⅔', 2, 3),
    ('¼', 1, 4),
    ('¾', 3, 4),
    ('⅕', 1, 5),
    ('⅖', 2, 5),
    ('⅗', 3, 5),
    ('⅘', 4, 5),
    ('⅙', 1, 6),
    ('⅚', 5, 6),
    ('⅐', 1, 7),
    ('⅛', 1, 8),
    ('⅜', 3, 8),
    ('⅝', 5, 8),
    ('⅞', 7, 8),
    ('⅑', 1, 9),
    ('⅒', 1, 10),
];

#[test]
fn fractions_in_one_character() {
    let reference = Reference::english();
    for (sign, top, bottom) in FRACTION_SIGNS {
        let name = part(reference, top, bottom);
        let words = format!("{} {name}", reference.cardinal(top));
        check(&sign.to_string(), &words);
        check(&format!("{top}\u{2044}{bottom}"), &words);
        if top > 1 {
            check(&format!("2{sign}"), &format!("two and {words}"));
        }
    }
    check_all(&[("2½", "two and a half"), ("⅞", "seven eighths"), ("3⅛ mi", "three and an eighth miles")]);
}

#[test]
fn the_dictionary_has_every_word_of_a_number() {
    let front_end = FrontEnd::new("en", Phonemizer::Dictionary, TextOptions::default()).unwrap();
    let cardinals = (0..1000).map(|n| n.to_string());
    let written = cardinals.chain((0..31).map(|n| format!("1984-01-{:02}", n + 1))).chain(
        [
            "1,000,000,000,000",
            "1000000000000000",
            "$1.01",
            "$2.02",
            "£1.01",
            "£2.02",
            "€1",
            "€2",
            "¥5",
            "12:05:01 pm",
            "9:00 am",
        ]
        .map(str::to_owned),
    );
    for written in written {
        assert_eq!(front_end.encode(&written).unwrap().guessed, [""; 0], "{written:?}");
    }
}
