//! The settings the user gave, without defaults and not yet checked against the hardware.

use std::collections::BTreeMap;
use std::fmt;

use crate::gpu_list::GpuList;
use crate::gpu_name::GpuName;
use crate::nearest::nearest;
use crate::setting::{Id, SETTINGS, Setting, SettingKind};
use crate::value::{Limit, SettingValue, linux_path, quoted};

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

    /// The path or word for `id`: given, or its fixed default.
    pub fn text(&self, id: Id) -> Option<String> {
        match self.value(id) {
            Some(SettingValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn value(&self, id: Id) -> Option<SettingValue> {
        self.given(id).map(|given| given.value.clone()).or_else(|| id.setting().fixed_default())
    }
}

impl fmt::Display for Settings {
    /// As a command line: `--batch-size 8 --share-gpu`.
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
    let close = match setting.kind {
        SettingKind::Choice(words) => nearest(found, words.iter().copied()).map(str::to_owned),
        SettingKind::Path => linux_path(found).map(|path| quoted(&path)),
        _ => None,
    };
    let value = close.unwrap_or_else(|| setting.example());
    let (place, example) = match origin {
        Origin::Flag | Origin::Measured => (format!("--{}", setting.flag), format!("--{} {value}", setting.flag)),
        Origin::Config { file, line } => {
            (format!("{file}:{line}: {}.{}", setting.section, setting.key), format!("{}: {value}", setting.key))
        }
    };
    SettingError::InvalidValue { place, expected: setting.expected(), found: found.to_owned(), example }
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
