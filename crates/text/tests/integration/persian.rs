//! A few Persian sentences through normalisation, ids and back.

use std::sync::Arc;

use tandem_text::{FrontEnd, Harakat, Phonemizer, Pronouncer, SymbolTable, TextOptions};

/// As they may stand in a corpus, and as they are read.
const SENTENCES: [(&str, &str); 8] = [
    ("سلام! حال شما چطور است؟", "سلام! حال شما چطور است؟"),
    ("من در سال ۱۳۷۲ به دنيا آمدم.", "من در سال هزار و سیصد و هفتاد و دو به دنیا آمدم."),
    ("كتاب‌هاي او را خوانده‌ام، اما نه همه را.", "کتاب‌های او را خوانده‌ام، اما نه همه را."),
    ("قيمت بنزين ۱۵٪ گران شد", "قیمت بنزین پانزده درصد گران شد"),
    ("دمای هوا به -۷ درجه رسید.", "دمای هوا به منفی هفت درجه رسید."),
    ("گفت: \"فردا می‌آیم\"؛ ولی نیامد...", "گفت: «فردا می‌آیم»؛ ولی نیامد…"),
    ("جلسه ساعت ۱۰:۳۰ در طبقهٔ ۴م است.", "جلسه ساعت ده و سی دقیقه در طبقۀ چهارم است."),
    ("جمعیت ایران حدود 85,000,000 نفر است.", "جمعیت ایران حدود هشتاد و پنج میلیون نفر است."),
];

#[test]
fn sentences_go_through_ids_and_back() {
    for blanks in [false, true] {
        let options = TextOptions { blanks, ..TextOptions::default() };
        let front_end = FrontEnd::new("fa-IR", Phonemizer::Characters, options).unwrap();
        // As a later run would: the table from its file.
        let saved = Arc::new(SymbolTable::from_symbols(front_end.table().symbols().to_vec()).unwrap());
        let later = FrontEnd::with_table("fa", Pronouncer::Characters, None, options, saved).unwrap();
        for (raw, spoken) in SENTENCES {
            let tokens = front_end.encode(raw).unwrap();
            assert_eq!(later.decode_text(&tokens.ids).unwrap(), spoken);
            assert_eq!(later.encode(spoken).unwrap(), tokens, "what is normalised stays so");
        }
    }
}

#[test]
fn vowel_marks_are_symbols_when_kept() {
    let keep = TextOptions { harakat: Harakat::Keep, ..TextOptions::default() };
    let front_end = FrontEnd::new("fa", Phonemizer::Characters, keep).unwrap();
    let text = "مُحَمَّد گُلی دید.";
    let tokens = front_end.encode(text).unwrap();
    assert_eq!(front_end.decode_text(&tokens.ids).unwrap(), front_end.normalize(text));
    let without = FrontEnd::new("fa", Phonemizer::Characters, TextOptions::default()).unwrap();
    assert_eq!(without.normalize(text), "محمد گلی دید.");
}
