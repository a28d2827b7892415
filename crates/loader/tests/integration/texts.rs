//! Texts: our front ends, and those of the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tandem_loader::{CustomTokenizer, Loader, LoaderError, LoaderOptions, TextMap};

use crate::support::{copied, next, open, options};

/// Letters as their code points; refuses every text with `refused` in it.
struct CodePoints {
    refused: &'static str,
    calls: AtomicUsize,
}

impl CustomTokenizer for CodePoints {
    fn encode(&self, text: &str, _: Option<&str>) -> Result<Vec<i32>, String> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        match !self.refused.is_empty() && text.contains(self.refused) {
            true => Err(format!("no {:?}, please", self.refused)),
            false => Ok(text.chars().map(|c| c as i32).collect()),
        }
    }
}

struct Upper;

impl TextMap for Upper {
    fn map(&self, text: &str, _: Option<&str>) -> Result<String, String> {
        Ok(text.to_uppercase())
    }
}

fn encoded(refused: &'static str, changes: serde_json::Value) -> Result<Loader, LoaderError> {
    let encoder = Arc::new(CodePoints { refused, calls: AtomicUsize::new(0) });
    Loader::open(LoaderOptions::from_json(&options(changes))?.with_tokenizer(encoder).with_text_map(Arc::new(Upper)))
}

#[test]
fn a_tokenizer_of_the_program_replaces_ours_and_pads_with_its_own_id() {
    let changes = json!({ "fields": ["text", "text_lengths"], "text": { "pad_id": -1 } });
    let mut loader = encoded("", changes).unwrap();
    assert!(loader.symbols().is_empty());
    let batch = next(&mut loader).unwrap();
    let (texts, batch) = (batch.texts(), copied(&batch));
    let (shape, values) = batch.tensor("text");
    for (row, text) in texts.iter().enumerate() {
        let expected: Vec<u32> = text.to_uppercase().chars().map(|c| c as u32).collect();
        let own = &values[row * shape[1] as usize..][..shape[1] as usize];
        assert_eq!(own[..expected.len()], expected);
        assert!(own[expected.len()..].iter().all(|id| *id as i32 == -1));
        assert_eq!(batch.tensor("text_lengths").1[row] as usize, expected.len());
    }
}

#[test]
fn a_text_that_the_tokenizer_refuses_is_left_out_and_all_of_them_are_an_error_that_quotes_it() {
    let some = encoded("TREE", json!({ "fields": ["text"] })).unwrap();
    let skipped = some.plan()["skipped"].clone();
    assert!(skipped["refused_text"].as_u64().unwrap() > 0 && skipped["unknown_symbol"] == 0, "{skipped}");
    let notes = some.plan()["notes"].to_string();
    assert!(notes.contains("refused by the tokenizer") && notes.contains("no \\\"TREE\\\", please"), "{notes}");
    let error = encoded(" ", json!({ "fields": ["text"] })).err().unwrap();
    assert!(matches!(error, LoaderError::Nothing(_)));
    assert!(error.to_string().contains("the tokenizer failed: no \" \", please"), "{error}");
}

/// Whatever the text is.
struct Greeting;

impl TextMap for Greeting {
    fn map(&self, _: &str, _: Option<&str>) -> Result<String, String> {
        Ok("Hello there".to_owned())
    }
}

#[test]
fn our_front_end_has_symbols_and_a_map_changes_what_it_reads() {
    let fields = json!({ "fields": ["text", "text_lengths"], "text": { "phonemizer": "characters" } });
    let mut plain = open(fields.clone()).unwrap();
    let mapped = LoaderOptions::from_json(&options(fields)).unwrap().with_text_map(Arc::new(Greeting));
    let mut mapped = Loader::open(mapped).unwrap();
    let said = |loader: &mut Loader| {
        let batch = next(loader).unwrap();
        let (symbols, texts, batch) = (loader.symbols(), batch.texts(), copied(&batch));
        let length = batch.tensor("text_lengths").1[0] as usize;
        let row = &batch.tensor("text").1[..length];
        (row.iter().map(|id| symbols[*id as usize].clone()).collect::<String>(), texts[0].clone())
    };
    let (own, text) = said(&mut plain);
    assert_eq!(own, text.to_lowercase());
    let (changed, text) = said(&mut mapped);
    assert_eq!(changed, "hello there");
    assert_ne!(text, changed, "texts are those of the corpus");
}

#[test]
fn a_tensor_that_nobody_asked_for_is_not_made() {
    let mut loader = open(json!({ "fields": ["mel"] })).unwrap();
    assert_eq!(next(&mut loader).unwrap().tensors().len(), 1);
    assert!(loader.languages().is_empty() && loader.symbols().is_empty());
}
