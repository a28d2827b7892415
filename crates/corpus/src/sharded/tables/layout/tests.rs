//! Columns by their usual names and by given ones.

use proptest::prelude::*;

use super::*;

/// `name:kind` for each column: t(ext), l(ist of strings), n(umber), b(ytes), o(ther).
fn columns(spec: &str) -> Vec<TableColumn> {
    spec.split_whitespace()
        .map(|column| {
            let (name, kind) = column.split_once(':').unwrap();
            let kind = match kind {
                "t" => ColumnKind::Text,
                "l" => ColumnKind::TextList,
                "n" => ColumnKind::Number,
                "b" => ColumnKind::Bytes,
                _ => ColumnKind::Other,
            };
            TableColumn { name: name.to_owned(), kind, type_name: "List" }
        })
        .collect()
}

/// `role=name` for each column that is wanted.
fn wanted(spec: &str) -> ColumnNames {
    let mut names = ColumnNames::default();
    for (role, name) in spec.split_whitespace().filter_map(|pair| pair.split_once('=')) {
        let place = match role {
            "audio" => &mut names.audio,
            "text" => &mut names.text,
            "speaker" => &mut names.speaker,
            "id" => &mut names.id,
            "lang" => &mut names.lang,
            _ => &mut names.duration,
        };
        *place = Some(name.to_owned());
    }
    names
}

/// The layout as `role=name` pairs.
fn shown(layout: &TableLayout) -> String {
    let roles = [
        ("bytes", layout.bytes.as_ref()),
        ("path", layout.path.as_ref()),
        ("text", Some(&layout.text)),
        ("id", layout.id.as_ref()),
        ("speaker", layout.speaker.as_ref()),
        ("lang", layout.lang.as_ref()),
        ("duration", layout.duration.as_ref()),
    ];
    let shown = roles.iter().filter_map(|(role, column)| column.map(|column| format!("{role}={}", column.name)));
    shown.collect::<Vec<_>>().join(" ")
}

#[test]
fn tables_of_other_programs_are_understood() {
    let check = |spec: &str, expected: &str| {
        assert_eq!(shown(&TableLayout::find(&columns(spec), &ColumnNames::default()).unwrap()), expected, "{spec}");
    };
    // Hugging Face: Common Voice, LibriTTS, LibriSpeech, MLS.
    check(
        "client_id:t path:t audio.bytes:b audio.path:t sentence:t up_votes:n locale:t",
        "bytes=audio.bytes path=audio.path text=sentence speaker=client_id lang=locale",
    );
    check(
        "audio.bytes:b audio.path:t text_normalized:t text_original:t speaker_id:t path:t chapter_id:t id:t",
        "bytes=audio.bytes path=audio.path text=text_normalized id=id speaker=speaker_id",
    );
    check(
        "file:t audio.bytes:b audio.path:t text:t speaker_id:n chapter_id:n id:t",
        "bytes=audio.bytes path=audio.path text=text id=id speaker=speaker_id",
    );
    check(
        "audio.bytes:b audio.path:t audio_duration:n transcript:t begin_time:n speaker_id:t file:t id:t",
        "bytes=audio.bytes path=audio.path text=transcript id=id speaker=speaker_id duration=audio_duration",
    );
    // CosyVoice.
    check(
        "utt:t audio_data:b wav:t text:t spk:t utt_embedding.list.element:o spk_embedding.list.element:o",
        "bytes=audio_data path=wav text=text id=utt speaker=spk",
    );
    check("utt:t audio_data:b text:b", "bytes=audio_data text=text id=utt");
    // F5-TTS.
    check("audio_path:t text:t duration:n", "path=audio_path text=text duration=duration");
    check("audio_path:t text:l duration:n", "path=audio_path text=text duration=duration");
    check("audio_path:t audio:o text:t", "path=audio_path text=text");
}

#[test]
fn the_first_usual_name_with_a_fitting_kind_is_taken() {
    let check = |spec: &str, expected: &str| {
        assert_eq!(shown(&TableLayout::find(&columns(spec), &ColumnNames::default()).unwrap()), expected, "{spec}");
    };
    check("bytes:b wav:b text:t", "bytes=wav text=text");
    check("audio:t text:t", "path=audio text=text");
    check("audio:t wav:b text:t", "bytes=wav text=text");
    check("wav:t path:t text:t", "path=path text=text");
    check("wav:t text:t", "path=wav text=text");
    check("wav:t audio:b path:t text:t", "bytes=audio path=wav text=text");
    check("file:t audio:b text:t", "bytes=audio path=file text=text");
    check("wav.bytes:b wav.path:t text:t", "bytes=wav.bytes path=wav.path text=text");
    check("audio.bytes:b audio.path:n text:t", "bytes=audio.bytes text=text");
    check("text:t normalized_text:t audio:b", "bytes=audio text=normalized_text");
    check("text:n caption:t audio:b", "bytes=audio text=caption");
    check("id:o utt_id:n text:t audio:b", "bytes=audio text=text id=utt_id");
    check("duration:t audio_seconds:n lang:n text:t audio:b", "bytes=audio text=text duration=audio_seconds");
}

#[test]
fn lists_of_strings_are_text_and_nothing_else() {
    let check = |spec: &str, names: &str, expected: &str| {
        let layout = TableLayout::find(&columns(spec), &wanted(names)).unwrap();
        assert_eq!(shown(&layout), expected, "{spec} {names}");
    };
    check("audio:b path:l text:l id:l speaker:l lang:l duration:l", "", "bytes=audio text=text");
    check("audio:b text:l caption:l", "", "bytes=audio text=text");
    check("audio:b text:l caption:t", "", "bytes=audio text=caption");
    check("audio:b text:t letters:l", "text=letters", "bytes=audio text=letters");
    for (names, expected) in [
        ("id=x", "expected text or numbers"),
        ("speaker=x", "expected text or numbers"),
        ("lang=x", "expected text"),
        ("duration=x", "expected numbers"),
        ("audio=x", "expected bytes of audio files"),
    ] {
        let fault = TableLayout::find(&columns("audio:b text:t x:l"), &wanted(names)).unwrap_err().to_string();
        assert!(fault.contains(&format!("column `x`: {expected}, found lists of strings")), "{fault}");
    }
    let fault = TableLayout::find(&columns("audio:l text:t path:t"), &ColumnNames::default()).unwrap_err().to_string();
    assert!(fault.contains("column `audio`: expected bytes of audio files, found lists of strings"), "{fault}");
    TableLayout::find(&columns("audio:b text:l"), &ColumnNames::default()).unwrap().check_arrow().unwrap();
}

#[test]
fn a_given_name_is_taken() {
    let check = |spec: &str, names: &str, expected: &str| {
        let layout = TableLayout::find(&columns(spec), &wanted(names)).unwrap();
        assert_eq!(shown(&layout), expected, "{spec} {names}");
    };
    let spec =
        "audio.bytes:b audio.path:t clip:b clip_path:t rec.bytes:b rec.path:t text:t raw:t n:n who:n id:t tongue:t";
    check(spec, "audio=clip text=raw", "bytes=clip text=raw id=id");
    check(spec, "audio=clip_path id=clip_path", "path=clip_path text=text id=clip_path");
    check(spec, "audio=rec speaker=who", "bytes=rec.bytes path=rec.path text=text id=id speaker=who");
    check(spec, "audio=rec.bytes id=n", "bytes=rec.bytes path=rec.path text=text id=n");
    check(spec, "duration=n lang=tongue", "bytes=audio.bytes path=audio.path text=text id=id lang=tongue duration=n");
}

#[test]
fn tables_that_cannot_be_read_say_what_is_missing() {
    let check = |spec: &str, names: &str, parts: &[&str]| {
        let fault = TableLayout::find(&columns(spec), &wanted(names)).unwrap_err();
        let shown = fault.to_string();
        assert!(matches!(fault, ShardFault::Unsupported { .. }), "{shown}");
        assert!(parts.iter().all(|part| shown.contains(part)), "{spec} {names}: {shown}");
        assert!(shown.contains("--columns"), "{shown}");
    };
    check("audio:b", "", &["expected a column with text", "`normalized_text`", "found `audio`", "text=NAME"]);
    check("text:t", "", &["expected a column with audio", "`audio_path`", "found `text`", "audio=NAME"]);
    check("", "", &["found no columns"]);
    check("audio:b text:t", "text=words", &["expected a column `words`, found `audio`, `text`"]);
    check("audio:b text:t", "audio=clip", &["expected a column `clip`"]);
    check("audio:b text:t", "duration=text", &["column `text`: expected numbers, found text"]);
    check("audio:b text:t n:n", "text=n", &["column `n`: expected text, found numbers"]);
    check("audio:b text:t n:n", "audio=n", &["column `n`: expected bytes of audio files, found numbers"]);
    // Decoded audio, in Arrow, in Parquet, and as a field of a struct.
    check("audio:o text:t", "", &["column `audio`: expected bytes of audio files, found values of type List"]);
    check("audio.list.element:o text:t path:t", "", &["column `audio.list.element`: expected bytes"]);
    check("audio.array:o audio.path:t text:t file:t", "", &["column `audio.array`: expected bytes"]);
    check("clip.array:o text:t", "audio=clip", &["column `clip.array`: expected bytes"]);
    let many: String = (0..50).map(|i| format!("c{i}:t ")).collect();
    check(&many, "", &["`c19` and 30 more"]);
}

#[test]
fn bytes_for_text_are_refused_in_arrow() {
    let layout = TableLayout::find(&columns("audio:b text:b"), &ColumnNames::default()).unwrap();
    let shown = layout.check_arrow().unwrap_err().to_string();
    assert!(shown.contains("column `text`: expected strings, found bytes"), "{shown}");
    let layout = TableLayout::find(&columns("audio:b text:t id:n"), &ColumnNames::default()).unwrap();
    layout.check_arrow().unwrap();
}

proptest! {
    /// A layout has columns of the table with kinds that can be read, whatever the table has.
    #[test]
    fn a_layout_has_columns_of_its_table(
        spec in prop::collection::vec(("(audio|wav|path|text|id|speaker|duration|x)([.](bytes|path))?", 0..5_usize), 0..12),
        name in prop::option::of("(audio|wav|text|x)([.]bytes)?"),
    ) {
        let kinds = [ColumnKind::Text, ColumnKind::TextList, ColumnKind::Number, ColumnKind::Bytes, ColumnKind::Other];
        let table: Vec<TableColumn> =
            spec.into_iter().map(|(name, kind)| TableColumn { name, kind: kinds[kind], type_name: "" }).collect();
        let names = ColumnNames { audio: name.clone(), text: name, ..ColumnNames::default() };
        for names in [names, ColumnNames::default()] {
            let Ok(layout) = TableLayout::find(&table, &names) else { continue };
            let TableLayout { bytes, path, text, id, speaker, lang, duration } = layout;
            prop_assert!(bytes.is_some() || path.is_some());
            prop_assert!(text.kind != ColumnKind::Other && table.contains(&text));
            for column in [bytes, path, id, speaker, lang, duration].into_iter().flatten() {
                prop_assert!(column.kind != ColumnKind::TextList);
                prop_assert!(column.kind != ColumnKind::Other && table.contains(&column));
            }
        }
    }
}
