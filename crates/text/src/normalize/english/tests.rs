//! What English comes out as. One table per kind of rule.

use super::normalize;

fn check(cases: &[(&str, &str)]) {
    for (input, expected) in cases {
        assert_eq!(normalize(input), *expected, "{input:?}");
    }
}

#[test]
fn plain_text_is_lower_cased_and_kept() {
    check(&[
        ("", ""),
        ("Hello, world!", "hello, world!"),
        ("God bless 'em, I hope I'll go on.", "god bless 'em, i hope i'll go on."),
        ("There's Fort Churchill, a rifle-shot beyond.", "there's fort churchill, a rifle-shot beyond."),
        ("Yes ; no : maybe .", "yes; no: maybe."),
        ("[sic] {x}", "(sic) (x)"),
        ("Well -- no… “really”?", "well — no… \"really\"?"),
        ("中 😀 ^", "中 😀 ^"),
    ]);
}

#[test]
fn cardinals_and_signs() {
    check(&[
        ("5 apples", "five apples"),
        ("1,234 and 12,34", "one thousand two hundred thirty-four and twelve,thirty-four"),
        ("It was -5 outside", "it was minus five outside"),
        ("x = 3 + 4", "x equals three plus four"),
        ("+7", "plus seven"),
        ("#1 fan", "number one fan"),
        ("1000000000000000", "one quadrillion"),
        ("12345678901234567", "one two three four five six seven eight nine zero one two three four five six seven"),
        ("agent 007", "agent zero zero seven"),
        ("I have 2.", "i have two."),
        ("(5 of 6)", "(five of six)"),
    ]);
}

#[test]
fn decimals_percent_and_chains() {
    check(&[
        ("3.14", "three point one four"),
        ("0.5", "zero point five"),
        (".5", "point five"),
        ("-.5", "minus point five"),
        ("99.9%", "ninety-nine point nine percent"),
        ("50 %", "fifty percent"),
        ("1.2.3", "one point two point three"),
        ("192.168.0.1", "one hundred ninety-two point one hundred sixty-eight point zero point one"),
        ("1/2/2024", "one slash two slash twenty twenty-four"),
    ]);
}

#[test]
fn ordinals_decades_years() {
    check(&[
        ("the 1st, 2nd, 3rd, 4th", "the first, second, third, fourth"),
        ("the 21st and 112th", "the twenty-first and one hundred twelfth"),
        ("in 1984", "in nineteen eighty-four"),
        ("in 2005.", "in two thousand five."),
        ("the 1900s", "the nineteen hundreds"),
        ("the 1960s and 90s", "the nineteen sixties and nineties"),
        ("the 1990's", "the nineteen nineties"),
        ("3,000 or 3000", "three thousand or three thousand"),
        ("2024-01-05", "january fifth, twenty twenty-four"),
    ]);
}

#[test]
fn times() {
    check(&[
        ("3:45", "three forty-five"),
        ("at 3:05 pm", "at three oh five pee em"),
        ("9:00", "nine o'clock"),
        ("9:00 a.m. sharp", "nine ay em sharp"),
        ("at 5 p.m.", "at five pee em."),
        ("at 5 p.m. He left", "at five pee em. he left"),
        ("15:00", "fifteen hundred"),
        ("1:02:03", "one oh two and three seconds"),
        ("I am 5 amazing", "i am five amazing"),
        ("25:99", "twenty-five:ninety-nine"),
    ]);
}

#[test]
fn money() {
    check(&[
        ("$3.50", "three dollars and fifty cents"),
        ("$1", "one dollar"),
        ("$1.01", "one dollar and one cent"),
        ("$0.99", "ninety-nine cents"),
        ("£2.00", "two pounds"),
        ("£1.50", "one pound and fifty pence"),
        ("€20", "twenty euros"),
        ("20€", "twenty euros"),
        ("$5 million", "five million dollars"),
        ("$2.5bn", "two point five billion dollars"),
        ("-$5", "minus five dollars"),
        ("¥500", "five hundred yen"),
        ("$1,000,000", "one million dollars"),
    ]);
}

#[test]
fn fractions_and_ranges() {
    check(&[
        ("1/2", "one half"),
        ("3/4 cup", "three quarters cup"),
        ("2/3", "two thirds"),
        ("2 1/2 cups", "two and a half cups"),
        ("2½", "two and a half"),
        ("½", "one half"),
        ("10-20", "ten to twenty"),
        ("1914–1918", "nineteen fourteen to nineteen eighteen"),
        ("1914-18", "nineteen fourteen to eighteen"),
        ("5-10 kg", "five to ten kilograms"),
        ("24/7", "twenty-four seven"),
        ("and/or", "and or"),
    ]);
}

#[test]
fn telephone_numbers() {
    check(&[
        ("555-1234", "five five five, one two three four"),
        ("(555) 123-4567", "five five five, one two three, four five six seven"),
        ("+1-800-555-0199", "one, eight zero zero, five five five, zero one nine nine"),
        ("555-123-4567 now", "five five five, one two three, four five six seven now"),
    ]);
}

#[test]
fn units() {
    check(&[
        ("5 kg", "five kilograms"),
        ("1kg", "one kilogram"),
        ("100 km/h", "one hundred kilometers per hour"),
        ("20°C", "twenty degrees celsius"),
        ("1.5 l", "one point five liters"),
        ("8192 MB", "eight thousand one hundred ninety-two megabytes"),
        ("2 in 5", "two in five"),
    ]);
}

#[test]
fn abbreviations() {
    check(&[
        ("Mr. and Mrs. Smith", "mister and missus smith"),
        ("Dr. No lives on Elm Dr.", "doctor no lives on elm drive."),
        ("St. James lives on Main St.", "saint james lives on main street."),
        ("Philip Steels, etc.", "philip steels, et cetera."),
        ("cats, etc. are", "cats, et cetera are"),
        ("e.g. this, i.e. that", "for example this, that is that"),
        ("No. 5, not no. He", "number five, not no. he"),
        ("us vs. them", "us versus them"),
        ("Jan. 5th", "january fifth"),
        ("J. R. R. Tolkien", "jay are are tolkien"),
        ("It was I. He ran.", "it was i. he ran."),
        ("a Ph.D. thesis", "a pee aitch dee thesis"),
    ]);
}

#[test]
fn acronyms_and_numerals() {
    check(&[
        ("the BBC and NASA", "the bee bee see and nasa"),
        ("CDs and DVDs", "see dees and dee vee dees"),
        ("the U.S. army", "the you ess army"),
        ("in the U.S.A.", "in the you ess ay."),
        ("MP3, H2O, 3D, B52", "em pee three, aitch two oh, three dee, bee fifty-two"),
        ("Henry VIII and World War II", "henry the eighth and world war two"),
        ("Henry I went", "henry i went"),
        ("TELL US WHO", "tell us who"),
    ]);
}

#[test]
fn symbols() {
    check(&[
        ("Q&A", "q and a"),
        ("rock & roll", "rock and roll"),
        ("me@home", "me at home"),
        ("2 × 3 = 6", "two times three equals six"),
        ("#winning", "hashtag winning"),
    ]);
}
