//! Values of settings, and how they are parsed.

use std::fmt;

use tandem_corpus::SpeakerPattern;

use crate::columns::parse_columns;
use crate::gpu_list::GpuList;
use crate::gpu_name::GpuName;
use crate::setting::{Setting, SettingKind};
use crate::source_names::{is_source, sources_text};

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum SettingValue {
    /// Of a [`SettingKind::Count`].
    Count(u64),
    /// Of a [`SettingKind::Gpu`].
    Gpu(GpuName),
    /// Of a [`SettingKind::Gpus`].
    Gpus(GpuList),
    /// Of a [`SettingKind::Limit`].
    Limit(Limit),
    /// Of a [`SettingKind::Choice`].
    Choice(&'static str),
    /// Of a [`SettingKind::Switch`].
    Switch(bool),
    /// Of a [`SettingKind::Seconds`].
    Seconds(f64),
    /// Of a [`SettingKind::Share`].
    Share(f64),
    /// Of a [`SettingKind::Path`], a [`SettingKind::Address`], a [`SettingKind::Word`], a [`SettingKind::SpeakerPattern`] or
    /// [`SettingKind::Columns`].
    Text(String),
    /// Of [`SettingKind::Sources`], as the user wrote them: a URL may hold a password.
    Texts(Vec<String>),
}

/// A memory limit as the user writes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// In MB.
    Mb(u64),
    /// A fraction of the card: this one, or the role's default.
    Auto(Option<f64>),
}

/// More than any card or host has; keeps MB × 2²⁰ below 2⁶⁴.
pub(crate) const MAX_LIMIT_MB: u64 = 1 << 24;

impl SettingValue {
    /// The number of a GPU.
    pub(crate) fn gpu(index: usize) -> SettingValue {
        SettingValue::Gpu(GpuName::Index(index))
    }

    /// Parses `text` as a value of `setting`; `None` if it is not valid.
    pub fn parse(setting: &Setting, text: &str) -> Option<SettingValue> {
        if matches!(setting.kind, SettingKind::Path | SettingKind::Address) {
            let is_valid = !text.is_empty() && !text.contains('\0') && linux_path(text).is_none();
            return is_valid.then(|| SettingValue::Text(text.to_owned()));
        }
        if setting.kind == SettingKind::Sources {
            return is_source(text).then(|| SettingValue::Texts(vec![text.to_owned()]));
        }
        let text = text.trim();
        match setting.kind {
            SettingKind::Count { min, max } => {
                text.parse().ok().filter(|n| (min..=max).contains(n)).map(SettingValue::Count)
            }
            SettingKind::Gpu => GpuName::parse(text).map(SettingValue::Gpu),
            SettingKind::Gpus => GpuList::parse(text).map(SettingValue::Gpus),
            SettingKind::Limit => parse_limit(text).map(SettingValue::Limit),
            SettingKind::Choice(words) => {
                words.iter().find(|word| **word == text).map(|word| SettingValue::Choice(word))
            }
            SettingKind::Switch { .. } => parse_switch(text).map(SettingValue::Switch),
            SettingKind::Seconds => text.parse().ok().filter(|s| (0.0..=3600.0).contains(s)).map(SettingValue::Seconds),
            SettingKind::Share => text.parse().ok().filter(|s| (0.0..=1.0).contains(s)).map(SettingValue::Share),
            SettingKind::LearningRate => {
                text.parse().ok().filter(|rate| *rate > 0.0 && *rate <= 1.0).map(SettingValue::Share)
            }
            SettingKind::SpeakerPattern => {
                SpeakerPattern::parse(text).is_ok().then(|| SettingValue::Text(text.to_owned()))
            }
            SettingKind::Columns => parse_columns(text).is_ok().then(|| SettingValue::Text(text.to_owned())),
            SettingKind::Path | SettingKind::Sources | SettingKind::Address | SettingKind::Word => {
                is_word(text).then(|| SettingValue::Text(text.to_owned()))
            }
        }
    }
}

impl fmt::Display for SettingValue {
    /// As a flag or a config file takes it. URLs are without their secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingValue::Count(n) | SettingValue::Limit(Limit::Mb(n)) => write!(f, "{n}"),
            SettingValue::Gpu(name) => write!(f, "{name}"),
            SettingValue::Gpus(list) => write!(f, "{list}"),
            SettingValue::Limit(Limit::Auto(None)) => f.write_str("auto"),
            SettingValue::Limit(Limit::Auto(Some(share))) => write!(f, "auto:{share}"),
            SettingValue::Choice(word) => f.write_str(word),
            SettingValue::Switch(on) => write!(f, "{on}"),
            SettingValue::Seconds(x) | SettingValue::Share(x) => write!(f, "{x:?}"),
            SettingValue::Text(text) => f.write_str(text),
            SettingValue::Texts(names) => f.write_str(&sources_text(names)),
        }
    }
}

/// `text` as one word of a command line, quoted if a shell would split or expand it.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=~".contains(c);
    match !text.is_empty() && text.chars().all(plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Where WSL has the file of a Windows path such as `C:\voice`; `None` for any other text. As a name of Linux it would be a file
/// with backslashes in the current folder.
pub(crate) fn linux_path(text: &str) -> Option<String> {
    let (drive, rest) = text.split_once(":\\")?;
    let is_drive = drive.len() == 1 && drive.chars().all(|c| c.is_ascii_alphabetic());
    is_drive.then(|| format!("/mnt/{}/{}", drive.to_ascii_lowercase(), rest.replace('\\', "/")))
}

fn is_word(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

fn parse_limit(text: &str) -> Option<Limit> {
    if text == "auto" {
        return Some(Limit::Auto(None));
    }
    if let Some(share) = text.strip_prefix("auto:") {
        return share.parse().ok().filter(|x| *x > 0.0 && *x <= 1.0).map(|x| Limit::Auto(Some(x)));
    }
    text.parse().ok().filter(|mb| (1..=MAX_LIMIT_MB).contains(mb)).map(Limit::Mb)
}

fn parse_switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        // A switch without a value is on.
        "" | "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Id;

    fn check(id: Id, text: &str, expected: Option<SettingValue>) {
        assert_eq!(SettingValue::parse(id.setting(), text), expected, "{id:?} {text:?}");
    }

    #[test]
    fn counts() {
        check(Id::BatchSize, "16", Some(SettingValue::Count(16)));
        check(Id::BatchSize, " 16 ", Some(SettingValue::Count(16)));
        check(Id::Seed, "9223372036854775807", Some(SettingValue::Count(i64::MAX as u64)));
        for wrong in ["0", "-1", "1.5", "abc", "", "65537", "99999999999999999999999"] {
            check(Id::BatchSize, wrong, None);
        }
    }

    #[test]
    fn limits() {
        check(Id::DataGpuMemory, "8192", Some(SettingValue::Limit(Limit::Mb(8192))));
        check(Id::DataGpuMemory, "auto", Some(SettingValue::Limit(Limit::Auto(None))));
        check(Id::DataGpuMemory, "auto:0.40", Some(SettingValue::Limit(Limit::Auto(Some(0.4)))));
        let wrong = ["0", "-5", "abc", "auto:", "auto:0", "auto:1.5", "auto:NaN", "auto:-1", "8GB", "99999999999"];
        for text in wrong {
            check(Id::DataGpuMemory, text, None);
        }
    }

    #[test]
    fn words_switches_and_times() {
        check(Id::ModelSize, "nano", Some(SettingValue::Choice("nano")));
        check(Id::ModelSize, "Nano", None);
        check(Id::ShareGpu, "", Some(SettingValue::Switch(true)));
        check(Id::ShareGpu, "off", Some(SettingValue::Switch(false)));
        check(Id::ShareGpu, "maybe", None);
        check(Id::ModelStartDelay, "0.5", Some(SettingValue::Seconds(0.5)));
        for wrong in ["-1", "inf", "NaN", "2s", "4000"] {
            check(Id::ModelStartDelay, wrong, None);
        }
        check(Id::MaxBadFraction, "0", Some(SettingValue::Share(0.0)));
        check(Id::MaxBadFraction, "1", Some(SettingValue::Share(1.0)));
        for wrong in ["-0.1", "1.5", "NaN", "5 %", ""] {
            check(Id::MaxBadFraction, wrong, None);
        }
    }

    #[test]
    fn paths_and_languages() {
        let text = |text: &str| Some(SettingValue::Text(text.to_owned()));
        check(Id::CheckpointDir, " my voice ", text(" my voice "));
        check(Id::CheckpointDir, "", None);
        check(Id::Lang, " pt-BR ", text("pt-BR"));
        for wrong in ["", "p t", "fa;", "ف"] {
            check(Id::Lang, wrong, None);
        }
        check(Id::SpeakerIdPattern, "*-{speaker}-*", text("*-{speaker}-*"));
        for wrong in ["", "p225", "{speaker}{speaker}", r"^(p\d+)_"] {
            check(Id::SpeakerIdPattern, wrong, None);
        }
    }

    #[test]
    fn sources_and_columns() {
        let one = |name: &str| Some(SettingValue::Texts(vec![name.to_owned()]));
        for name in [" my voice ", "data/*.parquet", "s3://bucket/shard-{000..127}.tar", "https://u:p@h/a?sig=x"] {
            check(Id::TrainData, name, one(name));
        }
        for wrong in ["", "a\0", r"C:\voice", "https://…@h/a?…"] {
            check(Id::ValData, wrong, None);
        }
        check(Id::Columns, " audio=mp3,text=b ", Some(SettingValue::Text("audio=mp3,text=b".to_owned())));
        for wrong in ["", "mp3", "sound=mp3"] {
            check(Id::Columns, wrong, None);
        }
        check(Id::ReadAheadMb, "0", Some(SettingValue::Count(0)));
        check(Id::ReadAheadMb, "1048577", None);
    }

    #[test]
    fn words_that_a_shell_would_split_are_quoted() {
        let check = |text: &str, expected: &str| assert_eq!(quoted(text), expected);
        check("/data/voice_1.wav", "/data/voice_1.wav");
        check("my voice", "'my voice'");
        check("it's", r"'it'\''s'");
        check("", "''");
    }

    #[test]
    fn a_displayed_value_parses_to_the_same_value() {
        for (id, text) in [
            (Id::Gpu, "GPU-8f2d"),
            (Id::DataGpu, "3"),
            (Id::BatchSize, "16"),
            (Id::DataGpuMemory, "auto:0.25"),
            (Id::ModelStartDelay, "2.0"),
            (Id::TrainData, "my voice"),
            (Id::Columns, "audio=mp3"),
        ] {
            let value = SettingValue::parse(id.setting(), text).unwrap();
            assert_eq!(value.to_string(), text);
        }
    }
}
