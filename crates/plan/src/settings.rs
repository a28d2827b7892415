//! The settings the user gave, without defaults and not yet checked against the hardware.

use std::collections::BTreeMap;
use std::fmt;

use tandem_corpus::ColumnNames;
use tandem_storage::redact;

use crate::columns::{corrected, parse_columns};
use crate::gpu_list::GpuList;
use crate::gpu_name::GpuName;
use crate::setting::{A_PATH, Id, SETTINGS, Setting, SettingKind};
use crate::source_names::{MAX_NAMES, shown_source, source_arg, sources_text, typed_sources, with_placeholders};
use crate::value::{Limit, SettingValue, linux_path, quoted};
use tandem_text::nearest;

/// The settings the user gave, each with its origin. Flags override the config file, in whichever order they are read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    given: BTreeMap<Id, Given>,
}

/// One setting the user gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Given {
    /// The value.
    pub value: SettingValue,
    /// Where it was given.
    pub origin: Origin,
}

/// Where a setting was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// On the command line.
    Flag,
    /// In a config file.
    Config {
        /// The file, as the user named it.
        file: String,
        /// The line, from 1.
        line: usize,
    },
    /// Chosen by `--mode auto`, which timed the modes.
    Measured,
}

/// An invalid setting. All of these are usage errors: exit code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// Unknown flag.
    #[error("unknown flag --{name}; did you mean --{nearest}?")]
    Unknown {
        /// The unknown name.
        name: String,
        /// The closest known flag.
        nearest: String,
    },
    /// The flag is known, its value is not valid.
    #[error("{place}: expected {expected}, found `{found}`; for example {example}")]
    InvalidValue {
        /// The flag, or the file, line and key.
        place: String,
        /// The valid values.
        expected: String,
        /// The given value.
        found: String,
        /// A complete example to type.
        example: String,
    },
    /// A file that a flag names cannot be used.
    #[error("--{flag}: {why}: {path}")]
    UnusableFile {
        /// The flag, without dashes.
        flag: &'static str,
        /// What was expected and what was found.
        why: String,
        /// The file.
        path: String,
    },
}

impl Settings {
    /// No settings.
    pub fn new() -> Settings {
        Settings::default()
    }

    /// Parses `text` as the value of the flag `name` (without dashes; aliases and negative flags too) and stores it.
    pub fn set(&mut self, name: &str, text: &str, origin: Origin) -> Result<(), SettingError> {
        let Some(setting) = Setting::of_flag(name) else {
            return Err(SettingError::Unknown { name: name.to_owned(), nearest: nearest_flag(name) });
        };
        let value = read(setting, text, &origin)?;
        self.store(setting.id, if setting.off_flag() == Some(name) { invert(value) } else { value }, origin);
        Ok(())
    }

    /// Parses `texts` as the values of the flag `name`, in this order, and stores them. Only names of data may be several.
    pub fn set_all<T: AsRef<str>>(&mut self, name: &str, texts: &[T], origin: Origin) -> Result<(), SettingError> {
        match Setting::of_flag(name) {
            Some(setting) if setting.takes_several() => self.put_all(setting, texts, origin),
            Some(setting) if texts.len() != 1 => {
                let found = format!("{} values", texts.len());
                Err(invalid(setting, setting.expected(), found, &setting.example(), &origin))
            }
            _ => self.set(name, texts.first().map_or("", AsRef::as_ref), origin),
        }
    }

    /// Parses `texts` as the names of `setting` and stores them.
    pub(crate) fn put_all<T: AsRef<str>>(
        &mut self,
        setting: &Setting,
        texts: &[T],
        origin: Origin,
    ) -> Result<(), SettingError> {
        if texts.is_empty() || texts.len() > MAX_NAMES {
            return Err(wrong_number(setting, texts.len(), &origin));
        }
        for text in texts {
            read(setting, text.as_ref(), &origin)?;
        }
        let names = texts.iter().map(|text| text.as_ref().to_owned()).collect();
        self.store(setting.id, SettingValue::Texts(names), origin);
        Ok(())
    }

    /// Parses `text` as the value of `setting` and stores it.
    pub(crate) fn put(&mut self, setting: &Setting, text: &str, origin: Origin) -> Result<(), SettingError> {
        let value = read(setting, text, &origin)?;
        self.store(setting.id, value, origin);
        Ok(())
    }

    /// Stores `value` for `id` as if the user had typed it.
    pub(crate) fn replace(&mut self, id: Id, value: SettingValue) {
        self.store(id, value, Origin::Flag);
    }

    fn store(&mut self, id: Id, value: SettingValue, origin: Origin) {
        let overridden = origin != Origin::Flag && self.given(id).is_some_and(|given| given.origin == Origin::Flag);
        if !overridden {
            self.given.insert(id, Given { value, origin });
        }
    }

    /// The same settings with these flags added or replaced: `&[("batch-size", "8")]`.
    pub fn with<N: AsRef<str>, V: AsRef<str>>(&self, changes: &[(N, V)]) -> Result<Settings, SettingError> {
        self.with_from(changes, &Origin::Flag)
    }

    /// The same settings with what `--mode auto` chose. The caller removes the flags that it replaces first.
    pub fn with_measured<N: AsRef<str>, V: AsRef<str>>(&self, changes: &[(N, V)]) -> Result<Settings, SettingError> {
        self.with_from(changes, &Origin::Measured)
    }

    fn with_from<N: AsRef<str>, V: AsRef<str>>(
        &self,
        changes: &[(N, V)],
        origin: &Origin,
    ) -> Result<Settings, SettingError> {
        let mut settings = self.clone();
        for (name, text) in changes {
            settings.set(name.as_ref(), text.as_ref(), origin.clone())?;
        }
        Ok(settings)
    }

    /// The same settings without these.
    pub fn without(&self, ids: &[Id]) -> Settings {
        let mut settings = self.clone();
        settings.given.retain(|id, _| !ids.contains(id));
        settings
    }

    /// All settings the user gave, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (&'static Setting, &Given)> {
        self.given.iter().map(|(id, given)| (id.setting(), given))
    }

    /// The value of `id` if the user gave one, with its origin.
    pub fn given(&self, id: Id) -> Option<&Given> {
        self.given.get(&id)
    }

    /// The number the user gave for `id`.
    pub fn given_count(&self, id: Id) -> Option<u64> {
        match &self.given(id)?.value {
            SettingValue::Count(n) => Some(*n),
            _ => None,
        }
    }

    /// The GPU the user gave for `id`.
    pub fn given_gpu(&self, id: Id) -> Option<&GpuName> {
        match &self.given(id)?.value {
            SettingValue::Gpu(name) => Some(name),
            _ => None,
        }
    }

    /// The GPUs the user gave for `id`.
    pub fn given_gpus(&self, id: Id) -> Option<&GpuList> {
        match &self.given(id)?.value {
            SettingValue::Gpus(list) => Some(list),
            _ => None,
        }
    }

    /// The limit the user gave for `id`.
    pub fn given_limit(&self, id: Id) -> Option<Limit> {
        match &self.given(id)?.value {
            SettingValue::Limit(limit) => Some(*limit),
            _ => None,
        }
    }

    /// The choice the user gave for `id`.
    pub fn given_choice(&self, id: Id) -> Option<&'static str> {
        match &self.given(id)?.value {
            SettingValue::Choice(word) => Some(*word),
            _ => None,
        }
    }

    /// The switch the user gave for `id`.
    pub fn given_switch(&self, id: Id) -> Option<bool> {
        match &self.given(id)?.value {
            SettingValue::Switch(on) => Some(*on),
            _ => None,
        }
    }

    /// The number for `id`: given, or its fixed default. Panics for an `id` without one.
    pub fn count(&self, id: Id) -> u64 {
        match self.value(id) {
            Some(SettingValue::Count(n)) => n,
            other => panic!("{id:?} is not a number with a fixed default: {other:?}"),
        }
    }

    /// The choice for `id`: given, or its fixed default. Panics for an `id` without one.
    pub fn choice(&self, id: Id) -> &'static str {
        match self.value(id) {
            Some(SettingValue::Choice(word)) => word,
            other => panic!("{id:?} is not a word with a fixed default: {other:?}"),
        }
    }

    /// Whether the switch `id` is on: given, or its fixed default. Panics for an `id` without one.
    pub fn switch(&self, id: Id) -> bool {
        match self.value(id) {
            Some(SettingValue::Switch(on)) => on,
            other => panic!("{id:?} is not a switch with a fixed default: {other:?}"),
        }
    }

    /// The seconds for `id`: given, or its fixed default. Panics for an `id` without one.
    pub fn seconds(&self, id: Id) -> f64 {
        match self.value(id) {
            Some(SettingValue::Seconds(s)) => s,
            other => panic!("{id:?} is not a time with a fixed default: {other:?}"),
        }
    }

    /// The fraction for `id`: given, or its fixed default. Panics for an `id` without one.
    pub fn share(&self, id: Id) -> f64 {
        match self.value(id) {
            Some(SettingValue::Share(x)) => x,
            other => panic!("{id:?} is not a share with a fixed default: {other:?}"),
        }
    }

    /// The path or word for `id`: given, or its fixed default. Names of data as a message shows them: [`Settings::texts`] has
    /// them as they are opened.
    pub fn text(&self, id: Id) -> Option<String> {
        match self.value(id) {
            Some(SettingValue::Text(text)) => Some(text),
            Some(SettingValue::Texts(names)) => Some(sources_text(&names)),
            _ => None,
        }
    }

    /// The names of data that the user gave for `id`; none without the setting. A URL may hold a password: what is printed goes
    /// through [`shown_source`] or is [`Settings::typed`].
    pub fn texts(&self, id: Id) -> Vec<String> {
        match self.value(id) {
            Some(SettingValue::Texts(names)) => names,
            _ => Vec::new(),
        }
    }

    /// The names of data that the user gave for `id`, as a command line takes them: `a.tar 'my voice'`. Without secrets.
    pub fn typed(&self, id: Id) -> String {
        typed_sources(&self.texts(id))
    }

    /// The columns of `--columns`; none without it.
    pub fn columns(&self) -> ColumnNames {
        // The text was checked when it was stored.
        self.text(Id::Columns).and_then(|text| parse_columns(&text).ok()).unwrap_or_default()
    }

    fn value(&self, id: Id) -> Option<SettingValue> {
        self.given(id).map(|given| given.value.clone()).or_else(|| id.setting().fixed_default())
    }
}

impl fmt::Display for Settings {
    /// As a command line: `--batch-size 8 --share-gpu`. URLs are without their secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let args = self.iter().flat_map(|(setting, given)| args_of(setting, &given.value));
        f.write_str(&args.map(|arg| quoted(&arg)).collect::<Vec<_>>().join(" "))
    }
}

/// The command-line arguments that set `setting` to `value`. Empty for a switch that is off and has no negative flag.
pub(crate) fn args_of(setting: &Setting, value: &SettingValue) -> Vec<String> {
    let flag = |name: &str| format!("--{name}");
    match value {
        SettingValue::Switch(true) => vec![flag(setting.flag)],
        SettingValue::Switch(false) => setting.off_flag().map(flag).into_iter().collect(),
        SettingValue::Texts(names) => {
            [flag(setting.flag)].into_iter().chain(names.iter().map(|name| source_arg(name))).collect()
        }
        _ => vec![flag(setting.flag), value.to_string()],
    }
}

fn read(setting: &Setting, text: &str, origin: &Origin) -> Result<SettingValue, SettingError> {
    SettingValue::parse(setting, text).ok_or_else(|| wrong_value(setting, text, origin))
}

fn invert(value: SettingValue) -> SettingValue {
    match value {
        SettingValue::Switch(on) => SettingValue::Switch(!on),
        other => other,
    }
}

fn nearest_flag(name: &str) -> String {
    nearest(name, SETTINGS.iter().map(|s| s.flag)).unwrap_or_default().to_owned()
}

fn wrong_value(setting: &Setting, found: &str, origin: &Origin) -> SettingError {
    let shown = match setting.kind {
        SettingKind::Sources => shown_source(found),
        _ => redact(found),
    };
    let is_path = matches!(setting.kind, SettingKind::Path | SettingKind::Sources);
    if let Some(path) = linux_path(found).filter(|_| is_path) {
        return invalid(setting, A_PATH.to_owned(), shown, &quoted(&path), origin);
    }
    if let Some(example) = with_placeholders(found).filter(|_| setting.kind == SettingKind::Sources) {
        let expected = "the whole URL (… stands for its password or signed query, which are never printed)";
        return invalid(setting, expected.to_owned(), shown, &quoted(&example), origin);
    }
    let close = match setting.kind {
        SettingKind::Choice(words) => nearest(found, words.iter().copied()).map(str::to_owned),
        SettingKind::Columns => corrected(found).map(|text| quoted(&text)),
        _ => None,
    };
    invalid(setting, setting.expected(), shown, &close.unwrap_or_else(|| setting.example()), origin)
}

fn wrong_number(setting: &Setting, num_names: usize, origin: &Origin) -> SettingError {
    let expected = format!("1 to {MAX_NAMES} names, of which each may be a pattern in quotes");
    invalid(setting, expected, format!("{num_names} names"), "'data/*.tar'", origin)
}

/// The error of a setting. `value` is an example of a valid one.
fn invalid(setting: &Setting, expected: String, found: String, value: &str, origin: &Origin) -> SettingError {
    let (place, example) = match origin {
        Origin::Flag | Origin::Measured => (format!("--{}", setting.flag), format!("--{} {value}", setting.flag)),
        Origin::Config { file, line } => {
            (format!("{file}:{line}: {}.{}", setting.section, setting.key), format!("{}: {value}", setting.key))
        }
    };
    SettingError::InvalidValue { place, expected, found, example }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(line: usize) -> Origin {
        Origin::Config { file: "c.yaml".to_owned(), line }
    }

    #[test]
    fn a_windows_path_is_refused_with_its_place_in_wsl() {
        let refused = |path: &str| Settings::new().set("train-data", path, Origin::Flag).map_err(|e| e.to_string());
        let message = refused(r"C:\Users\Anna B\voice").unwrap_err();
        let expected = [
            r"--train-data: expected a path of this system, found `C:\Users\Anna B\voice`; ",
            "for example --train-data '/mnt/c/Users/Anna B/voice'",
        ];
        assert_eq!(message, expected.concat());
        for valid in ["c:/voice", "a:b", r"voice\", "/mnt/c/voice", r"CD:\x"] {
            assert_eq!(refused(valid), Ok(()), "{valid}");
        }
    }

    #[test]
    fn several_names_of_data_are_one_setting() {
        let mut settings = Settings::new();
        settings.set_all("train-data", &["a.tar", "my voice", "s3://b/{0..9}.tar"], Origin::Flag).unwrap();
        settings.set_all("val-data", &["v"], Origin::Flag).unwrap();
        settings.set_all("val-data", &["w", "x"], config(3)).unwrap();
        settings.set_all("seed", &["7"], Origin::Flag).unwrap();
        assert_eq!(settings.texts(Id::TrainData), ["a.tar", "my voice", "s3://b/{0..9}.tar"]);
        assert_eq!((settings.texts(Id::ValData), settings.texts(Id::Lexicon)), (vec!["v".to_owned()], vec![]));
        let typed = "a.tar 'my voice' 's3://b/{0..9}.tar'";
        assert_eq!(settings.typed(Id::TrainData), typed);
        assert_eq!(settings.text(Id::TrainData).as_deref(), Some(typed));
        assert_eq!(settings.to_string(), format!("--train-data {typed} --val-data v --seed 7"));
        // One name is as the user wrote it.
        let one = Settings::new().with(&[("train-data", "my voice")]).unwrap();
        assert_eq!(one.text(Id::TrainData).as_deref(), Some("my voice"));
        assert_eq!(
            (one.typed(Id::TrainData).as_str(), one.to_string().as_str()),
            ("'my voice'", "--train-data 'my voice'")
        );
    }

    #[test]
    fn names_that_are_no_data_are_refused() {
        let check = |flag: &str, texts: &[&str], expected: &str| {
            let error = Settings::new().set_all(flag, texts, Origin::Flag).unwrap_err();
            assert_eq!(error.to_string(), expected);
        };
        check(
            "train-data",
            &["a", r"C:\voice"],
            r"--train-data: expected a path of this system, found `C:\voice`; for example --train-data /mnt/c/voice",
        );
        check(
            "val-data",
            &["", "a"],
            "--val-data: expected a path of this system, a pattern, a URL, or a list of them, found ``; \
             for example --val-data ./data",
        );
        let number = "expected 1 to 4096 names, of which each may be a pattern in quotes";
        let example = "for example --train-data 'data/*.tar'";
        check("train-data", &[], &format!("--train-data: {number}, found `0 names`; {example}"));
        check("train-data", &["a"; 4097], &format!("--train-data: {number}, found `4097 names`; {example}"));
        check(
            "seed",
            &["1", "2"],
            "--seed: expected a whole number from 0 to 9223372036854775807, found `2 values`; for example --seed 1234",
        );
        check("train-date", &["a", "b"], "unknown flag --train-date; did you mean --train-data?");
    }

    #[test]
    fn no_secret_of_a_url_is_printed() {
        let url = "https://anna:SECRET@host/a.tar?X-Amz-Signature=SECRET";
        let mut settings = Settings::new();
        settings.set_all("train-data", &[url, "b.tar"], Origin::Flag).unwrap();
        assert_eq!(settings.texts(Id::TrainData), [url, "b.tar"]);
        let shown = "--train-data 'https://…@host/a.tar?…' b.tar";
        assert_eq!(settings.to_string(), shown);
        let one = Settings::new().with(&[("val-data", url)]).unwrap();
        let value = &one.given(Id::ValData).unwrap().value;
        for text in [settings.text(Id::TrainData).unwrap(), one.text(Id::ValData).unwrap(), value.to_string()] {
            assert!(text.contains("https://…@host/a.tar?…"), "{text}");
        }
        // In the error of any setting.
        for (flag, text) in
            [("train-data", format!("{url}\0")), ("seed", url.to_owned()), ("lexicon", format!("{url}\0"))]
        {
            let error = Settings::new().set(flag, &text, Origin::Flag).unwrap_err().to_string();
            assert!(error.contains("found `https://…") && !error.contains("SECRET"), "{error}");
        }
    }

    #[test]
    fn a_printed_url_without_its_secret_is_refused_with_what_is_missing() {
        let message = Settings::new().set("train-data", "https://…@host/a.tar?…", config(2)).unwrap_err().to_string();
        assert_eq!(
            message,
            "c.yaml:2: data.train_data: expected the whole URL (… stands for its password or signed query, which are never \
             printed), found `https://…@host/a.tar?…`; for example train_data: \
             'https://USER:PASSWORD@host/a.tar?QUERY'"
        );
    }

    #[test]
    fn columns_are_names_by_key() {
        let settings = Settings::new().with(&[("columns", "text=sentence,id=utt")]).unwrap();
        assert_eq!(settings.columns().text.as_deref(), Some("sentence"));
        assert_eq!((settings.columns().id.as_deref(), settings.columns().audio), (Some("utt"), None));
        assert_eq!(Settings::new().columns(), ColumnNames::default());
        let error = Settings::new().set("columns", "txet=a,audio=b", Origin::Flag).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--columns: expected columns as key=name with commas between them (keys: audio, text, speaker, id, lang, \
             duration), found `txet=a,audio=b`; for example --columns text=a,audio=b"
        );
    }

    #[test]
    fn flags_beat_the_config_in_either_order() {
        let mut settings = Settings::new();
        settings.set("batch-size", "8", Origin::Flag).unwrap();
        settings.set("batch-size", "4", config(1)).unwrap();
        settings.set("seed", "4", config(2)).unwrap();
        settings.set("seed", "8", Origin::Flag).unwrap();
        assert_eq!(settings.given_count(Id::BatchSize), Some(8));
        assert_eq!(settings.count(Id::Seed), 8);
    }

    #[test]
    fn aliases_and_negative_flags() {
        let settings =
            Settings::new().with(&[("gradient-accumulation-steps", "2"), ("no-mixed-precision", "")]).unwrap();
        assert_eq!(settings.count(Id::GradAccum), 2);
        assert_eq!(settings.given_switch(Id::MixedPrecision), Some(false));
        assert_eq!(settings.to_string(), "--grad-accum 2 --no-mixed-precision");
    }

    #[test]
    fn fixed_defaults_apply_to_settings_not_given() {
        let settings = Settings::new();
        assert_eq!(settings.count(Id::MaxMelFrames), 1000);
        assert_eq!(settings.choice(Id::ModelSize), "tiny");
        assert_eq!(settings.seconds(Id::ModelStartDelay), 2.0);
        assert!(!settings.switch(Id::ShareGpu));
        assert_eq!(settings.given_count(Id::BatchSize), None);
    }

    #[test]
    fn messages_have_expected_found_and_an_example() {
        let check = |name: &str, text: &str, origin: Origin, expected: &str| {
            assert_eq!(Settings::new().set(name, text, origin).unwrap_err().to_string(), expected);
        };
        check(
            "batch-size",
            "0",
            Origin::Flag,
            "--batch-size: expected a whole number from 1 to 65536, found `0`; for example --batch-size 16",
        );
        check(
            "data-gpu-memory",
            "abc",
            Origin::Flag,
            "--data-gpu-memory: expected a limit from 1 to 16777216 MB, `auto`, or `auto:SHARE` (for example `auto:0.40`), \
             found `abc`; for example --data-gpu-memory auto",
        );
        check(
            "model-size",
            "tny",
            config(7),
            "c.yaml:7: model.model_size: expected one of nano, tiny, small, normal, big, found `tny`; \
             for example model_size: tiny",
        );
        check("batchsize", "1", Origin::Flag, "unknown flag --batchsize; did you mean --batch-size?");
    }
}
