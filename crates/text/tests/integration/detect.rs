//! The language of sentences as corpora have them.

use std::fs;

use tandem_corpus::demo;
use tandem_test_support::real_voice;
use tandem_text::{Detected, detect};

const ENGLISH: [&str; 8] = [
    "Printing, in the only sense with which we are at present concerned, differs from most if not from all the arts.",
    "In being comparatively modern, it was never brought into general use before the fifteenth century.",
    "The prisoners were allowed to have their own food brought in from outside the gaol.",
    "He said that he would not be able to attend the meeting on Thursday afternoon.",
    "Turn left at the second light, and you will see the house with the green door.",
    "Nobody had warned her that the train would be more than an hour late.",
    "The government has announced a new plan to reduce the price of electricity.",
    "It rained all night, but the morning was clear and very cold.",
];
const GERMAN: [&str; 8] = [
    "Der Zug fährt um siebzehn Uhr dreißig von Gleis vier ab.",
    "Ich habe gestern mit meiner Schwester über das neue Haus gesprochen.",
    "Die Bundesregierung hat am Mittwoch ein neues Gesetz beschlossen.",
    "Wir wollten eigentlich ins Kino gehen, aber es hat den ganzen Abend geregnet.",
    "Können Sie mir bitte sagen, wo der nächste Bahnhof ist?",
    "Das Kind spielte im Garten, während die Mutter das Essen kochte.",
    "Nach dem langen Winter freuten sich alle auf die ersten warmen Tage.",
    "Niemand wusste, warum die Tür plötzlich offen stand.",
];
const FRENCH: [&str; 6] = [
    "Le train de Paris partira avec une demi-heure de retard.",
    "Je ne savais pas que vous aviez déjà parlé à ma sœur.",
    "Les enfants jouaient dans le jardin pendant que leur mère préparait le repas.",
    "Le gouvernement a annoncé une nouvelle loi sur l'énergie.",
    "Pourriez-vous me dire où se trouve la gare la plus proche ?",
    "Après un long hiver, tout le monde attendait les premiers beaux jours.",
];
const SPANISH: [&str; 6] = [
    "El tren de Madrid saldrá con media hora de retraso.",
    "No sabía que ya habías hablado con mi hermana sobre la casa.",
    "Los niños jugaban en el jardín mientras su madre preparaba la comida.",
    "El gobierno ha anunciado una nueva ley sobre la energía.",
    "¿Podría decirme dónde está la estación más cercana?",
    "Después de un largo invierno, todos esperaban los primeros días de sol.",
];
const PERSIAN: [&str; 8] = [
    "قطار تهران ساعت هفت و نیم صبح از ایستگاه حرکت می‌کند.",
    "دیروز با خواهرم دربارهٔ خانهٔ جدید صحبت کردم.",
    "دولت روز چهارشنبه قانون تازه‌ای را تصویب کرد.",
    "می‌خواستیم به سینما برویم، اما تمام شب باران بارید.",
    "ببخشید، نزدیک‌ترین ایستگاه مترو کجاست؟",
    "بچه‌ها در حیاط بازی می‌کردند و مادرشان غذا می‌پخت.",
    "پس از زمستانی طولانی، همه منتظر روزهای گرم بودند.",
    "هیچ‌کس نمی‌دانست چرا در ناگهان باز شد.",
];
const RUSSIAN: [&str; 6] = [
    "Поезд из Москвы прибывает на четвёртый путь в половине восьмого.",
    "Вчера я говорил с сестрой о новом доме.",
    "Правительство объявило о новом законе в среду утром.",
    "Дети играли в саду, пока мать готовила обед.",
    "Скажите, пожалуйста, где находится ближайшая станция?",
    "После долгой зимы все ждали первых тёплых дней.",
];

/// Languages that the detector does not know, and that look a little like some it knows.
const UNKNOWN: [[&str; 6]; 3] = [
    [
        "Lestin fer frá fjórða spori klukkan hálf átta í fyrramálið.",
        "Ég talaði við systur mína um nýja húsið í gær.",
        "Ríkisstjórnin kynnti ný lög um orkumál á miðvikudaginn.",
        "Börnin léku sér í garðinum á meðan mamma þeirra eldaði.",
        "Geturðu sagt mér hvar næsta strætóstöð er?",
        "Eftir langan vetur biðu allir eftir fyrstu hlýju dögunum.",
    ],
    [
        "Trena laugarren nasatik irtengo da zazpi eta erdietan.",
        "Atzo nire arrebarekin hitz egin nuen etxe berriari buruz.",
        "Gobernuak lege berri bat iragarri du asteazkenean.",
        "Umeak lorategian jolasten ziren ama afaria prestatzen ari zen bitartean.",
        "Esan diezadakezu non dagoen geltokirik hurbilena?",
        "Negu luze baten ondoren, denek lehen egun epelak itxaroten zituzten.",
    ],
    [
        "Fágfaidh an traein ardán a ceathair ag leathuair tar éis a seacht.",
        "Labhair mé le mo dheirfiúr faoin teach nua inné.",
        "D'fhógair an rialtas dlí nua maidin Dé Céadaoin.",
        "Bhí na páistí ag súgradh sa ghairdín fad is a bhí a máthair ag cócaireacht.",
        "An féidir leat a rá liom cá bhfuil an stáisiún is gaire?",
        "Tar éis geimhreadh fada bhí gach duine ag fanacht leis na chéad laethanta teo.",
    ],
];

fn language(texts: &[&str]) -> Option<&'static str> {
    detect(texts.iter().copied()).map(|found| found.language)
}

#[test]
fn sentences_have_a_language() {
    let cases: [(&[&str], &str); 6] =
        [(&ENGLISH, "en"), (&GERMAN, "de"), (&FRENCH, "fr"), (&SPANISH, "es"), (&PERSIAN, "fa"), (&RUSSIAN, "ru")];
    for (texts, expected) in cases {
        assert_eq!(language(texts), Some(expected), "{texts:?}");
    }
    // Letters as an Arabic keyboard types them, and without joiners.
    let typed: Vec<String> =
        PERSIAN.iter().map(|text| text.replace('ی', "ي").replace('ک', "ك").replace('\u{200C}', " ")).collect();
    let typed: Vec<&str> = typed.iter().map(String::as_str).collect();
    assert!(matches!(language(&typed), None | Some("fa")), "{:?}", language(&typed));
}

#[test]
fn nothing_is_said_without_a_clear_majority() {
    assert_eq!(detect([]), None);
    assert_eq!(language(&GERMAN[..4]), None, "too few");
    let short = ["Guten Tag!", "Ja, bitte.", "Wie geht es?", "Bis morgen.", "Na gut.", "Auf Wiedersehen!"];
    assert_eq!(language(&short), None, "too short");
    assert_eq!(language(&[&GERMAN[..], &FRENCH, &SPANISH].concat()), None, "a mixture");
    for other in [&ENGLISH[..], &PERSIAN, &RUSSIAN] {
        let mixed: Vec<&str> = GERMAN.iter().zip(other).flat_map(|(one, other)| [*one, *other]).collect();
        assert_eq!(detect(mixed.iter().copied()), None, "in turn");
    }
    assert_eq!(language(&["12 34 56 78 90 12 34 56 78 90 12 34 56 78 90"; 10]), None, "numbers");
    for texts in UNKNOWN {
        assert_eq!(detect(texts), None, "{texts:?}");
    }
    // One in eight may be anything: a name, a quotation.
    assert_eq!(language(&[&GERMAN[..7], &FRENCH[..1]].concat()), Some("de"));
}

#[test]
fn short_texts_are_not_counted() {
    let with_short: Vec<&str> = GERMAN.iter().copied().chain(["Ja.", "Nein!", ""]).collect();
    let found = detect(with_short).unwrap();
    assert_eq!(found, Detected { language: "de", name: "German", agreeing: found.agreeing, judged: 8 });
}

#[test]
fn the_demo_corpus_is_not_called_another_language() {
    let texts: Vec<String> = (0..60).map(|index| demo::utterance(1234, index, 6).text).collect();
    let found = detect(texts.iter().map(String::as_str));
    assert!(found.as_ref().is_none_or(|found| found.language == "en"), "{found:?}");
}

#[test]
fn no_sample_of_a_real_voice_is_called_another_language() {
    let Some(voice) = real_voice("the language of a real voice") else { return };
    let metadata = fs::read_to_string(voice.join("metadata.csv")).unwrap();
    let texts: Vec<&str> = metadata.lines().filter_map(|line| line.split('|').nth(1)).collect();
    let all = detect(texts.iter().copied()).unwrap();
    assert_eq!(all.language, "en", "{all:?}");
    for sample in texts.chunks(50) {
        assert!(matches!(language(sample), None | Some("en")), "{:?}", detect(sample.iter().copied()));
    }
    println!("{all:?}");
}
