//! The exact JSON of both formats, and bad ones refused with the reason.

use std::collections::BTreeMap;

use serde_json::json;
use tandem_audio::Arithmetic;
use tandem_text::{Language, Phonemizer, Script, SymbolTable};

use super::*;

fn symbols(language: Language, phonemizer: Phonemizer) -> Vec<String> {
    SymbolTable::fixed(language, phonemizer).unwrap().symbols().to_vec()
}

fn rules(tag: &str, phonemizer: Phonemizer, script: Option<Script>) -> LanguageRules {
    LanguageRules { tag: tag.to_owned(), phonemizer, script }
}

fn english(phonemizer: Phonemizer) -> LanguageRules {
    rules("en", phonemizer, Some(Script::LATIN))
}

fn persian() -> LanguageRules {
    rules("fa", Phonemizer::Characters, Some(Script::ARABIC))
}

fn contract() -> ModelContract {
    ModelContract {
        architecture: Architecture::Preset { name: Preset::Nano, dims: Preset::Nano.sizes() },
        text: Some(ModelText {
            languages: vec![english(Phonemizer::Dictionary), persian()],
            language_embedding: true,
            symbols: ["<pad>", "<blank>", " ", "AA0"].map(str::to_owned).to_vec(),
            blanks: true,
            keep_harakat: false,
            longest_tokens: Some(201),
            espeak_version: None,
            lexicon: None,
        }),
        features: FeatureSettings { n_mels: 2, ..FeatureSettings::default() },
        mel_statistics: MelStatistics { mean: -5.1, std: 2.2, band_means: vec![-4.9, -5.3] },
        compute_dtype: ComputeDtype::Bf16,
        vocoder: Vocoder::GriffinLim,
        duration_scale: Some(1.03),
    }
}

/// The same as format 1 writes it.
fn legacy() -> Value {
    json!({
        "format": 1,
        "preset": "nano",
        "sizes": {
            "text_width": 128, "text_layers": 2, "text_heads": 2, "voice_width": 64, "duration_width": 128,
            "decoder_width": 128, "decoder_layers": 2, "decoder_heads": 2, "way": "direct", "text_dropout": 0.1,
            "decoder_dropout": 0.05,
        },
        "symbols": ["<pad>", "<blank>", " ", "AA0"],
        "text": { "language": "en", "blanks": true, "keeps_harakat": false, "longest_tokens": 201 },
        "features": {
            "rate_hz": 22_050, "n_fft": 1024, "win_samples": 1024, "hop_samples": 256, "n_mels": 2, "fmin_hz": 0.0,
            "fmax_hz": 8000.0, "floor": 1e-5,
        },
        "statistics": { "mean": -5.1, "deviation": 2.2, "bands": [-4.9, -5.3] },
        "compute": "bf16",
        "duration_scale": 1.03,
    })
}

fn parse(model: &Value) -> Result<ModelContract, CheckpointError> {
    ModelContract::parse(model.to_string().as_bytes(), Path::new("c/model.json"))
}

fn written(model: &ModelContract) -> Value {
    serde_json::from_slice(&model.to_json().unwrap()).unwrap()
}

#[test]
fn the_schema_of_format_3_is_this() {
    let expected = json!({
        "format": 3,
        "architecture": {
            "kind": "preset",
            "name": "nano",
            "dims": {
                "text_width": 128, "text_layers": 2, "text_heads": 2, "voice_width": 64, "duration_width": 128,
                "decoder_width": 128, "decoder_layers": 2, "decoder_heads": 2, "decoder": "direct",
                "text_dropout": 0.1, "decoder_dropout": 0.05,
            },
        },
        "text": {
            "languages": [
                { "tag": "en", "phonemizer": "dictionary", "script": "Latn" },
                { "tag": "fa", "phonemizer": "characters", "script": "Arab" },
            ],
            "language_embedding": true, "symbols": ["<pad>", "<blank>", " ", "AA0"],
            "blanks": true, "keep_harakat": false, "longest_tokens": 201,
        },
        "features": {
            "rate_hz": 22_050, "n_fft": 1024, "win_samples": 1024, "hop_samples": 256, "n_mels": 2, "fmin_hz": 0.0,
            "fmax_hz": 8000.0, "floor": 1e-5, "arithmetic": "f64",
        },
        "mel_statistics": { "mean": -5.1, "std": 2.2, "band_means": [-4.9, -5.3] },
        "compute_dtype": "bf16",
        "vocoder": { "kind": "griffin_lim" },
        "duration_scale": 1.03,
    });
    assert_eq!(written(&contract()), expected);
    assert_eq!(parse(&written(&contract())).unwrap(), contract());
    let mut spoken = contract();
    let text = spoken.text.as_mut().unwrap();
    text.languages = vec![rules("de-at", Phonemizer::Espeak, None)];
    text.language_embedding = false;
    (text.espeak_version, text.lexicon) = (Some("1.51".into()), Some("haus\th aʊ s\n".into()));
    let expected = [("tag", "de-at"), ("phonemizer", "espeak")];
    assert_eq!(written(&spoken)["text"]["languages"], json!([BTreeMap::from(expected)]));
    assert_eq!(parse(&written(&spoken)).unwrap(), spoken);
    let custom = ModelContract {
        architecture: Architecture::Custom { name: "narrow".into() },
        text: None,
        duration_scale: None,
        ..contract()
    };
    assert_eq!(written(&custom)["architecture"], json!({ "kind": "custom", "name": "narrow" }));
    assert!(written(&custom)["text"].is_null() && written(&custom).get("duration_scale").is_none());
    assert_eq!(parse(&written(&custom)).unwrap(), custom);
}

#[test]
fn unknown_keys_are_ignored() {
    let mut later = written(&contract());
    later["of a later version"] = true.into();
    later["text"]["of a later version"] = true.into();
    assert_eq!(parse(&later).unwrap(), contract());
}

#[test]
fn dims_and_features_convert_both_ways() {
    for preset in Preset::ALL {
        assert_eq!(
            serde_json::from_value::<ModelDims>(serde_json::to_value(preset.sizes()).unwrap()).unwrap(),
            preset.sizes()
        );
    }
    let settings = FeatureSettings { win_samples: 800, fmin_hz: 20.0, ..FeatureSettings::default() };
    assert_eq!(serde_json::from_value::<FeatureSettings>(serde_json::to_value(&settings).unwrap()).unwrap(), settings);
    let text = contract().text.unwrap();
    assert_eq!(text.options(), TextOptions { harakat: Harakat::Drop, blanks: true });
    assert_eq!(text.vocabulary(), Vocabulary { symbols: 4, languages: 2 });
    let with_harakat = ModelText { keep_harakat: true, ..text };
    assert_eq!(with_harakat.options().harakat, Harakat::Keep);
}

#[test]
fn the_arithmetic_of_features_is_stored_by_its_name_and_is_f64_where_it_is_missing() {
    let parse = |change: &dyn Fn(&mut Value)| {
        let mut value: Value = serde_json::from_slice(&contract().to_json().unwrap()).unwrap();
        change(&mut value["features"]);
        ModelContract::parse(&serde_json::to_vec(&value).unwrap(), "model.json".as_ref())
    };
    for arithmetic in Arithmetic::ALL {
        let found = parse(&|features| features["arithmetic"] = arithmetic.name().into()).unwrap();
        assert_eq!(found.features.arithmetic, arithmetic);
        assert_eq!(serde_json::to_value(found.features).unwrap()["arithmetic"], arithmetic.name());
    }
    let older = parse(&|features| drop(features.as_object_mut().unwrap().remove("arithmetic").unwrap())).unwrap();
    assert_eq!(older.features.arithmetic, Arithmetic::F64);
    let error = parse(&|features| features["arithmetic"] = "f16".into()).unwrap_err().to_string();
    assert!(error.contains("f16"), "{error}");
}

#[test]
fn dimensions_that_no_model_has_are_refused_before_anything_is_planned() {
    let parse = |key: &str, number: Value| {
        let mut value: Value = serde_json::from_slice(&contract().to_json().unwrap()).unwrap();
        value["architecture"]["dims"][key] = number;
        ModelContract::parse(&serde_json::to_vec(&value).unwrap(), "model.json".as_ref())
    };
    parse("text_width", 512.into()).unwrap();
    for (key, number) in [
        ("text_width", Value::from(4_000_000_000_u32)),
        ("decoder_width", 0.into()),
        ("decoder_layers", 1_000_000.into()),
        ("text_heads", 0.into()),
        ("text_dropout", 1.0.into()),
    ] {
        let error = parse(key, number).unwrap_err().to_string();
        assert!(error.contains("expected ") && error.contains("model.json"), "{key}: {error}");
    }
}

#[test]
fn format_1_converts_to_the_same_model() {
    let mut expected = contract();
    let text = expected.text.as_mut().unwrap();
    (text.languages, text.language_embedding) = (vec![english(Phonemizer::Dictionary)], false);
    assert_eq!(parse(&legacy()).unwrap(), expected);
}

#[test]
fn early_files_of_format_1_get_the_values_they_were_trained_with() {
    let mut early = legacy();
    let fields = early.as_object_mut().unwrap();
    fields.remove("text");
    fields.remove("duration_scale");
    fields["features"].as_object_mut().unwrap().remove("win_samples");
    fields["symbols"] = symbols(Language::English, Phonemizer::Characters).into();
    let model = parse(&early).unwrap();
    assert_eq!((model.features.win_samples, model.duration_scale), (1024, None));
    let text = model.text.unwrap();
    assert_eq!((text.options(), text.longest_tokens), (TextOptions::default(), None));
}

#[test]
fn format_2_converts_to_the_same_model_without_a_language_embedding() {
    let check = |units: &str, phonemizer: Phonemizer, second: LanguageRules| {
        let mut model = written(&contract());
        model["format"] = 2.into();
        model["text"] = json!({
            "units": units, "languages": ["en", second.tag], "symbols": ["<pad>", "<blank>", " ", "AA0"],
            "blanks": true, "keep_harakat": false, "longest_tokens": 201,
        });
        let mut expected = contract();
        let text = expected.text.as_mut().unwrap();
        (text.languages, text.language_embedding) = (vec![english(phonemizer), second], false);
        assert_eq!(parse(&model).unwrap(), expected);
    };
    check("phonemes", Phonemizer::Dictionary, rules("en-gb", Phonemizer::Dictionary, Some(Script::LATIN)));
    check("characters", Phonemizer::Characters, persian());
    check("characters", Phonemizer::Characters, rules("de", Phonemizer::Characters, None));
    let mut custom = written(&contract());
    (custom["format"], custom["text"]) = (2.into(), Value::Null);
    assert_eq!(parse(&custom).unwrap().text, None);
}

#[test]
fn units_and_languages_of_format_1_are_derived_from_the_symbols() {
    let check = |symbols: &[String], languages: Vec<LanguageRules>| {
        let mut model = legacy();
        model["symbols"] = symbols.into();
        model["text"]["language"] = Value::Null;
        let text = parse(&model).unwrap().text.unwrap();
        assert_eq!(text.languages, languages);
    };
    let characters = Phonemizer::Characters;
    let latin = SymbolTable::fixed(Language::English, characters).unwrap();
    let arabic = SymbolTable::fixed(Language::Persian, characters).unwrap();
    check(&symbols(Language::English, Phonemizer::Dictionary), vec![english(Phonemizer::Dictionary)]);
    check(latin.symbols(), vec![english(characters)]);
    check(arabic.symbols(), vec![persian()]);
    check(latin.merged(&arabic).symbols(), vec![english(characters), persian()]);
    check(SymbolTable::from_texts(["äb"]).symbols(), vec![rules("und", characters, None)]);
}

#[test]
fn custom_models_of_format_1_have_a_name_and_may_have_no_text() {
    let mut custom = legacy();
    let fields = custom.as_object_mut().unwrap();
    fields.remove("preset");
    fields.remove("sizes");
    fields.insert("own_model".into(), "narrow".into());
    fields["symbols"] = Value::Null;
    let model = parse(&custom).unwrap();
    assert_eq!((model.architecture, model.text), (Architecture::Custom { name: "narrow".into() }, None));
}

#[test]
fn a_newer_format_is_refused_with_what_to_do() {
    let error = parse(&json!({ "format": 4, "all": "new" })).unwrap_err();
    assert!(matches!(error, CheckpointError::NewerFormat { found: 4, known: 3, .. }), "{error:?}");
    let expected = "written by a newer version of Tandem: expected format 3 or older, found 4. Update Tandem, or give \
                    another folder: c/model.json";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn a_bad_model_is_refused_with_the_reason() {
    let check = |model: Value, part: &str| {
        let error = parse(&model).unwrap_err();
        assert!(matches!(error, CheckpointError::Damaged { .. }), "{error:?}");
        let error = error.to_string();
        assert!(error.contains(part) && error.ends_with(": c/model.json"), "{error}");
    };
    let changed = |mut model: Value, change: fn(&mut Value)| {
        change(&mut model);
        model
    };
    check(json!([]), "expected a model description of \"format\" 1 to 3, found null");
    check(json!({ "format": "1" }), "found \"1\"");
    check(json!({ "format": 0 }), "found 0");
    check(changed(legacy(), |m| m["sizes"] = Value::Null), "expected \"preset\" and \"sizes\", or \"own_model\"");
    check(changed(legacy(), |m| m["sizes"]["text_width"] = "wide".into()), "invalid type: string");
    check(changed(legacy(), |m| m["compute"] = "f16".into()), "unknown variant `f16`, expected `f32` or `bf16`");
    check(changed(legacy(), |m| m["statistics"]["deviation"] = 0.0.into()), "standard deviation 0");
    let model = || written(&contract());
    check(changed(model(), |m| m["architecture"]["name"] = "huge".into()), "unknown variant `huge`, expected one of");
    check(changed(model(), |m| m["architecture"]["dims"]["experts"] = 8.into()), "unknown field `experts`");
    check(
        changed(model(), |m| m["text"]["languages"][0]["phonemizer"] = "words".into()),
        "unknown variant `words`, expected one of `characters`",
    );
    check(changed(model(), |m| m["text"]["languages"] = json!([])), "expected at least one language, found none");
    check(changed(model(), |m| m["vocoder"]["kind"] = "hifi_gan".into()), "unknown variant `hifi_gan`");
    check(changed(model(), |m| m["mel_statistics"]["std"] = (-1.0).into()), "standard deviation -1");
    check(changed(model(), |m| m["mel_statistics"]["band_means"] = json!([1.0])), "of 2 bands, found");
    check(changed(model(), |m| _ = m.as_object_mut().unwrap().remove("features")), "missing field `features`");
    let error = ModelContract::parse(b"{", Path::new("c/model.json")).unwrap_err().to_string();
    assert!(error.contains("the model is not valid JSON"), "{error}");
}
