//! Every row is trained in its own language, and the model speaks the languages it was trained on.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tandem_test_support::skip;

use crate::command::{Ran, SMALL, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::copy_of_demo;

/// Short enough for any recording of the demo corpus. Arabic letters, digits of both kinds, vowel marks, a joiner.
const PERSIAN: [&str; 6] = ["سلام.", "كتاب ۲۵", "می\u{200C}رود.", "گُل زرد", "ساعت 7 است.", "دنياي ما"];
const GERMAN: [&str; 6] = [
    "Der Zug fährt heute später ab.",
    "Wir haben gestern lange gewartet.",
    "Das Wetter wird morgen wieder besser.",
    "Sie möchte noch eine Tasse Kaffee.",
    "Die Kinder spielen draußen im Garten.",
    "Er hat das Buch schon gelesen.",
];

/// The demo corpus with other texts: the text and the language of each row, by its number; no language for `None`.
fn corpus(row: impl Fn(usize) -> (String, Option<&'static str>)) -> TempFolder {
    let (corpus, lines) = copy_of_demo();
    let line = |(number, line): (usize, &String)| {
        let id = line.split('|').next().unwrap();
        match row(number) {
            (text, Some(lang)) => format!("{id}|{text}|{text}|ada|{lang}"),
            (text, None) => format!("{id}|{text}"),
        }
    };
    corpus.file("metadata.csv", lines.iter().enumerate().map(line).collect::<Vec<_>>().join("\n"));
    corpus
}

fn persian(number: usize) -> String {
    PERSIAN[number % PERSIAN.len()].to_owned()
}

fn mixed() -> TempFolder {
    corpus(|number| match number % 3 {
        0 => ("Five cats.".to_owned(), Some("en")),
        _ => (persian(number), Some("fa")),
    })
}

fn train(corpus: &TempFolder, more: &str) -> Ran {
    let line = format!("train --mode cpu {SMALL} --max-steps 2 {more}");
    let command = TandemCommand::new(&line).without_gpu().arg("--train-data").arg(corpus.path(""));
    command.arg("--checkpoint-dir").arg(run_of(corpus)).run()
}

fn run_of(corpus: &TempFolder) -> PathBuf {
    corpus.path("run")
}

fn text_of(corpus: &TempFolder) -> Value {
    let file = run_of(corpus).join("checkpoint-00000002/model.json");
    let model: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    model["text"].clone()
}

/// Synthesises with the run of `corpus`: what happened, and the bytes of the file.
fn speak(corpus: &TempFolder, text: &str, more: &str) -> (Ran, Vec<u8>) {
    // Not inside the corpus, which is never written to.
    let folder = TempFolder::new();
    let out = folder.path("out.wav");
    let line = format!("synthesize --mode cpu {more}");
    let command = TandemCommand::new(&line).without_gpu().arg("--checkpoint").arg(run_of(corpus));
    let ran = command.arg("--text").arg(text).arg("-o").arg(&out).run();
    (ran, fs::read(out).unwrap_or_default())
}

/// The bytes of the speech, for a text that the model knows completely.
fn spoken(corpus: &TempFolder, text: &str, more: &str) -> Vec<u8> {
    let (ran, wav) = speak(corpus, text, more);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!ran.both().contains("skipped characters") && !wav.is_empty(), "{ran:?}");
    wav
}

#[test]
fn a_mixed_corpus_trains_and_speaks_both_languages() {
    let corpus = mixed();
    let ran = train(&corpus, "");
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["Languages: fa (characters), en (dictionary)"]);
    let text = text_of(&corpus);
    // The language of most rows first; English keeps its phonemes.
    let persian = json!({ "tag": "fa", "phonemizer": "characters", "script": "Arab" });
    let english = json!({ "tag": "en", "phonemizer": "dictionary", "script": "Latn" });
    assert_eq!((&text["languages"], &text["language_embedding"]), (&json!([persian, english]), &json!(true)));
    let symbols: Vec<&str> = text["symbols"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    assert!(["AA1", "ک", "\u{200C}"].iter().all(|symbol| symbols.contains(symbol)), "{symbols:?}");

    for text in ["كتاب ۲۵", "می\u{200C}رود گُل 7.", "Dr. Smith owes 25 dollars."] {
        spoken(&corpus, text, "");
    }
    // Digits have no script: the language of most rows, unless another is asked for.
    let by_default = spoken(&corpus, "25", "");
    assert_eq!(spoken(&corpus, "25", "--lang fa"), by_default);
    assert_eq!(spoken(&corpus, "25", "--lang FA_IR"), by_default);
    assert_ne!(spoken(&corpus, "25", "--lang en"), by_default);
    let (unknown, _) = speak(&corpus, "25", "--lang de");
    assert_eq!(unknown.code, 2, "{unknown:?}");
    contains(&unknown.err, &["the model does not know language \"de\"", "trained on fa, en"]);
}

#[test]
fn a_mixed_run_resumes_to_the_same_bytes() {
    let corpus = mixed();
    let weights = |step: u64| fs::read(run_of(&corpus).join(format!("checkpoint-{step:08}/weights.safetensors")));
    assert_eq!(train(&corpus, "--checkpoint-every 1").code, 0);
    let whole = weights(2).unwrap();
    fs::remove_dir_all(run_of(&corpus).join("checkpoint-00000002")).unwrap();
    contains(&train(&corpus, "--checkpoint-every 1").out, &["Resuming from step 1"]);
    assert!(weights(2).unwrap() == whole);
}

#[test]
fn a_model_of_rows_marked_persian_speaks_persian() {
    let corpus = corpus(|number| (persian(number), Some("fa")));
    let ran = train(&corpus, "");
    assert_eq!(ran.code, 0, "{ran:?}");
    let text = text_of(&corpus);
    assert_eq!(text["languages"], json!([{ "tag": "fa", "phonemizer": "characters", "script": "Arab" }]));
    assert_eq!(text["language_embedding"], json!(false));
    for text in ["سال ۲۵ دنيا", "25"] {
        spoken(&corpus, text, "");
    }
}

#[test]
fn rows_beat_the_flag_and_the_conflict_is_reported() {
    let corpus = corpus(|_| ("Five cats.".to_owned(), Some("en")));
    let ran = train(&corpus, "--lang fa");
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.err, &["--lang fa", "every row names its own language (en)"]);
    spoken(&corpus, "Five cats.", "");
}

#[test]
fn texts_of_another_language_are_recognised_before_the_first_step() {
    let corpus_of_persian = corpus(|number| (persian(number), None));
    let refused = train(&corpus_of_persian, "");
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(&refused.err, &["No usable utterances", "--lang fa"]);
    assert!(!run_of(&corpus_of_persian).exists());
    assert_eq!(train(&corpus_of_persian, "--lang fa").code, 0);

    let german = corpus(|number| (GERMAN[number % GERMAN.len()].to_owned(), None));
    let ran = train(&german, "--phonemizer characters");
    contains(&ran.err, &["look like German", "--lang de"]);
    let check = TandemCommand::new("corpus check").arg(german.path("")).run();
    contains(&check.both(), &["look like German", "--lang de"]);
    // Said to be German, or marked as such: nothing to warn of.
    let said_german = TandemCommand::new("corpus check --lang de").arg(german.path("")).run();
    assert!(!said_german.both().contains("look like"), "{said_german:?}");
}

#[test]
fn validation_rows_of_another_language_are_named_and_not_used() {
    let english = corpus(|_| ("Five cats.".to_owned(), Some("en-GB")));
    let validation = corpus(|number| match number % 2 {
        0 => ("Four cats.".to_owned(), Some("en")),
        _ => (persian(number), Some("fa")),
    });
    let total = fs::read_to_string(validation.path("metadata.csv")).unwrap().lines().count();
    let ran = train(&english, &format!("--val-data {}", validation.path("").display()));
    assert_eq!(ran.code, 0, "{ran:?}");
    let others = total / 2;
    let warning =
        format!("{others} of its {total} utterances are not used: --train-data has nothing in their language (fa)");
    contains(&ran.err, &["--val-data: ", &warning]);
    // Some of the others may be too long for their recording.
    let (_, used) = ran.out.split_once("validating on ").unwrap();
    let used: usize = used.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    assert!((1..=total - others).contains(&used), "{used} of {total}");
}

#[test]
pub(crate) fn a_lexicon_is_part_of_the_model() {
    let corpus = corpus(|number| (persian(number), Some("fa")));
    let lexicon = corpus.file("words.txt", "# Persian\nسلام\ts a l ɑ m\nگل\tg o l\nگلِ\tg o l e\n");
    let ran = train(&corpus, &format!("--lexicon {}", lexicon.display()));
    assert_eq!(ran.code, 0, "{ran:?}");
    let text = text_of(&corpus);
    let symbols = text["symbols"].as_array().unwrap();
    assert!(symbols.contains(&json!("ɑ")) && text["blanks"] == json!(true), "{text}");
    // The model speaks without the file.
    fs::remove_file(&lexicon).unwrap();
    spoken(&corpus, "سلام ۷", "");
    // The ezafe is a mark, which the letters of other words do without.
    assert_ne!(spoken(&corpus, "گلِ من", ""), spoken(&corpus, "گل من", ""));
    assert_eq!(spoken(&corpus, "منِ تو", ""), spoken(&corpus, "من تو", ""));

    let bad = corpus.file("bad.txt", "سلام\ts a l\nno phonemes\n");
    for (file, part) in
        [(bad.as_path(), "line 2"), (Path::new("/dev/zero"), "regular file"), (Path::new("none.txt"), "")]
    {
        let refused = train(&corpus, &format!("--lexicon {}", file.display()));
        assert_eq!(refused.code, 2, "{refused:?}");
        contains(&refused.err, &["--lexicon", part, &file.display().to_string()]);
    }
}

#[test]
fn vowel_marks_are_kept_if_asked_for() {
    let symbols_of_gol = |more: &str| {
        let corpus = corpus(|number| (persian(number), Some("fa")));
        assert_eq!(train(&corpus, more).code, 0);
        (text_of(&corpus)["keep_harakat"].clone(), spoken(&corpus, "گُل", ""), spoken(&corpus, "گل", ""))
    };
    let (kept, marked, plain) = symbols_of_gol("--harakat keep");
    assert!(kept == json!(true) && marked != plain);
    let (kept, marked, plain) = symbols_of_gol("");
    assert!(kept == json!(false) && marked == plain);
}

#[test]
fn espeak_is_asked_for_by_name_and_its_absence_is_explained() {
    let corpus = corpus(|number| (GERMAN[number % GERMAN.len()].to_owned(), Some("de")));
    let line = format!("train --mode cpu {SMALL} --max-steps 2 --phonemizer espeak");
    let command = || {
        let command = TandemCommand::new(&line).without_gpu().arg("--train-data").arg(corpus.path(""));
        command.arg("--checkpoint-dir").arg(run_of(&corpus))
    };
    let absent = command().env("TANDEM_ESPEAK_LIBRARY", "/nonexistent/libespeak-ng.so").run();
    assert_eq!(absent.code, 2, "{absent:?}");
    contains(&absent.err, &["--phonemizer", "espeak-ng", "sudo apt install", "--lexicon", "--phonemizer characters"]);
    assert!(!run_of(&corpus).exists());

    if let Err(error) = tandem_espeak::Espeak::load() {
        return skip("TANDEM_REQUIRE_ESPEAK", "a German voice with the phonemes of espeak-ng", &error.to_string());
    }
    let ran = command().run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let text = text_of(&corpus);
    assert_eq!(text["languages"], json!([{ "tag": "de", "phonemizer": "espeak", "script": "Latn" }]));
    assert!(text["espeak_version"].is_string(), "{text}");
    spoken(&corpus, "Guten Tag, die 25 Straßen!", "");
}
