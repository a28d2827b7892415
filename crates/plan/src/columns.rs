//! `--columns`: which column of a table is what.

use tandem_corpus::ColumnNames;

use tandem_text::nearest;

/// What a column can be, in the order of messages.
pub(crate) const COLUMN_KEYS: [&str; 6] = ["audio", "text", "speaker", "id", "lang", "duration"];

/// Reads `audio=mp3,text=sentence`. A key names what the column is, the word behind it is the column's own name. The error
/// says what is wrong.
pub fn parse_columns(text: &str) -> Result<ColumnNames, String> {
    let mut names = ColumnNames::default();
    for part in text.split(',') {
        let Some((key, name)) = part.split_once('=').map(|(key, name)| (key.trim(), name.trim())) else {
            return Err(format!("expected key=column, found `{}`", part.trim()));
        };
        let Some(field) = field(&mut names, key) else {
            return Err(format!("unknown key `{key}`; the keys are {}", COLUMN_KEYS.join(", ")));
        };
        if name.is_empty() {
            return Err(format!("expected the name of a column after `{key}=`"));
        }
        if field.replace(name.to_owned()).is_some() {
            return Err(format!("`{key}` is set twice"));
        }
    }
    Ok(names)
}

/// `text` with misspelled keys replaced by the nearest known ones, if that is all that is wrong with it.
pub(crate) fn corrected(text: &str) -> Option<String> {
    let part = |part: &str| {
        let (key, name) = part.split_once('=')?;
        // A key that begins with another letter is another word.
        let known = nearest(key.trim(), COLUMN_KEYS).filter(|known| key.trim().starts_with(&known[..1]))?;
        Some(format!("{known}={}", name.trim()))
    };
    let text = text.split(',').map(part).collect::<Option<Vec<_>>>()?.join(",");
    parse_columns(&text).is_ok().then_some(text)
}

fn field<'a>(names: &'a mut ColumnNames, key: &str) -> Option<&'a mut Option<String>> {
    match key {
        "audio" => Some(&mut names.audio),
        "text" => Some(&mut names.text),
        "speaker" => Some(&mut names.speaker),
        "id" => Some(&mut names.id),
        "lang" => Some(&mut names.lang),
        "duration" => Some(&mut names.duration),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_names_its_column() {
        let name = |text: &str| Some(text.to_owned());
        let all = "audio=mp3,text=sentence,speaker=client_id,id=utt,lang=locale,duration=seconds";
        let expected = ColumnNames {
            audio: name("mp3"),
            text: name("sentence"),
            speaker: name("client_id"),
            id: name("utt"),
            lang: name("locale"),
            duration: name("seconds"),
        };
        assert_eq!(parse_columns(all), Ok(expected));
        let spaced = ColumnNames { text: name("a = b"), ..ColumnNames::default() };
        assert_eq!(parse_columns(" text = a = b "), Ok(spaced));
        for key in COLUMN_KEYS {
            assert!(parse_columns(&format!("{key}=x")).is_ok(), "{key}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let check = |text: &str, message: &str| assert_eq!(parse_columns(text), Err(message.to_owned()), "{text:?}");
        check("sentence=x", "unknown key `sentence`; the keys are audio, text, speaker, id, lang, duration");
        check("Audio=x", "unknown key `Audio`; the keys are audio, text, speaker, id, lang, duration");
        check("", "expected key=column, found ``");
        check("audio", "expected key=column, found `audio`");
        check("audio=x,", "expected key=column, found ``");
        check("audio= ", "expected the name of a column after `audio=`");
        check("id=a,id=b", "`id` is set twice");
    }

    #[test]
    fn a_misspelled_key_is_corrected() {
        assert_eq!(corrected("audoi=x, txt=y").as_deref(), Some("audio=x,text=y"));
        assert_eq!(corrected("audio=x,audo=y"), None);
        assert_eq!((corrected("audio"), corrected("foo=x")), (None, None));
    }
}
