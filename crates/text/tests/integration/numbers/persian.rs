//! Persian: cardinals, ordinals, decimals, times, money, fractions, percents and ranges, in all three sets of digits.

use proptest::prelude::*;
use tandem_text::{Harakat, Language, normalize};

use super::english::FRACTION_SIGNS;
use super::reference::{Reference, grouped};

/// `written` has Latin digits; it is read the same with Persian and Arabic ones.
fn check(written: &str, expected: &str) {
    for zero in ['0', '۰', '٠'] {
        let digit = |c: char| c.to_digit(10).and_then(|digit| char::from_u32(zero as u32 + digit)).unwrap_or(c);
        let written: String = written.chars().map(digit).collect();
        assert_eq!(normalize(&written, Language::Persian, Harakat::Drop), expected, "{written:?}");
    }
    assert_eq!(normalize(expected, Language::Persian, Harakat::Drop), expected, "what is normalised stays so");
}

fn check_all(cases: &[(&str, &str)]) {
    cases.iter().for_each(|(written, expected)| check(written, expected));
}

#[test]
fn cardinals_are_read_as_num2words_reads_them() {
    for (n, words) in Reference::persian().integers("cardinal", 1040) {
        check(&n.to_string(), words);
        for separator in ['٬', ',', '،'] {
            check(&grouped(n, separator), words);
        }
        check(&format!("دمای -{n} درجه"), &format!("دمای منفی {words} درجه"));
        check(&format!("({n} نفر)."), &format!("({words} نفر)."));
        check(&format!("{n}نفر"), &format!("{words} نفر"));
    }
}

#[test]
fn thousands_are_put_together_from_the_reference() {
    let reference = Reference::persian();
    for n in 1000..10_000 {
        let mut words = match n / 1000 {
            1 => reference.cardinal(1000).to_owned(),
            count => format!("{} {}", reference.cardinal(count), reference.cardinal(1000)),
        };
        if n % 1000 > 0 {
            words = format!("{words} و {}", reference.cardinal(n % 1000));
        }
        check(&n.to_string(), &words);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn large_numbers_are_put_together_from_the_reference(groups in [1..1000_u64, 0..1000, 0..1000, 0..1000, 0..1000], len in 2..=5_usize) {
        let reference = Reference::persian();
        let groups = &groups[..len];
        let scales = ["تریلیون", "میلیارد", "میلیون", "هزار", ""];
        let counted = groups.iter().zip(&scales[5 - len..]).filter(|(count, _)| **count > 0);
        let words: Vec<String> = counted
            .map(|(count, scale)| match (*count, *scale) {
                (1, "هزار") => "هزار".to_owned(),
                (count, scale) => format!("{} {scale}", reference.cardinal(count)).trim_end().to_owned(),
            })
            .collect();
        let n = groups.iter().fold(0, |n, group| 1000 * n + group);
        prop_assert_eq!(normalize(&n.to_string(), Language::Persian, Harakat::Drop), words.join(" و "));
    }
}

#[test]
fn the_style_of_cardinals() {
    check_all(&[
        ("1", "یک"),
        ("100", "صد"),
        ("600", "ششصد"),
        ("1000", "هزار"),
        ("1403", "هزار و چهارصد و سه"),
        ("1000000", "یک میلیون"),
        // The references call it by three other names.
        ("1000000000000000", "یک کوادریلیون"),
        ("1000000000000001", "یک صفر صفر صفر صفر صفر صفر صفر صفر صفر صفر صفر صفر صفر صفر یک"),
    ]);
}

#[test]
fn leading_zeros_and_groups_are_read_digit_by_digit() {
    let reference = Reference::persian();
    for n in 0..1000 {
        let written = format!("0{n:03}");
        check(&written, &reference.digits(&written));
        let words =
            format!("{}، {}، {}", reference.digits(&written), reference.digits("345"), reference.digits("6789"));
        check(&format!("{written}-345-6789"), &words);
        check(&format!("021-{}", 88_000 + n), &format!("صفر دو یک، {}", reference.digits(&(88_000 + n).to_string())));
    }
}

#[test]
fn ordinals_are_read_as_the_references_read_them() {
    for (n, words) in Reference::persian().integers("ordinal", 131) {
        let ordinal = |suffix: &str, words: &str| check(&format!("نفر {n}{suffix} آمد"), &format!("نفر {words} آمد"));
        if n < 1_000_000 {
            for suffix in ["م", "ام", "\u{200C}ام", "\u{200C}م", " ام", "ا\u{064F}م"] {
                ordinal(suffix, words);
            }
            for suffix in ["مین", "امین", "\u{200C}امین", "\u{200C}مین", " امین"] {
                ordinal(suffix, &format!("{words}ین"));
            }
        }
    }
    check_all(&[
        ("1م", "یکم"),
        ("3م", "سوم"),
        ("30ام", "سی\u{200C}ام"),
        ("33مین", "سی و سومین"),
        ("5 متر", "پنج متر"),
        ("5ماه", "پنج ماه"),
        ("5 م", "پنج م"),
    ]);
    assert_eq!(normalize("۳۰اُم", Language::Persian, Harakat::Keep), "سی\u{200C}ام");
}

#[test]
fn decimals_are_read_after_their_mark() {
    let reference = Reference::persian();
    for n in 0..1000 {
        for whole in [0, 7, 12] {
            let head = format!("{} ممیز", reference.cardinal(whole));
            for (written, zeros) in [(n.to_string(), ""), (format!("0{n}"), " صفر"), (format!("00{n}"), " صفر صفر")]
            {
                if n == 0 {
                    continue;
                }
                for mark in ['٫', '.', '/'] {
                    let words = format!("{head}{zeros} {}", reference.cardinal(n));
                    check(&format!("{whole}{mark}{written}"), &words);
                }
            }
        }
    }
    check_all(&[
        ("3٫14", "سه ممیز چهارده"),
        ("3.0", "سه ممیز صفر"),
        ("3٫1416", "سه ممیز یک چهار یک شش"),
        ("-0.5", "منفی صفر ممیز پنج"),
    ]);
}

#[test]
fn percents_stand_on_either_side() {
    let reference = Reference::persian();
    for n in 0..=100 {
        let words = format!("{} درصد", reference.cardinal(n));
        for written in [format!("{n}٪"), format!("{n}%"), format!("٪{n}"), format!("%{n}"), format!("{n} ٪")] {
            check(&written, &words);
            check(&format!("با {written} سود"), &format!("با {words} سود"));
        }
        check(&format!("-{n}٪"), &format!("منفی {words}"));
        check(&format!("-٪{n}"), &format!("منفی {words}"));
        check(&format!("{n}٫5٪"), &format!("{} ممیز پنج درصد", reference.cardinal(n)));
        let next = reference.cardinal(n + 1);
        check(&format!("{n}-{}٪", n + 1), &format!("{} تا {next} درصد", reference.cardinal(n)));
        check(&format!("{n}٪-{}٪", n + 1), &format!("{words} تا {next} درصد"));
        check(&format!("٪{n}-٪{}", n + 1), &format!("{} تا {next} درصد", reference.cardinal(n)));
    }
}

#[test]
fn every_minute_of_the_day_is_read() {
    let reference = Reference::persian();
    for hour in 0..24 {
        for minute in 0..60 {
            let words = match minute {
                0 => reference.cardinal(hour).to_owned(),
                _ => format!("{} و {} دقیقه", reference.cardinal(hour), reference.cardinal(minute)),
            };
            check(&format!("{hour}:{minute:02}"), &words);
            check(&format!("ساعت {hour:02}:{minute:02}."), &format!("ساعت {words}."));
        }
    }
    check("24:00", "بیست و چهار");
    for second in 1..60 {
        let words = format!("{} ثانیه", reference.cardinal(second));
        check(&format!("1:02:{second:02}"), &format!("یک و دو دقیقه و {words}"));
        check(&format!("13:00:{second:02}"), &format!("سیزده و {words}"));
    }
    check_all(&[
        ("1:02:00", "یک و دو دقیقه"),
        ("8:00-10:30", "هشت تا ده و سی دقیقه"),
        ("8-10:30", "هشت تا ده و سی دقیقه"),
    ]);
    for not_a_time in ["24:01", "25:00", "3:60", "3:5"] {
        assert!(normalize(not_a_time, Language::Persian, Harakat::Drop).contains(':'), "{not_a_time}");
    }
}

#[test]
fn every_amount_below_ten_is_read() {
    let reference = Reference::persian();
    for (sign, name) in [('$', "دلار"), ('€', "یورو"), ('£', "پوند"), ('¥', "ین")] {
        for n in 0..1000 {
            let amounts = [
                (n.to_string(), reference.cardinal(n).to_owned()),
                (
                    format!("{}.{}", n / 10, n % 10),
                    format!("{} ممیز {}", reference.cardinal(n / 10), reference.cardinal(n % 10)),
                ),
                (format!("{n}.05"), format!("{} ممیز صفر پنج", reference.cardinal(n))),
            ];
            for (written, words) in amounts {
                check(&format!("{sign}{written}"), &format!("{words} {name}"));
                check(&format!("{written}{sign}"), &format!("{words} {name}"));
                check(&format!("-{sign}{written}"), &format!("منفی {words} {name}"));
                check(&format!("{sign}{written} میلیون"), &format!("{words} میلیون {name}"));
            }
        }
        check(&format!("{sign}5-10"), &format!("پنج تا ده {name}"));
        check(&format!("{sign}5-{sign}10 میلیارد"), &format!("پنج تا ده میلیارد {name}"));
        check(&format!("{sign}5 میلیونی"), &format!("پنج {name} میلیونی"));
    }
    check_all(&[("$3.5", "سه ممیز پنج دلار"), ("1٬000 ریال", "هزار ریال"), ("500 تومان", "پانصد تومان")]);
}

#[test]
fn dates_are_three_numbers() {
    let reference = Reference::persian();
    for month in 1..=12 {
        for day in 1..=31 {
            let (day_words, month_words) = (reference.cardinal(day), reference.cardinal(month));
            let year_words = "هزار و سیصد و نود و نه";
            for mark in ['/', '-', '.'] {
                let first = format!("{year_words} {month_words} {day_words}");
                check(&format!("1399{mark}{month:02}{mark}{day:02}"), &first);
                check(&format!("1399{mark}{month}{mark}{day}"), &first);
                check(&format!("{day}{mark}{month}{mark}1399"), &format!("{day_words} {month_words} {year_words}"));
            }
        }
    }
    check_all(&[
        ("در 1399/12/01.", "در هزار و سیصد و نود و نه دوازده یک."),
        ("1399-13-01", "یک سه نه نه، یک سه، صفر یک"),
        ("1.2.3", "یک نقطه دو نقطه سه"),
        ("192.168.0.1.", "صد و نود و دو نقطه صد و شصت و هشت نقطه صفر نقطه یک."),
    ]);
}

#[test]
fn ranges_of_numbers() {
    let reference = Reference::persian();
    for n in 1..=99 {
        let (from, to) = (reference.cardinal(n), reference.cardinal(n + 1));
        for dash in ['-', '–', '—'] {
            check(&format!("{n}{dash}{} نفر", n + 1), &format!("{from} تا {to} نفر"));
            check(&format!("{n}٫5{dash}{}٫5", n + 1), &format!("{from} ممیز پنج تا {to} ممیز پنج"));
            check(&format!("{n}{dash}{}.25", n + 1), &format!("{from} تا {to} ممیز بیست و پنج"));
            check(
                &format!("{n}٬000{dash}{}٬000", n + 1),
                &format!("{} تا {to} هزار", if n == 1 { "هزار".to_owned() } else { format!("{from} هزار") }),
            );
        }
    }
    check_all(&[
        ("1403-1404", "هزار و چهارصد و سه تا هزار و چهارصد و چهار"),
        ("10--20", "ده—بیست"),
        ("10 -20", "ده منفی بیست"),
    ]);
}

#[test]
fn fractions_are_a_cardinal_and_an_ordinal() {
    let reference = Reference::persian();
    for bottom in 2..=100 {
        for top in 1..=20 {
            let words = format!("{} {}", reference.cardinal(top), reference.ordinal(bottom));
            check(&format!("{top}\u{2044}{bottom}"), &words);
        }
    }
    for (sign, top, bottom) in FRACTION_SIGNS {
        let words = match bottom {
            2 => "نیم".to_owned(),
            _ => format!("{} {}", reference.cardinal(top), reference.ordinal(bottom)),
        };
        check(&sign.to_string(), &words);
        check(&format!("2{sign} لیتر"), &format!("دو و {words} لیتر"));
    }
    check_all(&[("2½", "دو و نیم"), ("¾", "سه چهارم"), ("⅔", "دو سوم")]);
}
